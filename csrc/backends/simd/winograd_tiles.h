// What the plans by Winograd's minimal filtering share: tiles whose operand has four positions
// along each of the last two axes, and their frequencies.
#pragma once

#include "backends/simd/box.h"

namespace convtbw::simd {

inline constexpr int64_t kFrequencies = 16;

// The most steps of one sum, by the results of a tile along both axes. Transforms to three results
// amplify rounding errors more: 2x2 taps of 64 channels, float32, 1.25 times the error of a blocked
// gemm with kMaxSteps.
int64_t most_steps(int64_t rows, int64_t columns);

// Transforms the tiles of a packed box at the given footings of the last two axes, at all buffer
// positions of the first two:
//   frequencies[f][position][row of tiles][tile][channel]
// `room`: for how many tiles along each axis; at least the box's. `pitch`: channels of the buffer,
// of which these are some. `frequency`: units from one to the next; as 16 are
// written in turn, these are best an odd number of lines (odd_lines).
void transform_tiles(const Winograd& winograd, const PerAxis<Strip>& strips, const Footing& down,
                     const Footing& along, const BoxRange& box, const PerAxis<int64_t>& room,
                     const char* buffer, int64_t pitch, int64_t channels, int64_t frequency,
                     char* frequencies);

}  // namespace convtbw::simd
