// The weights of depthwise problems that loops over the pixels of one channel read.
#pragma once

#include <cstdint>
#include <vector>

#include "backends/simd/kernels.h"
#include "core/problem.h"

namespace convtbw::simd {

// Taps of the last axis: where the first one lies behind the channel's weights, and how far apart
// they are.
struct TapRow {
  int64_t first, step, taps;
};

// Of some channels: rows of taps one after the other, channel by channel, and what each channel's
// sums start from.
void pack_channel_taps(const Arithmetic& arithmetic, const Problem& problem,
                       const Operands& operands, const std::vector<TapRow>& rows, int64_t first,
                       int64_t channels, char* weights, char* start);

}  // namespace convtbw::simd
