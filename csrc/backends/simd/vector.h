// Vectors of the target this file is compiled for, in the compiler's portable vector types, and
// their conversion from and to the element types of tensors. Included by kernels.cpp alone: all
// names here have internal linkage, because a function compiled under an instruction-set flag must
// never be merged with its namesake compiled without.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#if defined(__F16C__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "core/dtype.h"

namespace convtbw::simd::CONVTBW_TARGET {
namespace {

constexpr int kBytes = CONVTBW_VECTOR_BYTES;

// Generic vectors as wide as AVX-512's stand for these.
constexpr int kRegisters = kBytes == 64 ? 32 : 16;

// The most lanes of 32 bits of a group that are spread in registers.
constexpr int kMaxSpreadGroup = kBytes == 64 ? 8 : 4;

// How often loops over vectors are unrolled: wholly, for accumulators to stay in registers, or not.
constexpr int kUnroll = CONVTBW_UNROLL;

// Loads and stores through these types need no alignment beyond the element's.
using Floats = float __attribute__((vector_size(kBytes), aligned(4), may_alias));
using Doubles = double __attribute__((vector_size(kBytes), aligned(8), may_alias));
using Words = uint32_t __attribute__((vector_size(kBytes), aligned(4), may_alias));
// Where pairs of 16-bit elements are read as words.
using WordsOfShorts = uint32_t __attribute__((vector_size(kBytes), aligned(2), may_alias));
using Shorts = uint16_t __attribute__((vector_size(kBytes / 2), aligned(2), may_alias));
using WideShorts = uint16_t __attribute__((vector_size(kBytes), aligned(2), may_alias));

template <class T>
struct VectorOf;
template <>
struct VectorOf<float> {
  using type = Floats;
};
template <>
struct VectorOf<double> {
  using type = Doubles;
};
template <>
struct VectorOf<uint32_t> {
  using type = Words;
};
template <>
struct VectorOf<uint16_t> {
  using type = WideShorts;
};
template <class T>
using Vector = typename VectorOf<T>::type;

template <class T>
constexpr int kLanes = kBytes / sizeof(T);

// What elements are summed in.
template <class Element>
using SumOf = std::conditional_t<std::is_same_v<Element, double>, double, float>;

#define CONVTBW_INLINE __attribute__((always_inline)) inline

CONVTBW_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// GCC 12 widens by halves, in 5 instructions instead of 1.
CONVTBW_INLINE Words widen(const uint16_t* p) {
#if defined(__AVX512F__)
  return reinterpret_cast<Words>(_mm512_cvtepu16_epi32(*reinterpret_cast<const __m256i_u*>(p)));
#elif defined(__AVX2__)
  return reinterpret_cast<Words>(_mm256_cvtepu16_epi32(*reinterpret_cast<const __m128i_u*>(p)));
#else
  return __builtin_convertvector(*reinterpret_cast<const Shorts*>(p), Words);
#endif
}

// Of words below 2^16: GCC 12 would clear the upper halves once more.
CONVTBW_INLINE Shorts narrow(Words v) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  const __m256i words = reinterpret_cast<__m256i>(v);
  return reinterpret_cast<Shorts>(
      _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(words, words), 0b1000)));
#else
  return __builtin_convertvector(v, Shorts);
#endif
}

// Whether a load of float16 is converted by one instruction.
#if defined(__AVX512F__) || defined(__F16C__)
constexpr bool kConvertsFloat16 = true;
#else
constexpr bool kConvertsFloat16 = false;
#endif

// ---- element types -> vectors of sums ----------------------------------------------------------

