// The runs of a tile's sum, cut into parts of at most kMaxSteps steps.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "backends/simd/kernels.h"

namespace convtbw::simd {

class RunParts {
 public:
  // a_step, b_step: from one step to the next.
  void add(Run run, int64_t a_step, int64_t b_step) {
    while (run.steps > 0) {
      if (parts_.empty() || steps_ == kMaxSteps) {
        parts_.push_back({static_cast<int64_t>(runs_.size()), 0});
        steps_ = 0;
      }
      const int64_t steps = std::min(run.steps, kMaxSteps - steps_);
      runs_.push_back({run.a, run.b, steps});
      ++parts_.back().count;
      steps_ += steps;
      run = {run.a + steps * a_step, run.b + steps * b_step, run.steps - steps};
    }
  }

  void call(Tile tile, TileCall& call, Start start) const {
    call.start = start;
    call.run_count = 0;
    if (parts_.empty()) tile(call);
    for (const Part& part : parts_) {
      call.runs = runs_.data() + part.first;
      call.run_count = part.count;
      tile(call);
      call.start = Start::accumulate;
    }
  }

  int64_t bytes() const {
    return static_cast<int64_t>(runs_.size() * sizeof(Run) + parts_.size() * sizeof(Part));
  }

 private:
  struct Part {
    int64_t first, count;
  };

  std::vector<Run> runs_;
  std::vector<Part> parts_;
  int64_t steps_ = 0;  // of the last part
};

}  // namespace convtbw::simd
