// The runs of a tile's sum, cut into parts of at most kMaxSteps steps.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "backends/simd/kernels.h"

namespace convtbw::simd {

class RunParts {
 public:
  // a_step, b_step: from one step to the next. Runs stay whole where they can: each end of a run
  // costs the processor a wrong guess.
  void add(const Run& run, int64_t a_step, int64_t b_step) {
    const int64_t pieces = (run.steps + kMaxSteps - 1) / kMaxSteps;
    for (int64_t piece = 0, done = 0; piece < pieces; ++piece) {
      const int64_t steps = (run.steps - done) / (pieces - piece);
      if (parts_.empty() || steps_ + steps > kMaxSteps) {
        parts_.push_back({static_cast<int64_t>(runs_.size()), 0});
        steps_ = 0;
      }
      runs_.push_back({run.a + done * a_step, run.b + done * b_step, steps});
      ++parts_.back().count;
      steps_ += steps;
      done += steps;
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

  // For several tiles that share a part's operands: one part after the other.
  int64_t parts() const { return static_cast<int64_t>(parts_.size()); }
  void select(int64_t part, TileCall& call) const {
    call.start = part ? Start::accumulate : Start::zero;
    call.runs = runs_.data() + parts_[part].first;
    call.run_count = parts_[part].count;
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
