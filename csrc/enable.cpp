// Takes the place of torch's convolutions on CPU, for the process, and gives it back.
//
// Torch's kernels of these operators stand at CompositeExplicitAutograd, which a kernel at CPU
// hides and uncovers. All above stays torch's: autograd and forward mode, vmap, autocast, tracers.
//
// Other threads may call a convolution meanwhile. The dispatcher changes one pointer of its table
// then: ours and torch's kernel are both plain functions, of which it reads nothing but the
// address.
#include <torch/library.h>

#include <memory>
#include <mutex>

#include "aten.h"

namespace convtbw {

namespace {

void set_registered(bool on) {
  // Never destroyed: the dispatcher may be gone when the process ends.
  static std::mutex& mutex = *new std::mutex;
  static std::unique_ptr<torch::Library>& registration = *new std::unique_ptr<torch::Library>;
  const std::lock_guard guard(mutex);
  if (!on) {
    registration.reset();
  } else if (!registration) {
    registration = std::make_unique<torch::Library>(torch::Library::IMPL, "aten",
                                                    c10::DispatchKey::CPU, __FILE__, __LINE__);
    registration->impl("convolution", TORCH_FN(aten_convolution));
    registration->impl("convolution_backward", TORCH_FN(aten_convolution_backward));
  }
}

}  // namespace

}  // namespace convtbw

// The two kernels under names of their own, for explain().
TORCH_LIBRARY(convtbw_aten, m) {
  m.def("set_registered(bool on) -> ()", &convtbw::set_registered);
  m.def(
      "convolution(Tensor input, Tensor weight, Tensor? bias, int[] stride, int[] padding, "
      "int[] dilation, bool transposed, int[] output_padding, int groups) -> Tensor",
      &convtbw::aten_convolution);
  m.def(
      "convolution_backward(Tensor grad_output, Tensor input, Tensor weight, int[]? bias_sizes, "
      "int[] stride, int[] padding, int[] dilation, bool transposed, int[] output_padding, "
      "int groups, bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
      &convtbw::aten_convolution_backward);
}
