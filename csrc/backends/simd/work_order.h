// In which order the boxes of several parts are computed.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/problem.h"

namespace convtbw::simd {

// Whether cache lines and pages hold channels of several groups.
inline bool groups_share_lines(const Problem& problem) {
  return problem.geometry.groups > 1 && (problem.x.channel == 1 || problem.y.channel == 1);
}

// All boxes of a part, whose weights are then in the cache; or, where groups share lines, all parts
// of a box, whose lines are: fprop and dgrad of 2 to 32 groups take 0.93 of the time with 8 lanes,
// from 0.82, and 0.98 with 16 (Ice Lake).
struct WorkOrder {
  int64_t parts, boxes;
  bool boxes_first;  // from box to box only after its last part

  struct Item {
    int64_t part, box;
  };
  int64_t items() const { return parts * boxes; }
  Item item(int64_t index) const {
    return boxes_first ? Item{index % parts, index / parts} : Item{index / boxes, index % boxes};
  }
  // The last one after itself.
  Item item_after(int64_t index) const { return item(std::min(index + 1, items() - 1)); }
};

}  // namespace convtbw::simd
