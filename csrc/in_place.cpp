// The ADInplaceOrView key, of the operators that change a tensor: it gets a new version, so that a
// backward which has saved it says that it was changed.
#include <torch/csrc/autograd/VariableTypeUtils.h>

#include "call.h"
#include "control.h"

namespace convtbw {

namespace {

at::Tensor changed(const Call& call) {
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    dispatch(call);
  }
  if (!explaining()) torch::autograd::increment_version(*call.added_to);
  return *call.added_to;
}

}  // namespace

}  // namespace convtbw

TORCH_LIBRARY_IMPL(convtbw, ADInplaceOrView, m) {
  convtbw::for_each_operator([&]<const convtbw::Operator & op, class Schema>() {
    if constexpr (op.adds) m.impl(op.name, &Schema::template kernel<op, &convtbw::changed>);
  });
}
