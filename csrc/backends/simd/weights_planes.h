// wgrad of depthwise problems, channels first (slid_rows.h).
#pragma once

#include "backends/simd/slid_rows.h"
#include "plan/backend.h"

namespace convtbw::simd {

class PlaneWeightsPlan : public Plan {
 public:
  PlaneWeightsPlan(const Problem& problem, const Arithmetic& arithmetic);
  void run(const Operands& operands) const override;

 private:
  // Vectors whose products one sum takes before it is added to those in memory, so that rounding
  // errors do not grow with the image.
  static constexpr int64_t kMaxSteps = 128;

  // A thread's.
  struct Memory {
    char *x, *y, *zeros, *sums;
    const void** y_rows;  // where each row begins; zeros before the first and behind the last
  };

  void choose_sizes();
  Memory memory() const;
  void run_boxes(const Operands& operands, int64_t block, int64_t first_box, int64_t boxes,
                 char* weights) const;
  void list_rows(const Operands& operands, const BoxRange& box, int64_t channel, int64_t plane,
                 const Memory& memory) const;
  const char* y_row(const Operands& operands, const BoxRange& box, int64_t channel,
                    int64_t plane) const;
  void add(const BoxRange& box, const char* x, const Memory& memory, int64_t tap_rows,
           const Ahead& x_ahead, const Ahead& y_ahead, char* sums) const;
  void list_rows_with_margins(const Operands& operands, const BoxRange& box, int64_t channel,
                              int64_t plane, const Memory& memory) const;
  void add_dealt(const Operands& operands, const BoxRange& box, int64_t channel, int64_t plane,
                 const Memory& memory, const Ahead& y_ahead, char* sums) const;
  bool sum_boxes(const Operands& operands, int64_t block, int64_t first_box, int64_t boxes,
                 bool dealt, int64_t tap_rows, char* weights) const;

  int64_t unit() const { return problem_.dtype == Dtype::f64 ? 8 : 4; }
  int64_t first_channel(int64_t block) const { return block * channels_; }
  int64_t channels_of(int64_t block) const {
    return std::min(channels_, problem_.geometry.groups - first_channel(block));
  }
  // Whether y's rows are read where they lie.
  bool in_place(const BoxRange& box) const {
    return arithmetic_.plane_taps[static_cast<int>(problem_.dtype)].at[1][1] &&
           box.count[3] >= arithmetic_.lanes;
  }

  const Problem problem_;
  const Arithmetic& arithmetic_;
  const Tensor x_, y_;
  SlidRows slid_;
  const bool ask_ahead_;
  const bool dealt_;  // x is read where it lies, and dealt in registers
  BoxGrid grid_;
  const int64_t taps_;
  int64_t channels_, blocks_, chunks_, boxes_per_chunk_;
  int64_t margin_ = 0;  // of rows of y: units at both ends
  int64_t y_row_, y_units_, sums_units_, local_bytes_;
};

}  // namespace convtbw::simd
