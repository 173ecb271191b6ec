// The rules of the planner: which backend is offered a problem first.
#pragma once

#include <string_view>
#include <vector>

#include "plan/backend.h"

namespace convtbw {

// All backends; `reference`, which never declines, is the last. `target`: of the simd backend. In
// deterministic mode the problem's `threads` is 1 here, so that no rule can depend on their number.
const std::vector<const Backend*>& preference(const Problem& problem, std::string_view target);

}  // namespace convtbw
