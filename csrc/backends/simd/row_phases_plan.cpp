// dgrad, channels last, of windows that are a whole number of strides long: the results of a stride
// along a row, one of each phase, lie side by side and meet the same pixels of y. As one pixel of
// so many more channels they fill vectors where channels alone leave lanes empty. The results
// before the first whole stride and behind the last one are computed apart.
#include <memory>

#include "backends/simd/plans.h"
#include "backends/simd/plans_in_turn.h"
#include "backends/simd/simplify.h"

namespace convtbw::simd {

namespace {

class RowPhasesPlan : public PlansInTurn {
 public:
  RowPhasesPlan(const Problem& problem, const Arithmetic& arithmetic) {
    const Axis& row = problem.geometry.axes.back();
    const int64_t first = ceil_div(row.pad, row.stride);  // whole strides before x
    const int64_t begin = first * row.stride - row.pad, strides = (row.x - begin) / row.stride;
    const int64_t end = begin + strides * row.stride, pixel = problem.x.axes.back();

    Problem whole = problem;
    whole.geometry.axes.back() = {strides, row.k / row.stride, row.y, 1, first, 1};
    whole.geometry.x_channels *= row.stride;
    whole.x.axes.back() *= row.stride;
    whole.w.axes.back() *= row.stride;
    add(plan_of({whole, problem.geometry.x_channels, 1}, data_plan(whole, arithmetic)), problem,
        {.x = begin * pixel});
    kernel = "phases of a row in lanes, " + first_kernel();
    for (const Range& rest : {Range{0, begin}, Range{end, row.x}}) {
      if (rest.begin == rest.end) continue;
      Problem edge = problem;
      edge.geometry.axes.back().x = rest.end - rest.begin;
      edge.geometry.axes.back().pad += rest.begin;
      add(data_plan(edge, arithmetic), problem, {.x = rest.begin * pixel});
    }
    bytes += static_cast<int64_t>(sizeof(RowPhasesPlan));
  }
};

}  // namespace

std::unique_ptr<const Plan> row_phases_plan(const Problem& problem, const Arithmetic& arithmetic) {
  return std::make_unique<RowPhasesPlan>(problem, arithmetic);
}

}  // namespace convtbw::simd
