// dgrad with strides of depthwise problems, channels first: every phase of the stride is a problem
// of stride 1 (phases.h) whose lanes are neighbouring pixels of one channel (slid_rows.h). What the
// phases of a row yield takes turns in the result.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "backends/simd/channel_taps.h"
#include "backends/simd/directed_plan.h"
#include "backends/simd/phases.h"
#include "backends/simd/plans.h"
#include "backends/simd/slid_rows.h"
#include "core/parallel.h"
#include "core/scratch.h"

namespace convtbw::simd {

namespace {

class PlanePhasesPlan : public DirectedPlan {
 public:
  PlanePhasesPlan(const Problem& problem, const Arithmetic& arithmetic);
  void run(const Operands& operands) const override;

 private:
  // A phase of every axis, as loops read it. Units of the buffer and of a channel's weights.
  struct Taps {
    std::vector<PlaneSection> sections;
    std::vector<int64_t> row;
    int64_t w;
  };

  void list_taps();
  void run_box(const Operands& operands, const BoxRange& box, int64_t first,
               int64_t channels) const;
  void compute_plane(const BoxRange& box, int64_t plane, const char* a, const char* w,
                     const char* start, char* stage, char* out) const;

  static constexpr int64_t kChannels = 8;          // at a time, as in data_planes.cpp
  static constexpr int64_t kStageUnits = 4 << 10;  // half of a first-level cache

