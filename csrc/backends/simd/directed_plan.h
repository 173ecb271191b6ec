// fprop and dgrad are one computation in two directions. Its plans speak of what goes in, over
// whose channels they sum, and of what comes out.
#pragma once

#include "backends/simd/box.h"
#include "backends/simd/kernels.h"
#include "plan/backend.h"

namespace convtbw::simd {

class DirectedPlan : public Plan {
 protected:
  DirectedPlan(const Problem& p, const Arithmetic& arithmetic)
      : problem_(p),
        arithmetic_(arithmetic),
        fprop_(p.wanted == Role::y),
        operand_(fprop_ ? Role::x : Role::y),
        in_(fprop_ ? x_tensor(p) : y_tensor(p)),
        out_(fprop_ ? y_tensor(p) : x_tensor(p)),
        in_channels_(fprop_ ? p.geometry.x_channels : p.geometry.y_channels),
        out_channels_(fprop_ ? p.geometry.y_channels : p.geometry.x_channels),
        w_in_(fprop_ ? p.w.x_channel : p.w.y_channel),
        w_out_(fprop_ ? p.w.y_channel : p.w.x_channel) {}

  // Bytes of a sum, and of what is packed; of an element of the tensors.
  int64_t unit() const { return problem_.dtype == Dtype::f64 ? 8 : 4; }
  int64_t element() const { return element_bytes(problem_.dtype); }
  int64_t whole_vectors(int64_t units) const {
    return ceil_div(units, arithmetic_.lanes) * arithmetic_.lanes;
  }

  // The first element of a group.
  const char* in_data(const Operands& operands, int64_t group) const {
    return static_cast<const char*>(operands.data[operand_]) +
           group * in_channels_ * in_.channel * element();
  }
  char* out_data(const Operands& operands, int64_t group) const {
    return static_cast<char*>(operands.data[problem_.wanted]) +
           group * out_channels_ * out_.channel * element();
  }

  const Problem problem_;
  const Arithmetic& arithmetic_;
  const bool fprop_;
  const Role operand_;
  const Tensor in_, out_;
  const int64_t in_channels_, out_channels_;  // of a group
  const int64_t w_in_, w_out_;                // strides of the weights
};

}  // namespace convtbw::simd
