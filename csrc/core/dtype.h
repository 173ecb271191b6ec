// Element types and their conversion to and from double, in portable integer arithmetic: the core
// has no ATen and no instruction-set headers.
#pragma once

#include <bit>
#include <cstdint>
#include <utility>

namespace convtbw {

enum class Dtype : uint8_t { f32, bf16, f16, f64 };

constexpr const char* dtype_name(Dtype dtype) {
  constexpr const char* names[] = {"float32", "bfloat16", "float16", "float64"};
  return names[static_cast<int>(dtype)];
}

constexpr int64_t element_bytes(Dtype dtype) {
  return dtype == Dtype::f64 ? 8 : dtype == Dtype::f32 ? 4 : 2;
}

struct bfloat16 {
  uint16_t bits;
};

struct float16 {
  uint16_t bits;
};

// Calls f with a value of the C++ type of `dtype`.
template <class F>
void visit_dtype(Dtype dtype, F&& f) {
  switch (dtype) {
    case Dtype::f32:
      return f(float{});
    case Dtype::bf16:
      return f(bfloat16{});
    case Dtype::f16:
      return f(float16{});
    case Dtype::f64:
      return f(double{});
  }
}

inline double to_double(double value) { return value; }
inline double to_double(float value) { return value; }
inline double to_double(bfloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}
inline double to_double(float16 value) {
  const uint64_t sign = static_cast<uint64_t>(value.bits & 0x8000) << 48;
  const uint64_t magnitude = value.bits & 0x7fff;
  if (magnitude >= 0x7c00)  // infinity, NaN
    return std::bit_cast<double>(sign | 0x7ff0000000000000 | (magnitude & 0x3ff) << 42);
  if (magnitude < 0x400) {  // subnormal: an integer multiple of 2^-24
    const double value = static_cast<double>(magnitude) * 0x1p-24;
    return sign ? -value : value;
  }
  return std::bit_cast<double>(sign | ((magnitude << 42) + (uint64_t{1023 - 15} << 52)));
}

// Rounds a double to a 16-bit format of `exponent` and `mantissa` bits, to nearest, ties to even,
// in one step: by way of float it would be rounded twice.
template <int exponent, int mantissa>
uint16_t round_to_16_bits(double value) {
  const uint64_t bits = std::bit_cast<uint64_t>(value);
  const uint16_t sign = static_cast<uint16_t>(bits >> 48 & 0x8000);
  const uint64_t magnitude = bits & 0x7fffffffffffffff;
  constexpr int bias = (1 << (exponent - 1)) - 1;
  constexpr uint16_t infinity = ((1 << exponent) - 1) << mantissa;
  if (magnitude > 0x7ff0000000000000) return sign | infinity | 1 << (mantissa - 1);
  const int power = static_cast<int>(magnitude >> 52) - 1023 + bias;
  if (power >= (1 << exponent) - 1) return sign | infinity;
  // A subnormal result keeps fewer bits; below half of the smallest one it is zero.
  const int dropped = 52 - mantissa + (power < 1 ? 1 - power : 0);
  if (dropped > 53) return sign;
  const uint64_t significand = (magnitude & 0xfffffffffffff) | uint64_t{1} << 52;
  const uint64_t half = uint64_t{1} << (dropped - 1);
  const uint64_t kept = significand >> dropped;
  const uint64_t rest = significand & (2 * half - 1);
  const uint64_t rounded = kept + (rest > half || (rest == half && (kept & 1)));
  // The implicit bit of `rounded` adds one to the exponent field; so does a carry out of it.
  const uint64_t field = power < 1 ? 0 : static_cast<uint64_t>(power - 1) << mantissa;
  return sign | static_cast<uint16_t>(field + rounded);
}

template <class T>
T from_double(double value) {
  return static_cast<T>(value);
}
template <>
inline bfloat16 from_double(double value) {
  return {round_to_16_bits<8, 7>(value)};
}
template <>
inline float16 from_double(double value) {
  return {round_to_16_bits<5, 10>(value)};
}

}  // namespace convtbw
