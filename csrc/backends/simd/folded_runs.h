// The runs of a tile's sum, cut and folded so that no sum is longer than so many steps.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "backends/simd/kernels.h"

namespace convtbw::simd {

// The most steps of one sum in float32. Longer ones are folded, as a blocked gemm does: the
// rounding error of a running sum grows with its length. 96 is below what MKL's sgemm and oneDNN do
// and costs at most 2 % (Zen 4); 128 doubles the error of 128 products.
inline constexpr int64_t kMaxSteps = 96;

// The same of an arithmetic, or where so many would do.
inline int64_t most_steps(const Arithmetic& arithmetic, int64_t steps = kMaxSteps) {
  return std::max(steps, arithmetic.least_steps);
}

class FoldedRuns {
 public:
  FoldedRuns() = default;
  explicit FoldedRuns(int64_t most_steps) : most_steps_(most_steps) {}

  // a_step, b_step: from one step to the next. Runs stay whole where they can: each end of a run
  // costs the processor a wrong guess.
  void add(const Run& run, int64_t a_step, int64_t b_step) {
    const int64_t pieces = (run.steps + run.half_step + most_steps_ - 1) / most_steps_;
    for (int64_t piece = 0, done = 0; piece < pieces; ++piece) {
      const int64_t steps = (run.steps - done) / (pieces - piece);
      if (!runs_.empty() && steps_ + steps > most_steps_) {
        runs_.back().fold = true;
        steps_ = 0;
      }
      runs_.push_back({run.a + done * a_step, run.b + done * b_step, steps});
      runs_.back().half_step = run.half_step && piece == pieces - 1;
      steps_ += steps + runs_.back().half_step;
      done += steps;
    }
  }

  void use_in(TileCall& call) const {
    call.runs = runs_.data();
    call.run_count = static_cast<int64_t>(runs_.size());
  }

  int64_t bytes() const { return static_cast<int64_t>(runs_.size() * sizeof(Run)); }

 private:
  int64_t most_steps_ = kMaxSteps;
  std::vector<Run> runs_;
  int64_t steps_ = 0;  // since the last fold
};

}  // namespace convtbw::simd
