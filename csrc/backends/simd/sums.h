// Sums of several chunks, added in their order.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace convtbw::simd {

// sums[chunk * stride + i], of `count` float32 (float64 for Dtype::f64), for all chunks into the
// first.
inline void add_chunks(Dtype dtype, char* sums, int64_t stride, int64_t chunks, int64_t count) {
  const auto add = [&](auto* to) {
    for (int64_t chunk = 1; chunk < chunks; ++chunk) {
      const auto* const from = to + chunk * stride;
      for (int64_t i = 0; i < count; ++i) to[i] += from[i];
    }
  };
  if (dtype == Dtype::f64)
    add(reinterpret_cast<double*>(sums));
  else
    add(reinterpret_cast<float*>(sums));
}

}  // namespace convtbw::simd
