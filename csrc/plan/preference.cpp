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

}  // namespace

// simd first: on every shape of the benchmark it is at least as fast as oneDNN or close to it, and
// it needs no copies of whole tensors (docs/performance.md). Except in 16 bits on CPUs with matrix
// registers, which only oneDNN uses: eight times the rate of the bfloat16 dot products of AVX-512.
const std::vector<const Backend*>& preference(const Problem& problem) {
  static const bool matrix_registers = has_amx();
  static const std::vector<const Backend*> onednn_first{&kOnednnBackend, &kSimdBackend,
                                                        &kReferenceBackend};
  const bool sixteen_bits = problem.dtype == Dtype::bf16 || problem.dtype == Dtype::f16;
  return matrix_registers && sixteen_bits ? onednn_first : backends();
}

#else

const std::vector<const Backend*>& preference(const Problem&) { return backends(); }

#endif

}  // namespace convtbw
