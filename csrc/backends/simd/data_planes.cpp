// fprop, and dgrad of stride 1, of depthwise problems, channels first (slid_rows.h).
#include <algorithm>
#include <cstring>
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

class PlaneDataPlan : public DirectedPlan {
 public:
  PlaneDataPlan(const Problem& problem, const Arithmetic& arithmetic);
  void run(const Operands& operands) const override;

 private:
  // What loops write: rows of results, or of sums.
  struct Rows {
    char* first;
    int64_t step;
    Dtype dtype;
  };

  // A plane of a box.
  void compute(const BoxRange& box, const char* a, const char* w, const char* start,
               const Ahead& ahead, const Rows& c) const;
  void run_box(const Operands& operands, const BoxRange& box, int64_t first,
               int64_t channels) const;

  // Whether results are written where they belong: whole vectors, of which nothing is read again
  // that was rounded (kernels.h, PlaneRows).
  bool direct(int64_t pixels) const {
    return pixels >= arithmetic_.lanes &&
           (problem_.dtype == sum_dtype(problem_.dtype) ||
            (!slid_.taps_in_lanes() && slid_.sections().size() == 1));
  }

  static constexpr int64_t kChannels = 8;  // at a time: what a box costs once is little then

  SlidRows slid_;
  BoxGrid grid_;
  const bool ask_ahead_;
  const int64_t taps_;
  std::vector<TapRow> weights_;
  int64_t weights_units_, stage_row_, stage_units_, local_bytes_;
};

PlaneDataPlan::PlaneDataPlan(const Problem& problem, const Arithmetic& arithmetic)
    : DirectedPlan(problem, arithmetic),
      slid_(problem, arithmetic,
            problem.geometry.axes[2].stride > 2 ? SlidRows::InLanes::taps
                                                : SlidRows::InLanes::pixels),
      ask_ahead_(gains_ahead(problem)),
      taps_(slid_.all_taps()) {
  const int64_t groups = problem.geometry.groups;
  grid_ = slid_.cut(ceil_div(slid_.items(groups), ceil_div(groups, kChannels)));
  const PerAxis<Sliding>& s = slid_.sliding();
  const auto tap = [&](int a, int64_t t) {
    return (slid_.reversed() ? s[a].taps - 1 - t : t) * problem.w.axes[a - 1];
  };
  const int64_t step = slid_.reversed() ? -problem.w.axes[2] : problem.w.axes[2];
  for (int64_t t1 = 0; t1 < s[1].taps; ++t1)
    for (int64_t t2 = 0; t2 < s[2].taps; ++t2)
      weights_.push_back({tap(1, t1) + tap(2, t2) + tap(3, 0), step, s[3].taps});
  weights_units_ = whole_vectors(taps_ * kChannels);
  stage_row_ = whole_vectors(grid_.size[3]);
  stage_units_ = grid_.size[2] * stage_row_;
  local_bytes_ = (slid_.buffer_units() + weights_units_ + kChannels + stage_units_) * unit();
  kernel = std::string(contraction_name(problem.wanted)) +
           (slid_.taps_in_lanes() ? ", taps of a channel in lanes, "
                                  : ", pixels of a channel in lanes, ") +
           arithmetic.name;
  workspace = problem.threads * local_bytes_;
  bytes = sizeof(PlaneDataPlan) + slid_.sections().size() * sizeof(PlaneSection) +
          (slid_.tap_rows().size() + slid_.row_taps().size()) * sizeof(int64_t) +
          weights_.size() * sizeof(TapRow);
}

void PlaneDataPlan::run_box(const Operands& operands, const BoxRange& box, int64_t first,
                            int64_t channels) const {
  char* const buffer = local_scratch<char>(local_bytes_);
  char* const weights = buffer + slid_.buffer_units() * unit();
  char* const start = weights + weights_units_ * unit();
  char* const stage = start + kChannels * unit();
  const int64_t bytes = element_bytes(problem_.dtype), pixels = box.count[3];
  std::memset(buffer, 0, slid_.buffer_units() * unit());
  pack_channel_taps(arithmetic_, problem_, operands, weights_, first, channels, weights, start);

  for (int64_t channel = 0; channel < channels; ++channel) {
    slid_.copy(operands.data[operand_], first + channel, box, buffer);
    PerAxis<int64_t> position = box.begin;
    for (int64_t plane = 0; plane < box.count[1]; ++plane, ++position[1]) {
      char* const out = out_data(operands, first + channel) + offset(position, out_.stride) * bytes;
      const Ahead ahead =
          ask_ahead_ && channel + 1 < channels
              ? slid_.ahead(operands.data[operand_], first + channel + 1, box, plane, box.count[1])
              : Ahead{};
      compute(box, buffer + plane * slid_.plane_step() * unit(), weights + channel * taps_ * unit(),
              start + channel * unit(), ahead,
              direct(pixels) ? Rows{out, out_.stride[2], problem_.dtype}
                             : Rows{stage, stage_row_, sum_dtype(problem_.dtype)});
      if (!direct(pixels))
        arithmetic_.unpack[static_cast<int>(problem_.dtype)](
            {stage, stage_row_, 1, out, out_.stride[2], out_.stride[3], box.count[2], pixels});
    }
  }
}

void PlaneDataPlan::compute(const BoxRange& box, const char* a, const char* w, const char* start,
                            const Ahead& ahead, const Rows& c) const {
  // Between them the next channel is asked for. With a stride of 1, few rows of pixels share little
  // with each other; with a stride of 2, a row of results needs two, and asking for many of these
  // at once waits for memory: 64 rows take 1.1 to 1.5 times the time of these 4 (Zen 5, 8 lanes,
  // 4x4 to 7x7 of 56 and 112 windows).
  const int64_t at_a_time = slid_.taps_in_lanes() ? 1 : slid_.sliding()[3].stride == 2 ? 4 : 64;
  const int64_t all = box.count[2], count = std::max<int64_t>(box.count[3], arithmetic_.lanes);
  const int64_t row_taps = slid_.sliding()[3].taps, a_row = slid_.row_step();
  for (int64_t row = 0, rows; row < all; row += rows) {
    rows = ask_ahead_ ? std::min(at_a_time, all - row) : all;
    ahead.fetch(row, rows, all);
    const char* const from = a + row * a_row * unit();
    char* const to = c.first + row * c.step * element_bytes(c.dtype);
    if (slid_.taps_in_lanes())
      arithmetic_.window_rows({from, w, slid_.tap_rows().data(), std::ssize(slid_.tap_rows()),
                               row_taps, start, to, rows, count, slid_.sliding()[3].stride, a_row,
                               c.step});
    else
      arithmetic_.plane_rows[static_cast<int>(c.dtype)](
          {from, w, slid_.sections().data(), std::ssize(slid_.sections()), slid_.row_taps().data(),
           row_taps, start, to, rows, count, a_row, slid_.sliding()[2].stride * row_taps, c.step});
  }
}

void PlaneDataPlan::run(const Operands& operands) const {
  const int64_t groups = problem_.geometry.groups, blocks = ceil_div(groups, kChannels);
  parallel_for(problem_.threads, grid_.boxes() * blocks, [&](int64_t i) {
    const int64_t first = i % blocks * kChannels;
    run_box(operands, grid_.box(i / blocks), first, std::min(kChannels, groups - first));
  });
}

}  // namespace

std::unique_ptr<const Plan> plane_data_plan(const Problem& problem, const Arithmetic& arithmetic) {
  return std::make_unique<PlaneDataPlan>(problem, arithmetic);
}

}  // namespace convtbw::simd
