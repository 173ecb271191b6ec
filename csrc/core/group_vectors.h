// Where the simd backend's lanes are channels of all groups although those of one fill vectors.
#pragma once

#include "core/problem.h"

namespace convtbw {

// Whether they should be, with vectors of so many lanes: what meets them is then broadcast from
// where it lies, and nothing is packed. Channels last, groups of few channels.
bool groups_fill_vectors(const Problem& problem, int64_t lanes);

}  // namespace convtbw
