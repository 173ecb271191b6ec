// The Autograd key. Every operator is a partial derivative of one trilinear form, so its derivative
// with respect to either tensor is another partial of the same form, with the cotangent in the
// result's slot; its forward derivative is the operator itself on a tangent. Nothing else is
// needed, to any order. A Node rather than autograd::Function: functorch refuses the latter.
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include "validate.h"

namespace convtbw {

namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using torch::dynamo::autograd::CompiledNodeArgs;
using torch::dynamo::autograd::SwapSavedVariables;

// The same call with other tensors, and without the bias, which is not linear in them.
Call replaced(const Call& call, const at::Tensor& first, const at::Tensor& second) {
  return {call.op,
          first,
          second,
          {},
          call.shape_tensor,
          call.shape,
          call.strides,
          call.pads_begin,
          call.pads_end,
          call.dilations,
          call.auto_pad,
          call.output_padding,
          call.groups,
          call.data_format,
          call.weights_format};
}

class PartialBackward : public torch::autograd::Node {
 public:
  // Gradients never repeat auto_pad or an omitted pad, shape or output_padding: they pass what the
  // call was resolved to. `save_*` says whose values a gradient will read.
  PartialBackward(const Call& call, const Resolved<c10::SymInt>& resolved, bool save_first,
                  bool save_second)
      : Node(torch::autograd::collect_next_edges(call.first, call.second,
                                                 call.bias.value_or(at::Tensor()))),
        op_(&call.op),
        channel_(resolved.data.channel),
        groups_(call.groups),
        strides_(call.strides.vec()),
        dilations_(call.dilations.vec()),
        pads_begin_(resolved.pads_begin.begin(), resolved.pads_begin.end()),
        pads_end_(resolved.pads_end.begin(), resolved.pads_end.end()),
        output_padding_(resolved.output_padding.begin(), resolved.output_padding.end()),
        first_sizes_(call.first.sym_sizes().vec()),
        second_sizes_(call.second.sym_sizes().vec()),
        data_format_(call.data_format),
        weights_format_(call.weights_format) {
    if (save_first) first_ = SavedVariable(call.first, /*is_output=*/false);
    if (save_second) second_ = SavedVariable(call.second, /*is_output=*/false);
  }

  std::string name() const override { return std::string("convtbw::") + op_->name + "Backward"; }

  variable_list apply(variable_list&& cotangents) override {
    const std::lock_guard lock(mutex_);
    const at::Tensor& cotangent = cotangents[0];
    variable_list gradients(3);
    if (!cotangent.defined()) return gradients;
    PerRole<at::Tensor> slots;
    slots[op_->result] = cotangent;
    if (task_should_compute_output(1)) slots[op_->first] = first_.unpack(getptr());
    if (task_should_compute_output(0)) slots[op_->second] = second_.unpack(getptr());
    if (task_should_compute_output(0)) gradients[0] = gradient(op_->first, slots, first_sizes_);
    if (task_should_compute_output(1)) gradients[1] = gradient(op_->second, slots, second_sizes_);
    if (task_should_compute_output(2)) {
      std::vector<int64_t> others;
      for (int64_t d = 0; d < cotangent.dim(); ++d)
        if (d != channel_) others.push_back(d);
      gradients[2] = cotangent.sum(others);
    }
    return gradients;
  }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    first_.reset_data();
    second_.reset_data();
  }

  bool is_traceable() override { return true; }

  void compiled_args(CompiledNodeArgs& args) const override {
    args.collect(std::string(op_->name));
    args.collect(first_, /*is_output=*/false);
    args.collect(second_, /*is_output=*/false);
    args.collect(channel_);
    args.collect(groups_);
    args.collect(strides_);
    args.collect(dilations_);
    args.collect(pads_begin_);
    args.collect(pads_end_);
    args.collect(output_padding_);
    args.collect(first_sizes_);
    args.collect(second_sizes_);
    args.collect(data_format_);
    args.collect(weights_format_);
  }

