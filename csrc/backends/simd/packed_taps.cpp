#include "backends/simd/packed_taps.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/scratch.h"
#include "core/stream.h"

namespace convtbw::simd {

namespace {

// Weights in the order of torch.nn, whose taps are contiguous, are transposed tap by lane: 0.3 ns
// an element instead of 2, up to an eighth of a data gradient from 512 to 256 channels, three
// quarters of one with 256 channels and 125 taps (Zen 4).
// So many at a time: the taps of some phases, and of those between two of them, which are another
// phase's, at most so many.
constexpr int64_t kMaxTransposedTaps = 512, kMostBetween = 16;
// So many channels before their turn the weights are fetched: lanes lie kilobytes apart, and no
// prefetcher of the CPU follows them. 512 channels, 7x7, one image: 6.2 -> 4.5 ms (2 to 16 channels
// ahead are alike).
constexpr int64_t kAhead = 4;
// So many bytes of each lane at a time are the rows of one copy: 256 to 1024 are alike.
constexpr int64_t kJoinedBytes = 512;
// Of what is on its way to its place.
constexpr int64_t kTileBytes = 32 << 10;

}  // namespace

PackedTaps::PackedTaps(const Problem& problem, const Arithmetic& arithmetic, bool run_on)
    : arithmetic_(arithmetic),
      dtype_(problem.dtype),
      strides_(problem.w),
      in_stride_(problem.wanted == Role::y ? problem.w.x_channel : problem.w.y_channel),
      out_stride_(problem.wanted == Role::y ? problem.w.y_channel : problem.w.x_channel),
      run_on_(run_on),
      contiguous_(false) {
  for (int a = 0; a < kMaxRank; ++a)
    contiguous_ |= problem.geometry.axes[a].k > 1 && problem.w.axes[a] == 1;
  contiguous_ &= in_stride_ != 1 && out_stride_ != 1;
}

// f(phase, where its units for the block's lanes go)
template <class F>
void PackedTaps::for_each_phase(std::span<const BoxPhase> phases, const Block& block,
                                const F& f) const {
  char* to = static_cast<char*>(block.packed);
  for (const BoxPhase& phase : phases) {
    const int64_t lane_bytes = units(phase, block.together) * unit();
    f(phase, to + lane_bytes * block.lanes_before);
    to += lane_bytes * block.part_lanes;
  }
}

// f(where a tap lies in the weights, where its units of these channels go)
template <class F>
void PackedTaps::for_each_packed_tap(std::span<const BoxPhase> phases, const Block& block,
                                     const F& f) const {
  const int64_t row = block.width * unit();
  const int64_t before = units(1, block.first - block.first_together) * row;
  for_each_phase(phases, block, [&](const BoxPhase& phase, char* to) {
    for_each_tap(phase, strides_, [&](int64_t tap) {
      f(tap, to + before);
      to += units(1, block.together) * row;
    });
  });
}

void PackedTaps::pack(const void* weights, std::span<const BoxPhase> phases,
                      const Block& block) const {
  const int64_t bytes = element_bytes(dtype_);
  const int64_t first =
      block.group * strides_.group + block.first * in_stride_ + block.lane * out_stride_;
  const char* const w = static_cast<const char*>(weights) + first * bytes;
  if (run_on_) return pack_running_on(w, phases, block);
  if (contiguous_) return pack_transposed(w, phases, block);
  // Taps whose channels are as far apart as those of the tap before are more rows of one copy,
  // which fetches rows ahead: 1 to 1026 channels, 1024 taps, NXC, 0.82 of the time (Zen 5).
  const bool whole = block.channels % elements_of_unit() == 0;
  Copy rows{};
  for_each_packed_tap(phases, block, [&](int64_t tap, char* to) {
    const char* const from = w + tap * bytes;
    const auto* const last = static_cast<const char*>(rows.from);
    if (rows.rows == 1) rows.from_row = (from - last) / bytes;
    if (whole && rows.rows && from == last + rows.rows * rows.from_row * bytes &&
        to == static_cast<char*>(rows.to) + rows.rows / elements_of_unit() * block.width * unit()) {
      rows.rows += block.channels;
      return;
    }
    if (rows.rows) pack_rows(rows, block.streamed);
    rows = {from,
            in_stride_,
            out_stride_,
            to,
            block.width,
            1,
            block.channels,
            block.live,
            block.width - block.live};
  });
  if (rows.rows) pack_rows(rows, block.streamed);
}

void PackedTaps::pack_rows(Copy rows, bool streamed) const {
  if (!streamed) return pack_channel_rows(arithmetic_, dtype_, rows);
  const int64_t row = rows.to_row * unit();
  const int64_t most_units = std::max<int64_t>(1, kTileBytes / row);
  char* to = static_cast<char*>(rows.to);
  rows.to = local_scratch<char>(most_units * row);
  for (int64_t left = rows.rows; left > 0; left -= rows.rows) {
    rows.rows = std::min(left, most_units * elements_of_unit());
    pack_channel_rows(arithmetic_, dtype_, rows);
    const int64_t bytes = ceil_div(rows.rows, elements_of_unit()) * row;
    stream(to, rows.to, bytes);
    to += bytes;
    rows.from =
        static_cast<const char*>(rows.from) + rows.rows * rows.from_row * element_bytes(dtype_);
  }
}

void PackedTaps::pack_running_on(const char* w, std::span<const BoxPhase> phases,
                                 const Block& block) const {
  const int64_t bytes = element_bytes(dtype_), pair_bytes = block.width * unit();
  char* const tile = block.streamed ? local_scratch<char>(kTileBytes + pair_bytes) : nullptr;
  for_each_phase(phases, block, [&](const BoxPhase& phase, char* to) {
    int64_t in_tile = 0;  // bytes, whose place is `to`
    const int64_t row = phase.axes[3]->sliding.taps * block.channels;
    int64_t element = 0, first = 0;  // of the row; where the first one of its pair lies
    for_each_tap(phase, strides_, [&](int64_t tap) {
      for (int64_t channel = 0; channel < block.channels; ++channel, ++element) {
        const int64_t at = tap + channel * in_stride_;
        if (element == row) element = 0;
        const bool is_first = element % 2 == 0;
        if (is_first) first = at;
        if (is_first && element + 1 < row) continue;
        Copy pair{w + first * bytes,
                  0,
                  out_stride_,
                  tile ? tile + in_tile : to,
                  block.width,
                  1,
                  1,
                  block.live,
                  block.width - block.live};
        pair.second = at - first;
        if (is_first) pair.halves = Halves::first;
        arithmetic_.pack[static_cast<int>(dtype_)](pair);
        if (!tile) {
          to += pair_bytes;
        } else if ((in_tile += pair_bytes) >= kTileBytes) {
          stream(to, tile, in_tile);
          to += in_tile;
          in_tile = 0;
        }
      }
    });
    if (in_tile) stream(to, tile, in_tile);
  });
}

// Taps of some channels, transposed; then each to its place, if it is not there yet. Those of a
// single channel lie a power of two apart there, often, and would drive each other out of the
// first-level cache: 3x3 of 512 channels on 7x7 and 16x16 1.1 times as long, 4x4 of 2048 1.2 times.
void PackedTaps::pack_transposed(const char* w, std::span<const BoxPhase> phases,
                                 const Block& block) const {
  constexpr int64_t kMostUnits = 16;
  const CopyFunction pack = arithmetic_.pack[static_cast<int>(dtype_)];
  const int64_t bytes = element_bytes(dtype_), all_units = units(1, block.channels);
  const int64_t channels = elements_of_unit(), step = channels * in_stride_ * bytes;
  const int64_t row = block.width * unit();
  struct Place {
    int64_t tap;
    char* to;
  };
  std::vector<Place> places;
  for_each_packed_tap(phases, block, [&](int64_t tap, char* to) { places.push_back({tap, to}); });
  std::ranges::sort(places, {}, &Place::tap);
  // As many neighbours as are transposed at a time; those between are another phase's.
  for (auto begin = places.begin(), end = begin; begin != places.end(); begin = end) {
    const int64_t first_tap = begin->tap;
    end = begin + 1;
    while (end != places.end() && end->tap < first_tap + kMaxTransposedTaps &&
           end->tap - (end - 1)->tap <= kMostBetween)
      ++end;
    const int64_t taps = (end - 1)->tap + 1 - first_tap, tap_row = taps * row;
    const char* const from = w + first_tap * bytes;
    bool in_place = all_units == 1 && end - begin == taps && !block.streamed;
    for (auto place = begin; place != end; ++place)
      in_place &= place->to == begin->to + (place - begin) * row;
    // Channels whose taps follow each other are rows of one copy, dealt to the taps: one by one,
    // few taps leave most of a transposition idle. Forward, 256 to 512 channels of few pixels, 3 to
    // 9 taps 0.33 to 0.96 of the time with 16 lanes, 0.55 to 0.97 with 8 (Zen 5).
    const int64_t joined_units = kJoinedBytes / (taps * bytes);
    const bool joined = channels == 1 && in_stride_ == taps && taps < 2 * arithmetic_.lanes &&
                        joined_units > 1 && !in_place;
    const int64_t most_units =
        in_place ? 1
                 : std::clamp<int64_t>(kTileBytes / tap_row, 1,
                                       joined ? std::min(kMostUnits, joined_units) : kMostUnits);
    char* const tile = in_place ? begin->to : local_scratch<char>(most_units * tap_row);
    Copy copy{from,
              1,
              out_stride_,
              tile,
              most_units * block.width,
              1,
              taps,
              block.live,
              block.width - block.live};
    copy.second = in_stride_;
    if (joined) {
      copy.to_row = block.width;
      copy.deal = taps;
      copy.to_deal = most_units * block.width;
    }
    for (int64_t first = 0, count; first < all_units; first += count) {
      count = std::min(most_units, all_units - first);
      if (joined) {
        copy.from = from + first * step;
        copy.rows = count * taps;
        pack(copy);
      }
      for (int64_t i = first; !joined && i < first + count; ++i) {
        copy.from = from + i * step;
        copy.to = tile + (i - first) * row;
        if (i + kAhead < all_units)
          for (int64_t lane = 0; lane < block.live; ++lane)
            for (int64_t at = 0; at < taps * bytes; at += 64)
              __builtin_prefetch(from + (i + kAhead) * step + lane * out_stride_ * bytes + at);
        copy.halves = (i + 1) * channels > block.channels ? Halves::first : Halves::both;
        pack(copy);
      }
      for (auto place = in_place ? end : begin; place != end; ++place) {
        char* const to = place->to + first * row;
        const char* const from = tile + (place->tap - first_tap) * most_units * row;
        if (block.streamed)
          stream(to, from, count * row);
        else
          std::memcpy(to, from, count * row);
      }
    }
  }
}

}  // namespace convtbw::simd
