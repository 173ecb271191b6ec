// What checks of a call share: the operator's name in the message, and a rule of dtypes.
#pragma once

#include "call.h"

namespace convtbw {

template <class... Message>
void check(const Call& call, bool ok, const Message&... message) {
  TORCH_CHECK(ok, "convtbw::", call.op.name, ": ", message...);
}

inline bool has_16_bits(at::ScalarType type) { return type == at::kBFloat16 || type == at::kHalf; }

// Whether a gradient of data of this dtype may be added to what is held.
inline bool may_be_added(at::ScalarType data, at::ScalarType held) {
  return held == data || (held == at::kFloat && has_16_bits(data));
}

}  // namespace convtbw
