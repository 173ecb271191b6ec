// Takes the place of torch's convolutions on CPU, for the process, and gives it back.
//
// Torch's kernels of the convolutions stand at CompositeExplicitAutograd, which a kernel at CPU
// hides. All above stays torch's: autograd and forward mode, vmap, autocast, tracers. The double
// backward is a composition of differentiable calls, which stands at the key Autograd.
//
// Ours are registered once, when they are first asked for, and stay; a flag says who computes. The
// dispatcher's table must not change while other threads call: switching by registration crashed
// within some thousand switches beside three threads.
#include <ATen/CompositeExplicitAutogradFunctions.h>
#include <ATen/CompositeImplicitAutogradFunctions.h>
#include <torch/library.h>

#include <atomic>
#include <mutex>

#include "aten.h"
#include "aten_double_backward.h"

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
      const auto library_at = [](c10::DispatchKey key) -> torch::Library& {
        return *new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
      };
      torch::Library& library = library_at(c10::DispatchKey::CPU);
      library.impl(
          "convolution",
          TORCH_FN((*switched<&aten_convolution, &at::compositeexplicitautograd::convolution>)));
      library.impl("convolution_backward",
                   TORCH_FN((*switched<&aten_convolution_backward,
                                       &at::compositeexplicitautograd::convolution_backward>)));
      library_at(c10::DispatchKey::AutogradCPU)
          .impl(
              "_convolution_double_backward",
              TORCH_FN((*switched<&aten_convolution_double_backward,
                                  &at::compositeimplicitautograd::_convolution_double_backward>)));
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
