// Which CPU this is, where the same instructions cost differently.
#pragma once

namespace convtbw {

// They load 1.4 vectors of 512 bits a cycle instead of 2 (Ice Lake, Zen 5), which slows oneDNN's
// kernels and ours by different amounts.
inline bool is_intel() {
#if defined(__x86_64__)
  static const bool intel = __builtin_cpu_is("intel");
  return intel;
#else
  return false;
#endif
}

// They fetch less by themselves than Zen 5: data behind the second-level cache must be asked for.
inline bool is_zen_3_or_4() {
#if defined(__x86_64__)
  static const bool zen = __builtin_cpu_is("amdfam19h");
  return zen;
#else
  return false;
#endif
}

// Zen 4 has AVX-512, and twice the second-level cache.
inline bool is_zen_3() {
#if defined(__x86_64__)
  static const bool zen_3 = is_zen_3_or_4() && !__builtin_cpu_supports("avx512f");
  return zen_3;
#else
  return false;
#endif
}

inline bool has_bfloat16_products() {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("avx512bf16");
  return has;
#else
  return false;
#endif
}

}  // namespace convtbw
