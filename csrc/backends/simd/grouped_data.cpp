// fprop and dgrad of groups of few channels (grouped.h): lanes are the result's channels across
// groups. Rows of the other side are packed, zero-padded, into a small buffer; a row of results is
// then a sum over planes and taps of a vector of that buffer times a vector of weights, for several
// pixels at once. dgrad is one such problem for every phase (phases.h).
#include <algorithm>
#include <cstring>

#include "backends/simd/grouped.h"
#include "backends/simd/plans.h"
#include "backends/simd/scratch.h"
#include "core/parallel.h"

namespace convtbw::simd {

namespace {

class GroupedDataPlan : public Plan {
 public:
  GroupedDataPlan(const Problem& problem, const Arithmetic& arithmetic);
  void run(const Operands& operands) const override;

 private:
  // One phase of a panel.
  struct PanelPhase {
    BoxPhase box;
    std::vector<int64_t> taps;  // of all planes: where each begins in the packed panel
    int64_t weights;            // offset in a panel's packed weights
  };

  PerAxis<Strip> strips_of(const PerAxis<int64_t>& windows) const;
  void choose_sizes();
  void add_phases();
  void pack_weights(const Operands& operands, int64_t panel, char* packed) const;
  void run_box(const Operands& operands, int64_t part, const BoxRange& box,
               const char* packed) const;
  void unpack(const Operands& operands, int64_t first_panel, int64_t panels,
              const BoxRange& positions, const PerAxis<int64_t>& c_stride, const char* stage) const;
  void fill(const BoxRange& positions, char* c, const PerAxis<int64_t>& c_stride, int64_t live,
            const char* start) const;

  int64_t unit() const { return problem_.dtype == Dtype::f64 ? 8 : 4; }
  int64_t live(int64_t panel) const { return std::min(width_, lanes_ - panel * width_); }
  // Result positions that so many windows of each axis cover at most.
  int64_t covered(const PerAxis<int64_t>& windows) const {
    int64_t count = 1;
    for (int a = 0; a < kBoxRank; ++a)
      count *= std::min(out_.extent[a], windows[a] * axes_[a].step);
    return count;
  }

