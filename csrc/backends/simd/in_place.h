// The loops of one tap of stride 1 whose tensors are read and written where they lie: with few
// channels on one side a copy costs more than the arithmetic. Compiled once per target
// (in_place.cpp).
#pragma once

#include <cstdint>

namespace convtbw::simd {

// Sums over pixels that are neighbours in both tensors, lane by lane:
//   sums[(i*columns + j)*lanes + p % lanes] += a[i*a_row + p] * b[j*b_row + p],  p < pixels
// Elements of a and b, units of the sums. If pixels are no multiple of the lanes, a vector that
// ends with the last pixel is read: it must lie in the tensors.
struct PixelSums {
  const void *a, *b;
  int64_t a_row, b_row;
  int64_t rows, columns, pixels;
  void* sums;
};

// A matrix product with one converted operand:
//   c[i*c_row + j] = start + sum over k of  a[i*a_row + k*a_step] * b[k*b_step + j]
// Units of a, elements of b and c. At least one vector of lanes; the last one overlaps the one
// before.
struct InPlaceProduct {
  const void *a, *b;
  void* c;
  int64_t a_row, a_step, b_step, c_row;
  int64_t rows, lanes, steps;
  // Units; what is there is added up. Rows of sums are whole vectors, of which none overlaps.
  const void *row_start = nullptr, *lane_start = nullptr, *sums = nullptr;
  int64_t sums_row = 0;
  bool to_sums = false;  // c is such sums too
};

// Products of rows of both operands, whose elements are neighbours:
//   c[i*c_row + j*c_column] = start[j] + sum over k < steps of  a[i*a_row + k] * b[j*b_row + k]
// Elements of a and c, units of b and start. Rows of b are whole vectors that end with zeros. At
// least kDotPixels rows.
struct DotProducts {
  const void *a, *b, *start;
  void* c;
  int64_t a_row, b_row, c_row, c_column;
  int64_t rows, columns, steps;
};

inline constexpr int kDotPixels = 16;

struct InPlaceKernels {
  // By Dtype of a and b.
  void (*pixel_sums[4])(const PixelSums&);
  // By Dtype of b and of c: of the tensor, or of its units.
  void (*product[4][4])(const InPlaceProduct&);
  // By Dtype of a and of c: of the tensor, or of its units.
  void (*dot_products[4][4])(const DotProducts&);
};

namespace generic {
extern const InPlaceKernels kInPlace;
}
namespace generic512 {
extern const InPlaceKernels kInPlace;
}
namespace avx2 {
extern const InPlaceKernels kInPlace;
}
namespace avx512 {
extern const InPlaceKernels kInPlace;
}

}  // namespace convtbw::simd
