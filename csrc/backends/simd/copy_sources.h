// What a copy reads (copy.h): elements, pairs of them or halfwords, and how they lie. Included by
// copy.h alone.
#pragma once

#include "backends/simd/kernels.h"
#include "backends/simd/partial.h"
#include "backends/simd/vector.h"

namespace convtbw::simd::CONVTBW_TARGET {
namespace {

// What a copy reads: `all` converts as many neighbours as a vector has lanes, `dealt` twice as
// many, `some` only `count` of them and reads nothing beyond, `gather` as many that lie `stride`
// elements apart.
template <class Element>
struct Elements {
  using Unit = SumOf<Element>;
  static constexpr int kElements = 1;  // of the tensor, a unit

  const Element* p;

  CONVTBW_INLINE Elements at(int64_t offset) const { return {p + offset}; }
  CONVTBW_INLINE Vector<Unit> all() const { return load(p); }
  CONVTBW_INLINE Dealt<Unit> dealt() const { return load_dealt(p); }
  CONVTBW_INLINE Vector<Unit> some(int64_t count) const { return load_some(p, count); }
  CONVTBW_INLINE Vector<Unit> gather(int64_t stride, int64_t count) const {
    Element few[kLanes<Unit>] = {};
    for (int64_t i = 0; i < count; ++i) few[i] = p[i * stride];
    return load(few);
  }
};

// Every second element, as windows of one tap meet them whose stride is 2.
template <class Element>
struct EverySecond {
  using Unit = SumOf<Element>;
  static constexpr int kElements = 2;

  const Element* p;

  CONVTBW_INLINE EverySecond at(int64_t offset) const { return {p + offset}; }
  // Two vectors that share an element: nothing is read behind the last one that counts.
  CONVTBW_INLINE Vector<Unit> all() const {
    constexpr auto place = [](int lanes, int lane) {
      return 2 * lane < lanes ? 2 * lane : 2 * lane + 1;
    };
    return shuffle<place>(load(p), load(p + kLanes<Unit> - 1));
  }
  CONVTBW_INLINE Vector<Unit> some(int64_t count) const {
    return Elements<Element>{p}.gather(2, count);
  }
};

// Elements of 16 bits as they are.
struct Halfwords {
  using Unit = uint32_t;
  static constexpr int kElements = 1;

  const uint16_t* p;

  CONVTBW_INLINE Halfwords at(int64_t offset) const { return {p + offset}; }
  CONVTBW_INLINE Words all() const { return widen(p); }
  CONVTBW_INLINE Words some(int64_t count) const { return widen_some(p, count); }
  CONVTBW_INLINE Words gather(int64_t stride, int64_t count) const {
    uint32_t few[kLanes<uint32_t>] = {};
    for (int64_t i = 0; i < count; ++i) few[i] = p[i * stride];
    return load(few);
  }
};

// The same, as many as fit in a vector: half as many instructions.
struct ManyHalfwords {
  using Unit = uint16_t;
  static constexpr int kElements = 1;

  const uint16_t* p;

  CONVTBW_INLINE ManyHalfwords at(int64_t offset) const { return {p + offset}; }
  CONVTBW_INLINE WideShorts all() const { return load(p); }
};

// Pairs whose halves lie `second` elements apart.
template <Halves halves>
struct SplitPairs {
  using Unit = uint32_t;
  static constexpr int kElements = 1;

  const bfloat16* p;
  int64_t second;

  CONVTBW_INLINE SplitPairs at(int64_t offset) const { return {p + offset, second}; }
  CONVTBW_INLINE SplitPairs<Halves::first> first_elements() const { return {p, second}; }
  CONVTBW_INLINE Words all() const {
    if constexpr (halves == Halves::first) return widen(&p->bits);
    if constexpr (halves == Halves::second) return widen(&p[second].bits) << 16;
    return paired(&p->bits, &p[second].bits);
  }
  // A word holds one of each.
  CONVTBW_INLINE Dealt<Unit> dealt() const {
    const Words first = *reinterpret_cast<const WordsOfShorts*>(p);
    if constexpr (halves == Halves::first) return {first & 0xffff, first >> 16};
    const Words others = *reinterpret_cast<const WordsOfShorts*>(p + second);
    return {(first & 0xffff) | others << 16, first >> 16 | (others & 0xffff0000)};
  }
  CONVTBW_INLINE Words some(int64_t count) const {
    if constexpr (halves == Halves::first) return widen_some(&p->bits, count);
    if constexpr (halves == Halves::second) return widen_some(&p[second].bits, count) << 16;
    return widen_some(&p->bits, count) | widen_some(&p[second].bits, count) << 16;
  }
  CONVTBW_INLINE Words gather(int64_t stride, int64_t count) const {
    uint32_t few[kLanes<uint32_t>] = {};
    for (int64_t i = 0; i < count; ++i) {
      const bfloat16* const pair = p + i * stride;
      if (halves != Halves::second) few[i] = pair->bits;
      if (halves != Halves::first) few[i] |= static_cast<uint32_t>(pair[second].bits) << 16;
    }
    return load(few);
  }
};

// Every second pair whose halves lie apart.
struct EverySecondPair {
  using Unit = uint32_t;
  static constexpr int kElements = 2;

  const bfloat16* p;
  int64_t second;

  CONVTBW_INLINE EverySecondPair at(int64_t offset) const { return {p + offset, second}; }
  // A word holds the element before a second one, which may be the first one's neighbour: nothing
  // is read behind the last one that counts.
  CONVTBW_INLINE Words all() const {
    const Words firsts = *reinterpret_cast<const WordsOfShorts*>(p);
    const Words seconds = *reinterpret_cast<const WordsOfShorts*>(p + second - 1);
    return (firsts & 0xffff) | (seconds & 0xffff0000);
  }
  CONVTBW_INLINE Words some(int64_t count) const {
    return SplitPairs<Halves::both>{p, second}.gather(2, count);
  }
};

// Pairs of neighbours.
struct AdjacentPairs {
  using Unit = uint32_t;
  static constexpr int kElements = 2;

  const bfloat16* p;

  CONVTBW_INLINE AdjacentPairs at(int64_t offset) const { return {p + offset}; }
  CONVTBW_INLINE Words all() const { return *reinterpret_cast<const WordsOfShorts*>(p); }
  CONVTBW_INLINE Words some(int64_t count) const { return elements(2 * count); }
  CONVTBW_INLINE Words elements(int64_t count) const { return load_some_pairs(&p->bits, count); }
  CONVTBW_INLINE Words gather(int64_t stride, int64_t count) const {
    uint32_t few[kLanes<uint32_t>] = {};
    for (int64_t i = 0; i < count; ++i)
      few[i] = p[i * stride].bits | static_cast<uint32_t>(p[i * stride + 1].bits) << 16;
    return load(few);
  }
};

}  // namespace
}  // namespace convtbw::simd::CONVTBW_TARGET
