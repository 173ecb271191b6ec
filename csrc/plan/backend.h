// What a backend is: a row that either prepares a plan for a problem or declines with a reason.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/problem.h"

namespace convtbw {

// A prepared decision: made once per problem, run many times, immutable and so safe to share
// between threads. `run` writes every element of the wanted role, and reads it only where the
// epilogue adds to it.
class Plan {
 public:
  virtual ~Plan() = default;
  virtual void run(const Operands& operands) const = 0;

  std::string kernel;          // the implementation, for explain()
  int64_t workspace = 0;       // bytes that a run allocates beside inputs and result
  std::vector<Role> reorders;  // whole tensors that a run copies into another order
  int64_t bytes = 0;           // what keeping the plan costs
};

// Exactly one of the two is set.
struct Prepared {
  std::unique_ptr<const Plan> plan;
  std::string declined;
};

// An instruction set that a backend's kernels are compiled for.
struct Target {
  std::string_view name;
  bool (*supported)();
};

struct Backend {
  std::string_view name;
  std::vector<Target> targets;       // best first; empty: the backend has no choice of target
  std::string (*why_unsupported)();  // empty: it runs on this machine
  // `target` is one of `targets` that is supported, or empty where there is none to choose.
  // Never throws for a problem that it cannot do: it declines.
  Prepared (*prepare)(const Problem& problem, std::string_view target);
};

extern const Backend kReferenceBackend;  // backends/reference.cpp
extern const Backend kSimdBackend;       // backends/simd/simd.cpp
// plan/onednn_library.cpp, which opens backends/onednn.cpp; CONVTBW_ONEDNN: if it is there.
extern const Backend kOnednnBackend;

}  // namespace convtbw
