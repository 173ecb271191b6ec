// fprop and dgrad of groups of few channels (grouped.h): lanes are the result's channels across
// groups. A row of results is a sum over planes and taps of the other side's lanes times weights,
// for several pixels at once. dgrad is one such problem for every phase (phases.h).
#include <algorithm>
#include <cstring>

#include "backends/simd/grouped.h"
#include "backends/simd/plans.h"
#include "core/parallel.h"
#include "core/scratch.h"

namespace convtbw::simd {

namespace {

PerAxis<std::vector<Sliding>> ways_of(const PerAxis<PhasedAxis>& axes) {
  PerAxis<std::vector<Sliding>> ways;
  for (int a = 0; a < kBoxRank; ++a)
    for (const Phase& phase : axes[a].phases) ways[a].push_back(phase.sliding);
  return ways;
}

// Whether elements should be converted for every window that meets them, not copied. Time over that
// of copies (Zen 5): 16 lanes 0.6 to 0.85 for 3x3 to 13x13, float16 with 8 lanes 0.83 to 0.9.
// bfloat16 with 8 lanes, which takes two instructions instead of one: 3x3 0.83 to 1.0, 5x5 0.97 to
// 1.05, 7x7 1.1; with strides, where windows share less, 3x3 of 2 0.7 to 0.85, 16x16 of 8 0.5.
bool converts(const Arithmetic& arithmetic, Dtype dtype, const PerAxis<std::vector<Sliding>>& in) {
  constexpr int64_t kFewMeetings = 16;
  const bool one_instruction = dtype != Dtype::bf16 || arithmetic.lanes > 8;
  return (one_instruction || most_meetings(in) <= kFewMeetings) &&
         arithmetic.lane_row[static_cast<int>(dtype)][static_cast<int>(dtype)];
}

class GroupedDataPlan : public Plan {
 public:
  GroupedDataPlan(const Problem& problem, const Arithmetic& arithmetic);
  void run(const Operands& operands) const override;

 private:
  void choose_sizes();
  void pack_weights(const Operands& operands, int64_t vector, char* packed) const;
  int64_t list_taps(const BoxPhase& phase, const LaneView& view, const Region& region,
                    LaneTap* taps) const;
  void run_box(const Operands& operands, int64_t part, const BoxRange& box,
               const char* packed) const;
  void fill(const BoxRange& positions, char* c, const PerAxis<int64_t>& c_stride, int64_t lanes,
            const char* start) const;

  int64_t unit() const { return problem_.dtype == Dtype::f64 ? 8 : 4; }
  // Result positions that so many windows of each axis cover at most.
  int64_t covered(const PerAxis<int64_t>& windows) const {
    int64_t count = 1;
    for (int a = 0; a < kBoxRank; ++a)
      count *= std::min(out_.extent[a], windows[a] * axes_[a].step);
    return count;
  }
  int64_t local_bytes() const {
    return most_taps_ * int64_t{sizeof(LaneTap)} + (side_.memory_units() + stage_units_) * unit();
  }

