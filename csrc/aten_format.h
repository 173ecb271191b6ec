// The strides that torch's own convolutions give their results. A compiled program asserts them, so
// that whoever takes the place of torch's kernels must give the same.
#pragma once

#include <ATen/ATen.h>

namespace convtbw {

// An attribute's values; a single one is repeated for each axis, as in torch.
at::DimVector for_each_axis(at::IntArrayRef values, int64_t rank);

// A convolution in the words of aten::convolution; transposed or not, forward or backward.
struct AtenConvolution {
  AtenConvolution(const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef stride,
                  at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                  at::IntArrayRef output_padding, int64_t groups);

  const at::Tensor& input;
  const at::Tensor& weight;
  int64_t rank;
  at::DimVector stride, padding, dilation;  // for_each_axis
  bool transposed;
  at::DimVector output_padding;
  int64_t groups;
};

// Whether torch's own kernel would be oneDNN's.
bool uses_torchs_onednn(const AtenConvolution& convolution);

class AtenFormat {
 public:
  explicit AtenFormat(const AtenConvolution& convolution);

  // Uninitialised results.
  at::Tensor empty_data(at::IntArrayRef sizes, const at::TensorOptions& options) const;
  at::Tensor empty_weight(const at::TensorOptions& options) const;

 private:
  const AtenConvolution& convolution_;
  at::MemoryFormat format_ = at::MemoryFormat::Contiguous;
  bool by_group_ = false;   // torch computes group by group and joins the results
  bool as_weight_ = false;  // the weights' gradient is allocated like torch's copy of the weights
};

}  // namespace convtbw