CONVTBW_INLINE Floats load(const float* p) { return *reinterpret_cast<const Floats*>(p); }
CONVTBW_INLINE Doubles load(const double* p) { return *reinterpret_cast<const Doubles*>(p); }
CONVTBW_INLINE Words load(const uint32_t* p) { return *reinterpret_cast<const Words*>(p); }
CONVTBW_INLINE WideShorts load(const uint16_t* p) {
  return *reinterpret_cast<const WideShorts*>(p);
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// For vpshufb: elements of 16 bits, of which both lanes hold 8, to the upper halves of words.
alignas(32) constexpr int8_t kUpperHalves[32] = {-1, -1, 0,  1,  -1, -1, 2,  3,  -1, -1, 4,
                                                 5,  -1, -1, 6,  7,  -1, -1, 8,  9,  -1, -1,
                                                 10, 11, -1, -1, 12, 13, -1, -1, 14, 15};
#endif

// With one instruction behind the load, instead of two: wgrad of depthwise 3x3, channels first, 0.8
// of the time with AVX2; of 16x16 0.93 with AVX-512 (Zen 4).
CONVTBW_INLINE Floats load(const bfloat16* p) {
#if defined(__AVX512BW__)
  const WideShorts place = {0, 0, 0, 1, 0, 2,  0, 3,  0, 4,  0, 5,  0, 6,  0, 7,
                            0, 8, 0, 9, 0, 10, 0, 11, 0, 12, 0, 13, 0, 14, 0, 15};
  return reinterpret_cast<Floats>(_mm512_maskz_permutexvar_epi16(
      0xaaaaaaaa, reinterpret_cast<__m512i>(place),
      _mm512_castsi256_si512(*reinterpret_cast<const __m256i_u*>(p))));
#elif defined(__AVX2__)
  const __m256i place = *reinterpret_cast<const __m256i*>(kUpperHalves);
  return reinterpret_cast<Floats>(_mm256_shuffle_epi8(
      _mm256_broadcastsi128_si256(*reinterpret_cast<const __m128i_u*>(p)), place));
#else
  return reinterpret_cast<Floats>(widen(&p->bits) << 16);
#endif
}

CONVTBW_INLINE Floats load(const float16* p) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(*reinterpret_cast<const __m256i_u*>(p));
#elif defined(__F16C__)
  return _mm256_cvtph_ps(*reinterpret_cast<const __m128i_u*>(p));
#else
  // The exponent is moved to float's place and rescaled by a multiplication, which makes normal
  // numbers of subnormal ones; only infinity and NaN must have their exponent set.
  const Words bits = widen(&p->bits);
  const Words magnitude = (bits & 0x7fff) << 13;
  const Floats scaled = reinterpret_cast<Floats>(magnitude) * 0x1p112f;
  const Words special = reinterpret_cast<Words>(magnitude >= 0x0f800000);
  return reinterpret_cast<Floats>((bits & 0x8000) << 16 | reinterpret_cast<Words>(scaled) |
                                  (special & 0x7f800000));
#endif
}

// load() where sums take all registers but those of the operands: with AVX2, load() of bfloat16
// needs one for a constant. From memory it is slower elsewhere (1.02 to 1.1 of the time).
template <class Element>
CONVTBW_INLINE auto load_beside_sums(const Element* p) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  if constexpr (std::is_same_v<Element, bfloat16>) {
    __m256i v = _mm256_broadcastsi128_si256(*reinterpret_cast<const __m128i_u*>(p));
    asm("vpshufb %1, %0, %0" : "+x"(v) : "m"(kUpperHalves));
    return reinterpret_cast<Floats>(v);
  } else
#endif
    return load(p);
}

// GCC would read a vector from memory for every one of its first uses instead of once.
template <class V>
CONVTBW_INLINE V loaded(V v) {
#if defined(__AVX2__)
  asm("" : "+v"(v));
#endif
  return v;
}

// ---- vectors of sums -> element types, rounded to nearest, ties to even ------------------------

