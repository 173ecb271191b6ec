#include "plan/preference.h"

#include <algorithm>

#include "plan/plan.h"

#if defined(CONVTBW_ONEDNN) && defined(__x86_64__)
#include <cpuid.h>
#endif

namespace convtbw {

#if defined(CONVTBW_ONEDNN) && defined(__x86_64__)

namespace {

// Matrix registers for bfloat16 (CPUID leaf 7, EDX bits 22 and 24).
bool has_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) && (d >> 24 & 1);
}

// oneDNN's kernels for 2-D depthwise problems in float32 work in place, and so win where packing
// costs more than the arithmetic. Times of simd over oneDNN, AVX2 kernels of both on Zen 4, one
// thread:
// - few taps a pixel, channels last: k3 1.0 to 2.3, k5 1.2 to 1.6 (k7 0.7 to 0.9);
// - few channels, channels last: 21 with k16 s8 1.2 to 1.5;
// - short rows, channels first: k3 14x14 1.1 to 1.2, k5 28x28 1.0 to 1.2, k7 7x7 1.1 to 2.3 (56x56
//   and larger 0.5 to 0.9);
// - weights gradient: k3 14x14 1.4 to 1.8 (k3 56x56 0.5 to 0.7; larger kernels 0.06 to 0.2).
bool suits_depthwise_kernels(const Problem& p) {
  const Geometry& g = p.geometry;
  if (p.dtype != Dtype::f32 || g.groups == 1 || g.x_channels != 1 || g.y_channels != 1 ||
      g.rank != 2)
    return false;
  const Axis &rows = g.axes[1], &columns = g.axes[2];
  const bool short_rows = columns.y <= 28;
  if (p.wanted == Role::w) return short_rows && rows.k == 3 && columns.k == 3;
  if (p.x.channel != 1) return short_rows;
  const auto taps = [&](const Axis& a) {
    return p.wanted == Role::y ? a.k : ceil_div(a.k, a.stride);
  };
  return taps(rows) * taps(columns) <= 25 || g.groups < 32;
}

// Weights gradient of few taps for few channels, where sixteen lanes wait for copies. Times of simd
// over oneDNN, AVX-512 kernels of both on Zen 4, 3 channels, k4 s2: 1.25 to 1.35 (k7 s2 0.9 to 1.0;
// AVX2 kernels 0.9).
bool suits_few_channels_kernels(const Problem& p) {
  static const bool avx512 = __builtin_cpu_supports("avx512bw");
  const Geometry& g = p.geometry;
  return avx512 && p.wanted == Role::w && g.rank == 2 && g.x_channels < 4 &&
         g.axes[1].k * g.axes[2].k <= 16;
}

// Dense problems in float32 that oneDNN's kernels take in place or nearly so, and that are as
// simple as its best kernels need. Times of simd over oneDNN, AVX2 kernels of both on Zen 4, two
// threads:
// - fprop in 2-D, kernels up to 5x5: channels last 1.1 to 1.6, channels first 1.0 to 1.5; but where
//   windows do not overlap (k2 s2) 0.5 to 0.95 with 64 channels of x, 1.05 to 1.1 with 256; 0.8 to
//   0.95 with one tap, channels first, 0.8 to 0.9 for larger kernels and in 3-D; in 1-D, channels
//   first, k16 s8 1.6; with few channels of y, which fill no vectors, 0.25 to 0.95, of one tap,
//   channels last, 1.2 to 1.5 from 5 channels on;
// - dgrad with stride 1, channels last, 16 channels and more: 1.0 to 1.5 (stride 2 0.7 to 1.0; 3
//   channels 0.5);
// - wgrad of one tap, channels last: 1.3 (more taps 0.3 to 0.8).
bool suits_dense_kernels(const Problem& p) {
  const Geometry& g = p.geometry;
  if (p.dtype != Dtype::f32 || g.groups != 1) return false;
  const Axis &rows = g.axes[1], &columns = g.axes[2];
  const bool channels_last = p.x.channel == 1, one_tap = rows.k == 1 && columns.k == 1;
  if (p.wanted == Role::y) {
    if (g.rank != 2) return g.rank == 1 && !channels_last;
    const bool few_channels = g.y_channels < 24 && g.y_channels % 8 != 0;
    if (few_channels) return channels_last && one_tap && g.y_channels > 4;
    if (one_tap) return channels_last;
    const bool apart = rows.k <= rows.stride && columns.k <= columns.stride;
    return rows.k <= 5 && columns.k <= 5 && !(apart && g.x_channels < 256);
  }
  if (suits_few_channels_kernels(p)) return true;
  if (g.rank != 2 || !channels_last) return false;
  if (p.wanted == Role::w) return one_tap;
  return rows.stride == 1 && columns.stride == 1 && std::min(g.x_channels, g.y_channels) >= 16;
}

// Below this the call itself decides, and a primitive of oneDNN costs several microseconds more.
constexpr int64_t kTinyFlops = 4'000'000;

// Its primitives compute slices one after the other, each of which costs 4 to 9 us more: depthwise
// 3x3 of 384 channels of 14x14 (1.4 MFLOP) takes 1.2 times as long as here, 3x3 from 3 to 64
// channels of 32x32 (3.5 MFLOP) 0.7 to 0.9 (Zen 4).
constexpr int64_t kTinySliceFlops = 2'000'000;

bool is_tiny(const Problem& p) {
  const int64_t all = flops(p);
  return all < kTinyFlops || (p.slices > 1 && all / p.slices < kTinySliceFlops);
}

}  // namespace

// simd first: on most shapes of the benchmark it is faster than oneDNN, and it needs no copies of
// whole tensors (docs/performance.md). Not on the problems above, and not in 16 bits on CPUs with
// matrix registers, which only oneDNN uses: eight times the rate of the bfloat16 dot products of
// AVX-512.
const std::vector<const Backend*>& preference(const Problem& problem) {
  static const bool matrix_registers = has_amx();
  static const std::vector<const Backend*> onednn_first{&kOnednnBackend, &kSimdBackend,
                                                        &kReferenceBackend};
  const bool sixteen_bits = problem.dtype == Dtype::bf16 || problem.dtype == Dtype::f16;
  const bool suits = suits_depthwise_kernels(problem) || suits_dense_kernels(problem);
  const bool onednn = (matrix_registers && sixteen_bits) || (suits && !is_tiny(problem));
  return onednn ? onednn_first : backends();
}

#else

const std::vector<const Backend*>& preference(const Problem&) { return backends(); }

#endif

}  // namespace convtbw
