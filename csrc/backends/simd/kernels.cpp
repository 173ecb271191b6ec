// Everything that is compiled once per target, with that target's flags (CMakeLists.txt):
// CONVTBW_TARGET is the namespace, CONVTBW_VECTOR_BYTES the width of its vectors.
#include "backends/simd/kernels.h"

#include <type_traits>
#include <utility>

#include "backends/simd/added_taps.h"
#include "backends/simd/copy.h"
#include "backends/simd/dealt_taps.h"
#include "backends/simd/lane_bands.h"
#include "backends/simd/lane_scatter.h"
#include "backends/simd/lane_slides.h"
#include "backends/simd/lane_window_rows.h"
#include "backends/simd/lane_windows.h"
#include "backends/simd/lanes.h"
#include "backends/simd/paired_slides.h"
#include "backends/simd/plane_copies.h"
#include "backends/simd/planes.h"
#include "backends/simd/shifts.h"
#include "backends/simd/tile.h"
#include "backends/simd/window_taps.h"
#include "backends/simd/winograd.h"

namespace convtbw::simd::CONVTBW_TARGET {
namespace {

// The most rows of tiles of 1, 2, 3 and 4 vectors: accumulators leave registers for the operands.
constexpr int kRows[] = {CONVTBW_TILE_ROWS};

template <class A, int vectors, int... row>
constexpr void fill(Tiles& tiles, std::integer_sequence<int, row...>) {
  tiles.max_rows[vectors] = sizeof...(row);
  ((tiles.gathered[vectors][row + 1] = gathered_tile<A, row + 1, vectors>), ...);
  ((tiles.adjacent[vectors][row + 1] = adjacent_tile<A, row + 1, vectors>), ...);
}

template <class A, int... vectors>
constexpr Tiles tiles(std::integer_sequence<int, vectors...>) {
  Tiles result{};
  (fill<A, vectors + 1>(result, std::make_integer_sequence<int, kRows[vectors]>()), ...);
  return result;
}

template <class A>
constexpr Tiles kTiles = tiles<A>(std::make_integer_sequence<int, kMaxVectors>());

}  // namespace

#ifdef CONVTBW_PAIRS

// constinit, here and below: a dynamic initialiser would run on every CPU.
extern constinit const Arithmetic kPairs{
    "bf16 pairs",
    kLanes<float>,
    true,
    kTiles<Bfloat16Pairs>,
    {nullptr, copy_pairs},
    {copy_elements_of<float, float>, copy_elements_of<bfloat16, float>},
    {copy_elements_of<float, float>, copy_elements_of<float, bfloat16>},
    copy_halves,
    shifted_sum<float>,
    added_taps<float>,
    {{}, {lane_row<bfloat16, float, TapKind::pair>, lane_row<bfloat16, bfloat16, TapKind::pair>}},
    {},
    {},
    {},
    {},
    {{}, {{}, kPairedSlides}},
    {},
    {{lane_row<bfloat16, float, TapKind::spread_pair>,
      lane_row<bfloat16, bfloat16, TapKind::spread_pair>},
     {},
     {}},
    {},
    {},
    {},
    nullptr,
    {},
    {},
    {},
    {nullptr, plane_deal_pairs},
    {nullptr, plane_copy_pairs},
    {{}, kPlaneTurns<bfloat16>},
    nullptr,
};

#endif
#ifndef CONVTBW_PAIRS_ALONE

namespace {

// float16 for every tap, where that is no more than an instruction.
constexpr auto converting_row() -> void (*)(const LaneRow&) {
  if constexpr (kConvertsFloat16)
    return lane_row<float16, float16>;
  else
    return nullptr;
}
constexpr LaneBandFunctions converting_bands() {
  if constexpr (kConvertsFloat16)
    return kLaneBands<float16, float16>;
  else
    return {};
}
constexpr LaneScatterFunctions converting_scatter() {
  if constexpr (kConvertsFloat16)
    return kLaneScatter<float16, float16>;
  else
    return {};
}
constexpr auto converting_window_rows() -> void (*)(const LaneWindowRows&) {
  if constexpr (kConvertsFloat16)
    return lane_window_rows<float16, float16>;
  else
    return nullptr;
}
constexpr TapsFunctions<PlaneTaps> converting_plane_taps() {
  if constexpr (kConvertsFloat16)
    return kPlaneTaps<float16>;
  else
    return {};
}
constexpr LaneTapsFunctions converting_taps() {
  if constexpr (kConvertsFloat16)
    return kLaneTaps<float16, float16>;
  else
    return {};
}
constexpr LaneSlidesFunctions converting_slides() {
  if constexpr (kConvertsFloat16)
    return kLaneSlides<float16, float16>;
  else
    return {};
}
constexpr LaneWindowsFunctions converting_windows() {
  if constexpr (kConvertsFloat16)
    return kLaneWindows<float16, float16>;
  else
    return {};
}

template <TapKind kind>
constexpr SpreadingKernels kSpreading{
    {lane_row<float, float, kind>, lane_row<float, bfloat16, kind>, lane_row<float, float16, kind>},
    kLaneTaps<float, float, kind>,
    kLaneSlides<float, float, kind>,
};

constinit const Arithmetic kF32{
    "f32",
    kLanes<float>,
    false,
    kTiles<Plain<float>>,
    {copy_elements_of<float, float>, copy_elements_of<bfloat16, float>,
     copy_elements_of<float16, float>, nullptr},
    {copy_elements_of<float, float>, copy_elements_of<bfloat16, float>,
     copy_elements_of<float16, float>, nullptr},
    {copy_elements_of<float, float>, copy_elements_of<float, bfloat16>,
     copy_elements_of<float, float16>, nullptr},
    nullptr,
    shifted_sum<float>,
    added_taps<float>,
    {{lane_row<float, float>, lane_row<float, bfloat16>, lane_row<float, float16>},
     {nullptr, lane_row<bfloat16, bfloat16>},
     {nullptr, nullptr, converting_row()}},
    {kLaneBands<float, float>, kLaneBands<bfloat16, bfloat16>, converting_bands()},
    {kLaneScatter<float, float>, kLaneScatter<bfloat16, bfloat16>, converting_scatter()},
    {lane_window_rows<float, float>, lane_window_rows<bfloat16, bfloat16>,
     converting_window_rows()},
    {{kLaneTaps<float, float>, kLaneTaps<float, bfloat16>, kLaneTaps<float, float16>},
     {{}, kLaneTaps<bfloat16, bfloat16>},
     {{}, {}, converting_taps()}},
    {{kLaneSlides<float, float>, kLaneSlides<float, bfloat16>, kLaneSlides<float, float16>},
     {{}, kLaneSlides<bfloat16, bfloat16>},
     {{}, {}, converting_slides()}},
    {{kLaneWindows<float, float>, kLaneWindows<float, bfloat16>, kLaneWindows<float, float16>},
     {{}, kLaneWindows<bfloat16, bfloat16>},
     {{}, {}, converting_windows()}},
    kSpreading<TapKind::spread>,
    kSpreading<TapKind::broadcast>,
    {spread<float>, spread<bfloat16>, spread<float16>, nullptr},
    {plane_rows<float>, plane_rows<bfloat16>, plane_rows<float16>, nullptr},
    window_rows<float>,
    {kPlaneTaps<float>, kPlaneTaps<bfloat16>, converting_plane_taps(), {}},
    {kDealtTaps<float, float>, kDealtTaps<bfloat16, float>, kDealtTaps<float16, float>, {}},
    {kWindowTaps<float, float>, kWindowTaps<bfloat16, float>, kWindowTaps<float16, float>, {}},
    {plane_deal<float>, plane_deal<bfloat16>, plane_deal<float16>, nullptr},
    {plane_copy<float>, plane_copy<bfloat16>, plane_copy<float16>, nullptr},
    {kPlaneTurns<float>, kPlaneTurns<bfloat16>, kPlaneTurns<float16>, {}},
    &kWinograd,
};

constinit const Arithmetic kF64{
    "f64",
    kLanes<double>,
    false,
    kTiles<Plain<double>>,
    {nullptr, nullptr, nullptr, copy_elements_of<double, double>},
    {nullptr, nullptr, nullptr, copy_elements_of<double, double>},
    {nullptr, nullptr, nullptr, copy_elements_of<double, double>},
    nullptr,
    shifted_sum<double>,
    added_taps<double>,
    {{}, {}, {}, {nullptr, nullptr, nullptr, lane_row<double, double>}},
    {{}, {}, {}, kLaneBands<double, double>},
    {{}, {}, {}, kLaneScatter<double, double>},
    {nullptr, nullptr, nullptr, lane_window_rows<double, double>},
    {{}, {}, {}, {{}, {}, {}, kLaneTaps<double, double>}},
    {{}, {}, {}, {{}, {}, {}, kLaneSlides<double, double>}},
    {{}, {}, {}, {{}, {}, {}, kLaneWindows<double, double>}},
    {},
    {},
    {nullptr, nullptr, nullptr, spread<double>},
    {nullptr, nullptr, nullptr, plane_rows<double>},
    window_rows<double>,
    {{}, {}, {}, kPlaneTaps<double>},
    {{}, {}, {}, kDealtTaps<double, double>},
    {{}, {}, {}, kWindowTaps<double, double>},
    {nullptr, nullptr, nullptr, plane_deal<double>},
    {nullptr, nullptr, nullptr, plane_copy<double>},
    {{}, {}, {}, kPlaneTurns<double>},
    nullptr,
};

}  // namespace

#ifdef CONVTBW_PAIRS
extern constinit const Kernels kKernels{&kF32, &kF64, &kPairs, &kPairs};
#else
extern constinit const Kernels kKernels{&kF32, &kF64, nullptr, nullptr};
#endif

#endif

}  // namespace convtbw::simd::CONVTBW_TARGET
