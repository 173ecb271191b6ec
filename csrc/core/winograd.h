// Where Winograd's minimal filtering saves products.
#pragma once

#include "core/problem.h"

namespace convtbw {

// Problems in 16 or 32 bits with two or three taps along the last two axes for each phase of the
// stride, with channels and windows enough for the transforms to be small
// beside the products. Not what is added to weights: the call may have to be computed again.
bool suits_winograd(const Problem& problem);

}  // namespace convtbw
