// dgrad with strides, channels first: every phase of the stride is a problem of stride 1 (phases.h)
// whose lanes are neighbouring pixels (data_slid_pixels.cpp). What the phases of a row yield takes
// turns in the result, so that neither tensor is transposed.
#include <algorithm>
#include <vector>

#include "backends/simd/directed_plan.h"
#include "backends/simd/folded_runs.h"
#include "backends/simd/matrix_copies.h"
#include "backends/simd/panels.h"
#include "backends/simd/phases.h"
#include "backends/simd/plans.h"
#include "backends/simd/slid_rows.h"
#include "core/scratch.h"

namespace convtbw::simd {

namespace {

class SlidPhasesPlan : public DirectedPlan {
 public:
  SlidPhasesPlan(const Problem& problem, const Arithmetic& arithmetic);
  void run(const Operands& operands) const override;

 private:
  void choose_sizes();
  void make_runs();
  void pack_weights(const Operands& operands, int64_t group, int64_t panel, char* packed) const;
  void run_box(const Operands& operands, const Panels::Part& part, const BoxRange& box,
               const char* packed) const;

  // Rows of a box's results: for each row of windows one of each phase of planes and rows.
  struct Row {
    int64_t plane, row, phase;
    bool ended;
  };
  Row after(const BoxRange& box, Row row) const;
  Row present(const BoxRange& box, Row row) const;
  int64_t place(const BoxRange& box, const Row& row) const;

  int64_t of_a_unit() const { return arithmetic_.pairs ? 2 : 1; }  // channels
  // Of the packed weights, for one row.
  int64_t steps() const { return in_units_ * all_taps_ + problem_.bias; }
  int64_t buffer_units() const {  // tiles read whole vectors, and ask for those of the next one
    return (in_units_ + problem_.bias) * channel_ + kMaxVectors * arithmetic_.lanes;
  }
  // Of one row of a channel's results: [phase][window].
  int64_t stage_row() const { return row_phases_ * stage_phase_; }
  int64_t local_bytes() const {
    return (buffer_units() + panels_.most_rows() * stage_row()) * unit();
  }

