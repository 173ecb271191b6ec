// fprop, and dgrad of stride 1, channels first: lanes are neighbouring pixels of the result, so
// that neither tensor is transposed. What windows slide over is copied plane by plane
// (slid_rows.h). A tile's rows are channels of the result; its other operand are the pixels that a
// tap meets, which begin anywhere in a line of the cache. It sums over taps and channels.
#include <algorithm>

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

class SlidPixelsPlan : public DirectedPlan {
 public:
  SlidPixelsPlan(const Problem& problem, const Arithmetic& arithmetic);
  void run(const Operands& operands) const override;

 private:
  void choose_sizes();
  void choose_order();
  void make_runs();
  void add_taps_in_turn(int64_t rows, int64_t a, FoldedRuns& runs) const;
  void pack_weights(const Operands& operands, int64_t group, int64_t panel, char* packed) const;
  // Of so many units of channels from the first on; w: the first of the rows.
  void pack_block(const char* w, int64_t rows, int64_t first, int64_t units, char* packed) const;
  void run_box(const Operands& operands, const Panels::Part& part, const BoxRange& box,
               const char* packed) const;

  int64_t of_a_unit() const { return arithmetic_.pairs ? 2 : 1; }  // channels
  // f(first, units): so many channels of all taps follow each other, so that what taps of a row
  // share is in the first-level cache. All at once, 192 and 256 took 1.4 times as long with 8
  // lanes; 32, 48 and 64 are within 4 % of each other (Zen 4).
  template <class F>
  void for_each_block(const F& f) const {
    constexpr int64_t kUnits = 48;
    const int64_t blocks = ceil_div(in_units_, kUnits);
    for (int64_t i = 0; i < blocks; ++i) {
      const int64_t first = in_units_ * i / blocks;
      f(first, in_units_ * (i + 1) / blocks - first);
    }
  }
  // Of the packed weights, for one row.
  int64_t steps() const { return in_units_ * slid_.all_taps() + problem_.bias; }
  int64_t buffer_units() const { return (in_units_ + problem_.bias) * channel_; }
  // Tiles read whole vectors, and ask for those of the next one.
  int64_t local_bytes() const {
    return (buffer_units() + kMaxVectors * arithmetic_.lanes) * unit();
  }

  const int64_t in_units_;  // channels summed over, or pairs of them
  SlidRows slid_;
  BoxGrid grid_;
  int64_t channel_;  // units of the buffer from one channel, or pair, to the next
  int64_t vectors_;  // of a tile, at most
  // Steps of a run: so many neighbouring taps of a row, or else channels (0), so far apart in the
  // buffer.
  int64_t taps_in_turn_ = 0, step_;
  Panels panels_;
  FoldedRuns runs_[kMaxRows + 1];  // by rows
};

SlidPixelsPlan::SlidPixelsPlan(const Problem& problem, const Arithmetic& arithmetic)
    : DirectedPlan(problem, arithmetic),
      in_units_(ceil_div(in_channels_, of_a_unit())),
      slid_(problem, arithmetic) {
  choose_sizes();
  make_runs();
  kernel = std::string(contraction_name(problem.wanted)) + ", pixels of a row in lanes, " +
           arithmetic.name;
  workspace = panels_.workspace() + problem.threads * local_bytes();
  bytes += static_cast<int64_t>(sizeof(SlidPixelsPlan)) + panels_.bytes();
}

// Sizes depend on the shape alone, so that results do not depend on the number of threads.
void SlidPixelsPlan::choose_sizes() {
  // A quarter and half as many are as fast up to 64 channels, 1.1 to 1.2 times as slow from 256
  // with 16 lanes (Zen 4).
  const int64_t most_units = int64_t{8 << 10} * arithmetic_.lanes;
  constexpr int64_t kItems = 16;  // enough to keep many threads busy; 8 and 32 within 2 %
  // Boxes share rows, which are copied for each.
  const int64_t rows = std::max<int64_t>(4, slid_.sliding()[2].taps);
  const int64_t most_boxes = out_.extent[0] * out_.extent[1] * ceil_div(out_.extent[2], rows) *
                             ceil_div(out_.extent[3], 8 * arithmetic_.lanes);
  grid_ = slid_.cut(std::min(kItems, most_boxes), most_units / in_units_);
  channel_ = odd_lines(slid_.buffer_units());
  choose_order();
  // Writing a part of a tile takes some steps' time.
  constexpr double kPartSteps = 6;
  const int64_t row_vectors = ceil_div(grid_.size[3], arithmetic_.lanes);
  const bool part = grid_.size[3] < row_vectors * arithmetic_.lanes;
  vectors_ = best_tile(arithmetic_, out_channels_, row_vectors,
                       part ? kPartSteps / static_cast<double>(steps()) : 0);
  const int64_t panels = ceil_div(out_channels_, arithmetic_.tiles.max_rows[vectors_]);
  panels_ = Panels(problem_, out_channels_, panels, steps(), grid_.boxes(), kItems);
}

