#include "backends/simd/box.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace convtbw::simd {

namespace {

Tensor tensor(const Problem& p, const DataStrides& strides, int64_t Axis::* extent) {
  Tensor t{{p.geometry.batch}, {strides.batch}, strides.channel, p.dtype};
  for (int a = 0; a < kMaxRank; ++a) {
    t.extent[a + 1] = p.geometry.axes[a].*extent;
    t.stride[a + 1] = strides.axes[a];
  }
  return t;
}

// Rows at constant distances: `from_step` elements in the source, `step` rows in the buffer.
struct Rows {
  int64_t first, count, step, from_step;
};

// Rows of a box: source rows, or nothing but zeros.
class RowPacker {
 public:
  RowPacker(const Packing& packing, const BoxRange& box, const Panel* panels, int64_t panel_count)
      : packing_(packing),
        panels_(panels),
        panel_count_(panel_count),
        strip_(packing.strips[3]),
        tensor_(packing.tensor),
        bytes_(element_bytes(packing.tensor.dtype)),
        unit_(packing.unit()),
        copy_(packing.copy()),
        first_(box.begin[3] * packing.strips[3].stride),
        windows_(box.count[3]) {}

  // How many rows are packed together: so many that calls cost little, so few that they stay in the
  // first-level cache, since every comb and panel reads them once. Row by row, weights gradients in
  // bfloat16 took 1.12 times as long in the mean, up to twice (3-D from 3 channels, rows of 32);
  // others 1.0 to 1.03 (Zen 4).
  int64_t most_rows() const {
    constexpr int64_t kBytes = 16 << 10;
    int64_t channels = 0;
    for (const Panel* panel = panels_; panel != panels_ + panel_count_; ++panel)
      channels += panel->channels;
    const int64_t bytes = strip_.length * channels * bytes_;  // none if no tap meets the source
    return std::max<int64_t>(1, kBytes / std::max<int64_t>(1, bytes));
  }

  void zero(char* buffer, const Rows& rows) const {
    for (const Comb& comb : strip_.combs) clear(buffer, rows, comb, 0, comb.length(windows_));
    if (packing_.last_window)
      clear(buffer, rows, *packing_.last_window, 0, packing_.last_window->extra + 1);
  }

  // `from`: position 0 of the first source row, first channel.
  void pack(const char* from, char* buffer, const Rows& rows) const {
    if (packing_.deals) return deal(from, buffer, rows);
    for (const Comb& comb : strip_.combs)
      pack(from, buffer, rows, comb, first_ + comb.from, comb.length(windows_), packing_.pair_step);
    if (packing_.last_window && windows_ % 2) {
      const Comb& comb = *packing_.last_window;
      pack(from, buffer, rows, comb, first_ + (windows_ - 1) * strip_.stride + comb.from,
           comb.extra + 1, std::numeric_limits<int64_t>::max() / 2);
    }
  }

 private:
  // Windows that are inside the source as a whole are read as they lie.
  void deal(const char* from, char* buffer, const Rows& rows) const {
    const Comb& comb = strip_.combs.front();
    const auto taps = std::ssize(strip_.combs);
    const int64_t begin = first_ + comb.from;
    const int64_t first = std::clamp<int64_t>(ceil_div(-begin, taps), 0, windows_);
    const int64_t end = std::clamp(floor_div(tensor_.extent[3] - begin, taps), first, windows_);
    const auto apart = [&](int64_t window, int64_t count) {
      for (Comb tap : strip_.combs) {
        tap.to += window;
        pack(from, buffer, rows, tap, first_ + tap.from + window * taps, count, 0);
      }
    };
    if (first > 0) apart(0, first);
    for (const Panel* panel = panels_; first < end && panel != panels_ + panel_count_; ++panel) {
      Copy call{
          from + ((begin + first * taps) * tensor_.stride[3] + panel->first * tensor_.channel) *
                     bytes_,
          tensor_.stride[3],
          tensor_.channel,
          row_of(*panel, buffer, rows.first) + (comb.to + first) * panel->position * unit_,
          panel->position,
          panel->channel,
          (end - first) * taps,
          panel->channels,
          panel->zeros};
      call.deal = taps;
      call.to_deal = (strip_.combs[1].to - comb.to) * panel->position;
      copy_rows(call, *panel, rows);
    }
    if (end < windows_) apart(end, windows_ - end);
  }

