#include "backends/simd/matrix_copies.h"

#include <algorithm>
#include <span>

namespace convtbw::simd {

bool taps_follow(const Problem& problem, int64_t distance) {
  for (int a = kMaxRank - 1; a >= 0; --a) {
    const int64_t taps = problem.geometry.axes[a].k;
    if (taps > 1 && problem.w.axes[a] != distance) return false;
    distance *= taps;
  }
  return true;
}

MatrixCopies::MatrixCopies(std::array<CopyDimension, kMost> box, int64_t contiguous) {
  for (CopyDimension& d : box)
    if (d.from < 0) {
      from_ += (d.count - 1) * d.from;
      to_ += (d.count - 1) * d.to;
      d.from = -d.from;
      d.to = -d.to;
    }
  std::ranges::sort(box, {}, &CopyDimension::from);
  std::array<CopyDimension, kMost> merged;
  size_t count = 0;
  for (const CopyDimension& d : box) {
    if (d.count == 1) continue;
    CopyDimension* const last = count > 0 ? &merged[count - 1] : nullptr;
    if (last && last->from * last->count == d.from && last->to * last->count == d.to)
      last->count *= d.count;
    else
      merged[count++] = d;
  }
  if (count == 0) return;
  const std::span<CopyDimension> all(merged.data(), count);
  auto rows = std::ranges::find(all, contiguous, &CopyDimension::from);
  if (rows == all.end()) rows = std::ranges::max_element(all, {}, &CopyDimension::count);
  rows_ = *rows;
  *rows = all.back();
  std::ranges::copy(all.first(count - 1), others_.begin());
}

void pack_taps(const Arithmetic& arithmetic, Dtype dtype, const TapBox& box) {
  const CopyFunction copy = arithmetic.pack[static_cast<int>(dtype)];
  const int64_t of_unit = arithmetic.pairs ? 2 : 1, whole = box.channels / of_unit;
  const int64_t element = element_bytes(dtype), unit = dtype == Dtype::f64 ? 8 : 4;
  const auto pack = [&](int64_t begin, int64_t units, Halves halves) {
    const auto& [row, rows, planes] = box.taps;
    const MatrixCopies matrices({{{units, of_unit * box.channel, box.unit}, row, rows, planes}},
                                box.contiguous);
    matrices.for_each([&](int64_t from, int64_t to) {
      Copy call{box.from + (begin * of_unit * box.channel + from) * element,
                matrices.rows().from,
                box.lane,
                box.to + (begin * box.unit + to) * unit,
                matrices.rows().to,
                1,
                matrices.rows().count,
                box.lanes};
      call.halves = halves;
      call.second = box.channel;
      copy(call);
    });
  };
  if (whole > 0) pack(0, whole, Halves::both);
  if (box.channels % of_unit != 0) pack(whole, 1, Halves::first);
}

}  // namespace convtbw::simd
