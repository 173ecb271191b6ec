#include "aten_format.h"

#include <ATen/native/ConvUtils.h>

namespace convtbw {

namespace {

using at::native::ConvBackend;

ConvBackend torchs_backend(const AtenConvolution& c) {
  return at::native::select_conv_backend(
      c.input, c.weight, std::nullopt, c10::fromIntArrayRefSlow(c.stride),
      c10::fromIntArrayRefSlow(c.padding), c10::fromIntArrayRefSlow(c.dilation), c.transposed,
      c10::fromIntArrayRefSlow(c.output_padding), c.groups, std::nullopt);
}

// Torch calls these kernels for one group at a time and joins the results.
bool knows_no_groups(ConvBackend backend) {
  switch (backend) {
    case ConvBackend::Slow2d:
    case ConvBackend::SlowDilated2d:
    case ConvBackend::SlowDilated3d:
    case ConvBackend::SlowTranspose2d:
    case ConvBackend::SlowTranspose3d:
    case ConvBackend::NnpackSpatial:
      return true;
    default:
      return false;
  }
}

// Torch computes in 1-D as in 2-D with one row.
at::Tensor as_2d(const at::Tensor& tensor) {
  return tensor.dim() == 3 ? tensor.unsqueeze(2) : tensor;
}

at::Tensor without_memory(at::IntArrayRef sizes, at::MemoryFormat format) {
  return at::empty(sizes, at::TensorOptions(at::kMeta), format);
}

at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options, at::MemoryFormat format) {
  if (sizes.size() != 3 || format == at::MemoryFormat::Contiguous)
    return at::empty(sizes, options, format);
  return at::empty({sizes[0], sizes[1], 1, sizes[2]}, options, format).squeeze(2);
}

}  // namespace

at::DimVector for_each_axis(at::IntArrayRef values, int64_t rank) {
  return values.size() == 1 && rank > 1 ? at::DimVector(rank, values[0]) : at::DimVector(values);
}

AtenConvolution::AtenConvolution(const at::Tensor& input, const at::Tensor& weight,
                                 at::IntArrayRef stride, at::IntArrayRef padding,
                                 at::IntArrayRef dilation, bool transposed,
                                 at::IntArrayRef output_padding, int64_t groups)
    : input(input),
      weight(weight),
      rank(input.dim() - 2),
      stride(for_each_axis(stride, rank)),
      padding(for_each_axis(padding, rank)),
      dilation(for_each_axis(dilation, rank)),
      transposed(transposed),
      output_padding(for_each_axis(output_padding, rank)),
      groups(groups) {}

bool uses_torchs_onednn(const AtenConvolution& convolution) {
  const ConvBackend backend = torchs_backend(convolution);
  return backend == ConvBackend::Mkldnn || backend == ConvBackend::MkldnnTranspose;
}

AtenFormat::AtenFormat(const AtenConvolution& convolution) : convolution_(convolution) {
  const auto &input = convolution.input, &weight = convolution.weight;
  // No kernel of torch makes a channels_last result of contiguous tensors. That is also the answer
  // in 1-D, where torch makes the input contiguous first.
  const auto is_channels_last = [](const at::Tensor& tensor) {
    return tensor.suggest_memory_format() != at::MemoryFormat::Contiguous;
  };
  if (input.dim() == 3 ? weight.is_contiguous() || !is_channels_last(as_2d(weight))
                       : !is_channels_last(input) && !is_channels_last(weight))
    return;
  const ConvBackend backend = torchs_backend(convolution);
  format_ = at::native::_determine_backend_memory_format(
      input.dim() == 3 ? as_2d(input.contiguous()) : input, as_2d(weight), backend);
  if (format_ == at::MemoryFormat::Contiguous) return;
  by_group_ = knows_no_groups(backend) && convolution.groups > 1;
  as_weight_ = backend == ConvBackend::Slow2d || backend == ConvBackend::SlowTranspose2d;
}

// Where extents of 1 leave a tensor both contiguous and channels_last, what torch makes of it is
// contiguous: a joined result of such parts, or the gradient of such weights.
at::Tensor AtenFormat::empty_data(at::IntArrayRef sizes, const at::TensorOptions& options) const {
  at::MemoryFormat format = format_;
  if (by_group_) {
    std::vector<int64_t> part =
        as_2d(without_memory(sizes, at::MemoryFormat::Contiguous)).sizes().vec();
    part[1] /= convolution_.groups;
    format = without_memory(part, format).suggest_memory_format();
  }
  return empty(sizes, options, format);
}

at::Tensor AtenFormat::empty_weight(const at::TensorOptions& options) const {
  if (format_ == at::MemoryFormat::Contiguous)
    return at::empty(convolution_.weight.sizes(), options);
  at::MemoryFormat format = format_;
  const at::Tensor weight = as_2d(convolution_.weight);
  if (as_weight_)
    format = weight.is_contiguous(format_)
                 ? weight.suggest_memory_format()
                 : without_memory(weight.sizes(), format_).suggest_memory_format();
  if (by_group_) {
    std::vector<int64_t> part = weight.sizes().vec();
    part[0] /= convolution_.groups;
    format = without_memory(part, format).suggest_memory_format();
  }
  return empty(convolution_.weight.sizes(), options, format);
}

}  // namespace convtbw
