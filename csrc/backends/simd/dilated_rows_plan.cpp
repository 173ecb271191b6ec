// fprop and dgrad of 2-D images whose rows have a dilation: a window meets rows that leave the same
// remainder modulo the dilation as its own. Those of one remainder are a plane without dilation,
// and the windows of a box share its rows.
#include <memory>

#include "backends/simd/plans.h"
#include "backends/simd/plans_in_turn.h"
#include "core/winograd.h"

namespace convtbw::simd {

namespace {

class DilatedRowsPlan : public PlansInTurn {
 public:
  DilatedRowsPlan(const Problem& problem, const Arithmetic& arithmetic) {
    const Axis& rows = problem.geometry.axes[1];
    const int64_t d = rows.dilation, longer = rows.x % d;  // so many remainders have one row more
    for (const Range& remainders : {Range{0, longer}, Range{longer, d}}) {
      if (remainders.begin == remainders.end) continue;
      const int64_t more = remainders.begin < longer, count = remainders.end - remainders.begin;
      Problem planes = problem;
      planes.geometry.axes[0] = {count, 1, count, 1, 0, 1};
      planes.geometry.axes[1] = {rows.x / d + more, rows.k, rows.y / d + more, 1, rows.pad / d, 1};
      for (DataStrides Problem::* data : {&Problem::x, &Problem::y}) {
        std::array<int64_t, kMaxRank>& strides = (planes.*data).axes;
        const int64_t row = (problem.*data).axes[1];
        strides[0] = count > 1 ? row : 0;
        strides[1] = d * row;
      }
      const bool winograd = arithmetic.winograd && suits_winograd(planes, arithmetic.lanes);
      add(winograd ? winograd_plan(planes, arithmetic) : data_plan(planes, arithmetic), problem,
          {.x = remainders.begin * problem.x.axes[1], .y = remainders.begin * problem.y.axes[1]});
    }
    kernel = "dilated rows as planes, " + first_kernel();
    bytes += static_cast<int64_t>(sizeof(DilatedRowsPlan));
  }
};

}  // namespace

std::unique_ptr<const Plan> dilated_rows_plan(const Problem& problem,
                                              const Arithmetic& arithmetic) {
  return std::make_unique<DilatedRowsPlan>(problem, arithmetic);
}

}  // namespace convtbw::simd
