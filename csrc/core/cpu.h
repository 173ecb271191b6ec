// Which CPU this is, where the same instructions cost differently.
#pragma once

namespace convtbw {

#if defined(__x86_64__)

// They load 1.4 vectors of 512 bits a cycle instead of 2 (Ice Lake, Zen 5), which slows oneDNN's
// kernels and ours by different amounts.
inline bool is_intel() { return __builtin_cpu_is("intel"); }

// They fetch less by themselves than Zen 5: data behind the second-level cache must be asked for.
inline bool is_zen_3_or_4() { return __builtin_cpu_is("amdfam19h"); }

// Zen 4 has AVX-512, and twice the second-level cache.
inline bool is_zen_4() { return is_zen_3_or_4() && __builtin_cpu_supports("avx512f"); }
inline bool is_zen_3() { return is_zen_3_or_4() && !is_zen_4(); }

// Or later: AVX-512 at its full width.
inline bool is_zen_5() {
  return __builtin_cpu_is("amd") && __builtin_cpu_supports("avx512f") && !is_zen_3_or_4();
}

inline bool has_bfloat16_products() { return __builtin_cpu_supports("avx512bf16"); }

// AMX's, for bfloat16, if the system lets this process use them; and for float16.
bool has_matrix_registers();
bool has_float16_matrix_registers();

#else

inline bool is_intel() { return false; }
inline bool is_zen_3_or_4() { return false; }
inline bool is_zen_4() { return false; }
inline bool is_zen_3() { return false; }
inline bool is_zen_5() { return false; }
inline bool has_bfloat16_products() { return false; }
inline bool has_matrix_registers() { return false; }
inline bool has_float16_matrix_registers() { return false; }

#endif

}  // namespace convtbw
