// Vectors of which only the first lanes are in memory: what lies behind them is neither read nor
// written. Included by kernels.cpp alone.
#pragma once

#include <array>
#include <cstring>
#include <utility>

#include "backends/simd/vector.h"

namespace convtbw::simd::CONVTBW_TARGET {
namespace {

// Zeros in the lanes behind the first `count`.
template <class V, int... lane>
CONVTBW_INLINE V first_lanes(V v, int64_t count, std::integer_sequence<int, lane...>) {
  using Mask = decltype(v == v);
  const Mask first = Mask{lane...} < static_cast<int>(count);
  return reinterpret_cast<V>(reinterpret_cast<Mask>(v) & first);
}
template <class V>
CONVTBW_INLINE V first_lanes(V v, int64_t count) {
  return first_lanes(v, count, std::make_integer_sequence<int, sizeof(V) / sizeof(v[0])>());
}

// Zeros behind the first `count` elements.
template <int n, class T>
CONVTBW_INLINE std::array<T, n> padded(const T* p, int64_t count) {
  std::array<T, n> all{};
  for (int64_t i = 0; i < count; ++i) all[i] = p[i];
  return all;
}

// ---- loads: zeros in the lanes behind the first `count`, from none to all ----------------------

#if defined(__AVX512F__)

CONVTBW_INLINE uint32_t first_bits(int64_t count) {
  return static_cast<uint32_t>((uint64_t{1} << count) - 1);
}
CONVTBW_INLINE Words load_some(const uint32_t* p, int64_t count) {
  return reinterpret_cast<Words>(_mm512_maskz_loadu_epi32(first_bits(count), p));
}
CONVTBW_INLINE Doubles load_some(const double* p, int64_t count) {
  return _mm512_maskz_loadu_pd(first_bits(count), p);
}
CONVTBW_INLINE __m256i load_some(const uint16_t* p, int64_t count) {
  return _mm256_maskz_loadu_epi16(first_bits(count), p);
}
CONVTBW_INLINE Words widen_some(const uint16_t* p, int64_t count) {
  return reinterpret_cast<Words>(_mm512_cvtepu16_epi32(load_some(p, count)));
}
CONVTBW_INLINE Floats load_some(const float16* p, int64_t count) {
  return _mm512_cvtph_ps(load_some(&p->bits, count));
}

#elif defined(__AVX2__) && defined(__F16C__)

CONVTBW_INLINE Words load_some(const uint32_t* p, int64_t count) {
  return reinterpret_cast<Words>(_mm256_maskload_epi32(
      reinterpret_cast<const int*>(p), reinterpret_cast<__m256i>(first_lanes(~Words{}, count))));
}
CONVTBW_INLINE Doubles load_some(const double* p, int64_t count) {
  const auto all = Doubles{} == Doubles{};
  return _mm256_maskload_pd(p, reinterpret_cast<__m256i>(first_lanes(all, count)));
}
template <class T>
CONVTBW_INLINE uint64_t bits_of(const uint16_t* p) {
  T bits;
  std::memcpy(&bits, p, sizeof(bits));
  return bits;
}
// AVX2 has no masks for 16 bits: two loads, of which the later one drops what both have.
CONVTBW_INLINE __m128i load_some(const uint16_t* p, int64_t count) {
  if (count == 8) return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  uint64_t low = 0, high = 0;
  if (count >= 4) {
    const int64_t half = 8 * (8 - count);  // a shift by all bits is undefined
    low = bits_of<uint64_t>(p);
    high = bits_of<uint64_t>(p + count - 4) >> half >> half;
  } else if (count >= 2) {
    low = bits_of<uint32_t>(p) | bits_of<uint32_t>(p + count - 2) >> (16 * (4 - count)) << 32;
  } else if (count) {
    low = *p;
  }
  return _mm_set_epi64x(static_cast<int64_t>(high), static_cast<int64_t>(low));
}
CONVTBW_INLINE Words widen_some(const uint16_t* p, int64_t count) {
  return reinterpret_cast<Words>(_mm256_cvtepu16_epi32(load_some(p, count)));
}
CONVTBW_INLINE Floats load_some(const float16* p, int64_t count) {
  return _mm256_cvtph_ps(load_some(&p->bits, count));
}

#else

template <class T>
CONVTBW_INLINE auto load_some(const T* p, int64_t count) {
  return load(padded<kBytes / (sizeof(T) == 8 ? 8 : 4)>(p, count).data());
}
CONVTBW_INLINE Words widen_some(const uint16_t* p, int64_t count) {
  return widen(padded<kLanes<uint32_t> >(p, count).data());
}

#endif

#if defined(__AVX2__) && defined(__F16C__)
CONVTBW_INLINE Floats load_some(const float* p, int64_t count) {
  return reinterpret_cast<Floats>(load_some(reinterpret_cast<const uint32_t*>(p), count));
}
CONVTBW_INLINE Floats load_some(const bfloat16* p, int64_t count) {
  return reinterpret_cast<Floats>(widen_some(&p->bits, count) << 16);
}
#endif

// Pairs of 16 bits: `count` counts elements.
CONVTBW_INLINE Words load_some_pairs(const uint16_t* p, int64_t count) {
#if defined(__AVX512F__)
  return reinterpret_cast<Words>(_mm512_maskz_loadu_epi16(first_bits(count), p));
#else
  return *reinterpret_cast<const WordsOfShorts*>(padded<2 * kLanes<uint32_t> >(p, count).data());
#endif
}

// ---- stores of fewer lanes than a vector has ---------------------------------------------------

template <class To, class V>
CONVTBW_INLINE void store_some(To* p, V v, int64_t count) {
  constexpr int n = sizeof(V) / sizeof(v[0]);
  To all[n];
  store(all, v);
#if defined(__AVX512F__)
  if constexpr (sizeof(To) == 8)
    _mm512_mask_storeu_epi64(p, first_bits(count), _mm512_loadu_si512(all));
  else if constexpr (sizeof(To) == 4)
    _mm512_mask_storeu_epi32(p, first_bits(count), _mm512_loadu_si512(all));
  else
    _mm256_mask_storeu_epi16(p, first_bits(count),
                             _mm256_loadu_si256(reinterpret_cast<const __m256i*>(all)));
#else
  // In powers of two: AMD's CPUs need 20 to 40 operations for AVX2's masked stores.
  const To* from = all;
#pragma GCC unroll kUnroll
  for (int part = n / 2; part > 0; part /= 2)
    if (count & part) {
      std::memcpy(p, from, part * sizeof(To));
      p += part;
      from += part;
    }
#endif
}

}  // namespace
}  // namespace convtbw::simd::CONVTBW_TARGET
