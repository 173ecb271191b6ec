#include "aten.h"

#include <ATen/CompositeExplicitAutogradFunctions.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

#include "aten_format.h"
#include "aten_preference.h"
#include "bias_gradient.h"
#include "control.h"
#include "ops.h"

namespace convtbw {

namespace {

bool is_served(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
}

bool is_plain(const at::Tensor& tensor, const AtenConvolution& c) {
  return tensor.device().is_cpu() && tensor.layout() == at::kStrided &&
         tensor.scalar_type() == c.input.scalar_type() && tensor.numel() > 0;
}

bool all_positive(at::IntArrayRef values) {
  return std::all_of(values.begin(), values.end(), [](int64_t value) { return value > 0; });
}

bool none_negative(at::IntArrayRef values) {
  return std::all_of(values.begin(), values.end(), [](int64_t value) { return value >= 0; });
}

constexpr const char* kSuits = "torch's own kernels suit the problem best";

// Why torch computes a call; nullptr: nothing here is against us. What torch refuses is torch's
// too: it says so in the caller's words.
const char* why_torch(const AtenConvolution& c) {
  if (!is_served(c.input.scalar_type())) return "the dtype is not float32, bfloat16 or float16";
  if (!is_plain(c.input, c) || !is_plain(c.weight, c))
    return "the tensors are empty, not strided or differ in dtype or device";
  if (c.weight.dim() != c.input.dim() || c.rank < 1 || c.rank > kMaxRank)
    return "the ranks of the tensors differ, or are not those of 1-D to 3-D";
  for (const at::IntArrayRef values :
       {at::IntArrayRef(c.stride), at::IntArrayRef(c.padding), at::IntArrayRef(c.dilation),
        at::IntArrayRef(c.output_padding)})
    if (static_cast<int64_t>(values.size()) != c.rank)
      return "an attribute does not have one value for each axis";
  if (c.groups <= 0 || !all_positive(c.stride) || !all_positive(c.dilation) ||
      !none_negative(c.padding) || !none_negative(c.output_padding))
    return "an attribute is out of range";
  const bool padded = std::any_of(c.output_padding.begin(), c.output_padding.end(),
                                  [](int64_t value) { return value > 0; });
  if (padded && !c.transposed) return "output_padding is given for a convolution";
  // Our operators read weights of (input channels / groups, output channels) too; torch does not.
  if (c.input.size(1) != (c.transposed ? c.weight.size(0) : c.weight.size(1) * c.groups))
    return "input and weight differ in their input channels";
  // The tracer records what torch's own kernel calls, not us.
  if (c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Tracer))
    return "the call is traced by torch.jit.trace";
  if (suits_torch(c)) return kSuits;
  return nullptr;
}

const Operator& operator_for(const AtenConvolution& c, Role wanted) {
  return partial(c.transposed ? Family::conv_transpose : Family::convolution, wanted);
}

Role input_role(const AtenConvolution& c) { return c.transposed ? Role::y : Role::x; }
Role output_role(const AtenConvolution& c) { return c.transposed ? Role::x : Role::y; }

Call call_of(const AtenConvolution& c, Role wanted, const at::Tensor& first,
             const at::Tensor& second, const std::optional<at::Tensor>& bias) {
  const Operator& op = operator_for(c, wanted);
  const c10::SymIntArrayRef padding = c10::fromIntArrayRefKnownNonNegative(c.padding);
  return {.op = op,
          .first = first,
          .second = second,
          .bias = bias && bias->defined() ? bias : std::nullopt,
          .shape_tensor = std::nullopt,
          .shape = std::nullopt,
          .strides = c.stride,
          .pads_begin = padding,
          .pads_end = padding,
          .dilations = c.dilation,
          .auto_pad = "none",
          .output_padding = c.transposed
                                ? at::OptionalSymIntArrayRef(
                                      c10::fromIntArrayRefKnownNonNegative(c.output_padding))
                                : std::nullopt,
          .groups = c.groups,
          .data_format = "NCX",
          .weights_format = c.transposed ? "IOX" : "OIX"};
}

// What the operator refuses is nullopt: torch raises its own error, or computes.
std::optional<Resolved<int64_t>> resolved_or_refused(const Call& call, at::IntArrayRef shape) {
  try {
    return resolve<int64_t>(call, call.op.shape_name ? shape : at::IntArrayRef());
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

// The tensor that the wanted role plays, computed here; or undefined, and `why` says why torch must
// compute it. `shape`: of a gradient.
at::Tensor computed_here(const AtenConvolution& c, const AtenFormat& format, const Call& call,
                         at::IntArrayRef shape, const char*& why) {
  const std::optional<Resolved<int64_t>> resolved = resolved_or_refused(call, shape);
  if (!resolved || (!shape.empty() && at::IntArrayRef(resolved->result) != shape)) {
    why = "the operator refuses the call";
    return {};
  }
  const at::TensorOptions options = c.input.options().device(explaining() ? at::kMeta : at::kCPU);
  const at::Tensor result = call.op.result == Role::w
                                ? format.empty_weight(options)
                                : format.empty_data(resolved->result, options);
  const Problem problem = problem_of(call, *resolved, result);
  if (suits_torch(c, problem)) {
    why = kSuits;
    return {};
  }
  serve(call, *resolved, problem, result);
  return result;
}

}  // namespace

at::Tensor aten_convolution(const at::Tensor& input, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                            at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                            at::IntArrayRef output_padding, int64_t groups) {
  const AtenConvolution c{input,    weight,     stride,         padding,
                          dilation, transposed, output_padding, groups};
  const char* why = why_torch(c);
  if (!why) {
    const AtenFormat format(c);
    const Call call = call_of(c, output_role(c), input, weight, bias);
    const at::Tensor result = computed_here(c, format, call, {}, why);
    if (!why) return result;
  }
  if (explaining()) {
    explain_torch(why);
    return input;
  }
  ran_in_torch();
  return at::compositeexplicitautograd::convolution(input, weight, bias, stride, padding, dilation,
                                                    transposed, output_padding, groups);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> aten_convolution_backward(
    const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
    at::OptionalIntArrayRef bias_sizes, at::IntArrayRef stride, at::IntArrayRef padding,
    at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups,
    std::array<bool, 3> output_mask) {
  const AtenConvolution c{input,    weight,     stride,         padding,
                          dilation, transposed, output_padding, groups};
  std::array<at::Tensor, 3> gradients;
  std::array<bool, 3> in_torch = output_mask;
  const char* why = why_torch(c);
  if (!why && !is_plain(grad_output, c))
    why = "grad_output is empty, not strided or differs in dtype or device";
  if (!why) {
    const AtenFormat format(c);
    if (output_mask[0]) {
      const Call call = call_of(c, input_role(c), grad_output, weight, std::nullopt);
      gradients[0] = computed_here(c, format, call, input.sizes(), why);
      in_torch[0] = !gradients[0].defined();
    }
    if (output_mask[1]) {
      const Call call = call_of(c, Role::w, input, grad_output, std::nullopt);
      gradients[1] = computed_here(c, format, call, weight.sizes(), why);
      in_torch[1] = !gradients[1].defined();
    }
    // Torch's oneDNN computes the bias's gradient along with that of the weights, and for it alone
    // both.
    if (output_mask[2] && !in_torch[1]) {
      if (!explaining()) gradients[2] = bias_gradient(grad_output, 1);
      in_torch[2] = false;
    }
  }
  if (in_torch[0] || in_torch[1] || in_torch[2]) {
    if (explaining()) {
      explain_torch(why);
      return {};
    }
    ran_in_torch();
    auto [grad_input, grad_weight, grad_bias] = at::compositeexplicitautograd::convolution_backward(
        grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed,
        output_padding, groups, in_torch);
    if (in_torch[0]) gradients[0] = std::move(grad_input);
    if (in_torch[1]) gradients[1] = std::move(grad_weight);
    if (in_torch[2]) gradients[2] = std::move(grad_bias);
  }
  return {std::move(gradients[0]), std::move(gradients[1]), std::move(gradients[2])};
}

}  // namespace convtbw
