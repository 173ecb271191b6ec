#include "backends/simd/phases.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace convtbw::simd {

namespace {

// With every `period`-th tap, from `tap` on.
PhasedAxis fprop_axis(const Axis& a, int64_t tap, int64_t period) {
  const Sliding sliding{(a.k - 1 - tap) / period + 1, tap * a.dilation - a.pad, a.stride,
                        period * a.dilation};
  return {a.y, 0, 1, {{sliding, 0, a.y, 0, 1, tap, period}}, true};
}

// h + pad = u*stride + phase meets y at u - (k*dilation - phase) / stride, for every tap k whose
// k*dilation leaves the remainder `phase`. Descending k ascends in y.
PhasedAxis dgrad_axis(const Axis& a) {
  const int64_t s = a.stride, common = std::gcd(a.dilation, s), period = s / common;
  // Windows are counted from the first that any phase has.
  const int64_t first = floor_div(a.pad, s), last = floor_div(a.x - 1 + a.pad, s);
  PhasedAxis axis{last - first + 1, first * s - a.pad, s, {}, false};
  for (int64_t k = 0; k < std::min(a.k, period); ++k) {
    const int64_t phase = k * a.dilation % s;
    const int64_t begin = ceil_div(a.pad - phase, s), end = ceil_div(a.x + a.pad - phase, s);
    if (begin >= end) continue;
    const int64_t taps = (a.k - 1 - k) / period + 1, tap = k + (taps - 1) * period;
    axis.phases.push_back({{taps, first - (tap * a.dilation - phase) / s, 1, a.dilation / common},
                           begin - first,
                           end - first,
                           axis.out + phase,
                           s,
                           tap,
                           -period});
  }
  axis.complete = static_cast<int64_t>(axis.phases.size()) == s;
  return axis;
}

}  // namespace

Strip PhasedAxis::strip(int64_t count, Apart apart) const {
  std::vector<Sliding> ways;
  for (const Phase& phase : phases) ways.push_back(phase.sliding);
  return simd::strip(ways, count, apart);
}

PerAxis<PhasedAxis> phased_axes(const Problem& problem) {
  const Geometry& g = problem.geometry;
  PerAxis<PhasedAxis> axes;
  axes[0] = {g.batch, 0, 1, {{{}, 0, g.batch, 0, 1, 0, 1}}, true};
  for (int a = 0; a < kMaxRank; ++a)
    axes[a + 1] = problem.wanted == Role::y ? fprop_axis(g.axes[a], 0, 1) : dgrad_axis(g.axes[a]);
  return axes;
}

PerAxis<PhasedAxis> phases_by_result(const Problem& problem) {
  PerAxis<PhasedAxis> axes = phased_axes(problem);
  for (PhasedAxis& axis : axes) {
    axis.windows = axis.out = 0;
    for (Phase& phase : axis.phases) {
      phase.sliding.first += phase.begin;
      phase.out += phase.begin * phase.out_step;
      phase.end -= std::exchange(phase.begin, 0);
      axis.windows = std::max(axis.windows, phase.end);
    }
    std::ranges::sort(axis.phases, {}, &Phase::out);
  }
  return axes;
}

Problem joint_problem(Problem problem, const PerAxis<PhasedAxis>& axes) {
  for (int a = 0; a < kMaxRank; ++a) {
    const PhasedAxis& axis = axes[a + 1];
    int64_t first = axis.phases.front().sliding.first, end = first;
    for (const Phase& phase : axis.phases) {
      first = std::min(first, phase.sliding.first);
      end = std::max(end, phase.sliding.first + phase.sliding.taps);
    }
    const int64_t taps = end - first, operand = problem.geometry.axes[a].y;
    problem.geometry.axes[a] = {axis.windows, taps, operand, 1, first + taps - 1, 1};
  }
  return problem;
}