CONVTBW_INLINE void store(float* p, Floats v) { *reinterpret_cast<Floats*>(p) = v; }
CONVTBW_INLINE void store(double* p, Doubles v) { *reinterpret_cast<Doubles*>(p) = v; }
CONVTBW_INLINE void store(uint16_t* p, Words v) { *reinterpret_cast<Shorts*>(p) = narrow(v); }
CONVTBW_INLINE void store(uint32_t* p, Words v) { *reinterpret_cast<Words*>(p) = v; }
CONVTBW_INLINE void store(uint16_t* p, WideShorts v) { *reinterpret_cast<WideShorts*>(p) = v; }

// A NaN stays one: in sums of bfloat16 it is the default NaN or an operand's payload, whose lower
// half is zero, so that rounding carries nothing. Other payloads cost 3 instructions more of 8.
CONVTBW_INLINE void store(bfloat16* p, Floats v) {
#if defined(__AVX512BF16__)
  // Takes denormals for zeros, as the products have done before.
  const __m256bh halves = _mm512_cvtneps_pbh(v);
  *reinterpret_cast<__m256i_u*>(p) = reinterpret_cast<const __m256i&>(halves);
#else
  const Words bits = reinterpret_cast<Words>(v);
  const Words rounded = bits + (bits >> 16 & 1) + 0x7fff;
  // The upper halves, without a shift.
#if defined(__AVX512BW__)
  const WideShorts place = {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
  const __m512i halves = _mm512_maskz_permutexvar_epi16(
      0xffffffff, reinterpret_cast<__m512i>(place), reinterpret_cast<__m512i>(rounded));
  *reinterpret_cast<__m256i_u*>(p) = reinterpret_cast<const __m256i&>(halves);
#elif defined(__AVX2__)
  const __m256i place = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(2, 3, 6, 7, 10, 11, 14, 15, -1, -1, -1, -1, -1, -1, -1, -1));
  const __m256i halves = _mm256_shuffle_epi8(reinterpret_cast<__m256i>(rounded), place);
  *reinterpret_cast<__m128i_u*>(p) =
      _mm256_castsi256_si128(_mm256_permute4x64_epi64(halves, 0b1000));
#else
  *reinterpret_cast<Shorts*>(p) = narrow(rounded >> 16);
#endif
#endif
}

CONVTBW_INLINE void store(float16* p, Floats v) {
#if defined(__AVX512F__)
  // With a mask, or GCC 12 warns of what _mm512_cvtps_ph leaves undefined.
  *reinterpret_cast<__m256i_u*>(p) = _mm512_maskz_cvtps_ph(0xffff, v, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__F16C__)
  *reinterpret_cast<__m128i_u*>(p) = _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
#else
  const Words bits = reinterpret_cast<Words>(v);
  const Words sign = bits >> 16 & 0x8000;
  const Words magnitude = bits & 0x7fffffff;
  // Normal results: drop 13 bits. A carry out of the mantissa moves the exponent, up to infinity.
  const Words normal = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
  // Subnormal results: adding 0.5 leaves a multiple of 2^-24 in the low mantissa bits, rounded.
  const Words subnormal =
      reinterpret_cast<Words>(reinterpret_cast<Floats>(magnitude) + 0.5f) - 0x3f000000;
  const Words is_nan = reinterpret_cast<Words>(magnitude > 0x7f800000);
  const Words is_large = reinterpret_cast<Words>(magnitude >= 0x47800000);  // 2^16
  const Words is_small = reinterpret_cast<Words>(magnitude < 0x38800000);   // 2^-14
  Words result = (is_small & subnormal) | (~is_small & normal);
  result = (is_large & 0x7c00) | (~is_large & result);
  result = (is_nan & (0x7e00 | (magnitude >> 13 & 0x3ff))) | (~is_nan & result);
  *reinterpret_cast<Shorts*>(p) = narrow(sign | result);
#endif
}

// ---- transposition -----------------------------------------------------------------------------

