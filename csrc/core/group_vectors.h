// Where the simd backend's lanes are channels of all groups although those of one fill vectors.
#pragma once

#include "core/problem.h"

namespace convtbw {

// Whether they should be, with vectors of so many lanes: what meets them is then broadcast from
// where it lies, and nothing is packed. Channels last, groups of few channels.
bool groups_fill_vectors(const Problem& problem, int64_t lanes);

// Whether several whole groups fit in a vector, with as many channels on both sides, so that what
// meets them is spread in a register. Time with planes in memory over that, where all groups
// together fill no vector (Zen 5, 8 and 16 lanes): 0.95 to 2.1, 1.3 in the mean.
bool groups_share_vectors(const Problem& problem, int64_t lanes);

}  // namespace convtbw
