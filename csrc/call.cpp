#include "call.h"

namespace convtbw {

at::Tensor dispatch(const Call& call) {
  at::Tensor result;
  for_each_operator([&]<const Operator & op, class Schema>() {
    if (&op != &call.op) return;
    static const auto handle =
        c10::Dispatcher::singleton()
            .findSchemaOrThrow((std::string("convtbw::") + op.name).c_str(), "")
            .typed<typename Schema::Signature>();
    result = Schema::call(handle, call);
  });
  return result;
}

}  // namespace convtbw