std::vector<PhasedAxis> fprop_phases(const Axis& a) {
  const int64_t period = a.stride / std::gcd(a.stride, a.dilation);
  std::vector<PhasedAxis> phases;
  for (int64_t tap = 0; tap < std::min(a.k, period); ++tap)
    phases.push_back(fprop_axis(a, tap, period));
  return phases;
}

std::vector<BoxPhase> box_phases(const PerAxis<PhasedAxis>& axes) {
  std::vector<BoxPhase> result;
  int64_t taps = 0;
  for (size_t i0 = 0; i0 < axes[1].phases.size(); ++i0)
    for (size_t i1 = 0; i1 < axes[2].phases.size(); ++i1)
      for (size_t i2 = 0; i2 < axes[3].phases.size(); ++i2) {
        const PerAxis<size_t> index{0, i0, i1, i2};
        BoxPhase phase{{}, {}, 1, taps};
        for (int a = 0; a < kBoxRank; ++a) {
          phase.axes[a] = &axes[a].phases[index[a]];
          phase.taps *= phase.axes[a]->sliding.taps;
        }
        taps += phase.taps;
        result.push_back(phase);
      }
  return result;
}

std::vector<BoxPhase> box_phases(const PerAxis<PhasedAxis>& axes, const PerAxis<Strip>& strips) {
  std::vector<BoxPhase> result = box_phases(axes);
  for (BoxPhase& phase : result)
    for (int a = 0; a < kBoxRank; ++a)
      phase.footings[a] = strips[a].footings[phase.axes[a] - axes[a].phases.data()];
  return result;
}

BoxRange positions_of(const BoxRange& windows, const PerAxis<PhasedAxis>& axes,
                      const Tensor& result) {
  BoxRange positions;
  for (int a = 0; a < kBoxRank; ++a) {
    const int64_t begin = axes[a].out + windows.begin[a] * axes[a].step;
    positions.begin[a] = std::max<int64_t>(0, begin);
    positions.count[a] =
        std::min(result.extent[a], begin + windows.count[a] * axes[a].step) - positions.begin[a];
  }
  return positions;
}

int64_t positions_covered(const PerAxis<int64_t>& windows, const PerAxis<PhasedAxis>& axes,
                          const Tensor& result) {
  int64_t count = 1;
  for (int a = 0; a < kBoxRank; ++a) count *= std::min(result.extent[a], windows[a] * axes[a].step);
  return count;
}

BoxRange windows_of(const BoxRange& windows, const BoxPhase& phase) {
  BoxRange range;
  for (int a = 0; a < kBoxRank; ++a) {
    range.begin[a] = std::max(windows.begin[a], phase.axes[a]->begin);
    range.count[a] =
        std::min(windows.begin[a] + windows.count[a], phase.axes[a]->end) - range.begin[a];
  }
  return range;
}

void unpack_positions(const Arithmetic& arithmetic, const Tensor& tensor, const BoxRange& positions,
                      const char* from, const PerAxis<int64_t>& stride, int64_t channels,
                      char* to) {
  BoxRange rows = positions;
  for (int a = kBoxRank - 2; a >= 0; --a) {
    if (rows.count[a] > 1 && (tensor.stride[a] != rows.count[3] * tensor.stride[3] ||
                              stride[a] != rows.count[3] * stride[3]))
      break;
    rows.count[3] *= rows.count[a];
    rows.count[a] = 1;
  }
  const int64_t bytes = element_bytes(tensor.dtype), unit = tensor.dtype == Dtype::f64 ? 8 : 4;
  Copy copy{nullptr,        stride[3],     1,       nullptr, tensor.stride[3],
            tensor.channel, rows.count[3], channels};
  for_each_row(rows, [&](const PerAxis<int64_t>& p) {
    copy.from = from + offset(p, stride) * unit;
    copy.to = to + offset(p, tensor.stride) * bytes;
    arithmetic.unpack[static_cast<int>(tensor.dtype)](copy);
  });
}

}  // namespace convtbw::simd
