// How a weights gradient's sums become its result.
#pragma once

#include "backends/simd/kernels.h"
#include "core/problem.h"

namespace convtbw::simd {

// Converts sums and writes or adds them to the result: `to` with its strides. Columns of the sums
// are contiguous. Those that are added are changed.
void write_weights(const Problem& problem, const Arithmetic& arithmetic, const Copy& sums);

// Depthwise: sums[channel*channel_units + tap], units.
void write_channel_weights(const Problem& problem, const Arithmetic& arithmetic, const char* sums,
                           int64_t channel_units, void* weights);

}  // namespace convtbw::simd
