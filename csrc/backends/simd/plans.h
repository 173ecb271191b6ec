// The plans of the SIMD backend, one for each way to see a problem.
#pragma once

#include <memory>

#include "backends/simd/kernels.h"
#include "plan/backend.h"

namespace convtbw::simd {

std::unique_ptr<const Plan> data_plan(const Problem& problem, const Arithmetic& arithmetic);
std::unique_ptr<const Plan> few_channels_plan(const Problem& problem, const Arithmetic& arithmetic);
// For one tap of stride 1 without padding, along one axis whose pixels are neighbours.
std::unique_ptr<const Plan> pointwise_plan(const Problem& problem, const Arithmetic& arithmetic);
std::unique_ptr<const Plan> weights_plan(const Problem& problem, const Arithmetic& arithmetic);

// For groups of few channels; not for pairs.
std::unique_ptr<const Plan> grouped_data_plan(const Problem& problem, const Arithmetic& arithmetic);
std::unique_ptr<const Plan> grouped_weights_plan(const Problem& problem,
                                                 const Arithmetic& arithmetic);

}  // namespace convtbw::simd
