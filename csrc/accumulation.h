// Weights gradients that a backward adds to a leaf's gradient in the kernel, where torch would
// compute a second gradient and add that: torch_ops.accumulate_gradients().
#pragma once

#include <torch/csrc/autograd/function.h>

namespace convtbw {

// Whether this thread's backward does so: asked for, recording no graph of its own, and running the
// whole graph.
bool accumulating();

// The gradient of the leaf to which a node's gradient of one of its inputs, of this dtype, may be
// added by the node: torch would add it there next, and nothing between the two could tell the
// difference. Undefined where that is not so, and where there is nothing yet to add to.
at::Tensor gradient_to_add_to(const torch::autograd::Node& node, int input, at::ScalarType dtype);

}  // namespace convtbw
