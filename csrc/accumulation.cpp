#include "accumulation.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>

#include <utility>

#include "check.h"

namespace convtbw {

namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Node;

// torch's engine runs the nodes of CPU tensors on the thread that called backward().
thread_local bool accumulating_here = false;

bool has_hooks(Node& node) {
  return !node.pre_hooks().empty() || !node.post_hooks().empty() ||
         !node.tensor_pre_hooks().empty() || !node.retains_grad_hooks().empty() ||
         node.tensor_post_acc_grad_hooks();
}

// Whether the whole graph runs, and so each leaf's gradient is added to; not only what leads to
// tensors that torch.autograd.grad or backward(inputs=...) name.
bool whole_graph_runs() {
  const auto* named = torch::autograd::get_current_graph_task_exec_info();
  return named && named->empty();
}

bool set_accumulating(bool on) { return std::exchange(accumulating_here, on); }

}  // namespace

bool accumulating() {
  return accumulating_here && !at::GradMode::is_enabled() && whole_graph_runs();
}

at::Tensor gradient_to_add_to(const Node& node, int input, at::ScalarType dtype) {
  Node* next = node.next_edge(input).function.get();
  // Autocast and other casts: their gradient is a cast back.
  if (next && next->name() == "ToCopyBackward0" && !has_hooks(*next))
    next = next->next_edge(0).function.get();
  auto* const accumulate = dynamic_cast<AccumulateGrad*>(next);
  if (!accumulate || has_hooks(*accumulate) || !is_plain_on_cpu(accumulate->variable)) return {};
  const at::Tensor& leaf = accumulate->variable;
  at::Tensor& gradient = leaf.mutable_grad();
  if (gradient.defined() && !is_plain_on_cpu(gradient)) return {};
  const at::ScalarType held =
      gradient.defined() ? gradient.scalar_type() : leaf.grad_dtype().value_or(leaf.scalar_type());
  if (!may_be_added(dtype, held)) return {};
  // A first gradient of the leaf's dtype becomes the leaf's without a copy.
  if (gradient.defined() || held == dtype) return gradient;
  gradient = at::zeros_like(leaf, leaf.options().dtype(held));
  return gradient;
}

}  // namespace convtbw

TORCH_LIBRARY(convtbw_accumulation, m) {
  m.def("set_accumulating(bool on) -> bool", &convtbw::set_accumulating);
}
