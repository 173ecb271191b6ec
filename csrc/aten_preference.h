// Which of torch's convolutions torch computes best.
#pragma once

#include "aten_format.h"
#include "core/problem.h"

namespace convtbw {

// Whether the problem that a call became suits torch's own kernels best. Never where a backend is
// forced, in benchmark mode and in deterministic mode.
bool suits_torch(const AtenConvolution& convolution, const Problem& problem);

}  // namespace convtbw
