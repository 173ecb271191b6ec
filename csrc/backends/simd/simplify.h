// Problems that are a simpler one on the same memory.
#pragma once

#include <memory>

#include "core/problem.h"
#include "plan/backend.h"

namespace convtbw::simd {

// A problem of which each channel of x is so many in the simpler one, and in which order.
struct Simplified {
  Problem problem;
  int64_t x_channels = 1;  // a group's, before
  int64_t inner = 1;       // neighbours that were one channel
};

// - An axis with a single window that covers it, as the first and last layers of GANs and
//   classifiers have, is no axis: its taps are channels of x. So are those of an axis that windows
//   tile, where few channels of x are computed, as in gradients of patches and in upsampling to
//   images.
// - What lies in a stride of a signal are its channels (core/folded_strides.h).
// - Neighbouring axes with one tap each are one long axis where both tensors allow it: the rows of
//   a 1x1 convolution are then as long as its images.
// - Images of one pixel are pixels of one image.
Simplified simplify(const Problem& problem);

// A plan of the simplified problem, for calls of the other one.
std::unique_ptr<const Plan> plan_of(const Simplified& simplified,
                                    std::unique_ptr<const Plan> simpler);

}  // namespace convtbw::simd
