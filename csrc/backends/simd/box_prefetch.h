// A box's part of a tensor, brought towards the caches while another box is computed: copies from
// main memory otherwise take a third of a 1x1 weights gradient.
#pragma once

#include <array>
#include <cstdint>

#include "backends/simd/box.h"

namespace convtbw::simd {

class BoxPrefetch {
 public:
  BoxPrefetch() = default;  // of nothing

  // What pack_box() with these arguments will read, of so many channels, evenly in so many steps:
  // only some dozen lines can be under way. Nothing where windows have wide dilations, or of a
  // small tensor.
  BoxPrefetch(const Packing& packing, const void* data, const BoxRange& box, int64_t first_channel,
              int64_t channels, int64_t steps);

  // The next step; nothing behind the last. Few channels have fewer lines than steps.
  void fetch() {
    if (left_ > 0) fetch_step();
  }

 private:
  struct Loop {
    int64_t count, bytes, index;
  };

  void fetch_step();

  std::array<Loop, kBoxRank> loops_{};  // over contiguous stretches
  const char* stretch_ = nullptr;
  int64_t stretch_lines_ = 0, line_ = 0;
  int64_t step_lines_ = 0, left_ = 0;  // of the cache, about
};

}  // namespace convtbw::simd
