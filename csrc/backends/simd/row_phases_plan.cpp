// dgrad, channels last, of windows that are a whole number of strides long: the results of a stride
// along a row, one of each phase, lie side by side and meet the same pixels of y. As one pixel of
// so many more channels they fill vectors where channels alone leave lanes empty. The results
// before the first whole stride and behind the last one are computed apart.
#include <algorithm>
#include <memory>
#include <vector>

#include "backends/simd/plans.h"
#include "backends/simd/simplify.h"

namespace convtbw::simd {

namespace {

class RowPhasesPlan : public Plan {
 public:
  RowPhasesPlan(const Problem& problem, const Arithmetic& arithmetic) {
    const Axis& row = problem.geometry.axes.back();
    const int64_t first = ceil_div(row.pad, row.stride);  // whole strides before x
    const int64_t begin = first * row.stride - row.pad, strides = (row.x - begin) / row.stride;
    const int64_t end = begin + strides * row.stride;

    Problem whole = problem;
    Axis& axis = whole.geometry.axes.back();
    axis = {strides, row.k / row.stride, row.y, 1, first, 1};
    whole.geometry.x_channels *= row.stride;
    whole.x.axes.back() *= row.stride;
    whole.w.axes.back() *= row.stride;
    add(plan_of({whole, problem.geometry.x_channels, 1}, data_plan(whole, arithmetic)), problem,
        begin);
    kernel = "phases of a row in lanes, " + parts_.front().plan->kernel;
    for (const Range& rest : {Range{0, begin}, Range{end, row.x}}) {
      if (rest.begin == rest.end) continue;
      Problem edge = problem;
      edge.geometry.axes.back().x = rest.end - rest.begin;
      edge.geometry.axes.back().pad += rest.begin;
      add(data_plan(edge, arithmetic), problem, rest.begin);
    }
    bytes += static_cast<int64_t>(sizeof(RowPhasesPlan));
  }

  void run(const Operands& operands) const override {
    for (const Part& part : parts_) {
      Operands here = operands;
      here.data.x = static_cast<char*>(operands.data.x) + part.x;
      part.plan->run(here);
    }
  }

 private:
  struct Part {
    std::unique_ptr<const Plan> plan;
    int64_t x;  // where its results begin, in bytes
  };

  void add(std::unique_ptr<const Plan> plan, const Problem& problem, int64_t pixel) {
    workspace = std::max(workspace, plan->workspace);
    bytes += plan->bytes + static_cast<int64_t>(sizeof(Part));
    parts_.push_back(
        {std::move(plan), pixel * problem.x.axes.back() * element_bytes(problem.dtype)});
  }

  std::vector<Part> parts_;
};

}  // namespace

std::unique_ptr<const Plan> row_phases_plan(const Problem& problem, const Arithmetic& arithmetic) {
  return std::make_unique<RowPhasesPlan>(problem, arithmetic);
}

}  // namespace convtbw::simd
