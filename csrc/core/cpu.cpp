#include "core/cpu.h"

#if defined(__x86_64__)

#include <cpuid.h>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace convtbw {

namespace {

// Linux saves the registers of processes that have asked for it (since 5.16).
bool may_use_matrix_registers() {
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

}  // namespace

bool has_matrix_registers() {
  static const bool has = [] {
    // CPUID leaf 7, EDX: AMX-BF16 and AMX-TILE. What stands around the multiplications is compiled
    // for AVX-512's bfloat16 instructions, which all these CPUs have.
    unsigned a = 0, b = 0, c = 0, d = 0;
    return has_bfloat16_products() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) &&
           (d >> 24 & 1) && may_use_matrix_registers();
  }();
  return has;
}

bool has_float16_matrix_registers() {
  static const bool has = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;  // leaf 7, subleaf 1, EAX: AMX-FP16
    return has_matrix_registers() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 21 & 1);
  }();
  return has;
}

}  // namespace convtbw

#endif
