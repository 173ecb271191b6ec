#include "plan/preference.h"

#include "core/cpu.h"
#include "core/folded_strides.h"
#include "plan/plan.h"
#include "plan/rules/rules.h"

namespace convtbw {

#if defined(CONVTBW_ONEDNN) && defined(__x86_64__)

namespace {

// Below this the call itself decides, and a primitive of oneDNN costs several microseconds more.
// Groups and few channels, where kernels differ most, were measured from less on, and so were
// depthwise problems on Zen 3.
constexpr int64_t kTinyFlops = 4'000'000, kLeastFlops = 1'000'000;

// Its primitives compute slices one after the other, each of which costs 4 to 9 us more: depthwise
// 3x3 of 384 channels of 14x14 (1.4 MFLOP) takes 1.2 times as long as here, 3x3 from 3 to 64
// channels of 32x32 (3.5 MFLOP) 0.7 to 0.9 (Zen 4).
constexpr int64_t kTinySliceFlops = 2'000'000;

}  // namespace

// simd first: on most shapes of the benchmark it is faster than oneDNN, and it needs no copies of
// whole tensors (docs/performance.md). Not on the problems of rules.h, and not in float16 on CPUs
// with matrix registers for it, which only oneDNN uses.
const std::vector<const Backend*>& preference(const Problem& problem, std::string_view target) {
  static const std::vector<const Backend*> onednn_first{&kOnednnBackend, &kSimdBackend,
                                                        &kReferenceBackend};
  const bool avx512 = target == "avx512",
             dense = problem.dtype == Dtype::f32 && problem.geometry.groups == 1;
  const int64_t work = flops(problem);
  if (problem.dtype == Dtype::f16 && has_float16_matrix_registers()) return onednn_first;
  if (problem.dtype == Dtype::bf16 && has_matrix_registers()) {
    const bool onednn = !avx512 || (work >= kTinyFlops && suits_matrix_kernels(problem));
    return onednn ? onednn_first : backends();
  }
  if (problem.slices > 1 && work / problem.slices < kTinySliceFlops) return backends();
  if (reads_gaps(problem) || bias_outweighs(problem) || one_tap_in_padding(problem) ||
      (dense &&
       (few_pixels(problem) || becomes_few_channels(problem, avx512) || strides_fold(problem) ||
        (!avx512 && is_zen_3_or_4() && suits_simd_of_avx2(problem)))))
    return backends();
  if (avx512 && is_zen_4()) {
    const Geometry& g = problem.geometry;
    const bool several = g.groups > 1 && (g.x_channels > 1 || g.y_channels > 1);
    const bool onednn =
        work >= (several ? kLeastFlops : kTinyFlops) &&
        (g.groups > 1 ? suits_grouped_kernels_of_zen_4 : suits_dense_kernels_of_zen_4)(problem);
    return onednn ? onednn_first : backends();
  }
  const int64_t tiny_depthwise = is_zen_3() ? kLeastFlops : kTinyFlops;
  const bool onednn =
      (work >= tiny_depthwise && suits_depthwise_kernels(problem, avx512)) ||
      (work >= kTinyFlops && ((dense && suits_dense_kernels(problem, avx512)) ||
                              (avx512 && (suits_bfloat16_kernels(problem) ||
                                          suits_bfloat16_depthwise_kernels(problem))))) ||
      (work >= kLeastFlops && (suits_grouped_kernels(problem, avx512) ||
                               (avx512 && suits_bfloat16_grouped_kernels(problem)) ||
                               (dense && (suits_few_channels_kernels(problem, avx512) ||
                                          suits_apart_kernels(problem))))) ||
      (dense && suits_narrow_kernels(problem, avx512));
  return onednn ? onednn_first : backends();
}

#else

const std::vector<const Backend*>& preference(const Problem&, std::string_view) {
  return backends();
}

#endif

}  // namespace convtbw
