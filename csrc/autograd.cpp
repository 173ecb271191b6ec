// The Autograd key. Every operator is a partial derivative of one trilinear form, so its derivative
// with respect to either tensor is another partial of the same form, with the cotangent in the
// result's slot; its forward derivative is the operator itself on a tangent. Nothing else is
// needed, to any order; weights gradients of slices have partials of which each slice is a group. A
// Node rather than autograd::Function: functorch refuses the latter.
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include "accumulation.h"
#include "bias_gradient.h"
#include "check.h"
#include "joined_channels.h"
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

// All that the gradients of a call depend on beside its tensors. They never repeat auto_pad or an
// omitted pad, shape or output_padding: they pass what the call was resolved to.
struct Resolution {
  std::string op;
  int64_t channel = 0;   // dimension of the data tensors
  int64_t spanning = 0;  // dimension of the weights that spans the groups
  int64_t groups = 1;
  std::vector<int64_t> strides, dilations;
  std::vector<c10::SymInt> pads_begin, pads_end, output_padding, first_sizes, second_sizes;
  std::string data_format, weights_format;

  // Every member, in one order.
  template <class Self, class F>
  static void visit(Self& self, const F& f) {
    f(self.op);
    f(self.channel);
    f(self.spanning);
    f(self.groups);
    f(self.strides);
    f(self.dilations);
    visit_symbolic(self, f);
    f(self.data_format);
    f(self.weights_format);
  }
  template <class Self, class F>
  static void visit_symbolic(Self& self, const F& f) {
    f(self.pads_begin);
    f(self.pads_end);
    f(self.output_padding);
    f(self.first_sizes);
    f(self.second_sizes);
  }
};

Resolution resolution_of(const Call& call, const Resolved<c10::SymInt>& resolved) {
  const auto vector = [](const auto& values) {
    return std::vector<c10::SymInt>(values.begin(), values.end());
  };
  const WeightsLayout& weights = resolved.weights;
  return {call.op.name,
          resolved.data.channel,
          weights.groups_on_y ? weights.y_channel : weights.x_channel,
          call.groups,
          call.strides.vec(),
          call.dilations.vec(),
          vector(resolved.pads_begin),
          vector(resolved.pads_end),
          vector(resolved.output_padding),
          vector(call.first.sym_sizes()),
          vector(call.second.sym_sizes()),
          std::string(call.data_format),
          std::string(call.weights_format)};
}

// The partial of a call with respect to `wanted`; the cotangent lies in the result's slot.
at::Tensor partial_of(const Resolution& r, const Operator& op,
                      const std::vector<c10::SymInt>& sizes, const PerRole<at::Tensor>& slots,
                      int64_t groups, const std::optional<at::Tensor>& added_to = {}) {
  at::OptionalSymIntArrayRef shape, output_padding;
  if (op.shape_name) shape = sizes;
  if (op.transposed()) output_padding = r.output_padding;
  return dispatch({op,
                   slots[op.first],
                   slots[op.second],
                   {},
                   {},
                   shape,
                   r.strides,
                   r.pads_begin,
                   r.pads_end,
                   r.dilations,
                   "none",
                   output_padding,
                   groups,
                   r.data_format,
                   r.weights_format,
                   added_to});
}

// The same of a call of slices. Each has weights of its own in the result's slot, and becomes a
// group of its own.
at::Tensor partial_of_slices(const Resolution& r, Family family, Role wanted,
                             std::vector<c10::SymInt> sizes, PerRole<at::Tensor> slots) {
  const int64_t slices = slots.w.sym_size(0).guard_int(__FILE__, __LINE__);
  if (slices == 0) return at::zeros_symint(sizes, slots.w.options());
  at::Tensor& other = slots[wanted == Role::x ? Role::y : Role::x];
  sizes[0] = sizes[0] / slices;
  sizes[r.channel] = sizes[r.channel] * slices;
  other = join_channels(split_dimension(other, 0, {slices, sizes[0]}), r.channel, 1);
  slots.w = join_channels(slots.w, r.spanning - 1, 1);
  const at::Tensor result = partial_of(r, partial(family, wanted), sizes, slots, slices * r.groups);
  return join_dimensions(split_channels(result, r.channel, 1, slices), 0, 2);
}

// One flag for each of first, second and bias.
using Needed = std::array<bool, 3>;

variable_list gradients(const Resolution& r, const Needed& needed, const at::Tensor& cotangent,
                        const at::Tensor& first, const at::Tensor& second) {
  variable_list result(3);
  if (!cotangent.defined()) return result;
  const Operator& op = operator_named(r.op);
  PerRole<at::Tensor> slots;
  slots[op.first] = first;
  slots[op.second] = second;
  slots[op.result] = cotangent;
  const auto partial = [&](Role wanted, const std::vector<c10::SymInt>& sizes) {
    return op.of_slices
               ? partial_of_slices(r, op.family, wanted, sizes, slots)
               : partial_of(r, convtbw::partial(op.family, wanted), sizes, slots, r.groups);
  };
  if (needed[0]) result[0] = partial(op.first, r.first_sizes);
  if (needed[1]) result[1] = partial(op.second, r.second_sizes);
  if (needed[2]) {
    result[2] = at::GradMode::is_enabled() ? differentiable_bias_gradient(cotangent, r.channel)
                                           : bias_gradient(cotangent, r.channel);
  }
  return result;
}

// Adds the weights gradient of a call, whose weights are the second tensor, to `gradient`.
void add_weights_gradient(const Resolution& r, const at::Tensor& gradient,
                          const at::Tensor& cotangent, const at::Tensor& first) {
  const Operator& op = operator_named(r.op);
  PerRole<at::Tensor> slots;
  slots[op.first] = first;
  slots[op.result] = cotangent;
  partial_of(r, adding_weights_gradient(op.family), r.second_sizes, slots, r.groups, gradient);
}

