#include "backends/simd/grouped_weights.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "backends/simd/epilogue.h"
#include "backends/simd/far_bytes.h"
#include "backends/simd/matrix_copies.h"
#include "backends/simd/plans.h"
#include "backends/simd/sums.h"
#include "core/parallel.h"
#include "core/scratch.h"

namespace convtbw::simd {

namespace {

LaneOrder order_of(Role role, Role lane_role, const LaneOrder& spread) {
  return role == lane_role ? LaneOrder{spread.lanes, 1, 1} : spread;
}

PerAxis<int64_t> extent_of(const Geometry& g) {
  return {g.batch, g.axes[0].y, g.axes[1].y, g.axes[2].y};
}

PerAxis<std::vector<Sliding>> ways_of(const PerAxis<Sliding>& sliding) {
  PerAxis<std::vector<Sliding>> ways;
  for (int a = 0; a < kBoxRank; ++a) ways[a] = {sliding[a]};
  return ways;
}

}  // namespace

GroupedWeightsPlan::GroupedWeightsPlan(const Problem& problem, const Arithmetic& arithmetic,
                                       const Arithmetic* pairs)
    : all_(problem),
      problem_(one_slice(problem)),
      arithmetic_(arithmetic),
      pairs_(pairs),
      lane_role_(problem.geometry.y_channels >= problem.geometry.x_channels ? Role::y : Role::x),
      order_(spread_order(problem.geometry, lane_role_)),
      spreading_(lane_role_ == Role::y  // kernels spread x alone
                     ? spreading_of(problem, order_, arithmetic, problem.geometry.axes.back().y)
                     : Spreading::in_memory),
      spreading_kernels_(spreading_kernels(spreading_, arithmetic)),
      parts_{order_.lanes, arithmetic.lanes},
      sliding_(sliding_of(problem.geometry)),
      grid_{extent_of(problem_.geometry), {}},
      tap_rows_(problem.geometry.axes[0].k * problem.geometry.axes[1].k),
      taps_(tap_rows_ * problem.geometry.axes[2].k),
      x_tensor_(x_tensor(problem_)),
      y_tensor_(y_tensor(problem_)),
      y_(arithmetic, y_tensor_, order_of(Role::y, lane_role_, order_), spreading_, ways_of({}),
         grid_.extent, !spreading_kernels_ || y_tensor_.dtype == sum_dtype(y_tensor_.dtype), {},
         keeping()),
      x_(arithmetic, x_tensor_, order_of(Role::x, lane_role_, order_), spreading_,
         ways_of(sliding_), grid_.extent, y_.in_place() && !copies_rows() && met_in_place(),
         least_regions(), keeping()),
      weights_(problem.w, lane_role_, order_) {
  const bool far = data_bytes_of_both(problem) > far_bytes().weights;
  asks_ahead_ = y_.in_place() && far;
  in_order_ = asks_ahead_ && gains_order();
  // Time with fetching over time without, channels first, Zen 5, 8 and 16 lanes: 7x7 and 14x14 0.56
  // to 0.89 and 0.84 to 0.9, 28x28 0.76 to 0.98 and 0.8 to 0.94, 1-D 0.81 to 0.88 and 0.79 to 1.0;
  // up to 12 MB 1.0 to 1.2. Where x alone is copied, channels last, 0.94 to 1.07.
  fetches_next_ = x_tensor_.channel > 1 && far;
  choose_sizes();
  list_columns();
  pairs_vectors_ = gains_pairing();
  slides_ = columns_.empty() && may_slide() && gains_sliding();
  kernel = "wgrad, channels of all groups in lanes, ";
  if (!columns_.empty()) kernel += "overlapping windows, ";
  if (slides_) kernel += "sliding windows, ";
  kernel += in_words(spreading_);
  if (x_.in_place() && y_.in_place()) kernel += "in place, ";
  if (all_.slices > 1) kernel += "slices, ";
  kernel += (uses_pairs() ? *pairs : arithmetic).name;
  workspace = problem.threads * local_bytes_;
  if (chunks_ > 1) workspace += all_.slices * parts_.count() * chunks_ * part_sums_ * unit();
  bytes = sizeof(GroupedWeightsPlan) + columns_.size() * sizeof(Columns);
}

// For sliding windows of one channel a group.
const Arithmetic* GroupedWeightsPlan::keeping() const {
  return may_slide() && !order_.spread() ? pairs_ : nullptr;
}

// With dilations, 25 layers, two threads of Zen 4, 8 and 16 lanes, channels last, time with zeros
// over that without, by windows that meet the same taps: 7 and more 0.96 to 2.4, 1.4 in the mean; 4
// to 6 0.61 to 0.94.
LeastRegions GroupedWeightsPlan::least_regions() const {
  constexpr double kAlike = 7;
  if (x_tensor_.channel == 1) return least_regions_in_place(spreading_, kAlike);
  return {many_regions(x_tensor_, {sliding_[3]}) ? 1.0 : 0.0, kAlike};
}

// Whether elements of x should be met where they lie, not copied.
bool GroupedWeightsPlan::met_in_place() const {
  if (x_tensor_.dtype == sum_dtype(x_tensor_.dtype)) return !spreading_kernels_ || rows_stay();
  const int index = static_cast<int>(x_tensor_.dtype);
  if (spreading_kernels_ || !arithmetic_.lane_taps[index][index].at[1][1][1]) return false;
  // Sliding windows meet each element once a row of taps: 0.65 to 0.93 of the time of copies (Zen
  // 5, 3x3 to 7x7 and 3x3x3), but 1.15 with 8 lanes where a row does not stay in the cache.
  if (may_slide()) return rows_stay();
  // For every tap. Time over that of copies: where it takes one instruction, 4x4 of stride 2 0.75
  // to 1.0; where two (bfloat16), with 8 lanes 4x4 of stride 2 0.9, 5x5 of stride 2 0.95; 16x16 of
  // stride 8 0.45 to 0.53; one row of taps, k5 0.9 to 1.13, k7 1.05 to 1.15.
  int64_t meetings = 1;  // of a position with windows, at most
  for (int a = 0; a < kBoxRank; ++a) {
    const Sliding& s = sliding_[a];
    const int64_t apart = s.dilation / std::gcd(s.dilation, s.stride);
    meetings *= std::min(ceil_div(s.taps, s.stride), ceil_div(grid_.extent[a], apart));
  }
  const bool one_instruction = x_tensor_.dtype != Dtype::bf16 || arithmetic_.lanes > 8;
  return meetings <= (one_instruction ? 16 : 8);
}

// Whether lines of the cache that lie far away are better fetched in their order than each at the
// pixel whose lanes come next: pixels that fall into few sets of the caches also fall into few of
// the memory's channels. Time in order over time pixel by pixel, Zen 5, 8 and 16 lanes: pixels of
// 512 bytes and multiples, 3x3 0.75 to 0.87 and 0.82 to 0.9, 5x5 1.0 and 0.98, 7x7 1.02 and 0.9;
// 16 bits 0.83 to 1.05; of 256 bytes 0.8 to 1.3; others 0.95 to 1.35; volumes 0.92 to 1.06.
bool GroupedWeightsPlan::gains_order() const {
  constexpr int64_t kFewSets = 8;
  // All are read together: of 512 channels 0.86 to 0.96 of the time of parts, 5x5 and 7x7 too.
  constexpr int64_t kMostLanes = 1024;
  if (order_.lanes > kMostLanes || !x_.in_place() || order_.spread() || keeping() ||
      x_tensor_.stride[3] != order_.lanes || y_tensor_.stride[3] != order_.lanes ||
      sliding_[2].stride * sliding_[3].stride > 1)
    return false;
  const int64_t step = order_.lanes * element_bytes(x_tensor_.dtype);
  return sliding_[1].taps == 1 && cache_sets(step) <= kFewSets;
}

void GroupedWeightsPlan::choose_sizes() {
  constexpr int64_t kPartialBytes = 4 << 20;  // of all chunks
  constexpr int64_t kItems = 32;              // enough to keep many threads busy until the end

  BoxCost cost;
  cost.positions = [&](const PerAxis<int64_t>& windows) {
    return x_.positions_of(windows) + y_.positions_of(windows);
  };
  cost.bytes = [&](const PerAxis<int64_t>& windows, const LaneParts& parts) {
    return x_.bytes_of(windows, parts) + y_.bytes_of(windows, parts);
  };
  const PartSizes sizes =
      x_.in_place() && y_.in_place()
          ? in_place_sizes(grid_.extent, parts_, in_order_ ? order_.lanes : kManyLanes, all_.slices)
          : part_sizes(grid_.extent, parts_, spreading_kernels_ ? 1 : order_.planes,
                       problem_.x.channel == 1 || problem_.y.channel == 1, cost, all_.slices);
  parts_ = sizes.parts;
  in_order_ = in_order_ && parts_.count() == 1;
  grid_.size = sizes.windows;
  vector_sums_ = order_.planes * taps_ * parts_.width;
  part_sums_ = parts_.pitch() / parts_.width * vector_sums_;
  // Chunks of boxes, each with sums of its own, where there are few parts.
  const int64_t boxes = grid_.boxes(), parts = all_.slices * parts_.count();
  chunks_ = std::clamp<int64_t>(kPartialBytes / (parts * part_sums_ * unit()), 1,
                                std::min(boxes, ceil_div(kItems, parts)));
  boxes_per_chunk_ = ceil_div(boxes, chunks_);
  chunks_ = ceil_div(boxes, boxes_per_chunk_);
  x_.set_sizes(grid_.size, parts_);
  y_.set_sizes(grid_.size, parts_);
  buffer_bytes_ = x_.memory_bytes() + y_.memory_bytes() + tap_rows_ * int64_t{sizeof(LaneTapRow)};
  // Sums of parts are their thread's, those of chunks are kept until all are there.
  buffer_bytes_ = whole_lines(buffer_bytes_);
  local_bytes_ = buffer_bytes_ + (chunks_ > 1 ? 0 : part_sums_ * unit());
}

GroupedWeightsPlan::Side GroupedWeightsPlan::side(const LaneSide& lanes, const void* data,
                                                  const BoxRange& box, int64_t part,
                                                  char* memory) const {
  Side side{lanes.view(data, box, part, memory), element_bytes(lanes.dtype()), {}, {}};
  for (int a = 0; a < kBoxRank; ++a) {
    const Footing& footing = lanes.strips()[a].footings.front();
    side.offset[a] = footing.offset * side.view.stride[a];
    side.window[a] = footing.window * side.view.stride[a];
  }
  return side;
}

// Where a lane of a plane of x lies.
int64_t GroupedWeightsPlan::x_lane(const Side& x, const LaneParts::Range& lanes, int64_t lane,
                                   int64_t plane) const {
  if (spreading_ == Spreading::by_broadcast)
    lane = order_.first_channel(lanes.begin + lane) - order_.first_channel(lanes.begin);
  return plane * x.view.plane + lane;
}

GroupedWeightsPlan::Taps GroupedWeightsPlan::list_taps(const Side& x, const Region& region,
                                                       LaneTapRow* rows) const {
  PerAxis<int64_t> step;
  for (int a = 0; a < kBoxRank; ++a)
    step[a] = x_.strips()[a].footings.front().tap * x.view.stride[a];
  LaneTapRow* row = rows;
  for (int64_t t0 = region.tap[1]; t0 < region.tap[1] + region.taps[1]; ++t0)
    for (int64_t t1 = region.tap[2]; t1 < region.tap[2] + region.taps[2]; ++t1)
      *row++ = {t0 * step[1] + t1 * step[2] + region.tap[3] * step[3],
                ((t0 * sliding_[2].taps + t1) * sliding_[3].taps + region.tap[3]) * parts_.width};
  return {rows, row - rows, region.taps[3], step[3]};
}

// Adds some runs' products to the sums of a part: for every plane and vector, blocks of taps whose
// sums are in registers together.
void GroupedWeightsPlan::add(const Side& x, const Side& y, const Taps& taps,
                             const LaneParts::Range& lanes, const LaneTaps& runs, Next& next,
                             char* sums) const {
  // A row of taps of so many lanes at a time: what they read stays in the first-level cache.
  constexpr int64_t kLanes = 32;
  for (int64_t first = 0, count; first < lanes.count; first += count) {
    count = std::min(kLanes, lanes.count - first);
    // Vectors of half a cache line in pairs: two loads a cycle must not be of the same halves of
    // two lines (Zen 4: 1-D k31 2.6 ms one by one).
    const bool halves = parts_.width * unit() < kLineBytes && !spreading_kernels_;
    const int64_t pairs = halves ? count / (2 * parts_.width) : 0;
    if (pairs) add_vectors(x, y, taps, lanes, first / parts_.width, pairs, 2, runs, next, sums);
    const int64_t done = pairs * 2 * parts_.width, rest = ceil_div(count - done, parts_.width);
    if (rest)
      add_vectors(x, y, taps, lanes, (first + done) / parts_.width, rest, 1, runs, next, sums);
  }
}

// `count` times so many vectors together.
void GroupedWeightsPlan::add_vectors(const Side& x, const Side& y, const Taps& taps,
                                     const LaneParts::Range& lanes, int64_t first, int64_t count,
                                     int together, LaneTaps call, Next& next, char* sums) const {
  const int64_t most_taps = kMaxLaneTaps[together];
  const int64_t tap_pieces = ceil_div(taps.row_taps, most_taps);
  const int64_t most_rows =
      std::min<int64_t>(kMaxLaneRows, most_taps / ceil_div(taps.row_taps, tap_pieces));
  const int64_t row_pieces = ceil_div(taps.row_count, most_rows), ahead_count = call.a_ahead_count;
  const int64_t b_ahead = call.b_ahead;
  const LaneTapsFunctions& functions =
      spreading_kernels_
          ? spreading_kernels_->taps
          : arithmetic_.lane_taps[static_cast<int>(x_.dtype())][static_cast<int>(y_.dtype())];
  call.spread.group = order_.group_lanes;
  call.a_tap = taps.step;
  call.sums_vector = vector_sums_;
  for (int64_t i = 0, row = 0, rows; i < row_pieces; ++i, row += rows) {
    rows = (taps.row_count - row) / (row_pieces - i);  // as even as can be
    call.rows = taps.rows + row;
    for (int64_t vector = first; vector < first + count * together; vector += together) {
      const int64_t lane = parts_.lane(lanes, vector);
      for (int64_t plane = 0; plane < order_.planes; ++plane) {
        const char* const a = x.view.data + x_lane(x, lanes, lane, plane) * x.bytes;
        call.spread.plane = plane;
        call.b = y.view.data + (plane * y.view.plane + lane) * y.bytes;
        for (int64_t piece = 0, tap = 0, width; piece < tap_pieces; ++piece, tap += width) {
          width = (taps.row_taps - tap) / (tap_pieces - piece);
          call.a = a + tap * call.a_tap * x.bytes;
          call.sums =
              sums + (vector * vector_sums_ + (plane * taps_ + tap) * parts_.width) * unit();
          // Once for each line of the cache.
          const bool ask = i + piece + plane == 0 && lane * y.bytes % kLineBytes == 0;
          call.a_ahead_count = ask ? ahead_count : 0;
          call.b_ahead = ask ? b_ahead : 0;
          // In order, each call goes on where those of the lines before ended.
          call.ahead_turn = in_order_ ? lane * y.bytes / kLineBytes : 0;
          functions.at[together][rows][width](call);
          next.fetch();
        }
      }
    }
  }
}

void GroupedWeightsPlan::run_boxes(const Operands& operands, int64_t part, int64_t first_box,
                                   int64_t boxes, bool by_positions, char* x_memory,
                                   char* sums) const {
  char* const y_memory = x_memory + x_.memory_bytes();
  LaneTapRow* const rows = reinterpret_cast<LaneTapRow*>(y_memory + y_.memory_bytes());
  const LaneParts::Range lanes = parts_.part(part);
  std::memset(sums, 0, part_sums_ * unit());
  int64_t calls = 0;  // of kernels, for the box before: this one takes about as many
  for (int64_t index = first_box; index < first_box + boxes; ++index) {
    const BoxRange box = grid_.box(index);
    const Side x = side(x_, operands.data.x, box, part, x_memory);
    const Side y = side(y_, operands.data.y, box, part, y_memory);
    Next next;
    if (fetches_next_ && calls && index + 1 < first_box + boxes) {
      const BoxRange next_box = grid_.box(index + 1);
      next.x = x_.prefetch(operands.data.x, next_box, part, calls);
      next.y = y_.prefetch(operands.data.y, next_box, part, calls);
    }
    if (by_positions && slides_)
      add_sliding(x, y, box, lanes, rows, next, sums);
    else if (by_positions)
      add_overlapping(x, y, box, lanes, next, sums);
    else
      add_regions(x, y, box, lanes, rows, next, sums);
    calls = next.calls;
  }
}

// What steps along rows ask of memory beforehand, of x from the region's first tap on; its number.
int64_t GroupedWeightsPlan::list_steps_ahead(const Side& x, const Side& y, const Region& region,
                                             const LaneTapRow& first, int64_t* a_ahead,
                                             int64_t& b_ahead) const {
  if (!asks_ahead_) return 0;
  const int64_t lines = ceil_div(kMinSteps, region.windows.count[3]) + 1;
  PerAxis<Footing> footings;
  for (int a = 0; a < kBoxRank; ++a) footings[a] = x_.strips()[a].footings.front();
  int64_t count = 0;
  if (x_.in_place()) count = list_ahead(footings, x.view, region, lines, a_ahead);
  for (int64_t i = 0; i < count; ++i) a_ahead[i] -= first.a;
  if (count || !x_.in_place())
    b_ahead = y.view.stride[2] == 0 ? kAheadPixels * y.window[3] : lines * y.window[2];
  return count;
}

void GroupedWeightsPlan::add_regions(const Side& x, const Side& y, const BoxRange& box,
                                     const LaneParts::Range& lanes, LaneTapRow* rows, Next& next,
                                     char* sums) const {
  for_each_region(sliding_, x_tensor_, x_.padded(), box, [&](const Region& region) {
    const Taps taps = list_taps(x, region, rows);
    if (taps.row_count == 0 || taps.row_taps == 0) return;
    const int64_t along = region.along(), pixels = region.windows.count[along];
    Run runs[kMinSteps];
    LaneTaps call{};
    call.runs = runs;
    call.a_step = x.window[along];
    call.b_step = y.window[along];
    int64_t ahead[kMaxAhead];
    call.a_ahead = ahead;
    if (along == 3)
      call.a_ahead_count = list_steps_ahead(x, y, region, rows[0], ahead, call.b_ahead);
    call.a_ahead_step = in_order_ ? kLineBytes / x.bytes : call.a_step;
    call.b_ahead_step = in_order_ ? kLineBytes / y.bytes : call.b_step;
    call.ahead_to_first = in_order_;
    const int64_t max_piece = std::max(kMinSteps / 2, kMaxPiece / sliding_[along].stride);
    int64_t steps = 0;
    const auto flush = [&] {
      if (steps) add(x, y, taps, lanes, call, next, sums);
      call.run_count = steps = 0;
    };
    region.for_each_line(along, [&](const PerAxis<int64_t>& u) {
      for (int64_t i = 0; i < pixels; i += max_piece) {
        runs[call.run_count++] = {x.at(u) + i * call.a_step, y.at(u) + i * call.b_step,
                                  std::min(max_piece, pixels - i)};
        steps += runs[call.run_count - 1].steps;
        if (steps >= std::min(kMinSteps, max_piece)) flush();
      }
    });
    flush();
  });
}

// Writes a part's sums to the weights.
void GroupedWeightsPlan::finish(const Operands& operands, int64_t part, char* sums) const {
  const WeightsStrides& w = problem_.w;
  const int64_t bytes = element_bytes(result_dtype(problem_)), last_taps = sliding_[3].taps;
  // Taps at a constant distance: all of them, or those of the last axis.
  const bool flat = taps_follow(problem_, w.axes[2]);
  const int64_t row_taps = flat ? taps_ : last_taps;
  const LaneParts::Range range = parts_.part(part);
  for (int64_t vector = 0; vector < vectors_of(range); ++vector) {
    // A last vector overlaps the one before, whose lanes are written.
    const int64_t first = vector * parts_.width, written = first - parts_.lane(range, vector);
    const int64_t live = std::min(parts_.width, range.count - first);
    for (int64_t plane = 0; plane < order_.planes; ++plane)
      for (int64_t tap = 0; tap < taps_;
           tap += row_taps, sums += row_taps * parts_.width * unit()) {
        const int64_t row = tap / last_taps, row_offset = row / sliding_[2].taps * w.axes[0] +
                                                          row % sliding_[2].taps * w.axes[1];
        char* const to = static_cast<char*>(operands.data.w) +
                         (plane * weights_.plane_stride() + row_offset) * bytes;
        weights_.for_each_piece(range.begin + first, live,
                                [&](int64_t lane, int64_t lanes, int64_t offset, int64_t stride) {
                                  write_weights(
                                      problem_, arithmetic_,
                                      {sums + (written + lane) * unit(), parts_.width, 1,
                                       to + offset * bytes, w.axes[2], stride, row_taps, lanes});
                                });
      }
  }
}

void GroupedWeightsPlan::run(const Operands& operands) const {
  // An infinity in x, multiplied by windows that are not there, would be NaN where it does not
  // belong.
  const bool by_positions = slides_ || !columns_.empty();
  const int64_t boxes = grid_.boxes(), slice_parts = parts_.count();
  const int64_t parts = all_.slices * slice_parts;
  if (chunks_ == 1) {
    parallel_for(problem_.threads, parts, [&](int64_t i) {
      const Operands here = operands_of_slice(all_, operands, i / slice_parts);
      char* const memory = local_scratch<char>(local_bytes_);
      char* const sums = memory + buffer_bytes_;
      run_boxes(here, i % slice_parts, 0, boxes, by_positions, memory, sums);
      if (by_positions && !all_finite(sums, part_sums_, problem_.dtype))
        run_boxes(here, i % slice_parts, 0, boxes, false, memory, sums);
      finish(here, i % slice_parts, sums);
    });
    return;
  }
  char* const all = shared_scratch<char>(chunks_ * parts * part_sums_ * unit());
  const auto sums_of = [&](int64_t part) { return all + part * chunks_ * part_sums_ * unit(); };
  const auto sum_all = [&](bool by_positions) {
    sum_chunks(
        problem_.threads, {problem_.dtype, all, parts, chunks_, part_sums_},
        [&](int64_t) { return part_sums_; },
        [&](int64_t part, int64_t chunk, char* sums) {
          const int64_t first = chunk * boxes_per_chunk_;
          run_boxes(operands_of_slice(all_, operands, part / slice_parts), part % slice_parts,
                    first, std::min(boxes_per_chunk_, boxes - first), by_positions,
                    local_scratch<char>(local_bytes_), sums);
        });
    bool finite = true;
    for (int64_t part = 0; by_positions && part < parts; ++part)
      finite &= all_finite(sums_of(part), part_sums_, problem_.dtype);
    return finite;
  };
  if (!sum_all(by_positions)) sum_all(false);
  parallel_for(problem_.threads, parts, [&](int64_t part) {
    finish(operands_of_slice(all_, operands, part / slice_parts), part % slice_parts,
           sums_of(part));
  });
}

std::unique_ptr<const Plan> grouped_weights_plan(const Problem& problem,
                                                 const Arithmetic& arithmetic,
                                                 const Arithmetic* pairs) {
  return std::make_unique<GroupedWeightsPlan>(problem, arithmetic, pairs);
}

}  // namespace convtbw::simd
