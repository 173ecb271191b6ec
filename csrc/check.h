// One check of a call, with the operator's name in the message.
#pragma once

#include "call.h"

namespace convtbw {

template <class... Message>
void check(const Call& call, bool ok, const Message&... message) {
  TORCH_CHECK(ok, "convtbw::", call.op.name, ": ", message...);
}

}  // namespace convtbw
