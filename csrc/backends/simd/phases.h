// How fprop and dgrad see an axis: as windows over the operand's positions. dgrad is one such
// problem for every remainder (phase) of a result position modulo the stride, with the taps that
// reach it; fprop has one phase.
#pragma once

#include <cstdint>
#include <vector>

#include "backends/simd/windows.h"
#include "core/geometry.h"

namespace convtbw::simd {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return -floor_div(-a, b); }

// One phase of one axis, met by at least one tap: window u yields result position out + u*out_step,
// for u in [begin, end); tap t is tap tap + t*tap_step of the weights.
struct Phase {
  Sliding sliding;
  int64_t begin, end;
  int64_t out, out_step;
  int64_t tap, tap_step;
};

// Window u of all phases together covers result positions from out + u*step on.
struct PhasedAxis {
  int64_t windows;
  int64_t out, step;
  std::vector<Phase> phases;
  bool complete;  // every position belongs to one of the phases; the others are zero
};

PhasedAxis images_axis(int64_t images);
PhasedAxis fprop_axis(const Axis& axis);
PhasedAxis dgrad_axis(const Axis& axis);

}  // namespace convtbw::simd
