// Plans of a problem's parts, computed one after the other.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plan/backend.h"

namespace convtbw::simd {

class PlansInTurn : public Plan {
 public:
  void run(const Operands& operands) const override {
    for (const Part& part : parts_) {
      Operands here = operands;
      here.data.x = static_cast<char*>(operands.data.x) + part.begin.x;
      here.data.y = static_cast<char*>(operands.data.y) + part.begin.y;
      here.data.w = static_cast<char*>(operands.data.w) + part.begin.w;
      part.plan->run(here);
    }
  }

 protected:
  // `begin`: where the part's data begin in the problem's, in elements.
  void add(std::unique_ptr<const Plan> plan, const Problem& problem,
           const PerRole<int64_t>& begin) {
    workspace = std::max(workspace, plan->workspace);
    bytes += plan->bytes + static_cast<int64_t>(sizeof(Part));
    const int64_t data = element_bytes(problem.dtype);
    parts_.push_back({std::move(plan),
                      {.x = begin.x * data,
                       .w = begin.w * element_bytes(result_dtype(problem)),
                       .y = begin.y * data}});
  }
  const std::string& first_kernel() const { return parts_.front().plan->kernel; }

 private:
  struct Part {
    std::unique_ptr<const Plan> plan;
    PerRole<int64_t> begin;  // bytes
  };

  std::vector<Part> parts_;
};

}  // namespace convtbw::simd
