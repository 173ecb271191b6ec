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

const Operator& operator_named(std::string_view name) {
  const Operator* found = nullptr;
  for_each_operator([&]<const Operator & op, class Schema>() {
    if (name == op.name) found = &op;
  });
  TORCH_INTERNAL_ASSERT(found, "no operator named ", name);
  return *found;
}

}  // namespace convtbw