  const Problem problem_;
  const Arithmetic& arithmetic_;
  const bool fprop_;
  const Tensor out_, in_;
  LaneParts parts_;
  const int64_t weights_pitch_;  // units from one tap to the next
  PerAxis<PhasedAxis> axes_;
  LaneSide side_;
  const LaneWeights weights_;
  bool complete_ = true;  // every result position belongs to a phase
  bool staged_;           // results are sums in another order than the tensor's
  Dtype out_dtype_;       // of what is written first
  BoxGrid grid_;
  std::vector<BoxPhase> phases_;
  int64_t taps_ = 0, most_taps_ = 0;  // of all phases, of one; of all planes
  int64_t stage_units_;
};

GroupedDataPlan::GroupedDataPlan(const Problem& problem, const Arithmetic& arithmetic)
    : problem_(problem),
      arithmetic_(arithmetic),
      fprop_(problem.wanted == Role::y),
      out_(fprop_ ? y_tensor(problem) : x_tensor(problem)),
      in_(fprop_ ? x_tensor(problem) : y_tensor(problem)),
      parts_{spread_order(problem.geometry, problem.wanted).lanes, arithmetic.lanes},
      weights_pitch_(odd_lines(ceil_div(parts_.lanes, parts_.width) * parts_.width)),
      axes_(phased_axes(problem)),
      side_(arithmetic, in_, spread_order(problem.geometry, problem.wanted), ways_of(axes_),
            {axes_[0].windows, axes_[1].windows, axes_[2].windows, axes_[3].windows},
            out_.channel == 1 && converts(arithmetic, in_.dtype, ways_of(axes_))),
      weights_(problem.w, problem.wanted, spread_order(problem.geometry, problem.wanted)) {
  staged_ = out_.channel != 1 || parts_.lanes < parts_.width;
  out_dtype_ = staged_ ? sum_dtype(problem.dtype) : problem.dtype;
  for (const PhasedAxis& axis : axes_) complete_ &= axis.complete;
  choose_sizes();
  phases_ = box_phases(axes_, side_.strips());
  for (const BoxPhase& phase : phases_) {
    taps_ += phase.taps * side_.planes();
    most_taps_ = std::max(most_taps_, phase.taps * side_.planes());
  }
  kernel = std::string(fprop_ ? "fprop" : "dgrad") + ", channels of all groups in lanes" +
           (side_.in_place() ? ", in place, " : ", ") + arithmetic.name;
  workspace = (1 + taps_) * weights_pitch_ * unit() + problem.threads * local_bytes();
  bytes = sizeof(GroupedDataPlan);
}

void GroupedDataPlan::choose_sizes() {
  BoxCost cost;
  cost.positions = [&](const PerAxis<int64_t>& windows) { return side_.positions_of(windows); };
  cost.bytes = [&](const PerAxis<int64_t>& windows, const LaneParts& parts) {
    return (side_.units_of(windows, parts) + covered(windows) * parts.pitch()) * unit();
  };
  for (int a = 0; a < kBoxRank; ++a) grid_.extent[a] = axes_[a].windows;
  const PartSizes sizes = part_sizes(grid_.extent, parts_, side_.planes(),
                                     in_.channel == 1 || out_.channel == 1, cost, 1);
  parts_ = sizes.parts;
  grid_.size = sizes.windows;
  side_.set_sizes(grid_.size, parts_);
  stage_units_ = staged_ ? covered(grid_.size) * parts_.pitch() : 0;
}

// What every sum starts from: the bias or zero; then [phase][plane][tap][lane]. Here a vector of
// the lanes.
void GroupedDataPlan::pack_weights(const Operands& operands, int64_t vector, char* packed) const {
  const int64_t bytes = element_bytes(problem_.dtype), first = vector * parts_.width;
  const int64_t count = std::min(parts_.width, parts_.lanes - first);
  const int64_t zeros = parts_.width - count;
  const int dtype = static_cast<int>(problem_.dtype);
  const CopyFunction copy = arithmetic_.pack[dtype];
  char* to = packed + first * unit();
  if (operands.bias)
    arithmetic_.widen[dtype]({static_cast<const char*>(operands.bias) + first * bytes, count, 1, to,
                              parts_.width, 1, 1, count, zeros});
  else
    std::memset(to, 0, parts_.width * unit());
  to += weights_pitch_ * unit();
  const WeightsStrides& w = problem_.w;
  for (const BoxPhase& phase : phases_) {
    const auto& [axis0, axis1, axis2, axis3] = phase.axes;
    const int64_t row = axis3->sliding.taps;
    for (int64_t plane = 0; plane < side_.planes(); ++plane)
      for (int64_t t0 = 0; t0 < axis1->sliding.taps; ++t0)
        for (int64_t t1 = 0; t1 < axis2->sliding.taps; ++t1, to += row * weights_pitch_ * unit()) {
          const int64_t tap = (axis1->tap + t0 * axis1->tap_step) * w.axes[0] +
                              (axis2->tap + t1 * axis2->tap_step) * w.axes[1] +
                              axis3->tap * w.axes[2];
          const char* const from = static_cast<const char*>(operands.data.w) +
                                   (plane * weights_.plane_stride() + tap) * bytes;
          weights_.for_each_piece(first, count,
                                  [&](int64_t lane, int64_t lanes, int64_t offset, int64_t stride) {
                                    copy({from + offset * bytes, axis3->tap_step * w.axes[2],
                                          stride, to + lane * unit(), weights_pitch_, 1, row, lanes,
                                          lane + lanes == count ? zeros : 0});
                                  });
        }
  }
}

// The taps of all planes that a region's windows meet.
int64_t GroupedDataPlan::list_taps(const BoxPhase& phase, const LaneView& view,
                                   const Region& region, LaneTap* taps) const {
  const auto& [axis0, axis1, axis2, axis3] = phase.axes;
  PerAxis<int64_t> step;
  for (int a = 0; a < kBoxRank; ++a) step[a] = phase.footings[a].tap * view.stride[a];
  LaneTap* tap = taps;
  const auto& [first0, first1, first2, first3] = region.tap;
  for (int64_t plane = 0; plane < side_.planes(); ++plane)
    for (int64_t t0 = first1; t0 < first1 + region.taps[1]; ++t0)
      for (int64_t t1 = first2; t1 < first2 + region.taps[2]; ++t1)
        for (int64_t t2 = first3; t2 < first3 + region.taps[3]; ++t2) {
          const int64_t index = ((plane * axis1->sliding.taps + t0) * axis2->sliding.taps + t1) *
                                    axis3->sliding.taps +
                                t2;
          *tap++ = {plane * view.plane + t0 * step[1] + t1 * step[2] + t2 * step[3],
                    index * weights_pitch_};
        }
  return tap - taps;
}

void GroupedDataPlan::run_box(const Operands& operands, int64_t part, const BoxRange& box,
                              const char* packed) const {
  constexpr int64_t kAhead = 2;
  int64_t ahead[kMaxAhead];
  const LaneParts::Range lanes = parts_.part(part);
  char* const memory = local_scratch<char>(local_bytes());
  char* const stage = memory + side_.memory_units() * unit();
  LaneTap* const taps = reinterpret_cast<LaneTap*>(stage + stage_units_ * unit());
  const LaneView view = side_.view(operands.data[fprop_ ? Role::x : Role::y], box, part, memory);

  const BoxRange positions = positions_of(box, axes_, out_);
  PerAxis<int64_t> c_stride = out_.stride;
  char* c =
      static_cast<char*>(operands.data[problem_.wanted]) + lanes.begin * element_bytes(out_dtype_);
  if (staged_) {
    c_stride[3] = parts_.pitch();
    for (int a = kBoxRank - 2; a >= 0; --a) c_stride[a] = c_stride[a + 1] * positions.count[a + 1];
    c = stage - offset(positions.begin, c_stride) * unit();  // where position 0 would lie
  }
  const auto lane_row =
      arithmetic_.lane_row[static_cast<int>(side_.dtype())][static_cast<int>(out_dtype_)];
  LaneRow row{};
  row.taps = taps;
  row.lanes = std::max(lanes.count, parts_.width);
  row.start = packed + lanes.begin * unit();
  if (!complete_) fill(positions, c, c_stride, row.lanes, static_cast<const char*>(row.start));

  for (const BoxPhase& phase : phases_) {
    const BoxRange windows = windows_of(box, phase);
    if (windows.empty()) continue;
    row.w =
        packed + ((1 + phase.taps_before * side_.planes()) * weights_pitch_ + lanes.begin) * unit();
    PerAxis<Sliding> sliding;
    PerAxis<int64_t> a_step, c_step;
    for (int a = 0; a < kBoxRank; ++a) {
      sliding[a] = phase.axes[a]->sliding;
      a_step[a] = phase.footings[a].window * view.stride[a];
      c_step[a] = phase.axes[a]->out_step * c_stride[a];
    }
    for_each_region(sliding, in_, side_.padded(), windows, [&](const Region& region) {
      row.tap_count = list_taps(phase, view, region, taps);
      const int64_t along = region.along();
      row.pixels = region.windows.count[along];
      row.a_step = a_step[along];
      row.c_step = c_step[along];
      row.ahead = ahead;
      row.ahead_count = side_.in_place() && along == 3 && &phase == &phases_.front()
                            ? list_ahead(phase.footings, view, region, kAhead, ahead)
                            : 0;
      row.c_ahead = staged_ || along != 3 ? 0 : c_step[2];
      region.for_each_line(along, [&](const PerAxis<int64_t>& u) {
        int64_t from = 0, to = 0;
        for (int a = 0; a < kBoxRank; ++a) {
          from += phase.footings[a].offset * view.stride[a] + (u[a] - view.origin[a]) * a_step[a];
          to += phase.axes[a]->out * c_stride[a] + u[a] * c_step[a];
        }
        row.a = view.data + from * element_bytes(side_.dtype());
        row.c = c + to * element_bytes(out_dtype_);
        lane_row(row);
      });
    });
  }
  if (staged_)
    unpack_positions(arithmetic_, out_, positions, c, c_stride, lanes.count,
                     static_cast<char*>(operands.data[problem_.wanted]) +
                         lanes.begin * out_.channel * element_bytes(problem_.dtype));
}

// Where no tap may reach, the result is the bias or zero.
void GroupedDataPlan::fill(const BoxRange& positions, char* c, const PerAxis<int64_t>& c_stride,
                           int64_t lanes, const char* start) const {
  Copy copy{start, 0, 1, nullptr, c_stride[3], 1, positions.count[3], lanes};
  for_each_row(positions, [&](const PerAxis<int64_t>& p) {
    copy.to = c + offset(p, c_stride) * element_bytes(out_dtype_);
    arithmetic_.unpack[static_cast<int>(out_dtype_)](copy);
  });
}

void GroupedDataPlan::run(const Operands& operands) const {
  const int64_t boxes = grid_.boxes();
  char* const packed = shared_scratch<char>((1 + taps_) * weights_pitch_ * unit());
  parallel_for(problem_.threads, ceil_div(parts_.lanes, parts_.width),
               [&](int64_t vector) { pack_weights(operands, vector, packed); });
  // Boxes of one part follow each other: its channels' cache lines are then a thread's own.
  parallel_for(problem_.threads, parts_.count() * boxes,
               [&](int64_t i) { run_box(operands, i / boxes, grid_.box(i % boxes), packed); });
}

}  // namespace

std::unique_ptr<const Plan> grouped_data_plan(const Problem& problem,
                                              const Arithmetic& arithmetic) {
  return std::make_unique<GroupedDataPlan>(problem, arithmetic);
}

}  // namespace convtbw::simd