  variable_list apply_with_saved(const variable_list& cotangents,
                                 SwapSavedVariables& saved) override {
    const auto swapped = [&](auto&& swap) {
      swap(first_);
      swap(second_);
      swap(pads_begin_);
      swap(pads_end_);
      swap(output_padding_);
      swap(first_sizes_);
      swap(second_sizes_);
    };
    swapped([&](auto& member) { saved.before(member); });
    variable_list gradients = apply(variable_list(cotangents));
    swapped([&](auto& member) { saved.after(member); });
    return gradients;
  }

 private:
  at::Tensor gradient(Role wanted, const PerRole<at::Tensor>& slots,
                      const std::vector<c10::SymInt>& sizes) const {
    const Operator& op = partial(op_->family, wanted);
    at::OptionalSymIntArrayRef shape, output_padding;
    if (op.shape_name) shape = sizes;
    if (op.transposed()) output_padding = output_padding_;
    return dispatch({op,
                     slots[op.first],
                     slots[op.second],
                     {},
                     {},
                     shape,
                     strides_,
                     pads_begin_,
                     pads_end_,
                     dilations_,
                     "none",
                     output_padding,
                     groups_,
                     data_format_,
                     weights_format_});
  }

  const Operator* op_;
  SavedVariable first_, second_;
  int64_t channel_;  // dimension of the data tensors
  int64_t groups_;
  std::vector<int64_t> strides_, dilations_;
  std::vector<c10::SymInt> pads_begin_, pads_end_, output_padding_, first_sizes_, second_sizes_;
  std::string data_format_, weights_format_;
};

bool has_tangent(const at::Tensor& tensor) {
  return tensor.defined() && tensor._fw_grad(/*level=*/0).defined();
}

at::Tensor primal(const at::Tensor& tensor) {
  return has_tangent(tensor) ? tensor._fw_primal(/*level=*/0) : tensor;
}

at::Tensor tangent_of(const Call& call, const at::Tensor& result, int64_t channel) {
  at::Tensor tangent;
  const auto add = [&](const at::Tensor& term) {
    tangent = tangent.defined() ? tangent + term : term;
  };
  if (has_tangent(call.first))
    add(dispatch(replaced(call, call.first._fw_grad(0), primal(call.second))));
  if (has_tangent(call.second))
    add(dispatch(replaced(call, primal(call.first), call.second._fw_grad(0))));
  if (call.bias && has_tangent(*call.bias)) {
    std::vector<c10::SymInt> shape(result.dim(), 1);
    shape[channel] = call.bias->sym_size(0);
    add(call.bias->_fw_grad(0).view_symint(shape).expand_symint(result.sym_sizes()).contiguous());
  }
  return tangent;
}

at::Tensor differentiable(const Call& call) {
  // Nested tensors of Python never reach a backend key: what they raise there names no argument.
  if (call.first.is_nested() || call.second.is_nested()) check_tensors(call);
  const at::Tensor bias = call.bias.value_or(at::Tensor());
  const bool recorded = torch::autograd::compute_requires_grad(call.first, call.second, bias);
  const bool dual = has_tangent(call.first) || has_tangent(call.second) || has_tangent(bias);
  at::Tensor result;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    result = dispatch(call);
  }
  if (!recorded && !dual) return result;
  const auto resolved =
      resolve<c10::SymInt>(call, call.op.shape_name ? result.sym_sizes() : c10::SymIntArrayRef());
  if (recorded) {
    const bool first = torch::autograd::compute_requires_grad(call.first);
    const bool second = torch::autograd::compute_requires_grad(call.second);
    torch::autograd::set_history(
        result, c10::make_intrusive<PartialBackward>(call, resolved, second, first));
  }
  if (dual)
    result._set_fw_grad(tangent_of(call, result, resolved.data.channel), /*level=*/0,
                        /*is_inplace_op=*/false);
  return result;
}

}  // namespace

}  // namespace convtbw

TORCH_LIBRARY_IMPL(convtbw, Autograd, m) { convtbw::implement<&convtbw::differentiable>(m); }
