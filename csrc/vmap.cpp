// The vmap key: one call for a batch of calls. The batched dimension joins the one of the form's
// indices that it shares with the result:
//
// - n, where the weights are the same for all: the batch of images becomes longer;
// - g, where both tensors are batched: each call becomes a group of its own. Not for weights
//   gradients: the images of each call are a slice of one batch, with a result of its own;
// - c or q, where one tensor is batched and the other, which is the same for all, does not have
//   that index: there are more channels in each group.
//
// The derivatives of such a call are again calls of the family, so nothing else is needed.
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/functorch/PlumbingHelper.h>

#include "check.h"
#include "joined_channels.h"
#include "validate.h"

namespace convtbw {

namespace {

using c10::SymInt;

// A tensor of a batch of calls: the batched dimension, if there is one, is the first.
struct Batched {
  at::Tensor tensor;
  bool batched = false;
};

Batched unwrapped(const at::Tensor& tensor, int64_t level) {
  const auto [value, dimension] = at::functorch::unwrapTensorAtLevel(tensor, level);
  if (!dimension) return {value, false};
  return {value.movedim(*dimension, 0), true};
}

// A call for a batch of calls, while it is put together.
class BatchedCall {
 public:
  BatchedCall(const Call& call, int64_t level)
      : call_(call),
        op_(call.op),
        first_(unwrapped(call.first, level)),
        second_(unwrapped(call.second, level)),
        bias_(call.bias ? unwrapped(*call.bias, level) : Batched{}) {
    if (op_.shape_name) {
      check(call, !call.shape_tensor || !at::functorch::isBatchedAtLevel(*call.shape_tensor, level),
            op_.shape_tensor_name, " is batched; expected one shape for all calls of vmap");
      if (call.shape_tensor)
        for (const int64_t extent : shape_tensor_values(call)) shape_.emplace_back(extent);
      else
        for (const SymInt& extent : shape_attribute(call)) shape_.push_back(extent);
    }
    resolved_ = resolve<SymInt>(call, shape_);
    for (const Batched* tensor : {&first_, &second_, &bias_})
      if (tensor->batched) batch_ = tensor->tensor.sym_size(0);
  }

  // The result, whose first dimension is the batched one.
  at::Tensor run() {
    if (first_.batched && second_.batched && op_.result == Role::w) return as_slices();
    if (first_.batched && !second_.batched && op_.result != Role::w) return as_images();
    if (!first_.batched && !second_.batched) return as_one();
    if (batch_.maybe_as_int() == 0) return of_no_calls();
    return first_.batched && second_.batched ? as_groups() : as_channels();
  }

 private:
  // Every call is a group: (b, g, c) in each tensor's dimension that spans the groups.
  at::Tensor as_groups() {
    const auto join = [this](const Batched& tensor, Role role) {
      return join_channels(tensor.tensor, spanning_dimension(role), 1);
    };
    groups_ = batch_ * call_.groups;
    if (op_.shape_name) shape_[spanning_dimension(op_.result)] *= batch_;
    const at::Tensor result =
        call(op_, join(first_, op_.first), join(second_, op_.second), bias_of_channels(1));
    return split_channels(result, spanning_dimension(op_.result), 1, batch_);
  }

  // Every call is a slice of the images, or as many as it has slices itself.
  at::Tensor as_slices() {
    const Operator& op = partial_of_slices(op_.family);
    if (op_.of_slices)
      shape_[0] *= batch_;
    else
      shape_.insert(shape_.begin(), batch_);
    const at::Tensor result = call(op, join_dimensions(first_.tensor, 0, 2),
                                   join_dimensions(second_.tensor, 0, 2), at::Tensor());
    if (!op_.of_slices) return result;
    return split_dimension(result, 0, {batch_, resolved_.slices});
  }

  // The calls are channels of the tensor that is batched and of the result.
  at::Tensor as_channels() {
    const Role batched = second_.batched ? op_.second : op_.first;
    const Role role = batched == Role::w ? op_.result : batched;  // whose channels
    const auto join = [&](const Batched& tensor, Role of) {
      return tensor.batched
                 ? join_channels(tensor.tensor, channel_dimension(of, role), groups_in(of, role))
                 : tensor.tensor;
    };
    if (op_.shape_name) shape_[channel_dimension(op_.result, role)] *= batch_;
    const at::Tensor result = call(op_, join(first_, op_.first), join(second_, op_.second),
                                   bias_of_channels(call_.groups));
    return split_channels(result, channel_dimension(op_.result, role), groups_in(op_.result, role),
                          batch_);
  }

