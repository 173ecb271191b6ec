// Every other backend key (sparse, quantised, mkldnn, nested, other devices): a kernel that only
// checks, so that such tensors are answered in the caller's words too.
#include "validate.h"

namespace convtbw {

namespace {

at::Tensor refuse(const Call& call) {
  check_tensors(call);
  if (call.shape_tensor) shape_tensor_values(call);
  TORCH_CHECK(false, "convtbw::", call.op.name,
              ": no kernel for these tensors: ", call.op.first_name, " is ", call.first.toString(),
              ", ", call.op.second_name, " is ", call.second.toString(),
              "; expected strided cpu tensors");
}

}  // namespace

}  // namespace convtbw

TORCH_LIBRARY_IMPL(convtbw, CompositeExplicitAutograd, m) {
  convtbw::implement<&convtbw::refuse>(m);
}
TORCH_LIBRARY_IMPL(convtbw, NestedTensorCPU, m) { convtbw::implement<&convtbw::refuse>(m); }