  const int64_t in_units_;  // channels summed over, or pairs of them
  const PerAxis<PhasedAxis> axes_;
  SlidRows slid_;
  BoxGrid grid_;
  const int64_t row_phases_;
  int64_t channel_;      // units of the buffer from one channel, or pair, to the next
  int64_t vectors_;      // of a tile, at most
  int64_t stage_phase_;  // units
  std::vector<BoxPhase> phases_;
  int64_t all_taps_ = 0;
  Panels panels_;
  std::vector<FoldedRuns> runs_[kMaxRows + 1];  // by rows and phase
};

SlidPhasesPlan::SlidPhasesPlan(const Problem& problem, const Arithmetic& arithmetic)
    : DirectedPlan(problem, arithmetic),
      in_units_(ceil_div(in_channels_, of_a_unit())),
      axes_(phases_by_result(problem)),
      slid_(joint_problem(problem, axes_), arithmetic),
      row_phases_(std::ssize(axes_[3].phases)) {
  choose_sizes();
  make_runs();
  kernel = std::string(contraction_name(problem.wanted)) +
           ", pixels of a row in lanes, phases in turn, " + arithmetic.name;
  workspace = panels_.workspace() + problem.threads * local_bytes();
  bytes += static_cast<int64_t>(sizeof(SlidPhasesPlan) + phases_.size() * sizeof(BoxPhase)) +
           panels_.bytes();
}

// Sizes depend on the shape alone, so that results do not depend on the number of threads; those of
// data_slid_pixels.cpp.
void SlidPhasesPlan::choose_sizes() {
  const int64_t most_units = int64_t{8 << 10} * arithmetic_.lanes;
  constexpr int64_t kItems = 16;
  const int64_t rows = std::max<int64_t>(4, slid_.sliding()[2].taps);
  const int64_t most_boxes = axes_[0].windows * axes_[1].windows *
                             ceil_div(axes_[2].windows, rows) *
                             ceil_div(axes_[3].windows, 8 * arithmetic_.lanes);
  grid_ = slid_.cut(std::min(kItems, most_boxes), most_units / in_units_);
  channel_ = odd_lines(slid_.buffer_units());
  stage_phase_ = whole_vectors(grid_.size[3]);
  phases_ = box_phases(axes_);
  for (const BoxPhase& phase : phases_) all_taps_ += phase.taps;

  vectors_ = best_tile(arithmetic_, out_channels_, stage_phase_ / arithmetic_.lanes);
  const int64_t panels = ceil_div(out_channels_, arithmetic_.tiles.max_rows[vectors_]);
  panels_ = Panels(problem_, out_channels_, panels, steps(), grid_.boxes(), kItems);
}

// Steps are channels of a tap; the bias is the first one. Of few channels sums are folded as those
// of data_sizes.cpp are.
void SlidPhasesPlan::make_runs() {
  constexpr int64_t kFewChannels = 32;
  panels_.for_each_size([&](int64_t rows) {
    int64_t a = problem_.bias * rows;
    for (const BoxPhase& phase : phases_) {
      FoldedRuns runs(
          most_steps(arithmetic_, in_channels_ <= kFewChannels ? kFewChannels : kMaxSteps));
      if (problem_.bias) runs.add({0, in_units_ * channel_, 1}, 0, 0);
      const auto at = [&](int i, int64_t tap) {
        return phase.axes[i]->sliding.first - slid_.sliding()[i].first + tap;
      };
      for (int64_t t1 = 0; t1 < phase.axes[1]->sliding.taps; ++t1)
        for (int64_t t2 = 0; t2 < phase.axes[2]->sliding.taps; ++t2)
          for (int64_t t3 = 0; t3 < phase.axes[3]->sliding.taps; ++t3) {
            runs.add({a, at(1, t1) * slid_.plane_step() + at(2, t2) * slid_.row_step() + at(3, t3),
                      in_units_},
                     rows, channel_);
            a += in_units_ * rows;
          }
      bytes += runs.bytes();
      runs_[rows].push_back(std::move(runs));
    }
  });
}

// [phase][tap][unit][row]
void SlidPhasesPlan::pack_weights(const Operands& operands, int64_t group, int64_t panel,
                                  char* packed) const {
  const int64_t bytes = element_bytes(problem_.dtype);
  const int64_t row = panels_.first_row(panel), rows = panels_.rows(panel);
  if (operands.bias) {
    const char* const bias =
        static_cast<const char*>(operands.bias) + (group * out_channels_ + row) * bytes;
    pack_channel_rows(arithmetic_, problem_.dtype, {bias, 0, 1, packed, rows, 1, 1, rows});
    packed += rows * unit();
  }
  const char* const w =
      static_cast<const char*>(operands.data.w) + (group * problem_.w.group + row * w_out_) * bytes;
  for (const BoxPhase& phase : phases_) {
    int64_t tap = in_units_ * rows, first = 0;
    std::array<CopyDimension, 3> taps;
    for (int a = kBoxRank - 1; a > 0; --a) {
      const Phase& p = *phase.axes[a];
      const int64_t step = problem_.w.axes[a - 1];
      first += p.tap * step;
      taps[kBoxRank - 1 - a] = {p.sliding.taps, p.tap_step * step, tap};
      tap *= p.sliding.taps;
    }
    pack_taps(arithmetic_, problem_.dtype,
              {w + first * bytes, packed, in_channels_, w_in_, rows, taps,
               w_in_ == 1 ? of_a_unit() : 0, rows, w_out_});
    packed += phase.taps * in_units_ * rows * unit();
  }
}

SlidPhasesPlan::Row SlidPhasesPlan::after(const BoxRange& box, Row row) const {
  row.phase += row_phases_;
  if (row.phase < std::ssize(phases_)) return row;
  row.phase = 0;
  if (++row.row < box.count[2]) return row;
  row.row = 0;
  row.ended = ++row.plane == box.count[1];
  return row;
}

// The first of these from `row` on that is one of results: the last windows have not all phases.
SlidPhasesPlan::Row SlidPhasesPlan::present(const BoxRange& box, Row row) const {
  for (; !row.ended; row = after(box, row)) {
    const auto& phase = phases_[row.phase].axes;
    if (box.begin[1] + row.plane < phase[1]->end && box.begin[2] + row.row < phase[2]->end) break;
  }
  return row;
}

// Where its results begin in a channel.
int64_t SlidPhasesPlan::place(const BoxRange& box, const Row& row) const {
  const auto& phase = phases_[row.phase].axes;
  return offset(
      {box.begin[0], phase[1]->out + (box.begin[1] + row.plane) * phase[1]->out_step,
       phase[2]->out + (box.begin[2] + row.row) * phase[2]->out_step, box.begin[3] * row_phases_},
      out_.stride);
}

void SlidPhasesPlan::run_box(const Operands& operands, const Panels::Part& part,
                             const BoxRange& box, const char* packed) const {
  char* const buffer = local_scratch<char>(local_bytes());
  char* const stage = buffer + buffer_units() * unit();
  const int64_t lanes = arithmetic_.lanes;
  slid_.copy_channels(operands.data[operand_], part.group * in_channels_, in_channels_, box, buffer,
                      channel_);
  if (operands.bias)
    fill_with_ones(arithmetic_, problem_.dtype, buffer + in_units_ * channel_ * unit(), channel_);

  char* const out = out_data(operands, part.group);
  const auto write = arithmetic_.plane_turns[static_cast<int>(problem_.dtype)].at[row_phases_];
  const int64_t row_vectors = ceil_div(box.count[3], lanes);
  const int64_t results =
      std::min(box.count[3] * row_phases_, out_.extent[3] - box.begin[3] * row_phases_);
  TileCall call{};
  call.c_row = stage_row();
  call.result = sum_dtype(problem_.dtype);
  const auto run_row = [&](const char* b, char* c, int64_t rows) {
    for (int64_t tiles = ceil_div(row_vectors, vectors_), left = row_vectors; tiles > 0; --tiles) {
      const int64_t vectors = ceil_div(left, tiles), begin = (row_vectors - left) * lanes;
      left -= vectors;
      call.b = b + begin * unit();
      call.c = c + begin * unit();
      call.live = vectors * lanes;
      arithmetic_.tiles.adjacent[vectors][rows](call);
    }
  };
  const char* a = packed;
  for (int64_t panel = part.first_panel; panel < part.first_panel + part.panels; ++panel) {
    const int64_t row = panels_.first_row(panel), rows = panels_.rows(panel);
    call.a = a;
    call.set_steps(rows, channel_, unit());
    call.b_ahead = vectors_ * lanes * unit();  // the next tile's
    Row here = present(box, {0, 0, 0, false});
    while (!here.ended) {
      const Row next = present(box, after(box, here));
      for (int64_t p = 0; p < row_phases_; ++p) {
        runs_[rows][here.phase + p].use_in(call);
        run_row(buffer + (here.plane * slid_.plane_step() + here.row * slid_.row_step()) * unit(),
                stage + p * stage_phase_ * unit(), rows);
      }
      const int64_t to = place(box, here);
      write({stage, stage_row(), stage_phase_, out + (row * out_.channel + to) * element(),
             out_.channel, rows, results, next.ended ? 0 : place(box, next) - to});
      here = next;
    }
    a += rows * steps() * unit();
  }
}

void SlidPhasesPlan::run(const Operands& operands) const {
  panels_.compute(
      problem_.threads, grid_.boxes(),
      [&](const Panels::Part& part, int64_t panel, char* packed) {
        pack_weights(operands, part.group, panel, packed);
      },
      [&](const Panels::Part& part, int64_t box, const char* packed) {
        run_box(operands, part, grid_.box(box), packed);
      });
}

}  // namespace

std::unique_ptr<const Plan> slid_phases_plan(const Problem& problem, const Arithmetic& arithmetic) {
  return std::make_unique<SlidPhasesPlan>(problem, arithmetic);
}

}  // namespace convtbw::simd