class PartialBackward : public torch::autograd::Node {
 public:
  // `save_*` says whose values a gradient will read.
  PartialBackward(const Call& call, const Resolved<c10::SymInt>& resolved, bool save_first,
                  bool save_second)
      : Node(torch::autograd::collect_next_edges(call.first, call.second,
                                                 call.bias.value_or(at::Tensor()))),
        resolution_(resolution_of(call, resolved)) {
    if (save_first) first_ = SavedVariable(call.first, /*is_output=*/false);
    if (save_second) second_ = SavedVariable(call.second, /*is_output=*/false);
  }

  std::string name() const override { return "convtbw::" + resolution_.op + "Backward"; }

  variable_list apply(variable_list&& cotangents) override {
    const std::lock_guard lock(mutex_);
    Needed needed = this->needed();
    if (accumulating() && needed[1] && cotangents[0].defined() &&
        operator_named(resolution_.op).second == Role::w) {
      const at::Tensor gradient =
          gradient_to_add_to(*this, /*input=*/1, cotangents[0].scalar_type());
      if (gradient.defined()) {
        add_weights_gradient(resolution_, gradient, cotangents[0], first_.unpack(getptr()));
        needed[1] = false;
      }
    }
    return gradients(resolution_, needed, cotangents[0],
                     needed[1] ? first_.unpack(getptr()) : at::Tensor(),
                     needed[0] ? second_.unpack(getptr()) : at::Tensor());
  }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    first_.reset_data();
    second_.reset_data();
  }

  bool is_traceable() override { return true; }

  // Compiled autograd: what the traced graph depends on, ...
  void compiled_args(CompiledNodeArgs& args) const override {
    args.collect(first_, /*is_output=*/false);
    args.collect(second_, /*is_output=*/false);
    Resolution::visit(resolution_, [&](const auto& member) { args.collect(member); });
  }

  // ... and a call of `gradients` put into it, with the arguments packed as IValues.
  variable_list apply_with_saved(const variable_list& cotangents,
                                 SwapSavedVariables& saved) override {
    namespace compiled = torch::dynamo::autograd;
    static constexpr const char* function = "ConvtbwPartialBackward";
    const auto& compiler = compiled::getPyCompilerInterface();
    const Needed needed = this->needed();
    static std::once_flag bound;
    std::call_once(bound, [&] {
      std::vector<at::TypePtr> types(needed.size(), compiled::IValuePacker<bool>::packed_type());
      types.insert(types.end(), 2, compiled::IValuePacker<at::Tensor>::packed_type());
      Resolution::visit(resolution_, [&](const auto& member) {
        types.push_back(compiled::IValuePacker<std::decay_t<decltype(member)>>::packed_type());
      });
      compiler->bind_function(saved.get_py_compiler(), function, &gradients_of_packed, types);
    });

    saved.before(first_);
    saved.before(second_);
    Resolution::visit_symbolic(resolution_, [&](auto& member) { saved.before(member); });
    compiled::PackedArgs packed;
    for (const bool flag : needed) packed.pack(flag);
    packed.pack(needed[1] ? first_.unpack(getptr()) : at::Tensor());
    packed.pack(needed[0] ? second_.unpack(getptr()) : at::Tensor());
    Resolution::visit(resolution_, [&](const auto& member) { packed.pack(member); });
    const auto metadata =
        compiled::IValuePacker<std::vector<std::optional<torch::autograd::InputMetadata>>>::pack(
            compiled::get_input_metadata(next_edges()));
    variable_list result = compiler->call_function(saved.get_py_compiler(), "apply_functional",
                                                   function, cotangents, packed.vec(), metadata);
    Resolution::visit_symbolic(resolution_, [&](auto& member) { saved.after(member); });
    saved.after(first_);
    saved.after(second_);
    return result;
  }

 private:
  static variable_list gradients_of_packed(const variable_list& cotangents,
                                           const torch::autograd::ivalue_list& arguments) {
    torch::dynamo::autograd::PackedArgs packed(arguments);
    Needed needed;
    for (bool& flag : needed) flag = packed.unpack<bool>();
    const auto first = packed.unpack<at::Tensor>();
    const auto second = packed.unpack<at::Tensor>();
    Resolution resolution;
    Resolution::visit(resolution, [&](auto& member) {
      member = packed.unpack<std::decay_t<decltype(member)>>();
    });
    return gradients(resolution, needed, cotangents[0], first, second);
  }

  Needed needed() const {
    return {task_should_compute_output(0), task_should_compute_output(1),
            task_should_compute_output(2)};
  }

  Resolution resolution_;
  SavedVariable first_, second_;
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

// Adds to a tensor, which is no function to be differentiated.
at::Tensor undifferentiated(const Call& call) {
  check(call, !torch::autograd::compute_requires_grad(call.first, call.second, *call.added_to),
        "a tensor requires grad, and this operator has no "
        "derivative; expected torch.no_grad() around the call, or the operator that returns "
        "its result");
  const at::AutoDispatchBelowAutograd below;
  return dispatch(call);
}

at::Tensor differentiable(const Call& call) {
  if (call.op.adds) return undifferentiated(call);
  // Nested tensors of Python never reach a backend key: what they raise there names no argument.
  if (call.first.is_nested() || call.second.is_nested() || (call.bias && call.bias->is_nested()))
    check_tensors(call);
  if (call.shape_tensor && call.shape_tensor->is_nested()) shape_tensor_values(call);
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