  // `begin`: the source position of the comb's first position; `pair_step`: beyond the source where
  // there are no second elements.
  void pack(const char* from, char* buffer, const Rows& rows, const Comb& comb, int64_t begin,
            int64_t length, int64_t pair_step) const {
    const auto part = [&](int64_t first, int64_t end, Halves halves) {
      if (first >= end) return;
      for (const Panel* panel = panels_; panel != panels_ + panel_count_;) {
        const int64_t alike = equal_panels(panel);
        copy(*panel, alike,
             from + ((begin + first * comb.from_step) * tensor_.stride[3] +
                     panel->first * tensor_.channel) *
                        bytes_,
             comb.from_step * tensor_.stride[3],
             row_of(*panel, buffer, rows.first) +
                 (comb.to + first * comb.to_step) * panel->position * unit_,
             comb.to_step * panel->position, end - first, halves, rows);
        panel += alike;
      }
    };
    const Range here = present_positions(comb, begin, length, tensor_.extent[3]);
    if (packing_.pairing != Pairing::positions) {
      clear(buffer, rows, comb, 0, here.begin);
      part(here.begin, here.end, Halves::both);
      clear(buffer, rows, comb, here.end, length);
      return;
    }
    // Second elements begin and end to be there before the first ones do.
    const Range second = present_positions(comb, begin + pair_step, length, tensor_.extent[3]);
    const int64_t begin_both = std::max(here.begin, second.begin);
    const int64_t end_both = std::max(begin_both, std::min(here.end, second.end));
    clear(buffer, rows, comb, 0, second.begin);
    part(second.begin, std::min(second.end, here.begin), Halves::second);
    clear(buffer, rows, comb, second.end, here.begin);
    part(begin_both, end_both, Halves::both);
    part(std::max(here.begin, second.end), here.end, Halves::first);
    clear(buffer, rows, comb, here.end, length);
  }

  // How many panels, from this one on, differ by their place alone.
  int64_t equal_panels(const Panel* panel) const {
    int64_t count = 1;
    while (panel + count != panels_ + panel_count_ && panel[count].channels == panel->channels &&
           panel[count].position == panel->position)
      ++count;
    return count;
  }

  char* row_of(const Panel& panel, char* buffer, int64_t row) const {
    return buffer + (panel.offset + row * panel.row) * unit_;
  }

  void clear(char* buffer, const Rows& rows, const Comb& comb, int64_t begin, int64_t end) const {
    for (int64_t i = 0; begin < end && i < rows.count; ++i)
      for (const Panel* panel = panels_; panel != panels_ + panel_count_; ++panel)
        clear(*panel, row_of(*panel, buffer, rows.first + i * rows.step), comb, begin, end);
  }

  void clear(const Panel& panel, char* to, const Comb& comb, int64_t begin, int64_t end) const {
    const int64_t channels = units(panel) + panel.zeros;
    if (panel.channel == 1 && comb.to_step == 1 && panel.position == channels) {
      std::memset(to + (comb.to + begin) * channels * unit_, 0, (end - begin) * channels * unit_);
    } else if (panel.channel == 1) {
      for (int64_t t = begin; t < end; ++t)
        std::memset(to + (comb.to + t * comb.to_step) * panel.position * unit_, 0,
                    channels * unit_);
    } else if (comb.to_step == 1) {
      // Channels first: positions are neighbours.
      for (int64_t c = 0; c < channels; ++c)
        std::memset(to + (comb.to + begin + c * panel.channel) * unit_, 0, (end - begin) * unit_);
    } else {
      for (int64_t c = 0; c < channels; ++c)
        for (int64_t t = begin; t < end; ++t)
          std::memset(to + (comb.to + t * comb.to_step + c * panel.channel) * unit_, 0, unit_);
    }
  }

  int64_t units(const Panel& panel) const {
    return packing_.pairing == Pairing::channels ? (panel.channels + 1) / 2 : panel.channels;
  }

