#include "backends/simd/simplify.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "core/folded_strides.h"

namespace convtbw::simd {

namespace {

bool covered(const Axis& a) {
  return a.k > 1 && a.k == a.x && a.y == 1 && a.pad == 0 && a.dilation == 1;
}

// Windows follow each other without gaps, and leave nothing over. (Dilated ones overlap.)
bool tiled(const Axis& a) {
  return a.k > 1 && a.k == a.stride && a.dilation == 1 && a.pad == 0 && a.x == a.y * a.k;
}

// Taps become channels where both tensors hold the two in one order without gaps: one stride leads
// from each to the next. (A dilated window covers no axis.)
//
// Of windows that tile an axis, where few channels are computed: they fill vectors together, and no
// pieces of pixels are written. Times over those of a phase for each tap, Zen 4, float32 with 8 and
// 16 lanes, bfloat16 pairs: 16x16 from 768 to 3 channels 0.8, 0.8, 0.74, from 256 to 1 0.62, 0.7,
// 0.61; 8x8 to 3 0.72, 0.97, 0.96; 4x4 to 1 to 3 0.8 to 1.0 each; 2x2 to 4 and 8 0.8 to 0.94; 3x3
// to 3, of which 9 channels come, 1.1, 1.0, 1.0. With many channels, and of the other partials,
// 0.97 to 1.1.
void join_taps(Simplified& simplified) {
  Problem& p = simplified.problem;
  constexpr int kChannels = kMaxRank;  // instead of an axis
  struct Dimension {
    int64_t x, w, extent;
    int axis;
  };
  constexpr int64_t kFewChannels = 8;
  const int64_t channels = p.geometry.x_channels;
  const auto gains = [&](const Axis& axis) {
    const int64_t joined = channels * axis.k;
    return p.wanted == Role::x && channels <= kFewChannels && (joined <= 8 || joined >= 12);
  };
  std::vector<Dimension> dimensions;
  for (int a = 0; a < kMaxRank; ++a)
    if (const Axis& axis = p.geometry.axes[a]; covered(axis) || (tiled(axis) && gains(axis)))
      dimensions.push_back({p.x.axes[a], p.w.axes[a], axis.k, a});
  if (dimensions.empty()) return;
  if (channels > 1) dimensions.push_back({p.x.channel, p.w.x_channel, channels, kChannels});
  std::ranges::sort(dimensions, {}, &Dimension::x);
  const Dimension first = dimensions.front();
  if (first.x == 0) return;  // expanded
  int64_t count = 1;
  auto end = dimensions.begin();
  for (; end != dimensions.end() && end->x == first.x * count && end->w == first.w * count; ++end)
    count *= end->extent;
  dimensions.erase(end, dimensions.end());
  if (channels > 1 && std::ranges::find(dimensions, kChannels, &Dimension::axis) == end) return;
  if (count == channels || (p.geometry.groups > 1 && p.x.channel * channels != first.x * count))
    return;
  simplified.x_channels = channels;
  simplified.inner = channels > 1 ? p.x.channel / first.x : count;
  p.geometry.x_channels = count;
  p.x.channel = first.x;
  p.w.x_channel = first.w;
  for (const Dimension& joined : dimensions) {
    if (joined.axis == kChannels) continue;
    Axis& axis = p.geometry.axes[joined.axis];
    const int64_t y = axis.y, k = std::exchange(axis, Axis{}).k;
    axis.x = axis.y = y;
    p.x.axes[joined.axis] *= y > 1 ? k : 0;
    p.w.axes[joined.axis] = 0;
    if (y == 1) p.y.axes[joined.axis] = 0;
  }
}

void fold_strides(Simplified& simplified) {
  Problem& p = simplified.problem;
  if (!strides_fold(p)) return;
  Axis& axis = p.geometry.axes.back();
  const int64_t stride = std::exchange(axis.stride, 1);
  axis.x /= stride;
  axis.k /= stride;
  axis.pad /= stride;
  simplified.inner = p.geometry.x_channels = stride;
  p.x.channel = std::exchange(p.x.axes.back(), p.x.axes.back() * stride);
  p.w.x_channel = std::exchange(p.w.axes.back(), p.w.axes.back() * stride);
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
  fold_strides(simplified);
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
