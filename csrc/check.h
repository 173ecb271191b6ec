// What checks of calls and tensors share: the operator's name in the message, and rules of dtypes
// and of what holds a tensor's elements.
#pragma once

#include <ATen/TensorSubclassLikeUtils.h>

#include "call.h"

namespace convtbw {

template <class... Message>
void check(const Call& call, bool ok, const Message&... message) {
  TORCH_CHECK(ok, "convtbw::", call.op.name, ": ", message...);
}

// Memory that may be read and written without asking the dispatcher.
inline bool is_plain_on_cpu(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.is_cpu() && !at::isTensorSubclassLike(tensor);
}

inline bool has_16_bits(at::ScalarType type) { return type == at::kBFloat16 || type == at::kHalf; }

// Whether a gradient of data of this dtype may be added to what is held.
inline bool may_be_added(at::ScalarType data, at::ScalarType held) {
  return held == data || (held == at::kFloat && has_16_bits(data));
}

}  // namespace convtbw
