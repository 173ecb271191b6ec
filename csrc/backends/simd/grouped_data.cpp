#include "backends/simd/grouped_data.h"

#include <algorithm>
#include <cstring>

#include "backends/simd/far_bytes.h"
#include "backends/simd/matrix_copies.h"
#include "backends/simd/plans.h"
#include "core/parallel.h"
#include "core/scratch.h"

namespace convtbw::simd {

namespace {

// Of so many taps in runs that are as even as can be.
int64_t run_taps(int64_t taps) { return ceil_div(taps, ceil_div(taps, kMaxRunTaps)); }

PerAxis<std::vector<Sliding>> ways_of(const PerAxis<PhasedAxis>& axes) {
  PerAxis<std::vector<Sliding>> ways;
  for (int a = 0; a < kBoxRank; ++a)
    for (const Phase& phase : axes[a].phases) ways[a].push_back(phase.sliding);
  return ways;
}

}  // namespace

GroupedDataPlan::GroupedDataPlan(const Problem& problem, const Arithmetic& arithmetic,
                                 const Arithmetic* pairs)
    : DirectedPlan(problem, arithmetic),
      order_(spread_order(problem.geometry, problem.wanted)),
      axes_(phased_axes(problem)),
      spreading_(spreading_of(problem, order_, arithmetic, axes_[3].windows)),
      pairs_channels_(pairs && spreading_ == Spreading::in_registers),
      spreading_kernels_(spreading_kernels(spreading_, pairs_channels_ ? *pairs : arithmetic)),
      planes_(pairs_channels_ ? order_.planes / 2 : order_.planes),
      parts_{order_.lanes, arithmetic.lanes},
      lanes_pitch_(odd_lines(ceil_div(parts_.lanes, parts_.width) * parts_.width)),
      weights_pitch_(spreading_ == Spreading::by_broadcast ? parts_.width : lanes_pitch_),
      pairs_(pairs_channels_ || (!suits_scatter() && suits_pairs()) ? pairs : nullptr),
      side_(arithmetic, in_, order_, spreading_, ways_of(axes_),
            {axes_[0].windows, axes_[1].windows, axes_[2].windows, axes_[3].windows},
            rows_together() > 1 || met_in_place(), least_regions(), pairs_),
      weights_(problem.w, problem.wanted, order_) {
  staged_ = out_.channel != 1 || parts_.lanes < parts_.width;
  out_dtype_ = staged_ ? sum_dtype(problem.dtype) : problem.dtype;
  banded_ = !pairs_ && suits_bands() && side_.dtype() == out_dtype_;
  scattered_ = suits_scatter() && side_.dtype() == out_dtype_;
  // Bands ask for the next columns: 3x3 of 10 MB, in the third-level cache, takes 0.39 to 1.08 of
  // the time, as its pages happen to lie, of 5 MB 1.1.
  const FarBytes& far = far_bytes();
  const double in_bytes = data_bytes(problem, operand_);
  asks_ahead_ = side_.in_place() && in_bytes > (banded_ ? far.writes : far.reads);
  asks_for_results_ = !staged_ && data_bytes(problem, problem.wanted) > far.writes &&
                      !(banded_ && in_bytes > far.most_writes) &&
                      (!scattered_ || gains_by_asking());
  for (const PhasedAxis& axis : axes_) complete_ &= axis.complete;
  choose_sizes();
  if (scattered_) axes_[3].phases = {joined_row_phases()};
  phases_ = box_phases(axes_, side_.strips());
  for (const BoxPhase& phase : phases_) {
    taps_ += phase.taps * planes_;
    most_taps_ = std::max(most_taps_, phase.taps * planes_);
  }
  w_lane_ = spreading_ == Spreading::by_broadcast ? taps_ : 1;
  overlapping_ = overlaps_by_half();
  if (overlapping_) partial_units_ = grid_.size[3] * parts_.pitch();
  if (overlapping_) pairs_ = nullptr;
  kernel = std::string(contraction_name(problem.wanted)) + ", channels of all groups in lanes, " +
           (overlapping_ ? "overlapping windows, "
            : banded_    ? "in bands, "
            : scattered_ ? "window by window, "
                         : "") +
           in_words(spreading_) + (side_.in_place() ? "in place, " : "") +
           (pairs_ ? *pairs_ : arithmetic).name;
  workspace = weights_units() * unit() + problem.threads * local_bytes();
  bytes = sizeof(GroupedDataPlan);
}

// Elements of 16 bits are copied as sums, results channels last are written as they are.
bool GroupedDataPlan::mixes_dtypes() const {
  return problem_.dtype != sum_dtype(problem_.dtype) && in_.channel != 1 && out_.channel == 1;
}

// Whether elements should be met where they lie, not copied.
bool GroupedDataPlan::met_in_place() const {
  if (spreading_kernels_) {
    // Those that a piece of a row's windows meets, once for every plane, should stay in the
    // first-level cache. Time of copies over that in place (Zen 3, 3x3 and 5x5): 0.45 to 0.75 where
    // pixels are 2048 and 4096 bytes apart, 0.9 to 1.05 where 1024, 1.0 to 1.35 where fewer.
    constexpr int64_t kPixels = 12;
    int64_t rows = 0, positions = 0;
    for (const Phase& depth : axes_[1].phases)
      for (const Phase& row : axes_[2].phases)
        rows = std::max(rows, depth.sliding.taps * row.sliding.taps);
    for (const Phase& phase : axes_[3].phases)
      positions = std::max(positions, kPixels * phase.sliding.stride + phase.sliding.taps);
    return (pairs_channels_ || in_.dtype == sum_dtype(in_.dtype)) &&
           rows * positions <= 8 * cache_sets(in_.stride[3] * element_bytes(in_.dtype));
  }
  if (in_.dtype == sum_dtype(in_.dtype)) return true;
  // Elements that are converted for every window that meets them. Time over that of copies (Zen 5),
  // 3x3 to 13x13: 0.6 to 0.85 with 16 lanes, 0.75 to 1.0 with 8; with strides, where windows share
  // less, 3x3 of 2 0.7, 16x16 of 8 0.45.
  const int dtype = static_cast<int>(in_.dtype);
  return out_.channel == 1 && arithmetic_.lane_row[dtype][dtype];
}

// Bands, and windows one by one, have no regions along rows: without the zeros 0.2 to 0.75 of the
// time of small images. Otherwise taps are listed for every region of windows, which takes longer
// than few of them. Channels first, time without zeros over that with them, 8 and 16 lanes (Zen 5),
// by vectors of all images:
// - up to 96, 5x5 of 7x7 1.0 to 1.8, of 8x8 1.1 to 1.45; 7x7 up to 14x14 1.1 to 3.2; 3x3 of 7x7
//   0.95 to 1.12, with strides 0.86 to 0.95;
// - more, 7x7 of 7x7 1.25 to 1.7, of 14x14 and 20x20 0.88 to 0.95; 5x5 0.85 to 1.0.
// With dilations, 25 layers, two threads of Zen 4, time with zeros over that without, by windows
// that meet the same taps: 4 and more, channels last 0.93 to 3.2, 1.4 in the mean, channels first
// 0.95 to 1.9, 1.1 in the mean.
LeastRegions GroupedDataPlan::least_regions() const {
  constexpr int64_t kFewVectors = 96;
  constexpr double kAlike = 4;
  if ((suits_bands() && !pairs_) || suits_scatter()) return {};
  if (in_.channel == 1) return least_regions_in_place(spreading_, kAlike);
  if (many_regions(in_, ways_of(axes_)[3])) return {1, kAlike};
  const Geometry& g = problem_.geometry;
  if (g.batch * parts_.vectors() <= kFewVectors) return {g.taps() >= 25 ? 0.5 : 0, kAlike};
  return {g.taps() >= 49 ? 0.25 : 0, kAlike};
}

// 3x3 and 7x7 take 0.77 and 0.64 of the time channels first, 0.91 and 0.79 channels last, 4x4 of
// stride 2 0.75 (Zen 4). Nothing is gained by windows of one row of taps. Time of bands over that
// of pairs (Zen 5): 3x3 0.75 to 1.05, 5x5 of 14x14 0.82, of 56x56 1.0; 7x7 0.8 where many rows are
// cut, 1.27 of 56x56; 4x4 and 6x6, which have no odd row of taps, 1.2.
bool GroupedDataPlan::suits_pairs() const {
  constexpr int64_t kFewRows = 5, kCutRows = 7;
  if (problem_.geometry.x_channels > 1 || problem_.geometry.y_channels > 1) return false;
  const int64_t rows = problem_.geometry.axes[1].k;
  const bool odd = rows <= kFewRows && rows % 2 == 1;
  if (suits_bands() && (odd || (rows <= kCutRows && cuts_many_rows()))) return false;
  return std::ranges::any_of(axes_[2].phases,
                             [](const Phase& phase) { return phase.sliding.taps > 1; });
}

void GroupedDataPlan::choose_sizes() {
  // Of so many channels in place, 320 to 1024 of 7x7 to 28x28, all at once take 0.43 to 1.0 of the
  // time of parts of kManyLanes with 8 lanes, 0.75 to 1.1, 0.95 in the mean, with 16 (Zen 5).
  constexpr int64_t kMostLanes = 1024;
  BoxCost cost;
  cost.positions = [&](const PerAxis<int64_t>& windows) { return side_.positions_of(windows); };
  cost.bytes = [&](const PerAxis<int64_t>& windows, const LaneParts& parts) {
    return side_.bytes_of(windows, parts) + covered(windows) * parts.pitch() * unit();
  };
  for (int a = 0; a < kBoxRank; ++a) grid_.extent[a] = axes_[a].windows;
  const int64_t images = banded_ && cuts_many_rows() ? most_band_rows() : 1;
  const PartSizes sizes = side_.in_place() && !staged_
                              ? in_place_sizes(grid_.extent, parts_, kMostLanes, 1, images)
                              : part_sizes(grid_.extent, parts_, side_.planes(),
                                           in_.channel == 1 || out_.channel == 1, cost, 1, images);
  parts_ = sizes.parts;
  grid_.size = sizes.windows;
  side_.set_sizes(grid_.size, parts_);
  stage_units_ = staged_ ? covered(grid_.size) * parts_.pitch() : 0;
}

// What every sum starts from: the bias or zero; then the weights, whose taps are
// [phase][plane][tap], where rows of taps are in pairs with half as many rows. Here some vectors of
// the lanes.
void GroupedDataPlan::pack_weights(const Operands& operands, int64_t vector, int64_t vectors,
                                   char* packed) const {
  const int64_t bytes = element_bytes(problem_.dtype), first = vector * parts_.width;
  const int64_t whole = vectors * parts_.width, count = std::min(whole, parts_.lanes - first);
  const int64_t zeros = whole - count;
  const int dtype = static_cast<int>(problem_.dtype);
  const CopyFunction copy = (pairs_ ? *pairs_ : arithmetic_).pack[dtype];
  char* to = packed + first * unit();
  if (operands.bias)
    arithmetic_.widen[dtype]({static_cast<const char*>(operands.bias) + first * bytes, count, 1, to,
                              whole, 1, 1, count, zeros});
  else
    std::memset(to, 0, whole * unit());
  const WeightsStrides& w = problem_.w;
  const int64_t together = rows_together(), channels = pairs_channels_ ? 2 : 1;
  for (const BoxPhase& phase : phases_) {
    const auto& [axis0, axis1, axis2, axis3] = phase.axes;
    const int64_t rows = axis2->sliding.taps;
    const int64_t row_pitch = axis3->sliding.taps * weights_pitch_;
    const int64_t volume_pitch = ceil_div(rows, together) * row_pitch;
    const int64_t tap_row = axis2->tap_step * w.axes[1];
    const auto pack_rows = [&](int64_t begin, int64_t steps, Halves halves) {
      const MatrixCopies matrices(
          {{{axis3->sliding.taps, axis3->tap_step * w.axes[2], weights_pitch_},
            {steps, together * tap_row, row_pitch},
            {axis1->sliding.taps, axis1->tap_step * w.axes[0], volume_pitch},
            {planes_, channels * weights_.plane_stride(), axis1->sliding.taps * volume_pitch}}},
          channels);
      const int64_t tap = axis1->tap * w.axes[0] + axis2->tap * w.axes[1] + axis3->tap * w.axes[2] +
                          begin * together * tap_row;
      const char* const from = static_cast<const char*>(operands.data.w) + tap * bytes;
      char* const to = packed + (lanes_pitch_ + first * w_lane_ +
                                 phase.taps_before * planes_ * weights_pitch_ + begin * row_pitch) *
                                    unit();
      matrices.for_each([&](int64_t from_matrix, int64_t to_matrix) {
        weights_.for_each_piece(first, count,
                                [&](int64_t lane, int64_t lanes, int64_t offset, int64_t stride) {
                                  Copy call{from + (from_matrix + offset) * bytes,
                                            matrices.rows().from,
                                            stride,
                                            to + (to_matrix + lane) * unit(),
                                            matrices.rows().to,
                                            1,
                                            matrices.rows().count,
                                            lanes,
                                            lane + lanes == count ? zeros : 0};
                                  call.halves = halves;
                                  call.second = pairs_channels_ ? weights_.plane_stride() : tap_row;
                                  copy(call);
                                });
      });
    };
    if (rows >= together) pack_rows(0, rows / together, Halves::both);
    if (rows % together) pack_rows(rows / together, 1, Halves::first);
  }
}

// How many taps apart those are that neighbouring windows share, if these should share what they
// load; or else 0. Time of the other way over that of runs, 3x3 to 7x7 of 64 to 512 channels (Zen
// 5): of elements that are converted 1.0 to 1.35; of others with 8 lanes 1.0 to 1.3 (Zen 4, once
// their sums stayed in registers, 1.05 to 1.45), but 0.75 to 0.95 where pixels are a multiple of
// 512 bytes apart, so that few lie in the first-level cache together; with 16 lanes 0.9 to 1.1, but
// runs of 4 taps 1.15 to 1.3 (Zen 4, k4 to k31; of 3 0.95 to 1.05). Runs of 2 taps 0.7 to 1.0.
int64_t GroupedDataPlan::taps_apart(const BoxPhase& phase, const LaneView& view,
                                    const Region& region, int64_t along) const {
  if (region.windows.count[along] < kMinRunPixels || region.taps[along] < kMinRunTaps) return 0;
  const auto [offset, window, tap] = phase.footings[along];
  if (window % tap != 0 || (rows_together() > 1 && along == 2)) return 0;
  const int64_t apart = window / tap, longest = ceil_div(region.taps[along], apart);
  if (longest < kMinRunTaps) return 0;
  const bool halves = element_bytes(side_.dtype()) == 2;
  const bool gains = arithmetic_.lanes * unit() < 64 || run_taps(longest) == kMaxRunTaps;
  return halves || spreading_kernels_ || (gains && view.stride[along] * window * unit() % 512)
             ? apart
             : 0;
}

// The taps of all planes that a region's windows meet, in runs along the region's pixels, which are
// row.a_step apart.
void GroupedDataPlan::list_taps(const BoxPhase& phase, const LaneView& view, const Region& region,
                                int64_t along, LaneTapRun* runs, LaneRow& row) const {
  const int64_t apart = taps_apart(phase, view, region, along);
  PerAxis<int64_t> a_step{}, w_step{};
  const int64_t together = rows_together();
  w_step[3] = weights_pitch_;
  w_step[2] = w_step[3] * phase.axes[3]->sliding.taps;
  w_step[1] = w_step[2] * ceil_div(phase.axes[2]->sliding.taps, together);
  for (int a = 1; a < kBoxRank; ++a) a_step[a] = phase.footings[a].tap * view.stride[a];
  row.second = a_step[2];
  const int64_t a_plane = view.plane;
  const int64_t w_plane = w_step[1] * phase.axes[1]->sliding.taps;
  const int64_t taps = region.taps[along];
  const int64_t longest = apart ? ceil_div(taps, apart) : 1;
  row.most_taps = run_taps(longest);
  row.w_step = apart * w_step[along];
  PerAxis<int64_t> begin = region.tap, end;
  for (int a = 0; a < kBoxRank; ++a) end[a] = begin[a] + region.taps[a];
  LaneTapRun* run = runs;
  for (int64_t first = 0; first < (apart ? std::min(apart, taps) : 1); ++first) {
    if (apart) {
      begin[along] = region.tap[along] + first;
      end[along] = begin[along] + 1;
    }
    // As even as can be.
    const int64_t all = apart ? ceil_div(taps - first, apart) : 1;
    const int64_t pieces = ceil_div(all, row.most_taps), least = all / pieces, more = all % pieces;
    for (int64_t p = 0; p < planes_; ++p)
      for (int64_t t1 = begin[1]; t1 < end[1]; ++t1)
        for (int64_t t2 = begin[2], rows; t2 < end[2]; t2 += rows) {
          int64_t a = p * a_plane + t1 * a_step[1] + t2 * a_step[2] + begin[3] * a_step[3];
          int64_t w =
              p * w_plane + t1 * w_step[1] + t2 / together * w_step[2] + begin[3] * w_step[3];
          rows = std::min(together - t2 % together, end[2] - t2);
          const Halves halves = rows == together     ? Halves::both
                                : t2 % together == 0 ? Halves::first
                                                     : Halves::second;
          for (int64_t t3 = begin[3]; t3 < end[3]; ++t3, a += a_step[3], w += w_step[3]) {
            *run++ = {a, w, least + (more > 0), halves, p};
            for (int64_t i = 1; i < pieces; ++i, ++run) {
              const LaneTapRun& last = run[-1];
              *run = {last.a + last.taps * row.a_step, last.w + last.taps * row.w_step,
                      least + (i < more), halves, p};
            }
          }
        }
  }
  row.runs = runs;
  row.run_count = run - runs;
}

GroupedDataPlan::Steps GroupedDataPlan::steps_of(const BoxPhase& phase, const LaneView& view,
                                                 const PerAxis<int64_t>& c_stride) {
  Steps steps;
  for (int a = 0; a < kBoxRank; ++a) {
    steps.sliding[a] = phase.axes[a]->sliding;
    const Footing& footing = phase.footings[a];
    steps.a_tap[a] = footing.tap * view.stride[a];
    steps.a_window[a] = footing.window * view.stride[a];
    steps.c_window[a] = phase.axes[a]->out_step * c_stride[a];
    steps.a_first += footing.offset * view.stride[a] - view.origin[a] * steps.a_window[a];
    steps.c_first += phase.axes[a]->out * c_stride[a];
  }
  return steps;
}

void GroupedDataPlan::run_box(const Operands& operands, int64_t part, const BoxRange& box,
                              const char* packed) const {
  constexpr int64_t kAhead = 2;
  int64_t ahead[kMaxAhead];
  const LaneParts::Range lanes = parts_.part(part);
  char* const memory = local_scratch<char>(local_bytes());
  char* const stage = memory + side_.memory_bytes();
  LaneTapRun* const runs = reinterpret_cast<LaneTapRun*>(stage + stage_units_ * unit());
  const LaneView view = side_.view(operands.data[operand_], box, part, memory);

  const BoxRange positions = positions_of(box, axes_, out_);
  PerAxis<int64_t> c_stride = out_.stride;
  char* c =
      static_cast<char*>(operands.data[problem_.wanted]) + lanes.begin * element_bytes(out_dtype_);
  if (staged_) {
    c_stride[3] = parts_.pitch();
    for (int a = kBoxRank - 2; a >= 0; --a) c_stride[a] = c_stride[a + 1] * positions.count[a + 1];
    c = stage - offset(positions.begin, c_stride) * unit();  // where position 0 would lie
  }
  const Arithmetic& arithmetic = pairs_ ? *pairs_ : arithmetic_;
  const int in_dtype = static_cast<int>(side_.dtype()), out_dtype = static_cast<int>(out_dtype_);
  const auto lane_row = spreading_kernels_ ? spreading_kernels_->row[out_dtype]
                                           : arithmetic.lane_row[in_dtype][out_dtype];
  LaneRow row{};
  row.group = order_.group_lanes;
  row.group_lane = lanes.begin % order_.group_lanes;
  row.planes = order_.planes;
  row.lanes = std::max(lanes.count, parts_.width);
  row.start = packed + lanes.begin * unit();
  if (!complete_) fill(positions, c, c_stride, row.lanes, static_cast<const char*>(row.start));

  for (const BoxPhase& phase : phases_) {
    const BoxRange windows = windows_of(box, phase);
    if (windows.empty()) continue;
    row.w = packed +
            (lanes_pitch_ + phase.taps_before * planes_ * weights_pitch_ + lanes.begin * w_lane_) *
                unit();
    row.w_lane = w_lane_;
    const Steps steps = steps_of(phase, view, c_stride);
    if (banded_ || scattered_) {
      row.a = view.data;
      row.c = c;
      const auto run = banded_ ? &GroupedDataPlan::run_bands : &GroupedDataPlan::run_scatter;
      (this->*run)(windows, steps, row, reinterpret_cast<LaneTapRow*>(runs));
      continue;
    }
    for_each_region(steps.sliding, in_, side_.padded(), windows, [&](const Region& region) {
      const int64_t along = region.along();
      row.pixels = region.windows.count[along];
      row.a_step = steps.a_window[along];
      row.c_step = steps.c_window[along];
      list_taps(phase, view, region, along, runs, row);
      row.ahead = ahead;
      row.ahead_count = asks_ahead_ && along == 3 && &phase == &phases_.front()
                            ? list_ahead(phase.footings, view, region, kAhead, ahead)
                            : 0;
      row.c_ahead = asks_for_results_ && along == 3 ? steps.c_window[2] : 0;
      region.for_each_line(along, [&](const PerAxis<int64_t>& u) {
        const int64_t from = steps.a_first + offset(u, steps.a_window);
        const int64_t to = steps.c_first + offset(u, steps.c_window);
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
  constexpr int64_t kPackedTogether = 8;  // vectors
  const int64_t boxes = grid_.boxes();
  char* const packed = shared_scratch<char>(weights_units() * unit());
  const int64_t vectors = ceil_div(parts_.lanes, parts_.width);
  const int64_t together = spreading_ == Spreading::by_broadcast ? 1 : kPackedTogether;
  parallel_for(problem_.threads, ceil_div(vectors, together), [&](int64_t i) {
    const int64_t vector = i * together;
    pack_weights(operands, vector, std::min(together, vectors - vector), packed);
  });
  // Boxes of one part follow each other: its channels' cache lines are then a thread's own.
  parallel_for(problem_.threads, parts_.count() * boxes, [&](int64_t i) {
    if (overlapping_)
      run_overlapping(operands, i / boxes, grid_.box(i % boxes), packed);
    else
      run_box(operands, i / boxes, grid_.box(i % boxes), packed);
  });
}

std::unique_ptr<const Plan> grouped_data_plan(const Problem& problem, const Arithmetic& arithmetic,
                                              const Arithmetic* pairs) {
  return std::make_unique<GroupedDataPlan>(problem, arithmetic, pairs);
}

}  // namespace convtbw::simd
