// Channels of the result as rows of tiles whose lanes are pixels: panels of a tile's rows, and
// parts of so many panels as are computed together.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "backends/simd/kernels.h"
#include "core/parallel.h"
#include "core/problem.h"
#include "core/scratch.h"

namespace convtbw::simd {

// What a bias is multiplied by, which is a step of its own: tiles start with one sum a lane, not a
// row.
void fill_with_ones(const Arithmetic& arithmetic, Dtype dtype, void* to, int64_t count);

// How many vectors the tile has with which a row of so many takes the fewest cycles: as many as
// products, or as its loads, of which those of pixels mostly lie on two lines. single: what is
// added to them where one tile holds the row.
int best_tile(const Arithmetic& arithmetic, int64_t channels, int64_t row_vectors,
              double single = 0);

class Panels {
 public:
  // Of one group.
  struct Part {
    int64_t group, first_panel, panels;
  };

  Panels() = default;
  // So many channels of each group in so many panels, as even as can be; sums of so many steps.
  // Every part copies the pixels of all boxes.
  Panels(const Problem& problem, int64_t channels, int64_t panels, int64_t steps, int64_t boxes,
         int64_t least_items);

  int64_t first_row(int64_t panel) const { return channels_ * panel / panels_; }
  int64_t rows(int64_t panel) const { return first_row(panel + 1) - first_row(panel); }
  int64_t most_rows() const { return (channels_ + panels_ - 1) / panels_; }
  // f(rows) for each number of rows that panels have.
  template <class F>
  void for_each_size(const F& f) const {
    f(channels_ / panels_);
    if (channels_ % panels_) f(most_rows());
  }

  int64_t workspace() const { return parts_per_pass_ * part_bytes_; }
  int64_t bytes() const { return static_cast<int64_t>(parts_.size() * sizeof(Part)); }

  // pack(part, panel, to) for the weights of every panel, then run(part, box, weights of the part):
  // for as many parts at a time as fit.
  template <class Pack, class Run>
  void compute(int threads, int64_t boxes, const Pack& pack, const Run& run) const {
    char* const packed = shared_scratch<char>(workspace());
    const auto parts = static_cast<int64_t>(parts_.size());
    const int64_t most_panels = parts_.front().panels;
    for (int64_t first = 0; first < parts; first += parts_per_pass_) {
      const int64_t count = std::min(parts_per_pass_, parts - first);
      parallel_for(threads, count * most_panels, [&](int64_t i) {
        const Part& part = parts_[first + i / most_panels];
        const int64_t panel = part.first_panel + i % most_panels;
        if (i % most_panels >= part.panels) return;
        const int64_t rows = first_row(panel) - first_row(part.first_panel);
        pack(part, panel, packed + i / most_panels * part_bytes_ + rows * row_bytes_);
      });
      parallel_for(threads, count * boxes, [&](int64_t i) {
        run(parts_[first + i / boxes], i % boxes, packed + i / boxes * part_bytes_);
      });
    }
  }

 private:
  int64_t channels_ = 0, panels_ = 1;  // of a group
  int64_t row_bytes_ = 0;              // of packed weights
  std::vector<Part> parts_;
  int64_t parts_per_pass_ = 0, part_bytes_ = 0;
};

}  // namespace convtbw::simd
