// The backend's row and its targets.
#include <utility>

#include "backends/simd/choose_plan.h"
#include "backends/simd/in_place.h"
#include "backends/simd/kernels.h"
#include "backends/simd/one_value.h"
#include "backends/simd/simplify.h"
#include "core/cpu.h"

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

const simd::Arithmetic& avx2_beside_avx512() {
  static const simd::Arithmetic arithmetic = [] {
    simd::Arithmetic named = *simd::avx2::kKernels.f32;
    named.name = "f32 of 8 lanes";
    return named;
  }();
  return arithmetic;
}
#endif

simd::Kernels kernels_of(std::string_view target) {
#if defined(__x86_64__)
  if (target == "avx2") return simd::avx2::kKernels;
  if (target == "avx512") {
    simd::Kernels kernels = simd::avx512::kKernels;
    // Intel's CPUs multiply pairs at half the rate of float32: 3x3 of 64 channels takes 2.2 times
    // as long (Sapphire Rapids).
    if (has_matrix_registers())
      kernels.bf16_pairs = &simd::amx::kPairs;
    else if (has_avx512_bf16() && !is_intel())
      kernels.bf16_pairs = kernels.bf16_lane_pairs = &simd::avx512_bf16::kPairs;
    kernels.f32_of_half_lanes = &avx2_beside_avx512();
    return kernels;
  }
#endif
  if (target == "generic_amx") {
    simd::Kernels kernels = simd::generic512::kKernels;
    kernels.bf16_pairs = &simd::generic_amx::kPairs;
    kernels.bf16_lane_pairs = nullptr;
    return kernels;
  }
  return target == "generic512" ? simd::generic512::kKernels : simd::generic::kKernels;
}

const simd::InPlaceKernels& in_place_kernels_of(std::string_view target) {
#if defined(__x86_64__)
  if (target == "avx2") return simd::avx2::kInPlace;
  if (target == "avx512") return simd::avx512::kInPlace;
#endif
  const bool wide = target == "generic512" || target == "generic_amx";
  return wide ? simd::generic512::kInPlace : simd::generic::kInPlace;
}

// Below this a parallel region costs more (2 to 5 us) than a second thread saves.
constexpr int64_t kSerialFlops = 500'000;

Prepared prepare(const Problem& original, std::string_view target) {
  simd::Simplified simplified = simd::simplify(simd::repeating_pixels(original));
  Problem& problem = simplified.problem;
  if (flops(problem) < kSerialFlops) problem.threads = 1;
  std::unique_ptr<const Plan> plan = simd::plan_of(
      simplified, simd::choose_plan(problem, kernels_of(target), in_place_kernels_of(target)));
  return {simd::plan_of_one_value(original, std::move(plan)), {}};
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
            // The same with AMX's matrix registers in portable code.
            {"generic_amx", always},
        },
    .why_unsupported = [] { return std::string(); },
    .prepare = prepare,
};

}  // namespace convtbw
