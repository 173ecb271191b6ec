// Shapes that nobody thought of: parts, boxes and pitches of every size meet in them.
#pragma once

#include <algorithm>
#include <random>

#include "shape.h"

namespace convtbw {

namespace detail {

using Random = std::mt19937;

template <size_t n>
int64_t one_of(Random& random, const int64_t (&values)[n]) {
  return values[random() % n];
}

inline Axis random_axis(Random& random, int64_t most_windows) {
  const int64_t k =
      random() % 8 ? one_of(random, {1, 1, 2, 3, 3, 3, 4, 5, 7}) : one_of(random, {8, 11, 16, 31});
  const int64_t stride = random() % 3 ? 1 : one_of(random, {2, 2, 2, 3, 4, k, 8});
  const int64_t dilation = random() % 4 ? 1 : one_of(random, {2, 3, 5});
  const int64_t y = 1 + static_cast<int64_t>(random() % most_windows);
  const int64_t met = (y - 1) * stride + (k - 1) * dilation + 1;
  const int64_t pad = random() % 2 ? k / 2 * dilation : static_cast<int64_t>(random() % (k + 1));
  const int64_t pad_end = random() % 4 ? pad : static_cast<int64_t>(random() % (k + 1));
  const int64_t leftover = random() % 4 ? 0 : static_cast<int64_t>(random() % stride);
  return {std::max<int64_t>(1, met - pad - pad_end + leftover), k, y, stride, pad, dilation};
}

inline int64_t random_channels(Random& random) {
  // Remainders of vectors, and so many that they are computed in parts.
  if (random() % 4) return 1 + static_cast<int64_t>(random() % 40);
  return one_of(random, {48, 64, 65, 96, 130, 200, 264, 520, 1026});
}

}  // namespace detail

// Of up to so many terms.
inline Shape random_shape(std::mt19937& random, int64_t most_terms) {
  for (;;) {
    Shape shape{"random", 1 + static_cast<int64_t>(random() % 3), 1, 0, 0, {}};
    const size_t rank = 1 + random() % 3;
    for (size_t a = 0; a < rank; ++a)
      shape.axes.push_back(detail::random_axis(random, rank == 1 ? 400 : rank == 2 ? 60 : 16));
    if (random() % 3 == 0) shape.groups = detail::random_channels(random);
    const bool depthwise = shape.groups > 1 && random() % 2;
    shape.x_channels = depthwise ? 1 : detail::random_channels(random);
    shape.y_channels = depthwise && random() % 4 ? 1 : detail::random_channels(random);
    if (terms(shape) > most_terms) continue;
    const auto add = [&](const char* name, int64_t value) {
      shape.why += std::string(" ") + name + std::to_string(value);
    };
    add("batch ", shape.batch);
    add("groups ", shape.groups);
    add("channels ", shape.x_channels);
    add("-> ", shape.y_channels);
    for (const Axis& axis : shape.axes) {
      add("| x", axis.x);
      add("k", axis.k);
      add("y", axis.y);
      add("s", axis.stride);
      add("p", axis.pad);
      add("d", axis.dilation);
    }
    return shape;
  }
}

}  // namespace convtbw
