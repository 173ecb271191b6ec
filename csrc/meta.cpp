// The Meta key: the same checks and formulas for symbolic integers, and no data.
#include "check.h"
#include "validate.h"

namespace convtbw {

namespace {

at::Tensor infer(const Call& call) {
  check(call, !call.shape_tensor, call.op.shape_tensor_name,
        " is given, but its values are unknown under torch.compile, torch.export and on meta "
        "tensors; expected the attribute ",
        call.op.shape_name, " alone");
  const Resolved<c10::SymInt> resolved = resolve<c10::SymInt>(call, shape_attribute(call));
  if (call.op.adds) return *call.added_to;
  return at::empty_symint(resolved.result, call.first.options(),
                          result_memory_format(call, resolved.data));
}

}  // namespace

}  // namespace convtbw

TORCH_LIBRARY_IMPL(convtbw, Meta, m) { convtbw::implement<&convtbw::infer>(m); }
