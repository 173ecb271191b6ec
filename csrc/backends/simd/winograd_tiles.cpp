#include "backends/simd/winograd_tiles.h"

#include <algorithm>

#include "backends/simd/folded_runs.h"

namespace convtbw::simd {

int64_t most_steps(int64_t rows, int64_t columns) {
  constexpr int64_t kMaxStepsOfThreeResults = 32;
  return std::max(rows, columns) == 3 ? kMaxStepsOfThreeResults : kMaxSteps;
}

void transform_tiles(const Winograd& winograd, const PerAxis<Strip>& strips, const Footing& down,
                     const Footing& along, const BoxRange& box, const PerAxis<int64_t>& room,
                     const char* buffer, int64_t pitch, int64_t channels, int64_t frequency,
                     char* frequencies) {
  const int64_t row = strips[3].length * pitch, tiles = room[2] * room[3];
  const int64_t positions = strips[0].length * strips[1].length;
  for (int64_t position = 0; position < positions; ++position)
    for (int64_t v = 0; v < box.count[2]; ++v) {
      const int64_t from = (position * strips[2].length + down.offset + v * down.window) * row +
                           along.offset * pitch;
      const int64_t to = (position * tiles + v * room[3]) * channels;
      winograd.operand({buffer + from * 4, down.tap * row, along.tap * pitch, along.window * pitch,
                        frequencies + to * 4, frequency, channels, channels, box.count[3]});
    }
}

}  // namespace convtbw::simd
