// What kernel_tests.cpp convolves.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/geometry.h"

namespace convtbw {

struct Shape {
  std::string why;
  int64_t batch, groups, x_channels, y_channels;
  std::vector<Axis> axes;  // y extents are given, so that leftovers and output_padding occur
};

// Multiply-adds, absent taps included.
inline int64_t terms(const Shape& shape) {
  int64_t terms = shape.batch * shape.groups * shape.x_channels * shape.y_channels;
  for (const Axis& axis : shape.axes) terms *= axis.k * axis.y;
  return terms;
}

}  // namespace convtbw
