// Which plan of the SIMD backend serves a problem.
#pragma once

#include <memory>

#include "backends/simd/in_place.h"
#include "backends/simd/kernels.h"
#include "plan/backend.h"

namespace convtbw::simd {

// The first in this order whose rule (rules/) suits: what few pixels, one tap, planes or groups ask
// for, before what serves any problem.
std::unique_ptr<const Plan> choose_plan(const Problem& problem, const Kernels& kernels,
                                        const InPlaceKernels& in_place_kernels);

}  // namespace convtbw::simd
