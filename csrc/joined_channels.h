// A dimension of calls that joins the channels of a tensor, and the way back.
#pragma once

#include <ATen/ATen.h>

namespace convtbw {

// `count` dimensions replaced by others of as many elements. What flatten and unflatten do, which
// the vmap of torch.autograd.grad(is_grads_batched=True) does not know.
inline at::Tensor replace_dimensions(const at::Tensor& tensor, int64_t first, int64_t count,
                                     c10::SymIntArrayRef extents) {
  std::vector<c10::SymInt> sizes = tensor.sym_sizes().vec();
  sizes.erase(sizes.begin() + first, sizes.begin() + first + count);
  sizes.insert(sizes.begin() + first, extents.begin(), extents.end());
  return tensor.reshape_symint(sizes);
}

inline at::Tensor split_dimension(const at::Tensor& tensor, int64_t dimension,
                                  c10::SymIntArrayRef extents) {
  return replace_dimensions(tensor, dimension, 1, extents);
}

inline at::Tensor join_dimensions(const at::Tensor& tensor, int64_t first, int64_t count) {
  c10::SymInt product = 1;
  for (int64_t d = first; d < first + count; ++d) product = product * tensor.sym_size(d);
  return replace_dimensions(tensor, first, count, {product});
}

// The first dimension between `groups` groups and the channels of one, in the dimension `channel`
// of a call's tensor: (B, ..., g * c, ...) -> (..., g * B * c, ...).
inline at::Tensor join_channels(const at::Tensor& tensor, int64_t channel,
                                const c10::SymInt& groups) {
  const c10::SymInt channels = tensor.sym_size(channel + 1) / groups;
  return join_dimensions(
      split_dimension(tensor, channel + 1, {groups, channels}).movedim(0, channel + 1), channel, 3);
}

// The inverse, of a result: (..., g * B * c, ...) -> (B, ..., g * c, ...).
inline at::Tensor split_channels(const at::Tensor& tensor, int64_t channel,
                                 const c10::SymInt& groups, const c10::SymInt& batch) {
  const c10::SymInt channels = tensor.sym_size(channel) / (groups * batch);
  return join_dimensions(
      split_dimension(tensor, channel, {groups, batch, channels}).movedim(channel + 1, 0),
      channel + 1, 2);
}

}  // namespace convtbw
