// Where the elements of a problem's tensors lie.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/problem.h"

namespace convtbw {

struct Dimension {
  int64_t extent;
  int64_t* stride;
};

// x and y: images, channels of all groups, pixels. w: slices, groups, y's channels, x's, taps.
inline std::vector<Dimension> dimensions(Problem& p, Role role) {
  const Geometry& g = p.geometry;
  std::vector<Dimension> all;
  if (role == Role::w) {
    all = {{p.slices, &p.w.slice},
           {g.groups, &p.w.group},
           {g.y_channels, &p.w.y_channel},
           {g.x_channels, &p.w.x_channel}};
    for (int a = 0; a < kMaxRank; ++a) all.push_back({g.axes[a].k, &p.w.axes[a]});
    return all;
  }
  DataStrides& strides = role == Role::x ? p.x : p.y;
  const int64_t channels = role == Role::x ? g.x_channels : g.y_channels;
  all = {{g.batch, &strides.batch}, {g.groups * channels, &strides.channel}};
  for (int a = 0; a < kMaxRank; ++a)
    all.push_back({role == Role::x ? g.axes[a].x : g.axes[a].y, &strides.axes[a]});
  return all;
}

// The orders of dimensions, the last one varies fastest.
using Order = std::vector<int>;

inline Order data_order(bool channels_last) {
  return channels_last ? Order{0, 2, 3, 4, 1} : Order{0, 1, 2, 3, 4};
}

// OIX of a convolution, IOX of a transposed one.
inline Order torch_weights_order() { return {0, 1, 2, 3, 4, 5, 6}; }

// OIX and so on, with groups on either of the channels.
inline std::vector<Order> weights_orders() {
  const int group = 1, q = 2, c = 3;
  std::vector<Order> orders;
  for (const std::vector<int>& channels :
       {Order{group, q, c}, Order{q, group, c}, Order{c, group, q}, Order{group, c, q}}) {
    Order first{0, 4, 5, 6}, last{0};
    first.insert(first.end(), channels.begin(), channels.end());
    last.insert(last.end(), channels.begin(), channels.end());
    last.insert(last.end(), {4, 5, 6});
    orders.push_back(first);
    orders.push_back(last);
  }
  return orders;
}

inline int64_t no_gap() { return 0; }

// Slices of x and y follow each other as their images do.
inline void separate_slices(Problem& p, Role role) {
  if (role == Role::w) return;
  DataStrides& strides = role == Role::x ? p.x : p.y;
  strides.slice = p.slices > 1 ? p.geometry.batch / p.slices * strides.batch : 0;
}

// gap(): how many elements longer than its extent a dimension is.
template <class Gap>
void lay_out(Problem& p, Role role, const Order& order, const Gap& gap) {
  const std::vector<Dimension> all = dimensions(p, role);
  int64_t step = 1;
  for (auto d = order.rbegin(); d != order.rend(); ++d) {
    *all[*d].stride = all[*d].extent > 1 ? step : 0;
    step *= all[*d].extent + gap();
  }
  separate_slices(p, role);
}

// Of the memory, with gaps.
inline int64_t size_of(Problem p, Role role) {
  int64_t last = 0;
  for (const Dimension& d : dimensions(p, role)) last += (d.extent - 1) * *d.stride;
  return last + 1;
}

// f(where the element lies, its position in each of the dimensions)
template <class F>
void for_each_element(Problem p, Role role, const F& f) {
  const std::vector<Dimension> all = dimensions(p, role);
  std::vector<int64_t> position(all.size());
  int64_t index = 0;
  for (;;) {
    f(index, std::as_const(position));
    size_t d = all.size();
    for (; d > 0; --d) {
      index += *all[d - 1].stride;
      if (++position[d - 1] < all[d - 1].extent) break;
      index -= all[d - 1].extent * *all[d - 1].stride;
      position[d - 1] = 0;
    }
    if (d == 0) return;
  }
}

}  // namespace convtbw
