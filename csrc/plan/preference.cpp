#include "plan/preference.h"

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

}  // namespace

// simd first: on most shapes of the benchmark it is faster than oneDNN, and it needs no copies of
// whole tensors (docs/performance.md). Not on some depthwise problems, and not in 16 bits on CPUs
// with matrix registers, which only oneDNN uses: eight times the rate of the bfloat16 dot products
// of AVX-512.
const std::vector<const Backend*>& preference(const Problem& problem) {
  static const bool matrix_registers = has_amx();
  static const std::vector<const Backend*> onednn_first{&kOnednnBackend, &kSimdBackend,
                                                        &kReferenceBackend};
  const bool sixteen_bits = problem.dtype == Dtype::bf16 || problem.dtype == Dtype::f16;
  const bool onednn = (matrix_registers && sixteen_bits) || suits_depthwise_kernels(problem);
  return onednn ? onednn_first : backends();
}

#else

const std::vector<const Backend*>& preference(const Problem&) { return backends(); }

#endif

}  // namespace convtbw