  // The calls are images.
  at::Tensor as_images() {
    if (op_.shape_name) shape_[0] *= batch_;
    const at::Tensor result = call(op_, join_dimensions(first_.tensor, 0, 2), second_.tensor,
                                   bias_.batched ? at::Tensor() : bias_.tensor);
    return with_batched_bias(split_dimension(result, 0, {batch_, resolved_.batch}));
  }

  // No group and no channel.
  at::Tensor of_no_calls() const {
    std::vector<SymInt> sizes(resolved_.result.begin(), resolved_.result.end());
    sizes.insert(sizes.begin(), 0);
    return at::empty_symint(sizes, first_.tensor.options());
  }

  // Nothing but the bias is batched.
  at::Tensor as_one() {
    return with_batched_bias(call(op_, first_.tensor, second_.tensor, at::Tensor()).unsqueeze(0));
  }

  // Adds the bias to results of one more dimension, which is a second rounding.
  at::Tensor with_batched_bias(const at::Tensor& result) const {
    if (!bias_.batched) return result;
    std::vector<SymInt> shape(result.dim(), 1);
    shape[0] = batch_;
    shape[resolved_.data.channel + 1] = bias_.tensor.sym_size(1);
    return result + bias_.tensor.reshape_symint(shape);
  }

  at::Tensor bias_of_channels(int64_t groups) const {
    if (!bias_.tensor.defined() || bias_.batched)
      return bias_.batched ? join_channels(bias_.tensor, 0, groups) : at::Tensor();
    const std::vector<SymInt> shape{batch_, bias_.tensor.sym_size(0)};
    return join_channels(bias_.tensor.expand_symint(shape), 0, groups);
  }

  at::Tensor call(const Operator& op, const at::Tensor& first, const at::Tensor& second,
                  const at::Tensor& bias) {
    const std::vector<SymInt> pads_begin(resolved_.pads_begin.begin(), resolved_.pads_begin.end());
    const std::vector<SymInt> pads_end(resolved_.pads_end.begin(), resolved_.pads_end.end());
    const std::vector<SymInt> output_padding(resolved_.output_padding.begin(),
                                             resolved_.output_padding.end());
    at::OptionalSymIntArrayRef shape, extra;
    if (op_.shape_name) shape = shape_;
    if (op_.transposed()) extra = output_padding;
    return dispatch({op,
                     first,
                     second,
                     bias.defined() ? std::optional(bias) : std::nullopt,
                     {},
                     shape,
                     call_.strides,
                     pads_begin,
                     pads_end,
                     call_.dilations,
                     "none",
                     extra,
                     groups_.guard_int(__FILE__, __LINE__),
                     call_.data_format,
                     call_.weights_format});
  }

  // Where a tensor keeps the channels of x or of y.
  int64_t channel_dimension(Role tensor, Role of) const {
    if (tensor != Role::w) return resolved_.data.channel;
    return of == Role::x ? resolved_.weights.x_channel : resolved_.weights.y_channel;
  }
  Role spanning_role() const { return resolved_.weights.groups_on_y ? Role::y : Role::x; }
  int64_t spanning_dimension(Role tensor) const {
    return channel_dimension(tensor, spanning_role());
  }
  // How many groups the channels of `of` have in a tensor: one in the weights' other dimension.
  int64_t groups_in(Role tensor, Role of) const {
    return tensor != Role::w || of == spanning_role() ? call_.groups : 1;
  }

  const Call& call_;
  const Operator& op_;
  Batched first_, second_, bias_;
  std::vector<SymInt> shape_;  // the result's, where the operator is given it
  Resolved<SymInt> resolved_;
  SymInt batch_ = 1, groups_ = call_.groups;
};

at::Tensor batched(const Call& call) {
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::DispatchKey::FuncTorchBatched);
  const auto layer = at::functorch::maybeCurrentDynamicLayer();
  TORCH_INTERNAL_ASSERT(layer, "convtbw::", call.op.name, ": a batched tensor outside of vmap");
  const int64_t level = layer->layerId();
  using at::functorch::isBatchedAtLevel;
  // Tensors of an outer vmap alone: the next level's call.
  if (!isBatchedAtLevel(call.added_to, level) && !isBatchedAtLevel(call.first, level) &&
      !isBatchedAtLevel(call.second, level) && !isBatchedAtLevel(call.bias, level) &&
      !isBatchedAtLevel(call.shape_tensor, level))
    return dispatch(call);
  check(call, !call.op.adds,
        "under vmap, which has no order in which calls could change one tensor; expected "
        "the operator that returns its result, to be added outside of vmap");
  return at::functorch::makeBatched(BatchedCall(call, level).run(), 0, level);
}

}  // namespace

}  // namespace convtbw

TORCH_LIBRARY_IMPL(convtbw, FuncTorchBatched, m) { convtbw::implement<&convtbw::batched>(m); }