  void copy(const Panel& panel, int64_t panels, const char* from, int64_t from_position, char* to,
            int64_t to_position, int64_t positions, Halves halves, const Rows& rows) const {
    Copy call{from,
              from_position,
              tensor_.channel,
              to,
              to_position,
              panel.channel,
              positions,
              panel.channels,
              panel.zeros,
              panels,
              panel.channels * tensor_.channel,
              panels > 1 ? (&panel)[1].offset - panel.offset : 0,
              halves,
              packing_.pair_step * tensor_.stride[3]};
    if (packing_.pairing == Pairing::channels) {
      call.columns = units(panel);
      call.from_column *= 2;
      call.second = tensor_.channel;
      call.odd = panel.channels % 2;
    }
    // Positions that follow each other on both sides become one row there: one of three channels
    // would not fill a vector. fprop of 4x4 taps and three channels 0.93 to 1.0 of the time, of 21
    // other problems the same (Zen 3, where noise is as large).
    copy_rows(call, panel, rows);
  }

  // `call`: of the first row.
  void copy_rows(Copy call, const Panel& panel, const Rows& rows) const {
    call.times = rows.count;
    call.from_time = rows.from_step;
    call.to_time = rows.step * panel.row;
    copy_(call);
  }

  const Packing& packing_;
  const Panel* const panels_;
  const int64_t panel_count_;
  const Strip& strip_;
  const Tensor& tensor_;
  const int64_t bytes_, unit_;
  const CopyFunction copy_;
  const int64_t first_, windows_;
};

}  // namespace

Range present_positions(const Comb& comb, int64_t begin, int64_t length, int64_t extent) {
  if (comb.from_step == 1) {  // without divisions
    const int64_t first = std::clamp<int64_t>(-begin, 0, length);
    return {first, std::clamp(extent - begin, first, length)};
  }
  const int64_t first = std::clamp<int64_t>(ceil_div(-begin, comb.from_step), 0, length);
  const int64_t end = floor_div(extent - 1 - begin, comb.from_step) + 1;
  return {first, std::clamp(end, first, length)};
}

BoxRange Packing::joined(BoxRange box) const {
  if (joined_axes == 0) return box;
  const int last = kBoxRank - 1, first = last - joined_axes;
  box.begin[last] = box.begin[first];
  box.count[last] = box.count[first];
  for (int a = first; a < last; ++a) {
    box.begin[a] = 0;
    box.count[a] = 1;
  }
  return box;
}

void join_rows(Packing& packing, const BoxGrid& grid) {
  if (packing.last_window) return;
  Tensor& tensor = packing.tensor;
  const int last = kBoxRank - 1;
  Strip& row = packing.strips[last];
  const auto in_order = [](const Strip& strip) {
    return strip.combs.size() == 1 && strip.combs.front().to == 0 &&
           strip.combs.front().to_step == 1 && strip.combs.front().from == 0;
  };
  for (int a = last - 1; a >= 0; --a) {
    Strip& outer = packing.strips[a];
    if (!in_order(row) || !in_order(outer)) return;
    Comb& inner = row.combs.front();
    const Comb& comb = outer.combs.front();
    const bool whole = grid.size[a + 1] == grid.extent[a + 1] &&
                       row.length * inner.from_step == tensor.extent[last];
    const bool inside = comb.from_step == 1 && comb.length(grid.extent[a]) <= tensor.extent[a];
    const bool adjacent =
        tensor.extent[a] == 1 || tensor.stride[a] == tensor.extent[last] * tensor.stride[last];
    if (!whole || !inside || !adjacent) return;
    inner.window = comb.window * row.length;
    inner.extra = (comb.extra + 1) * row.length - 1;
    row.stride = outer.stride * tensor.extent[last];
    row.length *= outer.length;
    outer = strip({Sliding{}}, 1, Apart::windows);
    tensor.extent[last] *= tensor.extent[a];
    tensor.extent[a] = 1;
    tensor.stride[a] = 0;
    ++packing.joined_axes;
  }
}

Tensor x_tensor(const Problem& problem) { return tensor(problem, problem.x, &Axis::x); }
Tensor y_tensor(const Problem& problem) { return tensor(problem, problem.y, &Axis::y); }

int64_t item_count(const PerAxis<int64_t>& windows, int64_t channels, double windows_each) {
  constexpr double kMost = 32;
  double all = static_cast<double>(channels);
  for (int64_t count : windows) all *= static_cast<double>(count);
  return static_cast<int64_t>(std::clamp<double>(all / windows_each, kFewItems, kMost));
}

PerAxis<Sliding> sliding_of(const Geometry& g) {
  PerAxis<Sliding> sliding;
  for (int a = 0; a < kMaxRank; ++a) {
    const Axis& axis = g.axes[a];
    sliding[a + 1] = {axis.k, -axis.pad, axis.stride, axis.dilation};
  }
  return sliding;
}

