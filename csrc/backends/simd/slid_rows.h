// Channels first: lanes are neighbours of one channel, so that nothing is transposed: pixels, or
// taps (of depthwise problems with strides of more than 2). What windows slide over is copied
// channel by channel, with its padding and converted, into one buffer in the cache. Where lanes are
// pixels, a row's are dealt in turn to as many parts as its stride: those that a tap meets lie side
// by side.
#pragma once

#include <cstdint>
#include <vector>

#include "backends/simd/box.h"
#include "backends/simd/kernels.h"
#include "core/problem.h"

namespace convtbw::simd {

// Memory to ask for while a plane is computed.
struct Ahead {
  const char* from = nullptr;
  int64_t bytes = 0;

  // What belongs to some of `all` steps of the computation.
  void fetch(int64_t step, int64_t steps, int64_t all) const {
    if (bytes == 0) return;
    for (int64_t i = step * bytes / all, end = (step + steps) * bytes / all; i < end; i += 64)
      __builtin_prefetch(from + i, 0, 2);
  }
};

// What windows slide over: x, or y of a dgrad of stride 1.
class SlidRows {
 public:
  enum class InLanes : uint8_t { pixels, taps };

  SlidRows(const Problem& problem, const Arithmetic& arithmetic, InLanes lanes = InLanes::pixels);

  // Of windows; taps ascend with the positions that they meet.
  const PerAxis<Sliding>& sliding() const { return sliding_; }
  int64_t all_taps() const { return sliding_[1].taps * sliding_[2].taps * sliding_[3].taps; }
  bool reversed() const { return reversed_; }  // tap t is tap taps - 1 - t of the weights
  bool taps_in_lanes() const { return lanes_ == InLanes::taps; }

  // 32 KB take 1.0 to 1.4 times the time of these 96: rows that boxes share are copied for each.
  static constexpr int64_t kUnits = 24 << 10;

  // Into how many items the windows of all channels should be cut.
  int64_t items(int64_t channels) const;

  // Boxes of windows of which so many units hold a channel, not fewer than these if that is
  // possible; all that follows is of one of them.
  BoxGrid cut(int64_t least_boxes, int64_t most_units = kUnits);

  int64_t buffer_units() const { return buffer_units_; }          // whole vectors
  int64_t row_step() const { return sliding_[2].stride * row_; }  // from one window to the next
  int64_t plane_step() const { return sliding_[1].stride * plane_; }

  // Of one window of the first axis: all rows of taps, as sections and one by one. Where the taps
  // of a row lie.
  const std::vector<PlaneSection>& sections() const { return sections_; }
  const std::vector<int64_t>& tap_rows() const { return tap_rows_; }
  const std::vector<int64_t>& row_taps() const { return row_taps_; }

  // Of what copy() reads, one of so many parts.
  Ahead ahead(const void* data, int64_t channel, const BoxRange& box, int64_t part,
              int64_t parts) const;

  // Copies so many channels of a box, or pairs of them, so many units apart; absent positions are
  // set to zero.
  void copy_channels(const void* data, int64_t first, int64_t channels, const BoxRange& box,
                     char* buffer, int64_t step) const;

  // Copies a channel of a box; as pairs, with the next one or alone. Positions that are absent must
  // be zero, from earlier or ever since.
  void copy(const void* data, int64_t channel, const BoxRange& box, char* buffer,
            Halves halves = Halves::both) const;

 private:
  // Positions of a box, and those of them that are present.
  struct Present {
    PerAxis<int64_t> begin;
    PerAxis<Range> range;
    bool any;
  };

  Present present(const BoxRange& box) const;
  PerAxis<int64_t> box_size(int64_t least_boxes, int64_t most_units) const;
  int64_t length(int a, int64_t windows) const {
    return (windows - 1) * sliding_[a].stride + (sliding_[a].taps - 1) * sliding_[a].dilation + 1;
  }

  void deal(Copy copy, const Range& positions, char* row) const;
  // Of a position of a row: units.
  int64_t place(int64_t position) const { return position % parts_ * part_ + position / parts_; }

  const Arithmetic& arithmetic_;
  const Tensor tensor_;
  PerAxis<Sliding> sliding_;
  PerAxis<int64_t> windows_;
  const bool reversed_;
  const InLanes lanes_;
  int64_t parts_;                                              // of a row, dealt in turn
  int64_t row_ = 0, part_ = 0, plane_ = 0, buffer_units_ = 0;  // units
  std::vector<PlaneSection> sections_;
  std::vector<int64_t> tap_rows_, row_taps_;
};

// Where rows of y begin that several rows of taps meet: before the first and behind the last one
// are kMaxTapRows - 1 of zeros.
void list_rows_between_zeros(const char* first, int64_t step, int64_t count, const char* zeros,
                             const void** rows);

// Whether asking for the next channel beforehand gains more than it costs: the data are far, and
// lie row by row.
bool gains_ahead(const Problem& problem);

}  // namespace convtbw::simd
