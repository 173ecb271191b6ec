// Benchmark mode's clock: which of several plans for one problem is the fastest here and now.
#pragma once

#include <cstddef>
#include <vector>

#include "plan/backend.h"

namespace convtbw {

struct Timing {
  std::vector<double> seconds;  // of one run of each plan
  size_t fastest;
};

// Runs the plans in turn on a call's own operands, the fastest one last, so that its result is the
// one left in memory. At least one plan; the earlier one wins a tie.
Timing time_plans(const std::vector<const Plan*>& plans, const Operands& operands);

}  // namespace convtbw
