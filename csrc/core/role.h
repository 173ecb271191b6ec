// The three slots of the trilinear form T(x, w, y) and a value for each of them.
//
//   T(x, w, y) = sum  x[n, g*C + c, h] * w[g*Q + q, c, k] * y[n, g*Q + q, j],   h = j*stride - pad
//   + k*dilation
//
// x is the big side, y the small side. Every operator is one partial derivative of T:
// fprop = dT/dy, dgrad = dT/dx, wgrad = dT/dw. Operators assign their tensors to roles
// (operators.h); nothing below that assignment knows the words src, dst or diff.
#pragma once

#include <cstdint>

namespace convtbw {

enum class Role : uint8_t { x, w, y };

template <class T>
struct PerRole {
  T x{}, w{}, y{};

  T& operator[](Role role) { return role == Role::x ? x : role == Role::w ? w : y; }
  const T& operator[](Role role) const { return role == Role::x ? x : role == Role::w ? w : y; }
  bool operator==(const PerRole&) const = default;
};

// The name of the contraction that computes the partial of T with respect to `wanted`.
constexpr const char* contraction_name(Role wanted) {
  return wanted == Role::x ? "dgrad" : wanted == Role::w ? "wgrad" : "fprop";
}

}  // namespace convtbw
