// Takes the place of torch's convolutions on CPU, for the process, and gives it back.
//
// Torch's kernels of these operators stand at CompositeExplicitAutograd, which a kernel at CPU
// hides. All above stays torch's: autograd and forward mode, vmap, autocast, tracers.
//
// Ours are registered once, when they are first asked for, and stay; a flag says who computes. The
// dispatcher's table must not change while other threads call: switching by registration crashed
// within some thousand switches beside three threads.
#include <ATen/CompositeExplicitAutogradFunctions.h>
#include <torch/library.h>

#include <atomic>
#include <mutex>

#include "aten.h"

namespace convtbw {

namespace {

std::atomic<bool> enabled{false};

template <auto ours, auto torchs, class Signature>
struct Switched;
template <auto ours, auto torchs, class Result, class... Arguments>
struct Switched<ours, torchs, Result (*)(Arguments...)> {
  static Result call(Arguments... arguments) {
    return enabled ? ours(arguments...) : torchs(arguments...);
  }
};
template <auto ours, auto torchs>
constexpr auto switched = &Switched<ours, torchs, decltype(ours)>::call;

void set_enabled(bool on) {
  static std::once_flag registered;
  if (on)
    std::call_once(registered, [] {
      // Never destroyed: the dispatcher may be gone when the process ends.
      auto& library = *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU,
                                          __FILE__, __LINE__);
      library.impl(
          "convolution",
          TORCH_FN((*switched<&aten_convolution, &at::compositeexplicitautograd::convolution>)));
      library.impl("convolution_backward",
                   TORCH_FN((*switched<&aten_convolution_backward,
                                       &at::compositeexplicitautograd::convolution_backward>)));
    });
  enabled = on;
}

}  // namespace

}  // namespace convtbw

// The two kernels under names of their own, for explain().
TORCH_LIBRARY(convtbw_aten, m) {
  m.def("set_enabled(bool on) -> ()", &convtbw::set_enabled);
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
