// wgrad and dgrad of windows that are many rows apart, phase by phase: taps whose rows leave the
// same remainder modulo the stride meet the same rows of x, which no other tap meets. Each
// remainder is a problem of stride 1 on every stride-th row. For wgrad a box then has many windows
// that share all they meet, where otherwise a few windows fill the cache, and a phase's sums stay
// in it. For dgrad the results of many windows fit in the stage.
#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "backends/simd/plans.h"
#include "backends/simd/plans_in_turn.h"

namespace convtbw::simd {

namespace {

// One phase; or those of wgrad that follow each other and differ by where their data begin alone,
// which are slices of one problem.
struct Phases {
  Problem problem;
  int64_t x, w;  // where the first one begins, in elements
};

std::vector<Phases> phases_of(const Problem& p, int a) {
  const Axis& axis = p.geometry.axes[a];
  const int64_t common = std::gcd(axis.stride, axis.dilation), period = axis.stride / common;
  std::vector<Phases> result;
  for (int64_t tap = 0; tap < std::min(axis.k, period); ++tap) {
    const int64_t first = tap * axis.dilation - axis.pad;  // met by window 0
    const int64_t absent = std::max<int64_t>(0, ceil_div(-first, axis.stride));
    const int64_t begin = first + absent * axis.stride;
    const Axis rows{ceil_div(axis.x - begin, axis.stride),
                    ceil_div(axis.k - tap, period),
                    axis.y,
                    1,
                    absent,
                    axis.dilation / common};
    if (p.wanted == Role::w && !result.empty() && rows == result.back().problem.geometry.axes[a]) {
      Problem& problem = result.back().problem;
      problem.geometry.batch += p.geometry.batch;
      problem.x.slice = axis.dilation * p.x.axes[a];
      problem.w.slice = p.w.axes[a];
      ++problem.slices;
      continue;
    }
    Problem problem = p;
    problem.geometry.axes[a] = rows;
    problem.x.axes[a] = rows.x > 1 ? axis.stride * p.x.axes[a] : 0;
    problem.w.axes[a] = rows.k > 1 ? period * p.w.axes[a] : 0;
    result.push_back({problem, begin * p.x.axes[a], tap * p.w.axes[a]});
  }
  return result;
}

class PhasedPlan : public PlansInTurn {
 public:
  PhasedPlan(const Problem& problem, const Arithmetic& arithmetic, int axis) {
    for (const Phases& phases : phases_of(problem, axis))
      add(problem.wanted == Role::w ? weights_plan(phases.problem, arithmetic)
                                    : data_plan(phases.problem, arithmetic),
          problem, {.x = phases.x, .w = phases.w});
    kernel = "phase by phase, " + first_kernel();
    bytes += static_cast<int64_t>(sizeof(PhasedPlan));
  }
};

}  // namespace

std::unique_ptr<const Plan> phased_plan(const Problem& problem, const Arithmetic& arithmetic,
                                        int axis) {
  return std::make_unique<PhasedPlan>(problem, arithmetic, axis);
}

}  // namespace convtbw::simd