  const Problem problem_;
  const Arithmetic& arithmetic_;
  const bool fprop_;
  const Tensor out_, in_;
  const int64_t width_;  // lanes of a panel
  const int64_t lanes_, panels_;
  LaneSide side_;
  const LaneWeights weights_;
  PerAxis<PhasedAxis> axes_;
  bool complete_ = true;  // every result position belongs to a phase
  bool staged_;           // results are sums in another dtype or order than the tensor's
  BoxGrid grid_;
  int64_t part_panels_;
  std::vector<PanelPhase> phases_;
  int64_t panel_weights_ = 0;  // units of a panel's packed weights, its start values first
  int64_t stage_units_;        // of one panel
};

GroupedDataPlan::GroupedDataPlan(const Problem& problem, const Arithmetic& arithmetic)
    : problem_(problem),
      arithmetic_(arithmetic),
      fprop_(problem.wanted == Role::y),
      out_(fprop_ ? y_tensor(problem) : x_tensor(problem)),
      in_(fprop_ ? x_tensor(problem) : y_tensor(problem)),
      width_(arithmetic.lanes),
      lanes_(spread_order(problem.geometry, problem.wanted).lanes),
      panels_(ceil_div(lanes_, width_)),
      side_(arithmetic, in_, spread_order(problem.geometry, problem.wanted)),
      weights_(problem.w, problem.wanted, spread_order(problem.geometry, problem.wanted)),
      axes_(phased_axes(problem)) {
  for (const PhasedAxis& axis : axes_) complete_ &= axis.complete;
  const bool sums = problem.dtype == Dtype::f32 || problem.dtype == Dtype::f64;
  staged_ = !sums || (out_.channel != 1 && lanes_ > 1);
  choose_sizes();
  add_phases();
  kernel = std::string(fprop_ ? "fprop" : "dgrad") + ", channels of all groups in lanes, " +
           arithmetic.name;
  workspace = (panels_ * panel_weights_ +
               problem.threads * (side_.memory_units() + part_panels_ * stage_units_)) *
              unit();
  bytes = sizeof(GroupedDataPlan);
}

PerAxis<Strip> GroupedDataPlan::strips_of(const PerAxis<int64_t>& windows) const {
  PerAxis<Strip> strips;
  for (int a = 0; a < kBoxRank; ++a) strips[a] = axes_[a].strip(windows[a], Apart::windows);
  return strips;
}

void GroupedDataPlan::choose_sizes() {
  BoxCost cost;
  cost.positions = [&](const PerAxis<int64_t>& windows) {
    int64_t product = 1;
    for (const Strip& strip : strips_of(windows)) product *= strip.length;
    return product;
  };
  cost.bytes = [&](const PerAxis<int64_t>& windows, int64_t panels) {
    const int64_t stage = staged_ ? covered(windows) * panels * width_ : 0;
    return (side_.units_of(cost.positions(windows), panels) + stage) * unit();
  };
  for (int a = 0; a < kBoxRank; ++a) grid_.extent[a] = axes_[a].windows;
  const PartSizes sizes =
      part_sizes(grid_.extent, panels_, width_, in_.channel == 1 || out_.channel == 1, cost);
  part_panels_ = sizes.panels;
  grid_.size = sizes.windows;
  side_.set_sizes(strips_of(grid_.size), part_panels_);
  stage_units_ = staged_ ? covered(grid_.size) * width_ : 0;
}

void GroupedDataPlan::add_phases() {
  panel_weights_ = width_;
  const PerAxis<Strip>& strips = side_.strips();
  for (const BoxPhase& box : box_phases(axes_, strips)) {
    PanelPhase phase{box, {}, panel_weights_};
    const auto& [axis0, axis1, axis2, axis3] = box.axes;
    for (int64_t plane = 0; plane < side_.planes(); ++plane)
      for (int64_t t0 = 0; t0 < axis1->sliding.taps; ++t0)
        for (int64_t t1 = 0; t1 < axis2->sliding.taps; ++t1)
          for (int64_t t2 = 0; t2 < axis3->sliding.taps; ++t2) {
            const int64_t row =
                t0 * box.footings[1].tap * strips[2].length + t1 * box.footings[2].tap;
            const int64_t position = row * strips[3].length + t2 * box.footings[3].tap;
            phase.taps.push_back(plane * side_.plane_units() + position * width_);
          }
    panel_weights_ += static_cast<int64_t>(phase.taps.size()) * width_;
    phases_.push_back(std::move(phase));
  }
}

// What every sum starts from: the bias or zero; then [phase][plane][tap][lane].
void GroupedDataPlan::pack_weights(const Operands& operands, int64_t panel, char* packed) const {
  const int64_t bytes = element_bytes(problem_.dtype), count = live(panel);
  const int dtype = static_cast<int>(problem_.dtype);
  const CopyFunction copy = arithmetic_.pack[dtype];
  if (operands.bias)
    arithmetic_.widen[dtype]({static_cast<const char*>(operands.bias) + panel * width_ * bytes,
                              count, 1, packed, width_, 1, 1, count, width_ - count});
  else
    std::memset(packed, 0, width_ * unit());
  const WeightsStrides& w = problem_.w;
  char* to = packed + width_ * unit();
  for (const PanelPhase& phase : phases_) {
    const auto& [axis0, axis1, axis2, axis3] = phase.box.axes;
    const int64_t row = axis3->sliding.taps;
    for (int64_t plane = 0; plane < side_.planes(); ++plane)
      for (int64_t t0 = 0; t0 < axis1->sliding.taps; ++t0)
        for (int64_t t1 = 0; t1 < axis2->sliding.taps; ++t1, to += row * width_ * unit()) {
          const int64_t tap = (axis1->tap + t0 * axis1->tap_step) * w.axes[0] +
                              (axis2->tap + t1 * axis2->tap_step) * w.axes[1] +
                              axis3->tap * w.axes[2];
          const char* const from = static_cast<const char*>(operands.data.w) +
                                   (plane * weights_.plane_stride() + tap) * bytes;
          weights_.for_each_piece(panel * width_, count,
                                  [&](int64_t lane, int64_t lanes, int64_t offset, int64_t stride) {
                                    copy({from + offset * bytes, axis3->tap_step * w.axes[2],
                                          stride, to + lane * unit(), width_, 1, row, lanes,
                                          lane + lanes == count ? width_ - count : 0});
                                  });
        }
  }
}

void GroupedDataPlan::run_box(const Operands& operands, int64_t part, const BoxRange& box,
                              const char* packed) const {
  const int64_t bytes = element_bytes(problem_.dtype);
  const int64_t first_panel = part * part_panels_;
  const int64_t panels = std::min(part_panels_, panels_ - first_panel);
  char* const buffer =
      local_scratch<char>((side_.memory_units() + part_panels_ * stage_units_) * unit());
  char* const stage = buffer + side_.memory_units() * unit();
  side_.pack(operands.data[fprop_ ? Role::x : Role::y], box, first_panel, panels, buffer);

  const BoxRange positions = positions_of(box, axes_, out_);
  PerAxis<int64_t> c_stride = out_.stride;
  if (staged_) {
    c_stride[3] = width_;
    for (int a = kBoxRank - 2; a >= 0; --a) c_stride[a] = c_stride[a + 1] * positions.count[a + 1];
  }
  const PerAxis<Strip>& strips = side_.strips();

  for (int64_t i = 0; i < panels; ++i) {
    const int64_t panel = first_panel + i, count = live(panel);
    const char* const a = buffer + i * side_.panel_units() * unit();
    const char* const start = packed + panel * panel_weights_ * unit();
    char* const out =
        static_cast<char*>(operands.data[problem_.wanted]) + panel * width_ * out_.channel * bytes;
    // Where result position 0 would lie.
    char* const c =
        staged_ ? stage + (i * stage_units_ - offset(positions.begin, c_stride)) * unit() : out;
    if (!complete_) fill(positions, c, c_stride, staged_ ? width_ : count, start);

    for (const PanelPhase& phase : phases_) {
      const BoxRange windows = windows_of(box, phase.box);
      if (windows.count[3] < 1) continue;
      LaneRow row{};
      row.w = start + phase.weights * unit();
      row.taps = phase.taps.data();
      row.tap_count = static_cast<int64_t>(phase.taps.size());
      row.start = start;
      row.pixels = windows.count[3];
      row.a_step = phase.box.footings[3].window * width_;
      row.c_step = phase.box.axes[3]->out_step * c_stride[3];
      row.live = staged_ ? width_ : count;
      for_each_row(windows, [&](const PerAxis<int64_t>& u) {
        const auto a_of = [&](int x) {
          const Footing& footing = phase.box.footings[x];
          return footing.offset + (u[x] - box.begin[x]) * footing.window;
        };
        const int64_t a_row = (a_of(0) * strips[1].length + a_of(1)) * strips[2].length + a_of(2);
        row.a = a + (a_row * strips[3].length + a_of(3)) * width_ * unit();
        PerAxis<int64_t> position;
        for (int x = 0; x < kBoxRank; ++x)
          position[x] = phase.box.axes[x]->out + u[x] * phase.box.axes[x]->out_step;
        row.c = c + offset(position, c_stride) * unit();
        arithmetic_.lane_row(row);
      });
    }
  }
  if (staged_) unpack(operands, first_panel, panels, positions, c_stride, stage);
}

// Full panels together: where channels are contiguous, the result is written as it lies.
void GroupedDataPlan::unpack(const Operands& operands, int64_t first_panel, int64_t panels,
                             const BoxRange& positions, const PerAxis<int64_t>& c_stride,
                             const char* stage) const {
  const int64_t bytes = element_bytes(problem_.dtype);
  const CopyFunction unpack = arithmetic_.unpack[static_cast<int>(problem_.dtype)];
  const int64_t full = panels - (live(first_panel + panels - 1) < width_);
  const auto unpack_panels = [&](int64_t first, int64_t count) {
    if (count == 0) return;
    const int64_t panel = first_panel + first;
    const char* const c =
        stage + (first * stage_units_ - offset(positions.begin, c_stride)) * unit();
    char* const out =
        static_cast<char*>(operands.data[problem_.wanted]) + panel * width_ * out_.channel * bytes;
    Copy copy{nullptr,
              width_,
              1,
              nullptr,
              out_.stride[3],
              out_.channel,
              positions.count[3],
              live(panel),
              0,
              count,
              stage_units_,
              width_ * out_.channel};
    // Rows that follow each other are one.
    BoxRange rows = positions;
    for (int a = kBoxRank - 2; a >= 0 && out_.stride[a] == copy.rows * out_.stride[3]; --a) {
      copy.rows *= rows.count[a];
      rows.count[a] = 1;
    }
    for_each_row(rows, [&](const PerAxis<int64_t>& p) {
      copy.from = c + offset(p, c_stride) * unit();
      copy.to = out + offset(p, out_.stride) * bytes;
      unpack(copy);
    });
  };
  unpack_panels(0, full);
  unpack_panels(full, panels - full);
}

// Where no tap may reach, the result is the bias or zero.
void GroupedDataPlan::fill(const BoxRange& positions, char* c, const PerAxis<int64_t>& c_stride,
                           int64_t live, const char* start) const {
  for_each_row(positions, [&](const PerAxis<int64_t>& p) {
    for (int64_t i = 0; i < positions.count[3]; ++i)
      std::memcpy(c + (offset(p, c_stride) + i * c_stride[3]) * unit(), start, live * unit());
  });
}

void GroupedDataPlan::run(const Operands& operands) const {
  const int64_t boxes = grid_.boxes(), parts = ceil_div(panels_, part_panels_);
  char* const packed = shared_scratch<char>(panels_ * panel_weights_ * unit());
  parallel_for(problem_.threads, panels_, [&](int64_t panel) {
    pack_weights(operands, panel, packed + panel * panel_weights_ * unit());
  });
  // Boxes of one part follow each other: its channels' cache lines are then a thread's own.
  parallel_for(problem_.threads, parts * boxes,
               [&](int64_t i) { run_box(operands, i / boxes, grid_.box(i % boxes), packed); });
}

}  // namespace

std::unique_ptr<const Plan> grouped_data_plan(const Problem& problem,
                                              const Arithmetic& arithmetic) {
  return std::make_unique<GroupedDataPlan>(problem, arithmetic);
}

}  // namespace convtbw::simd
