// The three sums, literally, in double: the oracle of the other backends, and what serves where
// they decline. It accepts everything. The order of summation depends on the problem alone, so
// results have the same bits for any number of threads.
#include <algorithm>
#include <array>
#include <utility>

#include "core/parallel.h"
#include "plan/backend.h"

namespace convtbw {

namespace {

// fprop and dgrad. Both walk all (tap, j, h) incidences; fprop adds x at h into y at j, dgrad adds
// y at j into x at h. "out" is the wanted side, "in" the other.
template <class T>
class DataContraction {
 public:
  DataContraction(const Problem& p, const Operands& operands)
      : p_(p),
        g_(p.geometry),
        fprop_(p.wanted == Role::y),
        in_(static_cast<const T*>(fprop_ ? operands.data.x : operands.data.y)),
        out_(static_cast<T*>(operands.data[p.wanted])),
        bias_(static_cast<const T*>(operands.bias)),
        in_strides_(fprop_ ? p.x : p.y),
        out_strides_(fprop_ ? p.y : p.x),
        w_(static_cast<const T*>(operands.data.w)),
        w_in_stride_(fprop_ ? p.w.x_channel : p.w.y_channel),
        w_out_stride_(fprop_ ? p.w.y_channel : p.w.x_channel),
        in_channels_(fprop_ ? g_.x_channels : g_.y_channels),
        out_channels_(fprop_ ? g_.y_channels : g_.x_channels) {
    for (int a = 0; a < kMaxRank; ++a) out_extent_[a] = fprop_ ? g_.axes[a].y : g_.axes[a].x;
    segments_ = (out_extent_[2] + kSegment - 1) / kSegment;
    channel_blocks_ = (out_channels_ + kChannels - 1) / kChannels;
  }

  int64_t items() const {
    return g_.batch * g_.groups * channel_blocks_ * out_extent_[0] * out_extent_[1] * segments_;
  }

  // One segment of a row of the result, for a block of its channels.
  void run(int64_t item) const {
    const int64_t segment = item % segments_ * kSegment;
    item /= segments_;
    const int64_t row = item % out_extent_[1];
    item /= out_extent_[1];
    const int64_t plane = item % out_extent_[0];
    item /= out_extent_[0];
    const Range channels{item % channel_blocks_ * kChannels,
                         std::min(out_channels_, (item % channel_blocks_ + 1) * kChannels)};
    item /= channel_blocks_;
    const int64_t group = item % g_.groups, n = item / g_.groups;
    const Range columns{segment, std::min(out_extent_[2], segment + kSegment)};

    // Rows of `width` sums. To clear the whole array would take half of a depthwise problem's time.
    const int64_t width = channels.end - channels.begin;
    double sums[kSegment * kChannels];
    std::fill_n(sums, (columns.end - columns.begin) * width, 0.0);
    const T* const in = in_ + n * in_strides_.batch + group * in_channels_ * in_strides_.channel;
    const T* const w = w_ + group * p_.w.group + channels.begin * w_out_stride_;
    for (int64_t k0 = 0; k0 < g_.axes[0].k; ++k0) {
      const Range j0 = reached(0, k0, {plane, plane + 1});
      if (j0.begin >= j0.end) continue;
      for (int64_t k1 = 0; k1 < g_.axes[1].k; ++k1) {
        const Range j1 = reached(1, k1, {row, row + 1});
        if (j1.begin >= j1.end) continue;
        const T* const in_row = in + in_offset(0, j0.begin, k0) + in_offset(1, j1.begin, k1);
        for (int64_t k2 = 0; k2 < g_.axes[2].k; ++k2)
          add(in_row, w + k0 * p_.w.axes[0] + k1 * p_.w.axes[1] + k2 * p_.w.axes[2], k2, columns,
              width, sums);
      }
    }

    T* const out =
        out_ + n * out_strides_.batch + plane * out_strides_.axes[0] + row * out_strides_.axes[1];
    for (int64_t column = columns.begin; column < columns.end; ++column)
      for (int64_t c = channels.begin; c < channels.end; ++c) {
        const int64_t channel = group * out_channels_ + c;
        const double sum = sums[(column - segment) * width + c - channels.begin];
        out[channel * out_strides_.channel + column * out_strides_.axes[2]] =
            from_double<T>(bias_ ? sum + to_double(bias_[channel]) : sum);
      }
  }

