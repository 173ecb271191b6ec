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
      here.data.x = static_cast<char*>(operands.data.x) + part.x;
      here.data.w = static_cast<char*>(operands.data.w) + part.w;
      part.plan->run(here);
    }
  }

 protected:
  // x and w: where the part's begin in the problem's, in elements.
  void add(std::unique_ptr<const Plan> plan, const Problem& problem, int64_t x, int64_t w = 0) {
    workspace = std::max(workspace, plan->workspace);
    bytes += plan->bytes + static_cast<int64_t>(sizeof(Part));
    parts_.push_back({std::move(plan), x * element_bytes(problem.dtype),
                      w * element_bytes(result_dtype(problem))});
  }
  const std::string& first_kernel() const { return parts_.front().plan->kernel; }

 private:
  struct Part {
    std::unique_ptr<const Plan> plan;
    int64_t x, w;  // bytes
  };

  std::vector<Part> parts_;
};

}  // namespace convtbw::simd
