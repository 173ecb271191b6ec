#include "backends/simd/matrix_copies.h"

#include <algorithm>

namespace convtbw::simd {

MatrixCopies::MatrixCopies(const std::array<CopyDimension, 4>& dimensions, int64_t contiguous) {
  std::vector<CopyDimension> box;
  for (CopyDimension d : dimensions) {
    if (d.count == 1) continue;
    if (d.from < 0) {
      from_ += (d.count - 1) * d.from;
      to_ += (d.count - 1) * d.to;
      d.from = -d.from;
      d.to = -d.to;
    }
    box.push_back(d);
  }
  std::ranges::sort(box, {}, &CopyDimension::from);
  std::vector<CopyDimension> merged;
  for (const CopyDimension& d : box) {
    if (!merged.empty() && merged.back().from * merged.back().count == d.from &&
        merged.back().to * merged.back().count == d.to)
      merged.back().count *= d.count;
    else
      merged.push_back(d);
  }
  if (merged.empty()) return;
  auto rows = std::ranges::find(merged, contiguous, &CopyDimension::from);
  if (rows == merged.end()) rows = std::ranges::max_element(merged, {}, &CopyDimension::count);
  rows_ = *rows;
  merged.erase(rows);
  std::ranges::copy(merged, others_.begin());
}

}  // namespace convtbw::simd
