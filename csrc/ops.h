// An eager call: in the caller's words -> roles and integers -> plan -> run.
#pragma once

#include "core/problem.h"
#include "validate.h"

namespace convtbw {

// What every problem of this thread has, and nothing else: threads and modes.
Problem problem_here();

// `result`: where the result will lie; without memory (meta) where a call is only explained.
Problem problem_of(const Call& call, const Resolved<int64_t>& resolved, const at::Tensor& result);

// Computes the call into `result`, or explains it.
void serve(const Call& call, const Resolved<int64_t>& resolved, const Problem& problem,
           const at::Tensor& result);

}  // namespace convtbw