// shuffle<f>(a, b)[j] = (a ++ b)[f(j)]; f is a captureless function of (lanes, j).
template <auto f, class V, int... j>
CONVTBW_INLINE V shuffle(V a, V b, std::integer_sequence<int, j...>) {
  return __builtin_shufflevector(a, b, f(int{sizeof...(j)}, j)...);
}
template <auto f, class V>
CONVTBW_INLINE V shuffle(V a, V b) {
  return shuffle<f>(a, b, std::make_integer_sequence<int, sizeof(V) / sizeof(a[0])>());
}

// Every second lane of two vectors, from lane `first` on.
template <int first, class V, int... lane>
CONVTBW_INLINE V every_second(V a, V b, std::integer_sequence<int, lane...>) {
  using Index = decltype(a == a);
  return __builtin_shuffle(a, b, Index{(2 * lane + first)...});
}

// Two vectors of neighbours, dealt in turn.
template <class T>
struct Dealt {
  Vector<T> even, odd;
};

template <class T>
CONVTBW_INLINE Dealt<T> deal(Vector<T> a, Vector<T> b) {
  constexpr auto lanes = std::make_integer_sequence<int, kLanes<T>>();
  return {every_second<0>(a, b, lanes), every_second<1>(a, b, lanes)};
}

// As many elements as two vectors have lanes.
template <class Element>
CONVTBW_INLINE Dealt<SumOf<Element>> load_dealt(const Element* p) {
  return deal<SumOf<Element>>(load(p), load(p + kLanes<SumOf<Element>>));
}

// A word holds one of each.
CONVTBW_INLINE Dealt<float> load_dealt(const bfloat16* p) {
  const Words pairs = *reinterpret_cast<const WordsOfShorts*>(p);
  return {reinterpret_cast<Floats>(pairs << 16), reinterpret_cast<Floats>(pairs & 0xffff0000)};
}

#if defined(__F16C__) && !defined(__AVX512F__)
CONVTBW_INLINE Dealt<float> load_dealt(const float16* p) {
  const __m256i place = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
  const __m256i halves = _mm256_permute4x64_epi64(
      _mm256_shuffle_epi8(*reinterpret_cast<const __m256i_u*>(p), place), 0b11011000);
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
          _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
}
#endif

// By group and plane: which lanes each lane l takes, l - l % group + plane, and which pairs of them
// it does where a plane is of pairs.
struct SpreadIndex {
  alignas(kBytes) uint32_t lanes[kMaxSpreadGroup + 1][kMaxSpreadGroup][kLanes<uint32_t>]{};
  alignas(kBytes) uint32_t pairs[kMaxSpreadGroup + 1][kMaxSpreadGroup / 2][kLanes<uint32_t>]{};

  constexpr SpreadIndex() {
    for (uint32_t group = 2; group <= kMaxSpreadGroup; group *= 2)
      for (uint32_t plane = 0; plane < group; ++plane)
        for (uint32_t l = 0; l < kLanes<uint32_t>; ++l) {
          const uint32_t first = l - l % group;
          lanes[group][plane][l] = first + plane;
          if (plane < group / 2) pairs[group][plane][l] = first / 2 + plane;
        }
  }
};
constexpr SpreadIndex kSpreadIndex;

// The lanes of such an index: by one instruction, not two.
CONVTBW_INLINE Floats spread_lanes(Floats v, Words index) {
#if defined(__AVX512F__)
  return _mm512_permutexvar_ps(reinterpret_cast<__m512i>(index), v);
#elif defined(__AVX2__)
  return _mm256_permutevar_ps(v, reinterpret_cast<__m256i>(index));  // within 128 bits
#else
  return __builtin_shuffle(v, index);
#endif
}

// The words that hold two elements of 16 bits each, of as many as a vector has lanes, by an index.
CONVTBW_INLINE Words spread_pairs(const uint16_t* p, Words index) {
#if defined(__AVX512F__)
  return reinterpret_cast<Words>(
      _mm512_permutexvar_epi32(reinterpret_cast<__m512i>(index),
                               _mm512_castsi256_si512(*reinterpret_cast<const __m256i_u*>(p))));
#else
  Words pairs{};
  __builtin_memcpy(&pairs, p, kBytes / 2);
  return __builtin_shuffle(pairs, index);
#endif
}