void pack_channel_rows(const Arithmetic& arithmetic, Dtype dtype, Copy copy) {
  const CopyFunction pack = arithmetic.pack[static_cast<int>(dtype)];
  if (!arithmetic.pairs) return pack(copy);
  Copy last = copy;
  const bool odd = copy.rows % 2;
  copy.rows /= 2;
  copy.second = copy.from_row;
  copy.from_row *= 2;
  if (copy.rows) pack(copy);
  if (!odd) return;
  last.from =
      static_cast<const char*>(copy.from) + copy.rows * copy.from_row * element_bytes(dtype);
  last.to = static_cast<char*>(copy.to) + copy.rows * copy.to_row * 4;
  last.rows = 1;
  last.halves = Halves::first;
  pack(last);
}

namespace {

void pack_rows(const Packing& packing, const void* data, const BoxRange& box, const Panel* panels,
               int64_t panel_count, void* buffer) {
  const RowPacker packer(packing, box, panels, panel_count);
  const Tensor& tensor = packing.tensor;
  const int64_t bytes = element_bytes(tensor.dtype);
  // f(buffer position, source position or -1 where it is absent)
  const auto positions = [&](int a, auto f) {
    const Strip& strip = packing.strips[a];
    for (const Comb& comb : strip.combs)
      for (int64_t t = 0, length = comb.length(box.count[a]); t < length; ++t) {
        const int64_t source = box.begin[a] * strip.stride + comb.from + t * comb.from_step;
        f(comb.to + t * comb.to_step, source >= 0 && source < tensor.extent[a] ? source : -1);
      }
  };
  const int64_t most_rows = packer.most_rows();
  positions(0, [&](int64_t to0, int64_t from0) {
    positions(1, [&](int64_t to1, int64_t from1) {
      const Strip& strip = packing.strips[2];
      const int64_t first_row = (to0 * packing.strips[1].length + to1) * strip.length;
      const bool plane_present = from0 >= 0 && from1 >= 0;
      for (const Comb& comb : strip.combs) {
        const int64_t begin = box.begin[2] * strip.stride + comb.from;
        const int64_t length = comb.length(box.count[2]);
        const Range here =
            plane_present ? present_positions(comb, begin, length, tensor.extent[2]) : Range{};
        char* const to = static_cast<char*>(buffer);
        const auto rows = [&](int64_t t, int64_t count) {
          return Rows{first_row + comb.to + t * comb.to_step, count, comb.to_step,
                      comb.from_step * tensor.stride[2]};
        };
        packer.zero(to, rows(0, here.begin));
        for (int64_t t = here.begin; t < here.end; t += most_rows) {
          const int64_t offset = from0 * tensor.stride[0] + from1 * tensor.stride[1] +
                                 (begin + t * comb.from_step) * tensor.stride[2];
          packer.pack(static_cast<const char*>(data) + offset * bytes, to,
                      rows(t, std::min(most_rows, here.end - t)));
        }
        packer.zero(to, rows(here.end, length - here.end));
      }
    });
  });
}

}  // namespace

void pack_box(const Packing& packing, const void* data, const BoxRange& windows,
              const Panel* panels, int64_t panel_count, void* buffer) {
  const BoxRange box = packing.joined(windows);
  // Planes of few pixels fit in the cache together, and their rows are too short for a call each.
  constexpr int64_t kSmallPlane = 28 * 28;
  const Tensor& tensor = packing.tensor;
  if (tensor.channel == 1 || tensor.extent[2] * tensor.extent[3] <= kSmallPlane)
    return pack_rows(packing, data, box, panels, panel_count, buffer);
  // Channels first: all rows of few channels at a time. Rows of a plane follow each other in
  // memory, planes often lie a multiple of the cache's size apart.
  constexpr int64_t kPlanes = 16;
  for (const Panel* panel = panels; panel != panels + panel_count; ++panel)
    for (int64_t channel = 0, count; channel < panel->channels; channel += count) {
      const int64_t left = panel->channels - channel;
      count = left < 2 * kPlanes ? left : kPlanes;
      Panel part = *panel;
      part.first += channel;
      part.channels = count;
      part.offset +=
          (packing.pairing == Pairing::channels ? channel / 2 : channel) * panel->channel;
      if (count < left) part.zeros = 0;
      pack_rows(packing, data, box, &part, 1, buffer);
    }
}

}  // namespace convtbw::simd
