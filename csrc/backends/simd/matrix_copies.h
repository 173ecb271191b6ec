// A box of weights as matrices for Copy (kernels.h), whose columns are lanes.
#pragma once

#include <array>
#include <cstdint>

#include "backends/simd/kernels.h"
#include "core/problem.h"

namespace convtbw::simd {

// Whether all taps follow each other in the weights at this distance, the last axis' innermost, as
// in torch's order.
bool taps_follow(const Problem& problem, int64_t distance);

// One of the box's dimensions: so many steps, in elements of the source and units of the
// destination.
struct CopyDimension {
  int64_t count, from, to;
};

// Dimensions that follow each other on both sides are one, and what descends in the source is met
// from its end: dgrad's taps are packed backwards. A matrix has as its rows the dimension that is
// contiguous in the source, so that blocks are transposed in registers, or else the longest. Time
// of a row of taps each over that of these (Zen 4, 16 lanes, groups of 1 to 8 channels, 14x14 and
// 16x16): dgrad 1.05 to 1.76, 1.25 in the mean, fprop 0.95 to 1.5, 1.1 in the mean.
class MatrixCopies {
 public:
  static constexpr int kMost = 4;  // dimensions

  // contiguous: the step of what lies side by side in the source.
  MatrixCopies(std::array<CopyDimension, kMost> box, int64_t contiguous);

  const CopyDimension& rows() const { return rows_; }

  // f(offset in the source, offset in the destination) of every matrix.
  template <class F>
  void for_each(const F& f) const {
    const auto& [inner, middle, outer] = others_;
    for (int64_t i = 0; i < outer.count; ++i)
      for (int64_t j = 0; j < middle.count; ++j)
        for (int64_t k = 0; k < inner.count; ++k)
          f(from_ + i * outer.from + j * middle.from + k * inner.from,
            to_ + i * outer.to + j * middle.to + k * inner.to);
  }

 private:
  CopyDimension rows_{1, 0, 0};
  std::array<CopyDimension, kMost - 1> others_{{{1, 0, 0}, {1, 0, 0}, {1, 0, 0}}};
  int64_t from_ = 0, to_ = 0;
};

// Taps of some channels that are summed over, as units (kernels.h, Arithmetic): counts, and from
// one to the next in the source, in elements, and in the destination, in units.
struct TapBox {
  const char* from;
  char* to;
  int64_t channels, channel;
  int64_t unit;  // in the destination: of pairs the last may have no second channel
  std::array<CopyDimension, 3> taps;
  int64_t contiguous;  // the step of what lies side by side in the source; 0: nothing does
  // Lanes follow each other in the destination.
  int64_t lanes, lane;
};

void pack_taps(const Arithmetic& arithmetic, Dtype dtype, const TapBox& box);

}  // namespace convtbw::simd