 private:
  // 32 KB of sums a thread: they stay in the first-level cache.
  static constexpr int64_t kSegment = 64, kChannels = 64;

  // One tap of the last axis for the columns of a segment: sums[column][c] += in[...] * w[...] over
  // the in-channels.
  void add(const T* in, const T* w, int64_t k, Range columns, int64_t width, double* sums) const {
    const Range reach = reached(2, k, columns);
    for (int64_t i = 0; i < in_channels_; ++i) {
      double row[kChannels];
      for (int64_t c = 0; c < width; ++c)
        row[c] = to_double(w[i * w_in_stride_ + c * w_out_stride_]);
      for (int64_t j = reach.begin; j < reach.end; ++j) {
        const double value = to_double(in[in_offset(2, j, k) + i * in_strides_.channel]);
        double* const sum = sums + ((fprop_ ? j : position(2, j, k)) - columns.begin) * width;
        for (int64_t c = 0; c < width; ++c) sum[c] += value * row[c];
      }
    }
  }

  int64_t position(int a, int64_t j, int64_t k) const {
    const Axis& axis = g_.axes[a];
    return j * axis.stride - axis.pad + k * axis.dilation;
  }

  int64_t in_offset(int a, int64_t j, int64_t k) const {
    return (fprop_ ? position(a, j, k) : j) * in_strides_.axes[a];
  }

  // The positions j at which tap k connects a result position of `out` with a present input.
  Range reached(int a, int64_t k, Range out) const {
    const Axis& axis = g_.axes[a];
    if (!fprop_) return incident(axis, k, out);
    const Range inside = incident(axis, k, {0, axis.x});
    return {std::max(out.begin, inside.begin), std::min(out.end, inside.end)};
  }

  const Problem& p_;
  const Geometry& g_;
  const bool fprop_;
  const T* const in_;
  T* const out_;
  const T* const bias_;
  const DataStrides& in_strides_;
  const DataStrides& out_strides_;
  const T* const w_;
  const int64_t w_in_stride_, w_out_stride_;
  const int64_t in_channels_, out_channels_;
  std::array<int64_t, kMaxRank> out_extent_;
  int64_t segments_, channel_blocks_;
};

// wgrad: for one tap, the outer products x[c] * y[q] summed over images and positions.
template <class T>
class WeightsContraction {
 public:
  WeightsContraction(const Problem& p, const Operands& operands)
      : p_(p),
        g_(p.geometry),
        x_(static_cast<const T*>(operands.data.x)),
        y_(static_cast<const T*>(operands.data.y)),
        w_(operands.data.w),
        x_blocks_((g_.x_channels + kX - 1) / kX),
        y_blocks_((g_.y_channels + kY - 1) / kY) {}

  int64_t items() const { return g_.groups * g_.taps() * x_blocks_ * y_blocks_; }

  // One tap of one group, for a block of channels of either side.
  void run(int64_t item) const {
    const Range c = block(item % x_blocks_, kX, g_.x_channels);
    item /= x_blocks_;
    const Range q = block(item % y_blocks_, kY, g_.y_channels);
    item /= y_blocks_;
    std::array<int64_t, kMaxRank> tap;
    std::array<Range, kMaxRank> j;
    for (int a = kMaxRank - 1; a >= 0; --a) {
      tap[a] = item % g_.axes[a].k;
      item /= g_.axes[a].k;
      j[a] = incident(g_.axes[a], tap[a], {0, g_.axes[a].x});
    }
    const int64_t group = item;

    double sums[kY][kX];
    for (int64_t qi = 0; qi < q.end - q.begin; ++qi) std::fill_n(sums[qi], c.end - c.begin, 0.0);
    const T* const x = x_ + (group * g_.x_channels + c.begin) * p_.x.channel;
    const T* const y = y_ + (group * g_.y_channels + q.begin) * p_.y.channel;
    for (int64_t n = 0; n < g_.batch; ++n)
      for (int64_t j0 = j[0].begin; j0 < j[0].end; ++j0)
        for (int64_t j1 = j[1].begin; j1 < j[1].end; ++j1)
          for (int64_t j2 = j[2].begin; j2 < j[2].end; ++j2)
            add(x + n * p_.x.batch + x_offset(0, j0, tap) + x_offset(1, j1, tap) +
                    x_offset(2, j2, tap),
                y + n * p_.y.batch + j0 * p_.y.axes[0] + j1 * p_.y.axes[1] + j2 * p_.y.axes[2],
                c.end - c.begin, q.end - q.begin, sums);

    visit_dtype(result_dtype(p_), [&](auto element) {
      using Result = decltype(element);
      Result* const w = static_cast<Result*>(w_) + group * p_.w.group + tap[0] * p_.w.axes[0] +
                        tap[1] * p_.w.axes[1] + tap[2] * p_.w.axes[2];
      for (int64_t qi = q.begin; qi < q.end; ++qi)
        for (int64_t ci = c.begin; ci < c.end; ++ci) {
          Result& result = w[qi * p_.w.y_channel + ci * p_.w.x_channel];
          const double before = p_.epilogue == Epilogue::overwrite ? 0 : to_double(result);
          result = from_double<Result>(before + sums[qi - q.begin][ci - c.begin]);
        }
    });
  }