// Runs are as long as they can be: each has its cost. Taps lie at constant steps in rows of stride
// 1, and else as many as there are parts, to which they belong in turn. Runs over channels, one to
// four of them, take 1.05 times as long with 16 lanes, 1.19 with 8 (140 layers, k3 to k31, Zen 4).
void SlidPixelsPlan::choose_order() {
  const Sliding& row = slid_.sliding()[3];
  const bool in_parts = row.stride > 1 && row.dilation == 1;
  const int64_t in_turn = row.stride == 1 ? row.taps : in_parts ? row.stride : 1;
  step_ = channel_;
  if (in_turn <= in_units_) return;
  taps_in_turn_ = in_turn;
  step_ = slid_.row_taps()[1];
}

// The bias is the first step. Groups have few channels, whose products MKL's sgemm sums in more
// than one chain: 36 steps (3x3, groups of 4) in one had 1.45 times its error, now 1.17 times, at
// 1.0 to 1.04 of the time (Zen 3). Of dense problems, 3 and 4 channels too, it has as much.
void SlidPixelsPlan::make_runs() {
  constexpr int64_t kMostStepsOfGroups = 24;
  panels_.for_each_size([&](int64_t rows) {
    FoldedRuns& runs = runs_[rows];
    runs = FoldedRuns(
        most_steps(arithmetic_, problem_.geometry.groups > 1 ? kMostStepsOfGroups : kMaxSteps));
    int64_t a = 0;
    if (problem_.bias) {
      runs.add({0, in_units_ * channel_, 1}, 0, 0);
      a += rows;
    }
    if (taps_in_turn_)
      add_taps_in_turn(rows, a, runs);
    else
      for_each_block([&](int64_t first, int64_t units) {
        for (const int64_t row : slid_.tap_rows())
          for (const int64_t tap : slid_.row_taps()) {
            runs.add({a, first * channel_ + row + tap, units}, rows, step_);
            a += units * rows;
          }
      });
    bytes += runs.bytes();
  });
}

// Rows of taps that follow each other, as those of patches do, are one run.
void SlidPixelsPlan::add_taps_in_turn(int64_t rows, int64_t a, FoldedRuns& runs) const {
  const std::vector<int64_t>& row_taps = slid_.row_taps();
  Run run{a, 0, 0};
  for (int64_t unit = 0; unit < in_units_; ++unit)
    for (const int64_t row : slid_.tap_rows())
      for (int64_t tap = 0, steps; tap < std::ssize(row_taps); tap += steps) {
        steps = std::min(taps_in_turn_, std::ssize(row_taps) - tap);
        const int64_t b = unit * channel_ + row + row_taps[tap];
        if (run.steps > 0 && b != run.b + run.steps * step_) {
          runs.add(run, rows, step_);
          run = {run.a + run.steps * rows, b, 0};
        }
        run.steps += steps;
      }
  runs.add(run, rows, step_);
}

// [step][row]; steps are channels of a tap, or taps of a channel.
void SlidPixelsPlan::pack_weights(const Operands& operands, int64_t group, int64_t panel,
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
  for_each_block([&](int64_t first, int64_t units) {
    pack_block(w, rows, first, units, packed);
    packed += units * slid_.all_taps() * rows * unit();
  });
}

