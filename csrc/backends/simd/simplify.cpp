#include "backends/simd/simplify.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace convtbw::simd {

namespace {

bool covered(const Axis& a) { return a.k > 1 && a.k == a.x && a.y == 1 && a.pad == 0; }

// Taps become channels where both tensors hold the two in one order without gaps: one stride leads
// from each to the next. (A dilated window covers no axis.)
void join_taps(Simplified& simplified) {
  Problem& p = simplified.problem;
  struct Dimension {
    int64_t x, w, extent;
  };
  std::vector<Dimension> dimensions;
  int64_t taps = 1;
  for (int a = 0; a < kMaxRank; ++a)
    if (const Axis& axis = p.geometry.axes[a]; covered(axis)) {
      dimensions.push_back({p.x.axes[a], p.w.axes[a], axis.k});
      taps *= axis.k;
    }
  if (taps == 1) return;
  const int64_t channels = p.geometry.x_channels;
  if (channels > 1) dimensions.push_back({p.x.channel, p.w.x_channel, channels});
  std::ranges::sort(dimensions, {}, &Dimension::x);
  const Dimension first = dimensions.front();
  if (first.x == 0) return;  // expanded
  int64_t count = 1;
  for (const Dimension& d : dimensions) {
    if (d.x != first.x * count || d.w != first.w * count) return;
    count *= d.extent;
  }
  if (p.geometry.groups > 1 && p.x.channel != first.x * taps) return;
  simplified.x_channels = channels;
  simplified.inner = channels > 1 ? p.x.channel / first.x : taps;
  p.geometry.x_channels = count;
  p.x.channel = first.x;
  p.w.x_channel = first.w;
  for (int a = 0; a < kMaxRank; ++a)
    if (covered(p.geometry.axes[a])) {
      p.geometry.axes[a] = Axis{};
      p.x.axes[a] = p.y.axes[a] = p.w.axes[a] = 0;
    }
}

void join_axes(Problem& p) {
  for (int a = kMaxRank - 2; a >= 0; --a) {
    Axis &outer = p.geometry.axes[a], &inner = p.geometry.axes.back();
    if (!pointwise(outer) || !pointwise(inner)) continue;
    if (outer.x > 1 && inner.x > 1 &&
        (p.x.axes[a] != p.x.axes.back() * inner.x || p.y.axes[a] != p.y.axes.back() * inner.x))
      continue;
    if (outer.x > 1 && inner.x == 1) {
      p.x.axes.back() = p.x.axes[a];
      p.y.axes.back() = p.y.axes[a];
    }
    inner.x = inner.y = inner.x * outer.x;
    outer = Axis{};
    p.x.axes[a] = p.y.axes[a] = 0;
  }
}

void join_images(Problem& p) {
  const auto one_pixel = [](const Axis& a) { return pointwise(a) && a.x == 1; };
  if (p.slices > 1 || !std::ranges::all_of(p.geometry.axes, one_pixel)) return;
  Axis& row = p.geometry.axes.back();
  row.x = row.y = std::exchange(p.geometry.batch, 1);
  p.x.axes.back() = std::exchange(p.x.batch, 0);
  p.y.axes.back() = std::exchange(p.y.batch, 0);
}

// Each channel of x has its bias: all that were one have the same.
class RepeatedBias : public Plan {
 public:
  RepeatedBias(const Simplified& simplified, std::unique_ptr<const Plan> simpler)
      : simplified_(simplified), simpler_(std::move(simpler)) {
    kernel = simpler_->kernel;
    workspace = simpler_->workspace + count() * element();
    reorders = simpler_->reorders;
    bytes = simpler_->bytes + static_cast<int64_t>(sizeof(RepeatedBias));
  }

  void run(const Operands& operands) const override {
    const int64_t channels = simplified_.problem.geometry.x_channels;
    std::vector<char> repeated(count() * element());
    for (int64_t i = 0; i < count(); ++i) {
      const int64_t group = i / channels,
                    channel = i % channels / simplified_.inner % simplified_.x_channels;
      std::memcpy(repeated.data() + i * element(),
                  static_cast<const char*>(operands.bias) +
                      (group * simplified_.x_channels + channel) * element(),
                  element());
    }
    Operands simpler = operands;
    simpler.bias = repeated.data();
    simpler_->run(simpler);
  }

 private:
  int64_t count() const {
    return simplified_.problem.geometry.groups * simplified_.problem.geometry.x_channels;
  }
  int64_t element() const { return element_bytes(simplified_.problem.dtype); }

  const Simplified simplified_;
  const std::unique_ptr<const Plan> simpler_;
};

}  // namespace

Simplified simplify(const Problem& problem) {
  Simplified simplified{problem, problem.geometry.x_channels, 1};
  join_taps(simplified);
  join_axes(simplified.problem);
  join_images(simplified.problem);
  return simplified;
}

std::unique_ptr<const Plan> plan_of(const Simplified& simplified,
                                    std::unique_ptr<const Plan> simpler) {
  const Problem& p = simplified.problem;
  const bool repeated =
      p.bias && p.wanted == Role::x && p.geometry.x_channels > simplified.x_channels;
  return repeated ? std::make_unique<RepeatedBias>(simplified, std::move(simpler))
                  : std::move(simpler);
}

}  // namespace convtbw::simd
