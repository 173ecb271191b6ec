#include "backends/simd/panels.h"

#include "core/geometry.h"

namespace convtbw::simd {

int best_tile(const Arithmetic& arithmetic, int64_t channels, int64_t row_vectors, double single) {
  double least = 0;
  int best = 1;
  for (int vectors = 1; vectors <= kMaxVectors; ++vectors) {
    const int64_t panels = ceil_div(channels, arithmetic.tiles.max_rows[vectors]);
    const int64_t tiles = ceil_div(row_vectors, vectors);
    const double rows = static_cast<double>(channels) / static_cast<double>(panels);
    const double width = static_cast<double>(row_vectors) / static_cast<double>(tiles);
    const double cycles = (1 + (tiles == 1 ? single : 0)) * static_cast<double>(panels * tiles) *
                          std::max(rows * width, rows + 2 * width);
    if (vectors > 1 && cycles > 0.99 * least) continue;
    least = cycles;
    best = vectors;
  }
  return best;
}

void fill_with_ones(const Arithmetic& arithmetic, Dtype dtype, void* to, int64_t count) {
  const auto fill = [&](auto one) { std::fill_n(static_cast<decltype(one)*>(to), count, one); };
  if (arithmetic.pairs)
    fill(uint32_t{0x3f80});  // 1 and 0
  else if (dtype == Dtype::f64)
    fill(1.0);
  else
    fill(1.0f);
}

Panels::Panels(const Problem& problem, int64_t channels, int64_t panels, int64_t steps,
               int64_t boxes, int64_t least_items)
    : channels_(channels),
      panels_(panels),
      row_bytes_(steps * (problem.dtype == Dtype::f64 ? 8 : 4)) {
  constexpr int64_t kPackedBytes = 4 << 20;
  // With parts of 20 to 40 rows one image of 14x14 or 28x28, one tap, took 5 to 19 % longer than
  // with 64 (Zen 4, one thread).
  constexpr int64_t kLeastRows = 64;
  const int64_t groups = problem.geometry.groups;
  const int64_t fit = std::clamp<int64_t>(kPackedBytes / (row_bytes_ * most_rows()), 1, panels_);
  const int64_t wanted =
      std::min(ceil_div(least_items, boxes * groups), std::max<int64_t>(1, channels_ / kLeastRows));
  const int64_t part_panels =
      ceil_div(panels_, std::max(ceil_div(panels_, fit), std::min(wanted, panels_)));
  for (int64_t group = 0; group < groups; ++group)
    for (int64_t panel = 0; panel < panels_; panel += part_panels)
      parts_.push_back({group, panel, std::min(part_panels, panels_ - panel)});
  part_bytes_ = part_panels * most_rows() * row_bytes_;
  parts_per_pass_ = std::clamp<int64_t>(kPackedBytes / part_bytes_, 1, std::ssize(parts_));
}

}  // namespace convtbw::simd
