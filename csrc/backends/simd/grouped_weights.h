// wgrad of groups of few channels (grouped.h): lanes are the channels of the side that has more of
// them. The sums of several taps stay in registers along rows of pixels.
#pragma once

#include <array>
#include <vector>

#include "backends/simd/grouped.h"
#include "plan/backend.h"

namespace convtbw::simd {

class GroupedWeightsPlan : public Plan {
 public:
  GroupedWeightsPlan(const Problem& problem, const Arithmetic& arithmetic, const Arithmetic* pairs);
  void run(const Operands& operands) const override;

 private:
  // Pixels that are summed at a time, for all taps: so few that their rows stay in the first-level
  // cache, and that rounding errors do not grow with the image.
  static constexpr int64_t kMinSteps = 64, kMaxPiece = 128;

  // One side of a box.
  struct Side {
    LaneView view;
    int64_t bytes;                    // of a lane
    PerAxis<int64_t> offset, window;  // lanes; of window 0, from one window to the next

    int64_t at(const PerAxis<int64_t>& u) const {
      int64_t sum = 0;
      for (int a = 0; a < kBoxRank; ++a) sum += offset[a] + (u[a] - view.origin[a]) * window[a];
      return sum;
    }
  };

  // What is fetched of the next box while this one is summed, some of it with each call of a
  // kernel.
  struct Next {
    BoxPrefetch x, y;
    int64_t calls = 0;  // so far

    void fetch() {
      ++calls;
      x.fetch();
      y.fetch();
    }
  };

  // The taps that a region's windows meet.
  struct Taps {
    const LaneTapRow* rows;
    int64_t row_count, row_taps;
    int64_t step;  // units from one tap of a row to the next
  };

  // One or two neighbouring columns of the positions that are a stride apart, and which positions
  // of them x has: the second's may begin and end one earlier.
  struct Columns {
    int64_t first, count;
    std::array<Range, 2> present;
  };

  bool met_in_place() const;
  LeastRegions least_regions() const;
  void list_columns();
  void choose_sizes();
  Side side(const LaneSide& lanes, const void* data, const BoxRange& box, int64_t part,
            char* memory) const;
  int64_t x_lane(const Side& x, const LaneParts::Range& lanes, int64_t lane, int64_t plane) const;
  Taps list_taps(const Side& x, const Region& region, LaneTapRow* rows) const;
  void add(const Side& x, const Side& y, const Taps& taps, const LaneParts::Range& lanes,
           const LaneTaps& runs, Next& next, char* sums) const;
  void add_vectors(const Side& x, const Side& y, const Taps& taps, const LaneParts::Range& lanes,
                   int64_t first, int64_t count, int together, LaneTaps call, Next& next,
                   char* sums) const;
  // Whether dot products of neighbouring positions sum what slides.
  bool uses_pairs() const { return slides_ && keeping() != nullptr; }
  const Arithmetic* keeping() const;
  bool may_slide() const;
  bool rows_stay() const;
  bool copies_rows() const;
  const LaneSlidesFunctions& slides() const;
  bool gains_pairing() const;
  bool outweighs_rows() const;
  bool gains_sliding() const;
  bool gains_order() const;
  int64_t list_steps_ahead(const Side& x, const Side& y, const Region& region,
                           const LaneTapRow& first, int64_t* a_ahead, int64_t& b_ahead) const;
  void add_slid_phase(const Side& x, const Side& y, const Taps& taps, const LaneParts::Range& lanes,
                      const Range& vectors, int together, const Range& windows, int64_t phase,
                      LaneSlides call, Next& next, char* sums) const;
  void add_slid_lines(const Side& x, const Side& y, const Taps& taps, const LaneParts::Range& lanes,
                      const Range& windows, const LaneSlides& call, Next& next, char* sums) const;
  void add_sliding(const Side& x, const Side& y, const BoxRange& box, const LaneParts::Range& lanes,
                   LaneTapRow* rows, Next& next, char* sums) const;
  void add_regions(const Side& x, const Side& y, const BoxRange& box, const LaneParts::Range& lanes,
                   LaneTapRow* rows, Next& next, char* sums) const;
  void add_overlapping(const Side& x, const Side& y, const BoxRange& box,
                       const LaneParts::Range& lanes, Next& next, char* sums) const;
  void add_overlapping_row(const Side& x, const Side& y, const Range& steps, const Range& windows,
                           const LaneParts::Range& lanes, LaneWindows call, int rows, Next& next,
                           char* sums) const;
  void run_boxes(const Operands& operands, int64_t part, int64_t first_box, int64_t boxes,
                 bool by_positions, char* memory, char* sums) const;
  void finish(const Operands& operands, int64_t part, char* sums) const;

  int64_t unit() const { return problem_.dtype == Dtype::f64 ? 8 : 4; }
  int64_t vectors_of(const LaneParts::Range& lanes) const {
    return ceil_div(lanes.count, parts_.width);
  }

  const Problem all_, problem_;  // of all slices, of one
  const Arithmetic& arithmetic_;
  const Arithmetic* const pairs_;  // or nullptr
  const Role lane_role_;
  const LaneOrder order_;  // of the other side
  const Spreading spreading_;
  const SpreadingKernels* const spreading_kernels_;  // or nullptr
  LaneParts parts_;
  PerAxis<Sliding> sliding_;
  BoxGrid grid_;
  const int64_t tap_rows_, taps_;
  const Tensor x_tensor_, y_tensor_;
  LaneSide y_, x_;
  const LaneWeights weights_;
  bool asks_ahead_, in_order_;    // of memory; line by line
  bool fetches_next_;             // box, while one is summed
  std::vector<Columns> columns_;  // where windows overlap by half
  bool pairs_vectors_, slides_;
  int64_t chunks_, boxes_per_chunk_;
  int64_t vector_sums_, part_sums_;  // units
  int64_t buffer_bytes_, local_bytes_;
};

}  // namespace convtbw::simd
