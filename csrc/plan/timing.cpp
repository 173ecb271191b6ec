#include "plan/timing.h"

#include <algorithm>
#include <chrono>
#include <limits>

namespace convtbw {

namespace {

// Rounds of a run each; the first one warms up. No further round begins after so many seconds: what
// disturbs a run lasts milliseconds, and matters little to a slow problem.
constexpr int kRounds = 10;
constexpr double kBudget = 0.05;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Timing time_plans(const std::vector<const Plan*>& plans, const Operands& operands) {
  std::vector<double> best(plans.size(), std::numeric_limits<double>::infinity());
  const double start = seconds_now();
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < plans.size(); ++i) {
      const double begin = seconds_now();
      plans[i]->run(operands);
      best[i] = std::min(best[i], seconds_now() - begin);
    }
    if (seconds_now() - start > kBudget) break;
  }
  const size_t fastest = std::min_element(best.begin(), best.end()) - best.begin();
  if (fastest != plans.size() - 1) plans[fastest]->run(operands);
  return {std::move(best), fastest};
}

}  // namespace convtbw
