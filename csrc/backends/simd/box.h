// A box of windows packed from a tensor into a buffer: here layout, dtype, padding, stride and
// dilation end.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "backends/simd/kernels.h"
#include "backends/simd/windows.h"
#include "core/problem.h"

namespace convtbw::simd {

// Images are treated as one more axis, with one tap.
inline constexpr int kBoxRank = kMaxRank + 1;

template <class T>
using PerAxis = std::array<T, kBoxRank>;

inline constexpr int64_t kLineBytes = 64;  // of the caches

// A long pitch is an odd number of cache lines: what is one pitch apart then lies in different sets
// of the cache.
inline int64_t odd_lines(int64_t units) {
  constexpr int64_t kLine = 16, kLong = 8 * kLine;
  return units < kLong ? units : (ceil_div(units, kLine) / 2 * 2 + 1) * kLine;
}

struct BoxRange {
  PerAxis<int64_t> begin, count;

  bool empty() const { return std::min({count[0], count[1], count[2], count[3]}) < 1; }
};

// A data tensor; extents and strides include the images.
struct Tensor {
  PerAxis<int64_t> extent, stride;
  int64_t channel;
  Dtype dtype;
};

Tensor x_tensor(const Problem& problem);
Tensor y_tensor(const Problem& problem);

// How windows, one for each pixel of y, slide over x. Images have one tap.
PerAxis<Sliding> sliding_of(const Geometry& geometry);

// Cuts [0, extents) into boxes of up to `size`; the index counts the last axis fastest.
struct BoxGrid {
  PerAxis<int64_t> extent, size;

  int64_t boxes() const {
    int64_t count = 1;
    for (int a = 0; a < kBoxRank; ++a) count *= (extent[a] + size[a] - 1) / size[a];
    return count;
  }
  BoxRange box(int64_t index) const {
    BoxRange range;
    for (int a = kBoxRank - 1; a >= 0; --a) {
      const int64_t cuts = (extent[a] + size[a] - 1) / size[a];
      range.begin[a] = index % cuts * size[a];
      range.count[a] = std::min(size[a], extent[a] - range.begin[a]);
      index /= cuts;
    }
    return range;
  }
  // The last one after itself.
  BoxRange box_after(int64_t index) const { return box(std::min(index + 1, boxes() - 1)); }
};

// Into how many items windows of so many channels are cut: enough to keep many threads busy until
// the end, but of so many windows each that what an item costs beside them is little, unless there
// are few.
inline constexpr int64_t kFewItems = 8;
int64_t item_count(const PerAxis<int64_t>& windows, int64_t channels, double windows_each);

// Positions t < length of a comb with begin + t*from_step in a source of so many.
Range present_positions(const Comb& comb, int64_t begin, int64_t length, int64_t extent);

// What the two elements of a bfloat16 pair are: neighbouring channels, or the same channel at two
// positions that are multiplied in turn.
enum class Pairing : uint8_t { none, channels, positions };

// A range of channels and where they go: channel c of position p of row r (the rows of the buffer
// are counted over the first three axes) lies at offset + r*row + p*position + c*channel.
struct Panel {
  int64_t first, channels;
  int64_t offset, row, position, channel;
  int64_t zeros = 0;  // units behind the channels that are to be zero
};

// Where the rows of a box begin is data-independent, so panels and strips are a plan's.
struct Packing {
  const Arithmetic* arithmetic;
  Tensor tensor;
  PerAxis<Strip> strips;
  Pairing pairing = Pairing::none;
  bool keeps = false;  // elements of bfloat16 as they are (Arithmetic, keep)
  // For Pairing::positions: the second element's source position, counted from the first's; and for
  // an odd number of windows, where the taps of the last window lie once more, without second
  // elements (`from` counts from the last window).
  int64_t pair_step = 0;
  std::optional<Comb> last_window = std::nullopt;
  // Channels first: the last axis has a comb for each of the positions from one window to the next,
  // in their order, so that neighbours are dealt to the combs in turn.
  bool deals = false;
  // So many axes became one with the last axis (join_rows).
  int joined_axes = 0;

  BoxRange joined(BoxRange box) const;
  CopyFunction copy() const {
    return keeps ? arithmetic->keep : arithmetic->pack[static_cast<int>(tensor.dtype)];
  }
  int64_t unit() const { return keeps ? 2 : tensor.dtype == Dtype::f64 ? 8 : 4; }
};

// Makes rows that follow each other without a gap, in the source and in every box's buffer, one
// row: its windows are those of the axis before. Copies of rows of 32 take 2 to 4 times as long as
// those of 256, an element, where planes lie 4 KB apart (Zen 4).
void join_rows(Packing& packing, const BoxGrid& grid);

// Packs a matrix of weights whose rows are the channels that are summed over; where the arithmetic
// works on pairs, on pairs of rows.
void pack_channel_rows(const Arithmetic& arithmetic, Dtype dtype, Copy copy);

// `data` points to the first channel of the group.
void pack_box(const Packing& packing, const void* data, const BoxRange& box, const Panel* panels,
              int64_t panel_count, void* buffer);

}  // namespace convtbw::simd
