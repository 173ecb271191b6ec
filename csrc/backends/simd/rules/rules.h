// Which plan suits a problem: rules with the measurements that they rest on, a file for each kind
// of problem. `lanes` is how many units a vector of the arithmetic holds.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <optional>

#include "backends/simd/plans.h"
#include "core/problem.h"

namespace convtbw::simd {

// few_channels.cpp
bool few_channels_a_group(const Problem& p, int64_t lanes);
bool groups_one_by_one(const Problem& p, int64_t lanes, bool pairs);
bool few_channels(const Problem& p, int64_t lanes);
bool slid_pixels(const Problem& p, int64_t lanes, bool pairs);
bool slid_phases(const Problem& p, int64_t lanes, bool pairs);
bool tap_lanes(const Problem& p, int64_t lanes);
bool tap_rows(const Problem& p, int64_t lanes, bool pairs);
bool mirrors(const Problem& p, int64_t lanes);

// few_pixels.cpp
bool few_pixels(const Problem& p, int64_t lanes, bool pairs);

// one_tap.cpp
bool pointwise_pixels(const Problem& p, int64_t lanes);
std::optional<Lanes> in_place(const Problem& p, int64_t lanes, bool pairs);
bool dot_products(const Problem& p, int64_t lanes);

// phases.cpp
bool row_phases(const Problem& p, int64_t lanes);
bool dilated_rows(const Problem& p);
std::optional<int> phased_axis(const Problem& p);

// planes.cpp
bool planes(const Problem& p, int64_t lanes);
bool plane_phases(const Problem& p, int64_t lanes);

inline bool has_strides(const Geometry& g) {
  return std::ranges::any_of(g.axes, [](const Axis& axis) { return axis.stride > 1; });
}

// Of expanded tensors, and of strides, more than an integer holds.
inline double product(std::initializer_list<int64_t> factors) {
  double all = 1;
  for (const int64_t factor : factors) all *= static_cast<double>(factor);
  return all;
}

}  // namespace convtbw::simd
