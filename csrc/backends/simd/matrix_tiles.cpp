// The arithmetic on pairs of bfloat16 whose tiles are in matrix registers; compiled once for AMX,
// and once in portable code for tests (CMakeLists.txt, CONVTBW_TARGET).
#include <utility>

#include "backends/simd/added_taps.h"
#include "backends/simd/copy.h"
#include "backends/simd/kernels.h"
#include "backends/simd/matrix_tile.h"
#include "backends/simd/plane_copies.h"
#include "backends/simd/shifts.h"

namespace convtbw::simd::CONVTBW_TARGET {
namespace {

template <int rows, int vectors>
void gathered(const TileCall& call) {
  gathered_matrix<(rows > kMatrixRows) + 1, vectors>(call, rows);
}
template <int rows, int vectors>
void adjacent(const TileCall& call) {
  adjacent_matrix<(rows > kMatrixRows) + 1, vectors>(call, rows);
}

template <int vectors, int... row>
constexpr void fill(Tiles& tiles, std::integer_sequence<int, row...>) {
  tiles.max_rows[vectors] = sizeof...(row);
  ((tiles.gathered[vectors][row + 1] = gathered<row + 1, vectors>), ...);
  ((tiles.adjacent[vectors][row + 1] = adjacent<row + 1, vectors>), ...);
}

template <int... vectors>
constexpr Tiles matrix_tiles(std::integer_sequence<int, vectors...>) {
  Tiles result{};
  (fill<vectors + 1>(result, std::make_integer_sequence<int, most_matrix_rows(vectors + 1)>()),
   ...);
  return result;
}

// What is not set here, float32's arithmetic does.
constexpr Arithmetic pairs() {
  Arithmetic pairs{};
  pairs.name = "bf16 pairs in matrix registers";
  pairs.lanes = kMatrixLanes;
  pairs.pairs = pairs.matrices = true;
  // Folding takes as long as a quarter of 96 steps, and what is rounded to 8 bits gains nothing by
  // it: sums of 2048 products err by 2^-18.
  pairs.least_steps = 1024;
  pairs.tiles = matrix_tiles(std::make_integer_sequence<int, kMaxVectors>());
  constexpr int bf16 = static_cast<int>(Dtype::bf16), f32 = static_cast<int>(Dtype::f32);
  pairs.pack[bf16] = copy_pairs;
  pairs.widen[f32] = pairs.unpack[f32] = copy_elements_of<float, float>;
  pairs.widen[bf16] = copy_elements_of<bfloat16, float>;
  pairs.unpack[bf16] = copy_elements_of<float, bfloat16>;
  pairs.keep = copy_halves;
  pairs.shifted_sum = shifted_sum<float>;
  pairs.added_taps = added_taps<float>;
  pairs.plane_deal[bf16] = plane_deal_pairs;
  pairs.plane_copy[bf16] = plane_copy_pairs;
  pairs.plane_turns[bf16] = kPlaneTurns<bfloat16>;
  return pairs;
}

}  // namespace

// constinit: a dynamic initialiser would run on every CPU.
extern constinit const Arithmetic kPairs = pairs();

}  // namespace convtbw::simd::CONVTBW_TARGET
