// Where the simd backend's lanes are half a vector's.
#pragma once

#include "core/problem.h"

namespace convtbw {

// Whether the result's channels fill half a vector's lanes better than a whole one's, on CPUs that
// multiply both at the same rate (Zen 4). fprop and dgrad of dense problems. lanes: of a whole one.
bool fills_half_vectors(const Problem& problem, int64_t lanes);

// Whether channels of all groups, which are lanes, are less than a whole vector's, but not than
// half of one: whole ones are copied beside zeros, half ones lie where they are.
bool groups_fill_half_vectors(const Problem& problem, int64_t lanes);

}  // namespace convtbw
