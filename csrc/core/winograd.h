// Where Winograd's minimal filtering saves products.
#pragma once

#include "core/problem.h"

namespace convtbw {

// Results along an axis of a tile with so many taps, whose operand has four positions.
constexpr int64_t results_of_taps(int64_t taps) { return 5 - taps; }

// Problems in 16 or 32 bits with two or three taps along the last two axes for each phase of the
// stride, with channels and windows enough for the transforms to be small beside the products. Not
// what is added to weights: the call may have to be computed again. lanes: of a vector of float32.
bool suits_winograd(const Problem& problem, int64_t lanes);

}  // namespace convtbw
