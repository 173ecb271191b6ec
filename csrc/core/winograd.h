// Where Winograd's minimal filtering saves products.
#pragma once

#include "core/problem.h"

namespace convtbw {

// fprop and dgrad in 16 or 32 bits whose windows slide by one and have two or three taps along the
// last two axes, or do so in each phase of a stride, with channels and windows enough for the
// transforms to be small beside the products.
bool suits_winograd(const Problem& problem);

}  // namespace convtbw