  const PerAxis<PhasedAxis> axes_;
  SlidRows slid_;
  BoxGrid grid_;
  const int64_t row_phases_;
  int64_t stage_row_, stage_rows_;  // of one phase; rows of windows at a time
  std::vector<BoxPhase> phases_;
  std::vector<Taps> taps_;  // of each of them
  std::vector<TapRow> weights_;
  int64_t all_taps_ = 0;
  int64_t weights_units_, local_bytes_;
};

PlanePhasesPlan::PlanePhasesPlan(const Problem& problem, const Arithmetic& arithmetic)
    : DirectedPlan(problem, arithmetic),
      axes_(phases_by_result(problem)),
      slid_(joint_problem(problem, axes_), arithmetic),
      row_phases_(std::ssize(axes_[3].phases)) {
  const int64_t groups = problem.geometry.groups;
  grid_ = slid_.cut(ceil_div(slid_.items(groups), ceil_div(groups, kChannels)));
  stage_row_ = whole_vectors(grid_.size[3]);
  stage_rows_ = std::clamp<int64_t>(kStageUnits / (row_phases_ * stage_row_), 1, grid_.size[2]);
  list_taps();
  weights_units_ = whole_vectors(all_taps_ * kChannels);
  local_bytes_ =
      (slid_.buffer_units() + weights_units_ + kChannels + stage_rows_ * row_phases_ * stage_row_) *
      unit();
  kernel = std::string(contraction_name(problem.wanted)) +
           ", pixels of a channel in lanes, phases in turn, " + arithmetic.name;
  workspace = problem.threads * local_bytes_;
  bytes = sizeof(PlanePhasesPlan) + phases_.size() * (sizeof(BoxPhase) + sizeof(Taps)) +
          weights_.size() * (sizeof(TapRow) + sizeof(PlaneSection)) + all_taps_ * sizeof(int64_t);
}

void PlanePhasesPlan::list_taps() {
  phases_ = box_phases(axes_);
  for (const BoxPhase& phase : phases_) {
    const auto& [images, depth, rows, row] = phase.axes;
    const auto at = [&](int a) { return phase.axes[a]->sliding.first - slid_.sliding()[a].first; };
    const auto tap = [&](int a, int64_t t) {
      return (phase.axes[a]->tap + t * phase.axes[a]->tap_step) * problem_.w.axes[a - 1];
    };
    Taps taps{{}, {}, all_taps_};
    for (int64_t t1 = 0; t1 < depth->sliding.taps; ++t1) {
      taps.sections.push_back({(at(1) + t1) * slid_.plane_step() + at(2) * slid_.row_step(),
                               t1 * rows->sliding.taps * row->sliding.taps, rows->sliding.taps});
      for (int64_t t2 = 0; t2 < rows->sliding.taps; ++t2)
        weights_.push_back({tap(1, t1) + tap(2, t2) + tap(3, 0), row->tap_step * problem_.w.axes[2],
                            row->sliding.taps});
    }
    for (int64_t t3 = 0; t3 < row->sliding.taps; ++t3) taps.row.push_back(at(3) + t3);
    taps_.push_back(std::move(taps));
    all_taps_ += phase.taps;
  }
}

void PlanePhasesPlan::run_box(const Operands& operands, const BoxRange& box, int64_t first,
                              int64_t channels) const {
  char* const buffer = local_scratch<char>(local_bytes_);
  char* const weights = buffer + slid_.buffer_units() * unit();
  char* const start = weights + weights_units_ * unit();
  char* const stage = start + kChannels * unit();
  std::memset(buffer, 0, slid_.buffer_units() * unit());
  pack_channel_taps(arithmetic_, problem_, operands, weights_, first, channels, weights, start);
  for (int64_t channel = 0; channel < channels; ++channel) {
    slid_.copy(operands.data[operand_], first + channel, box, buffer);
    for (int64_t plane = 0; plane < box.count[1]; ++plane)
      compute_plane(box, plane, buffer + plane * slid_.plane_step() * unit(),
                    weights + channel * all_taps_ * unit(), start + channel * unit(), stage,
                    out_data(operands, first + channel));
  }
}

// The results of a plane of windows: of a few rows at a time, those of one phase of the rows after
// the other. Rows that are far apart in memory, as those of a phase are, no prefetcher follows:
// what comes next is asked for. Without, and a plane's phases one after the other, it took 1.2
// to 2.5 times as long (4x4 of stride 2, 8x8 of stride 4, 16x16 of stride 8; Zen 4, 16 lanes).
void PlanePhasesPlan::compute_plane(const BoxRange& box, int64_t plane, const char* a,
                                    const char* w, const char* start, char* stage,
                                    char* out) const {
  const auto sum = arithmetic_.plane_rows[static_cast<int>(sum_dtype(problem_.dtype))];
  const auto write = arithmetic_.plane_turns[static_cast<int>(problem_.dtype)].at[row_phases_];
  const int64_t pixels = std::max<int64_t>(box.count[3], arithmetic_.lanes);
  const int64_t first = box.begin[3] * row_phases_;
  const int64_t results = std::min(box.count[3] * row_phases_, out_.extent[3] - first);
  const int64_t of_plane = std::ssize(axes_[2].phases) * row_phases_;
  for (int64_t row = 0; row < box.count[2]; row += stage_rows_)
    for (int64_t index = 0; index < std::ssize(phases_); index += row_phases_) {
      const auto& phase = phases_[index].axes;
      const int64_t window1 = box.begin[1] + plane, window2 = box.begin[2] + row;
      const int64_t rows = std::min({stage_rows_, box.count[2] - row, phase[2]->end - window2});
      if (rows < 1 || window1 >= phase[1]->end) continue;
      for (int64_t p = 0; p < row_phases_; ++p) {
        const Taps& taps = taps_[index + p];
        const int64_t row_taps = std::ssize(taps.row);
        sum({a + row * slid_.row_step() * unit(), w + taps.w * unit(), taps.sections.data(),
             std::ssize(taps.sections), taps.row.data(), row_taps, start,
             stage + p * stage_row_ * unit(), rows, pixels, slid_.row_step(), row_taps,
             row_phases_ * stage_row_});
      }
      const PerAxis<int64_t> position{box.begin[0], phase[1]->out + window1 * phase[1]->out_step,
                                      phase[2]->out + window2 * phase[2]->out_step, first};
      const int64_t step = phase[2]->out_step * out_.stride[2];
      const bool last = index % of_plane + row_phases_ == of_plane;
      const int64_t ahead = out_.stride[2] + (last ? (stage_rows_ - 1) * step : 0);
      write({stage, row_phases_ * stage_row_, stage_row_,
             out + offset(position, out_.stride) * element(), step, rows, results, ahead});
    }
}

void PlanePhasesPlan::run(const Operands& operands) const {
  const int64_t groups = problem_.geometry.groups, blocks = ceil_div(groups, kChannels);
  parallel_for(problem_.threads, grid_.boxes() * blocks, [&](int64_t i) {
    const int64_t first = i % blocks * kChannels;
    run_box(operands, grid_.box(i / blocks), first, std::min(kChannels, groups - first));
  });
}

}  // namespace

std::unique_ptr<const Plan> plane_phases_plan(const Problem& problem,
                                              const Arithmetic& arithmetic) {
  return std::make_unique<PlanePhasesPlan>(problem, arithmetic);
}

}  // namespace convtbw::simd
