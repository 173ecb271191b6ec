// The backend's row: targets, and which plan serves a problem.
#include "backends/simd/kernels.h"
#include "backends/simd/plans.h"

namespace convtbw {

namespace {

bool always() { return true; }

#if defined(__x86_64__)
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool has_avx512_bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
#endif

// The kernels for a target's name and a dtype.
const simd::Arithmetic& arithmetic(std::string_view target, Dtype dtype) {
  simd::Kernels kernels = simd::generic::kKernels;
#if defined(__x86_64__)
  if (target == "avx2") kernels = simd::avx2::kKernels;
  if (target == "avx512") {
    kernels = simd::avx512::kKernels;
    if (has_avx512_bf16()) kernels.bf16_pairs = &simd::avx512_bf16::kPairs;
  }
#endif
  if (target == "generic512") kernels = simd::generic512::kKernels;
  if (dtype == Dtype::f64) return *kernels.f64;
  return dtype == Dtype::bf16 && kernels.bf16_pairs ? *kernels.bf16_pairs : *kernels.f32;
}

bool pointwise(const Axis& a) { return a.k == 1 && a.stride == 1 && a.pad == 0 && a.x == a.y; }

// Two neighbouring axes with one tap each are one long axis where both tensors allow it: rows of a
// 1x1 convolution are then as long as its images.
Problem with_long_rows(Problem p) {
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
  return p;
}

// Below this a parallel region costs more (2 to 5 us) than a second thread saves.
constexpr int64_t kSerialFlops = 500'000;

Prepared prepare(const Problem& original, std::string_view target) {
  Problem problem = with_long_rows(original);
  if (flops(problem) < kSerialFlops) problem.threads = 1;
  const simd::Arithmetic& chosen = arithmetic(target, problem.dtype);
  if (problem.wanted == Role::w) return {simd::weights_plan(problem, chosen), {}};
  const Geometry& g = problem.geometry;
  const int64_t channels = problem.wanted == Role::y ? g.y_channels : g.x_channels;
  // Channels in lanes would leave more than half of the lanes empty.
  const bool few = 2 * channels < chosen.lanes && channels <= chosen.tiles.max_rows[1];
  return {few ? simd::few_channels_plan(problem, chosen) : simd::data_plan(problem, chosen), {}};
}

}  // namespace

const Backend kSimdBackend{
    .name = "simd",
    .targets =
        {
#if defined(__x86_64__)
            {"avx512", has_avx512},
            {"avx2", has_avx2},
#endif
            {"generic", always},
            // The avx512 tile's shape, and its arithmetic on pairs, in portable code: for tests on
            // any machine. Never the best choice.
            {"generic512", always},
        },
    .why_unsupported = [] { return std::string(); },
    .prepare = prepare,
};

}  // namespace convtbw