// [tap][unit][row], or [unit][tap][row]. Where the taps of a channel follow those of the one
// before, torch's order, all are rows of one copy, dealt to the taps; else there is one copy for
// each of other dimensions. Few neighbours leave most of a transposition idle.
void SlidPixelsPlan::pack_block(const char* w, int64_t rows, int64_t first, int64_t units,
                                char* packed) const {
  constexpr int64_t kFewTaps = 7;
  const PerAxis<Sliding>& s = slid_.sliding();
  const int64_t channels = of_a_unit(), taps = slid_.all_taps();
  const int64_t tap = taps_in_turn_ ? rows : units * rows;
  const int64_t step = taps_in_turn_ ? taps * rows : rows;
  const int64_t bytes = element_bytes(problem_.dtype), direction = slid_.reversed() ? -1 : 1;
  const CopyFunction copy = arithmetic_.pack[static_cast<int>(problem_.dtype)];
  const auto tap_step = [&](int a) { return direction * problem_.w.axes[a - 1]; };
  const bool few_taps = taps_in_turn_ || taps < 2 * arithmetic_.lanes;
  if (channels == 1 && taps > 1 && few_taps && w_in_ == taps && taps_follow(problem_, 1)) {
    Copy call{w + first * w_in_ * bytes, 1, w_out_, packed, rows, 1, units * taps, rows};
    if (slid_.reversed()) call.to = packed + (taps - 1) * tap * unit();
    if (taps_in_turn_) {
      call.to_row = direction * tap;
      call.rows = taps;
      call.times = units;
      call.from_time = w_in_;
      call.to_time = step;
    } else {
      call.deal = taps;
      call.to_deal = direction * tap;
    }
    return copy(call);
  }
  int64_t first_tap = 0;
  if (slid_.reversed())
    for (int a = 1; a < kBoxRank; ++a) first_tap -= (s[a].taps - 1) * tap_step(a);
  const int64_t neighbours = taps > kFewTaps ? 1 : 0;  // 0: no dimension, so the longest
  pack_taps(arithmetic_, problem_.dtype,
            {w + (first_tap + first * channels * w_in_) * bytes,
             packed,
             std::min(units * channels, in_channels_ - first * channels),
             w_in_,
             step,
             {{{s[3].taps, tap_step(3), tap},
               {s[2].taps, tap_step(2), s[3].taps * tap},
               {s[1].taps, tap_step(1), s[2].taps * s[3].taps * tap}}},
             w_in_ == 1 ? channels : neighbours,
             rows,
             w_out_});
}

void SlidPixelsPlan::run_box(const Operands& operands, const Panels::Part& part,
                             const BoxRange& box, const char* packed) const {
  char* const buffer = local_scratch<char>(local_bytes());
  const int64_t bytes = element_bytes(problem_.dtype), lanes = arithmetic_.lanes;
  slid_.copy_channels(operands.data[operand_], part.group * in_channels_, in_channels_, box, buffer,
                      channel_);
  if (operands.bias)
    fill_with_ones(arithmetic_, problem_.dtype, buffer + in_units_ * channel_ * unit(), channel_);

  char* const out = out_data(operands, part.group);
  const int64_t pixels = box.count[3], row_vectors = ceil_div(pixels, lanes);
  TileCall call{};
  call.c_row = out_.channel;
  call.result = problem_.dtype;
  const auto run_row = [&](const char* b, char* c, int64_t rows) {
    int64_t left = row_vectors;
    for (int64_t tiles = ceil_div(left, vectors_), pixel = 0; tiles > 0; --tiles) {
      const int64_t vectors = ceil_div(left, tiles), width = vectors * lanes;
      left -= vectors;
      // The last one is whole, too, where the row is long enough.
      const int64_t first = std::clamp<int64_t>(pixels - width, 0, pixel);
      call.b = b + first * unit();
      call.c = c + first * bytes;
      call.live = std::min(width, pixels - first);
      arithmetic_.tiles.adjacent[vectors][rows](call);
      pixel += width;
    }
  };
  const char* a = packed;
  for (int64_t panel = part.first_panel; panel < part.first_panel + part.panels; ++panel) {
    const int64_t row = panels_.first_row(panel), rows = panels_.rows(panel);
    call.a = a;
    call.set_steps(rows, step_, unit());
    call.b_ahead = vectors_ * lanes * unit();  // the next tile's
    runs_[rows].use_in(call);
    PerAxis<int64_t> p = box.begin;
    for (int64_t i1 = 0; i1 < box.count[1]; ++i1, ++p[1]) {
      p[2] = box.begin[2];
      for (int64_t i2 = 0; i2 < box.count[2]; ++i2, ++p[2])
        run_row(buffer + (i1 * slid_.plane_step() + i2 * slid_.row_step()) * unit(),
                out + (row * out_.channel + offset(p, out_.stride)) * bytes, rows);
    }
    a += rows * steps() * unit();
  }
}

void SlidPixelsPlan::run(const Operands& operands) const {
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

std::unique_ptr<const Plan> slid_pixels_plan(const Problem& problem, const Arithmetic& arithmetic) {
  return std::make_unique<SlidPixelsPlan>(problem, arithmetic);
}

}  // namespace convtbw::simd
