// From how many bytes on depthwise data are far: to ask for them beforehand then gains more than it
// costs.
#pragma once

#include <cstdint>

namespace convtbw::simd {

struct FarBytes {
  int64_t planes;         // of x and y, pixels of a channel in lanes
  int64_t weights;        // of x and y, wgrad with channels in lanes
  int64_t reads, writes;  // fprop and dgrad with channels in lanes
  int64_t most_writes;    // from which bytes of the operand on bands should not ask for results
};

const FarBytes& far_bytes();

}  // namespace convtbw::simd
