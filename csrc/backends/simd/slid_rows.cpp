#include "backends/simd/slid_rows.h"

#include <algorithm>
#include <cstring>

#include "backends/simd/far_bytes.h"
#include "backends/simd/phases.h"

namespace convtbw::simd {

SlidRows::SlidRows(const Problem& problem, const Arithmetic& arithmetic, InLanes lanes)
    : arithmetic_(arithmetic),
      tensor_(problem.wanted == Role::x ? y_tensor(problem) : x_tensor(problem)),
      reversed_(problem.wanted == Role::x),
      lanes_(lanes) {
  const Geometry& g = problem.geometry;
  windows_[0] = g.batch;
  for (int a = 0; a < kMaxRank; ++a) {
    const Axis& axis = g.axes[a];
    const int64_t first = reversed_ ? axis.pad - (axis.k - 1) * axis.dilation : -axis.pad;
    sliding_[a + 1] = {axis.k, first, axis.stride, axis.dilation};
    windows_[a + 1] = reversed_ ? axis.x : axis.y;
  }
  parts_ = taps_in_lanes() ? 1 : sliding_[3].stride;
}

PerAxis<int64_t> SlidRows::box_size(int64_t least_boxes, int64_t most_units) const {
  // Of long rows a piece, so that several share what their windows have in common.
  const int64_t row_units =
      sliding_[2].taps > 1 ? std::min<int64_t>(1 << 10, most_units / 8) : most_units;
  PerAxis<int64_t> size{1, 1, 1, 1};
  const auto fits = [&] {
    return length(1, size[1]) * length(2, size[2]) * length(3, size[3]) <= most_units &&
           length(3, size[3]) <= row_units;
  };
  const auto boxes = [&] { return BoxGrid{windows_, size}.boxes(); };
  for (int a = kBoxRank - 1; a > 0; --a)
    for (int64_t pieces = 1;; ++pieces) {
      // As even as can be, and whole vectors.
      size[a] = ceil_div(windows_[a], pieces);
      if (a == 3 && pieces > 1) size[a] = ceil_div(size[a], arithmetic_.lanes) * arithmetic_.lanes;
      const int64_t vectors = a == 3 ? ceil_div(size[a], arithmetic_.lanes) : size[a];
      if (vectors == 1 || (fits() && (boxes() >= least_boxes || (a == 3 && vectors <= 8)))) break;
    }
  return size;
}

// Always 32 items of one or two images of 24 to 144 channels of 24x24 to 64x64 take 1.05 to 1.95
// times as long (Zen 5, 8 and 16 lanes).
int64_t SlidRows::items(int64_t channels) const {
  constexpr double kWindows = 16 << 10;
  return item_count(windows_, channels, kWindows);
}

BoxGrid SlidRows::cut(int64_t least_boxes, int64_t most_units) {
  const PerAxis<int64_t> size = box_size(least_boxes, most_units);
  const int64_t lanes = arithmetic_.lanes;
  const auto whole_vectors = [&](int64_t units) { return ceil_div(units, lanes) * lanes; };
  // A last vector of pixels is read beyond the last window.
  row_ = whole_vectors(length(3, taps_in_lanes() ? size[3] : whole_vectors(size[3])));
  part_ = whole_vectors(ceil_div(row_, parts_));
  row_ = parts_ * part_;
  plane_ = length(2, size[2]) * row_;
  buffer_units_ = length(1, size[1]) * plane_;
  const int64_t steps = sliding_[2].stride, rows = sliding_[2].taps;
  for (int64_t t = 0; t < sliding_[1].taps; ++t) {
    const int64_t plane = t * sliding_[1].dilation * plane_;
    for (int64_t row = 0; row < std::min(steps, rows); ++row)
      sections_.push_back(
          {plane + row * row_, (t * rows + row) * sliding_[3].taps, ceil_div(rows - row, steps)});
    for (int64_t row = 0; row < rows; ++row)
      tap_rows_.push_back(plane + row * sliding_[2].dilation * row_);
  }
  for (int64_t t = 0; t < sliding_[3].taps; ++t)
    row_taps_.push_back(place(t * sliding_[3].dilation));
  return {windows_, size};
}

void list_rows_between_zeros(const char* first, int64_t step, int64_t count, const char* zeros,
                             const void** rows) {
  std::fill(rows + 1 - kMaxTapRows, rows, zeros);
  for (int64_t i = 0; i < count; ++i, first += step) rows[i] = first;
  std::fill(rows + count, rows + count + kMaxTapRows - 1, zeros);
}

bool gains_ahead(const Problem& problem) {
  for (const Tensor& tensor : {x_tensor(problem), y_tensor(problem)})
    // Gaps would be asked for, too.
    if (tensor.stride[2] > 2 * tensor.extent[3] ||
        tensor.stride[1] > 2 * tensor.extent[3] * tensor.extent[2])
      return false;
  return data_bytes_of_both(problem) > far_bytes().planes;
}

SlidRows::Present SlidRows::present(const BoxRange& box) const {
  Present here{{}, {}, true};
  for (int a = 1; a < kBoxRank; ++a) {
    here.begin[a] = box.begin[a] * sliding_[a].stride + sliding_[a].first;
    here.range[a] = {std::max<int64_t>(0, -here.begin[a]),
                     std::min(length(a, box.count[a]), tensor_.extent[a] - here.begin[a])};
    here.any = here.any && here.range[a].begin < here.range[a].end;
  }
  return here;
}

Ahead SlidRows::ahead(const void* data, int64_t channel, const BoxRange& box, int64_t part,
                      int64_t parts) const {
  const auto [begin, range, any] = present(box);
  if (!any) return {};
  const int64_t planes = range[1].end - range[1].begin;
  const int64_t first = planes * part / parts, last = planes * (part + 1) / parts;
  if (first == last) return {};
  const int64_t from = channel * tensor_.channel + box.begin[0] * tensor_.stride[0] +
                       (begin[1] + range[1].begin + first) * tensor_.stride[1] +
                       (begin[2] + range[2].begin) * tensor_.stride[2];
  const int64_t count =
      (last - first - 1) * tensor_.stride[1] + (range[2].end - range[2].begin) * tensor_.stride[2];
  const int64_t bytes = element_bytes(tensor_.dtype);
  return {static_cast<const char*>(data) + from * bytes, count * bytes};
}

// Positions of rows whose pixels are dealt to more than two parts: those before the first whole
// turn, in whole turns, and behind the last one. `copy` says how often, and where the first one is.
void SlidRows::deal(Copy copy, const Range& positions, char* row) const {
  const int64_t bytes = element_bytes(tensor_.dtype);
  const int64_t unit = element_bytes(sum_dtype(tensor_.dtype));
  const char* const from = static_cast<const char*>(copy.from);
  copy.from_row = copy.to_column = 1;
  copy.from_column = parts_;
  copy.to_row = part_;
  const auto turns = [&](int64_t begin, int64_t end, int64_t parts, int64_t count) {
    if (begin == end) return;
    copy.from = from + (begin - positions.begin) * bytes;
    copy.to = row + place(begin) * unit;
    copy.rows = parts;
    copy.columns = count;
    arithmetic_.pack[static_cast<int>(tensor_.dtype)](copy);
  };
  const int64_t first = std::min(positions.end, ceil_div(positions.begin, parts_) * parts_);
  const int64_t last = std::max(first, positions.end / parts_ * parts_);
  turns(positions.begin, first, first - positions.begin, 1);
  turns(first, last, parts_, (last - first) / parts_);
  turns(last, positions.end, positions.end - last, 1);
}

void SlidRows::copy_channels(const void* data, int64_t first, int64_t channels, const BoxRange& box,
                             char* buffer, int64_t step) const {
  const int64_t of_a_unit = arithmetic_.pairs ? 2 : 1;
  const int64_t step_bytes = step * element_bytes(sum_dtype(tensor_.dtype));
  std::memset(buffer, 0, ceil_div(channels, of_a_unit) * step_bytes);
  for (int64_t i = 0; i < channels; i += of_a_unit, buffer += step_bytes)
    copy(data, first + i, box, buffer, i + of_a_unit <= channels ? Halves::both : Halves::first);
}

void SlidRows::copy(const void* data, int64_t channel, const BoxRange& box, char* buffer,
                    Halves halves) const {
  const auto [begin, range, any] = present(box);
  if (!any) return;
  const int64_t bytes = element_bytes(tensor_.dtype);
  const int64_t unit = element_bytes(sum_dtype(tensor_.dtype));
  const int64_t rows = range[2].end - range[2].begin, row = range[2].begin * row_;
  PerAxis<int64_t> position{box.begin[0], 0, begin[2] + range[2].begin, begin[3] + range[3].begin};
  for (int64_t plane = range[1].begin; plane < range[1].end; ++plane) {
    position[1] = begin[1] + plane;
    const void* const from = static_cast<const char*>(data) +
                             (channel * tensor_.channel + offset(position, tensor_.stride)) * bytes;
    char* const to = buffer + (plane * plane_ + row) * unit;
    if (parts_ > 2) {
      Copy copy{};
      copy.from = from;
      copy.halves = halves;
      copy.second = tensor_.channel;
      copy.times = rows;
      copy.from_time = tensor_.stride[2];
      copy.to_time = row_;
      deal(copy, range[3], to);
      continue;
    }
    const auto place_of = [&](int64_t i) { return to + place(range[3].begin + i) * unit; };
    const PlaneCopy copy{
        from,        tensor_.stride[2], place_of(0), row_, rows, range[3].end - range[3].begin,
        place_of(1), tensor_.channel,   halves};
    (parts_ == 2 ? arithmetic_.plane_deal
                 : arithmetic_.plane_copy)[static_cast<int>(tensor_.dtype)](copy);
  }
}

}  // namespace convtbw::simd
