// Which of torch's convolutions torch computes best.
#pragma once

#include "aten_format.h"
#include "core/problem.h"

namespace convtbw {

// Whether a call, all of it, suits torch's own kernels best: so small that even to ask for each
// result would cost. As below never where a backend is forced, in benchmark mode and in
// deterministic mode.
bool suits_torch(const AtenConvolution& convolution);

// Whether one result of a call, the problem, does.
bool suits_torch(const AtenConvolution& convolution, const Problem& problem);

}  // namespace convtbw
