// The weights of fprop and dgrad in the order in which tiles meet them: [phase][tap][unit][lane].
#pragma once

#include <cstdint>
#include <span>

#include "backends/simd/phases.h"

namespace convtbw::simd {

class PackedTaps {
 public:
  // run_on: pairs of bfloat16 do from one tap of a row to the next, and only the last of a row may
  // have no second element. Else every tap of an odd number of channels ends with such a pair.
  PackedTaps(const Problem& problem, const Arithmetic& arithmetic, bool run_on);

  // Some channels that are summed over, of those whose weights lie together, for a block of lanes.
  struct Block {
    int64_t group, first, channels;  // whole units; all, where pairs run on
    int64_t first_together, together;
    int64_t lane, live, width;  // lanes behind the live ones are zero
    // Every phase has room for the part's lanes, of which so many lie before the block's.
    void* packed;
    int64_t part_lanes, lanes_before;
    bool streamed;  // past the caches (core/stream.h)
  };

  int64_t elements_of_unit() const { return arithmetic_.pairs ? 2 : 1; }
  int64_t whole_units(int64_t elements) const {  // elements of so many units as they need
    return ceil_div(elements, elements_of_unit()) * elements_of_unit();
  }
  // Of a tap with so many channels, absent second ones included.
  int64_t elements(int64_t channels) const { return run_on_ ? channels : whole_units(channels); }
  // Of a row of so many taps.
  int64_t units(int64_t taps, int64_t channels) const {
    return whole_units(taps * elements(channels)) / elements_of_unit();
  }
  int64_t units(const BoxPhase& phase, int64_t channels) const {
    return phase.axes[1]->sliding.taps * phase.axes[2]->sliding.taps *
           units(phase.axes[3]->sliding.taps, channels);
  }

  void pack(const void* weights, std::span<const BoxPhase> phases, const Block& block) const;

 private:
  template <class F>
  void for_each_phase(std::span<const BoxPhase> phases, const Block& block, const F& f) const;
  template <class F>
  void for_each_packed_tap(std::span<const BoxPhase> phases, const Block& block, const F& f) const;
  void pack_rows(Copy rows, bool streamed) const;
  void pack_running_on(const char* w, std::span<const BoxPhase> phases, const Block& block) const;
  void pack_transposed(const char* w, std::span<const BoxPhase> phases, const Block& block) const;

  int64_t unit() const { return dtype_ == Dtype::f64 ? 8 : 4; }

  const Arithmetic& arithmetic_;
  const Dtype dtype_;
  const WeightsStrides strides_;
  const int64_t in_stride_, out_stride_;  // of channels
  const bool run_on_;
  bool contiguous_;  // some taps are, channels are not
};

}  // namespace convtbw::simd
