// fprop and dgrad as sums over windows that slide over the operand.
//
// dgrad is one such problem for every remainder (phase) of a result position modulo the stride,
// with the taps that reach it; fprop has one phase. No zeros are inserted anywhere.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "backends/simd/box.h"
#include "backends/simd/windows.h"
#include "core/problem.h"

namespace convtbw::simd {

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

  Strip strip(int64_t count, Apart apart) const;
};

// The images, then the spatial axes.
PerAxis<PhasedAxis> phased_axes(const Problem& problem);

// The same of fprop, for each remainder of taps modulo the stride: its taps meet rows that no other
// remainder's meet. Their sums add up.
std::vector<PhasedAxis> fprop_phases(const Axis& axis);

// Phases of a dgrad without dilation in the order of their first results, from which on windows are
// counted: result j*stride + q is that of window j of phase q.
PerAxis<PhasedAxis> phases_by_result(const Problem& problem);

// What all these phases together slide over: dgrad of stride 1.
Problem joint_problem(Problem problem, const PerAxis<PhasedAxis>& axes);

// One phase of every axis.
struct BoxPhase {
  PerAxis<const Phase*> axes;
  PerAxis<Footing> footings;
  int64_t taps, taps_before;  // of this phase, and of all phases before it
};

// All combinations that have windows. They point into `axes`.
std::vector<BoxPhase> box_phases(const PerAxis<PhasedAxis>& axes, const PerAxis<Strip>& strips);
// The same for who needs no footings.
std::vector<BoxPhase> box_phases(const PerAxis<PhasedAxis>& axes);

// The result positions of a box of windows.
BoxRange positions_of(const BoxRange& windows, const PerAxis<PhasedAxis>& axes,
                      const Tensor& result);

// How many result positions so many windows of each axis cover at most.
int64_t positions_covered(const PerAxis<int64_t>& windows, const PerAxis<PhasedAxis>& axes,
                          const Tensor& result);

// The windows of a box that yield results in this phase; empty where any count is below 1.
BoxRange windows_of(const BoxRange& windows, const BoxPhase& phase);

inline int64_t offset(const PerAxis<int64_t>& position, const PerAxis<int64_t>& stride) {
  int64_t sum = 0;
  for (int a = 0; a < kBoxRank; ++a) sum += position[a] * stride[a];
  return sum;
}

// f(position) for the first position of every row of the last axis.
template <class F>
void for_each_row(const BoxRange& range, const F& f) {
  PerAxis<int64_t> p = range.begin;
  for (p[0] = range.begin[0]; p[0] < range.begin[0] + range.count[0]; ++p[0])
    for (p[1] = range.begin[1]; p[1] < range.begin[1] + range.count[1]; ++p[1])
      for (p[2] = range.begin[2]; p[2] < range.begin[2] + range.count[2]; ++p[2]) f(p);
}

// Writes sums of some channels to positions of a tensor: those of position p begin at
// from[offset(p, stride)]. Rows that follow each other on both sides are copied as one.
void unpack_positions(const Arithmetic& arithmetic, const Tensor& tensor, const BoxRange& positions,
                      const char* from, const PerAxis<int64_t>& stride, int64_t channels, char* to);

// f(offset) for every tap of the phase, ascending in the operand: where its weights lie.
template <class F>
void for_each_tap(const BoxPhase& phase, const WeightsStrides& w, const F& f) {
  const auto at = [&](int a, int64_t t) {
    return (phase.axes[a]->tap + t * phase.axes[a]->tap_step) * w.axes[a - 1];
  };
  for (int64_t t0 = 0; t0 < phase.axes[1]->sliding.taps; ++t0)
    for (int64_t t1 = 0; t1 < phase.axes[2]->sliding.taps; ++t1)
      for (int64_t t2 = 0; t2 < phase.axes[3]->sliding.taps; ++t2)
        f(at(1, t0) + at(2, t1) + at(3, t2));
}

}  // namespace convtbw::simd