 private:
  static constexpr int64_t kX = 64, kY = 8;  // 4 KB of sums; enough items for the threads

  static Range block(int64_t index, int64_t size, int64_t extent) {
    return {index * size, std::min(extent, (index + 1) * size)};
  }

  void add(const T* x, const T* y, int64_t x_count, int64_t y_count, double (&sums)[kY][kX]) const {
    double row[kX];
    for (int64_t c = 0; c < x_count; ++c) row[c] = to_double(x[c * p_.x.channel]);
    for (int64_t q = 0; q < y_count; ++q) {
      const double value = to_double(y[q * p_.y.channel]);
      for (int64_t c = 0; c < x_count; ++c) sums[q][c] += value * row[c];
    }
  }

  int64_t x_offset(int a, int64_t j, const std::array<int64_t, kMaxRank>& tap) const {
    const Axis& axis = g_.axes[a];
    return (j * axis.stride - axis.pad + tap[a] * axis.dilation) * p_.x.axes[a];
  }

  const Problem& p_;
  const Geometry& g_;
  const T* const x_;
  const T* const y_;
  void* const w_;  // elements of the result's dtype
  const int64_t x_blocks_, y_blocks_;
};

// The same problem with its longest axis innermost, where a step costs least. The form treats all
// axes alike, so only their order in memory tells them apart.
Problem with_longest_axis_last(Problem p) {
  int longest = kMaxRank - 1;
  for (int a = 0; a < kMaxRank; ++a)
    if (p.geometry.axes[a].y > p.geometry.axes[longest].y) longest = a;
  std::swap(p.geometry.axes[longest], p.geometry.axes.back());
  std::swap(p.x.axes[longest], p.x.axes.back());
  std::swap(p.w.axes[longest], p.w.axes.back());
  std::swap(p.y.axes[longest], p.y.axes.back());
  return p;
}

class ReferencePlan : public Plan {
 public:
  explicit ReferencePlan(const Problem& problem)
      : all_(problem), problem_(with_longest_axis_last(one_slice(problem))) {
    kernel = "direct sum, double accumulation";
    bytes = sizeof(ReferencePlan);
  }

  void run(const Operands& operands) const override {
    visit_dtype(problem_.dtype, [&](auto element) {
      using T = decltype(element);
      if (problem_.wanted == Role::w)
        for (int64_t slice = 0; slice < all_.slices; ++slice)
          run_all(WeightsContraction<T>(problem_, operands_of_slice(all_, operands, slice)));
      else
        run_all(DataContraction<T>(problem_, operands));
    });
  }

 private:
  template <class Contraction>
  void run_all(const Contraction& contraction) const {
    parallel_for(problem_.threads, contraction.items(), [&](int64_t i) { contraction.run(i); });
  }

  const Problem all_, problem_;  // of all slices, of one
};

}  // namespace

const Backend kReferenceBackend{
    .name = "reference",
    .targets = {},
    .why_unsupported = [] { return std::string(); },
    .prepare = [](const Problem& problem, std::string_view) -> Prepared {
      return {std::make_unique<ReferencePlan>(problem), {}};
    },
};

}  // namespace convtbw