// Words of the elements of 16 bits at `lower` and at `upper`, lane by lane.
CONVTBW_INLINE Words paired(const uint16_t* lower, const uint16_t* upper) {
#if defined(__AVX512BW__)
  // Half a vector each, whose elements are dealt to the lanes: 2 instructions; widened 4.
  constexpr auto in_turn = [](int lanes, int j) { return j / 2 + j % 2 * lanes / 2; };
  const WideShorts halves = reinterpret_cast<WideShorts>(_mm512_inserti64x4(
      _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(lower))),
      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(upper)), 1));
  return reinterpret_cast<Words>(shuffle<in_turn>(halves, halves));
#else
  return widen(lower) | widen(upper) << 16;
#endif
}

// One stage of a transposition: exchanges the off-diagonal blocks of `distance` rows and columns.
template <int distance, class V>
CONVTBW_INLINE void exchange(V* rows) {
  constexpr int n = sizeof(V) / sizeof(rows[0][0]);
#pragma GCC unroll kUnroll
  for (int i = 0; i < n; ++i) {
    if (i & distance) continue;
    const V a = rows[i], b = rows[i + distance];
    rows[i] =
        shuffle<[](int lanes, int j) { return j & distance ? lanes + j - distance : j; }>(a, b);
    rows[i + distance] =
        shuffle<[](int lanes, int j) { return j & distance ? lanes + j : j + distance; }>(a, b);
  }
}

// 4x4 blocks inside 128 bits, with one instruction a step on every target: interleave, then pair.
template <class V>
CONVTBW_INLINE void transpose_quads(V* rows) {
  constexpr int n = sizeof(V) / sizeof(rows[0][0]);
#pragma GCC unroll kUnroll
  for (int i = 0; i < n; i += 4) {
    constexpr auto low = [](int lanes, int j) {
      return (j & ~3) + (j & 3) / 2 + (j & 1 ? lanes : 0);
    };
    constexpr auto high = [](int lanes, int j) {
      return (j & ~3) + 2 + (j & 3) / 2 + (j & 1 ? lanes : 0);
    };
    constexpr auto low_pair = [](int lanes, int j) {
      return (j & ~3) + (j & 1) + (j & 2 ? lanes : 0);
    };
    constexpr auto high_pair = [](int lanes, int j) {
      return (j & ~3) + 2 + (j & 1) + (j & 2 ? lanes : 0);
    };
    const V low01 = shuffle<low>(rows[i], rows[i + 1]);
    const V high01 = shuffle<high>(rows[i], rows[i + 1]);
    const V low23 = shuffle<low>(rows[i + 2], rows[i + 3]);
    const V high23 = shuffle<high>(rows[i + 2], rows[i + 3]);
    rows[i] = shuffle<low_pair>(low01, low23);
    rows[i + 1] = shuffle<high_pair>(low01, low23);
    rows[i + 2] = shuffle<low_pair>(high01, high23);
    rows[i + 3] = shuffle<high_pair>(high01, high23);
  }
}

// In place: rows[i][j] <-> rows[j][i], as many rows as lanes.
template <class V>
CONVTBW_INLINE void transpose(V* rows) {
  constexpr int n = sizeof(V) / sizeof(rows[0][0]);
  if constexpr (sizeof(rows[0][0]) == 8) {
    exchange<1>(rows);
    if constexpr (n >= 4) exchange<2>(rows);
  } else {
    transpose_quads(rows);
  }
  if constexpr (n >= 8) exchange<4>(rows);
  if constexpr (n >= 16) exchange<8>(rows);
}

}  // namespace
}  // namespace convtbw::simd::CONVTBW_TARGET
