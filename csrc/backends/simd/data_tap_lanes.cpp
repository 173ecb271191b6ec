// fprop of stride 1 and dgrad into few channels, channels last, where these would leave most lanes
// of a vector empty and lanes of pixels would be transposed: lanes are taps and channels of the
// result, all that one pixel of the operand adds to. Its pixels are the rows of tiles, read where
// they lie in float32 and float64. What neighbouring pixels add to the same results then is added,
// a row of results at a time.
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "backends/simd/box_prefetch.h"
#include "backends/simd/directed_plan.h"
#include "backends/simd/folded_runs.h"
#include "backends/simd/lane_blocks.h"
#include "backends/simd/phases.h"
#include "backends/simd/plans.h"
#include "core/parallel.h"
#include "core/scratch.h"

namespace convtbw::simd {

namespace {

// How the windows of an axis lie over its results, one for each position of the operand: window i
// begins at result i*stride - pad.
struct Windows {
  int64_t taps, stride, pad, extent, results;

  // So many windows meet a result, at most.
  int64_t overlaps() const { return ceil_div(taps, stride); }
  // Slot i is the first `stride` results of window i.
  int64_t first_slot() const { return floor_div(pad, stride); }
  int64_t slots() const { return floor_div(results - 1 + pad, stride) + 1 - first_slot(); }
};

class TapLanesPlan : public DirectedPlan {
 public:
  TapLanesPlan(const Problem& problem, const Arithmetic& arithmetic);
  void run(const Operands& operands) const override;

 private:
  // A range of slots of an image.
  struct Box {
    int64_t group, image, plane;
    Range rows, columns;
  };

  // A thread's memory.
  struct Local {
    const void** terms;
    char *sums, *results, *pixels;
  };

  void choose_sizes();
  void pack(const Operands& operands, int64_t group, char* packed) const;
  void run_box(const Operands& operands, const Box& box, const char* packed) const;
  void multiply(const char* in, const Box& box, int64_t row, const char* packed,
                const Local& local) const;
  void add_row(const Box& box, int64_t slot, int64_t result, const Local& local, const char* start,
               char* out) const;

  // All that a window's row adds to: its taps' channels. One slot of it.
  int64_t window_lanes() const { return columns_.taps * out_channels_; }
  int64_t slot_lanes() const { return columns_.stride * out_channels_; }
  // Packed, the weights lie behind what results begin with.
  int64_t weights_place() const { return (slot_lanes() + arithmetic_.lanes) * unit(); }
  bool in_place() const { return element() == unit(); }
  // Rows of windows whose sums are kept: those that meet a row of results.
  char* sums_of_row(char* sums, int64_t row) const {
    return sums + row % rows_.overlaps() * row_units_ * unit();
  }

  Packing packing_;
  Windows rows_, columns_;
  int64_t lanes_;  // of a window, whole vectors
  std::vector<LaneBlock> blocks_;
  FoldedRuns runs_[kMaxVectors + 1];
  std::vector<int64_t> in_pixels_, sum_pixels_;  // where the pixels of a row begin
  int64_t box_rows_, box_columns_;               // slots
  int64_t row_units_;                            // sums of a row of windows
  int64_t packed_units_;                         // of a group: what results begin with, and weights
  int64_t terms_bytes_, result_units_, pixel_units_, local_bytes_;
};

TapLanesPlan::TapLanesPlan(const Problem& problem, const Arithmetic& arithmetic)
    : DirectedPlan(problem, arithmetic), packing_{&arithmetic, in_, {}} {
  packing_.strips.fill(strip({Sliding{}}, 1, Apart::windows));
  const auto windows = [&](int a) -> Windows {
    const Axis& axis = problem_.geometry.axes[a];
    // fprop's windows, seen from x.
    if (fprop_) return {axis.k, 1, axis.k - 1 - axis.pad, axis.x, axis.y};
    return {axis.k, axis.stride, axis.pad, axis.y, axis.x};
  };
  rows_ = windows(1);
  columns_ = windows(2);
  choose_sizes();
  kernel = std::string(contraction_name(problem.wanted)) + ", taps and channels in lanes, " +
           arithmetic.name;
  const int64_t groups = problem_.geometry.groups;
  workspace = groups * packed_units_ * unit() + problem.threads * local_bytes_;
  bytes = static_cast<int64_t>(sizeof(TapLanesPlan) + blocks_.size() * sizeof(LaneBlock) +
                               2 * in_pixels_.size() * sizeof(int64_t));
  for (const FoldedRuns& runs : runs_) bytes += runs.bytes();
}

// Sizes depend on the shape alone, so that results do not depend on the number of threads.
void TapLanesPlan::choose_sizes() {
  constexpr int64_t kLocalBytes = 256 << 10;
  constexpr int64_t kItems = 16;  // enough to keep some threads busy until the end
  const int64_t vector = arithmetic_.lanes;
  const int64_t all_lanes = rows_.taps * window_lanes();
  const int most_vectors = best_vectors(arithmetic_, columns_.extent);
  blocks_ = lane_blocks(all_lanes, arithmetic_.lanes, most_vectors);
  lanes_ = padded_lanes(blocks_, arithmetic_.lanes);
  for (const LaneBlock& block : blocks_)
    if (FoldedRuns& runs = runs_[block.vectors]; runs.bytes() == 0)
      runs.add({0, 0, in_channels_}, 1, block.vectors * vector);

  // Boxes share the windows that lie across their edges.
  const int64_t images = out_.extent[0] * out_.extent[1] * problem_.geometry.groups;
  const int64_t kept = rows_.overlaps(), across = columns_.overlaps() - 1;
  const auto cut = [](int64_t slots, int64_t most) {
    return ceil_div(slots, ceil_div(slots, std::clamp<int64_t>(most, 1, slots)));
  };
  // Of a window: sums, results, what is copied.
  const int64_t units = kept * lanes_ + slot_lanes() + (in_place() ? 0 : in_channels_);
  box_columns_ =
      cut(columns_.slots(), std::max(kLocalBytes / (units * unit()) - across, 4 * across + 1));
  const int64_t strips = images * ceil_div(columns_.slots(), box_columns_);
  box_rows_ = cut(rows_.slots(), std::max(rows_.slots() / ceil_div(kItems, strips), 4 * kept));

  const int64_t windows = box_columns_ + across;
  row_units_ = windows * lanes_;
  terms_bytes_ = whole_lines(kept * columns_.overlaps() * int64_t{sizeof(void*)});
  // Sums and results are read and written up to a vector behind their end.
  result_units_ = whole_lines((box_columns_ * slot_lanes() + vector) * unit()) / unit();
  pixel_units_ = in_place() ? 0 : whole_lines(windows * in_channels_ * unit()) / unit();
  const int64_t sums = whole_lines((kept * row_units_ + vector) * unit());
  local_bytes_ = terms_bytes_ + sums + (result_units_ + pixel_units_) * unit();
  packed_units_ = whole_lines(weights_place() + lanes_ * in_channels_ * unit()) / unit();
  for (int64_t i = 0; i < windows; ++i) {
    in_pixels_.push_back(i * (in_place() ? in_.stride[3] : in_channels_));
    sum_pixels_.push_back(i * lanes_);
  }
}

// What results begin with; then the weights, [block][channel that is summed over][lane].
void TapLanesPlan::pack(const Operands& operands, int64_t group, char* packed) const {
  const auto dtype = static_cast<int>(problem_.dtype);
  std::memset(packed, 0, packed_units_ * unit());
  if (operands.bias)
    arithmetic_.widen[dtype](
        {static_cast<const char*>(operands.bias) + group * out_channels_ * element(), 0, 1, packed,
         out_channels_, 1, columns_.stride, out_channels_});
  packed += weights_place();
  const char* const w =
      static_cast<const char*>(operands.data.w) + group * problem_.w.group * element();
  const auto tap = [&](const Windows& windows, int64_t t, int a) {
    return (fprop_ ? windows.taps - 1 - t : t) * problem_.w.axes[a];
  };
  for (int64_t t1 = 0, lane = 0; t1 < rows_.taps; ++t1)
    for (int64_t t2 = 0; t2 < columns_.taps; ++t2, lane += out_channels_) {
      const char* const from = w + (tap(rows_, t1, 1) + tap(columns_, t2, 2)) * element();
      char* to = packed;
      for (const LaneBlock& block : blocks_) {
        const int64_t width = int64_t{block.vectors} * arithmetic_.lanes;
        const int64_t begin = std::max(lane, block.lane);
        const int64_t end = std::min(lane + out_channels_, block.lane + block.live);
        if (begin < end)
          arithmetic_.pack[dtype]({from + (begin - lane) * w_out_ * element(), w_in_, w_out_,
                                   to + (begin - block.lane) * unit(), width, 1, in_channels_,
                                   end - begin});
        to += width * in_channels_ * unit();
      }
    }
}

// The sums of a row's windows; those that are not there are zero. `in`: the group's first element.
void TapLanesPlan::multiply(const char* in, const Box& box, int64_t row, const char* packed,
                            const Local& local) const {
  const Range all{box.columns.begin - columns_.overlaps() + 1, box.columns.end};
  const int64_t begin = std::clamp<int64_t>(0, all.begin, all.end);
  const int64_t end = std::clamp(columns_.extent, begin, all.end);
  const int64_t pitch = lanes_ * unit(), count = end - begin;
  char* sums = sums_of_row(local.sums, row);
  std::memset(sums, 0, (begin - all.begin) * pitch);
  std::memset(sums + (end - all.begin) * pitch, 0, (all.end - end) * pitch);
  sums += (begin - all.begin) * pitch;
  if (count == 0) return;
  const BoxRange pixels{{box.image, box.plane, row, begin}, {1, 1, 1, count}};
  const char* a = in + offset(pixels.begin, in_.stride) * element();
  if (!in_place()) {
    arithmetic_.pack[static_cast<int>(problem_.dtype)](
        {a, in_.stride[3], 1, local.pixels, in_channels_, 1, count, in_channels_});
    a = local.pixels;
  }
  int64_t calls = 0;
  for (const LaneBlock& block : blocks_)
    calls += ceil_div(count, arithmetic_.tiles.max_rows[block.vectors]);
  BoxPrefetch next;
  if (row + 1 < std::min(box.rows.end, rows_.extent)) {
    BoxRange below = pixels;
    ++below.begin[2];
    next = BoxPrefetch(packing_, in, below, 0, in_channels_, calls);
  }
  for (const LaneBlock& block : blocks_) {
    TileCall call{};
    call.a = a;
    call.b = packed;
    call.c = sums + block.lane * unit();
    call.live = int64_t{block.vectors} * arithmetic_.lanes;
    runs_[block.vectors].use_in(call);
    const int64_t tiles = ceil_div(count, arithmetic_.tiles.max_rows[block.vectors]);
    for (int64_t tile = 0, done = 0; tile < tiles; ++tile) {
      const int64_t rows = (count - done) / (tiles - tile);
      call.a_rows = in_pixels_.data() + done;
      call.c_rows = sum_pixels_.data() + done;
      arithmetic_.tiles.gathered[block.vectors][rows](call);
      next.fetch();
      done += rows;
    }
    packed += call.live * in_channels_ * unit();
  }
}

// One row of results, of those that a row of slots has.
void TapLanesPlan::add_row(const Box& box, int64_t slot, int64_t result, const Local& local,
                           const char* start, char* out) const {
  const int64_t overlaps = columns_.overlaps(), part = columns_.taps % columns_.stride;
  AddedTaps call{local.terms,
                 0,
                 0,
                 part * out_channels_,
                 lanes_,
                 slot_lanes(),
                 start,
                 local.results,
                 box.columns.end - box.columns.begin};
  const auto add = [&](int64_t overlap) {
    for (int64_t before = 0; before < rows_.overlaps(); ++before) {
      const int64_t row = slot - before;
      const int64_t tap = result + rows_.pad - row * rows_.stride;
      if (row < 0 || row >= rows_.extent || tap >= rows_.taps) continue;
      const int64_t window = overlaps - 1 - overlap;  // of the first slot
      local.terms[call.term_count++] =
          sums_of_row(local.sums, row) +
          (window * lanes_ + tap * window_lanes() + overlap * slot_lanes()) * unit();
    }
  };
  for (int64_t overlap = 0; overlap < overlaps - (part > 0); ++overlap) add(overlap);
  const int64_t whole = call.term_count;
  if (part) add(overlaps - 1);
  call.part_count = call.term_count - whole;
  arithmetic_.added_taps(call);

  const int64_t from = box.columns.begin * columns_.stride - columns_.pad;
  const int64_t to = box.columns.end * columns_.stride - columns_.pad;
  const int64_t begin = std::max<int64_t>(from, 0), end = std::min(to, columns_.results);
  if (begin >= end) return;
  arithmetic_.unpack[static_cast<int>(problem_.dtype)](
      {local.results + (begin - from) * out_channels_ * unit(), out_channels_, 1,
       out + (result * out_.stride[2] + begin * out_.stride[3]) * element(), out_.stride[3],
       out_.channel, end - begin, out_channels_});
}

void TapLanesPlan::run_box(const Operands& operands, const Box& box, const char* packed) const {
  char* const memory = local_scratch<char>(local_bytes_);
  Local local;
  local.terms = reinterpret_cast<const void**>(memory);
  local.results = memory + terms_bytes_;
  local.pixels = local.results + result_units_ * unit();
  local.sums = local.pixels + pixel_units_ * unit();
  const char* const in = in_data(operands, box.group);
  char* const out = out_data(operands, box.group) +
                    (box.image * out_.stride[0] + box.plane * out_.stride[1]) * element();
  const char* const weights = packed + weights_place();
  for (int64_t slot = box.rows.begin - rows_.overlaps() + 1; slot < box.rows.end; ++slot) {
    if (slot >= 0 && slot < rows_.extent) multiply(in, box, slot, weights, local);
    if (slot < box.rows.begin) continue;
    const int64_t first = slot * rows_.stride - rows_.pad;
    for (int64_t result = std::max<int64_t>(first, 0);
         result < std::min(first + rows_.stride, rows_.results); ++result)
      add_row(box, slot, result, local, packed, out);
  }
}

void TapLanesPlan::run(const Operands& operands) const {
  const int64_t groups = problem_.geometry.groups;
  char* const packed = shared_scratch<char>(groups * packed_units_ * unit());
  const auto packed_of = [&](int64_t group) { return packed + group * packed_units_ * unit(); };
  parallel_for(problem_.threads, groups,
               [&](int64_t group) { pack(operands, group, packed_of(group)); });
  const std::array<int64_t, 2> cuts{ceil_div(rows_.slots(), box_rows_),
                                    ceil_div(columns_.slots(), box_columns_)};
  const int64_t images = out_.extent[0], planes = out_.extent[1];
  parallel_for(problem_.threads, groups * images * planes * cuts[0] * cuts[1], [&](int64_t i) {
    const auto range = [](const Windows& windows, int64_t cut, int64_t size) {
      const int64_t first = windows.first_slot(), end = first + windows.slots();
      return Range{first + cut * size, std::min(first + (cut + 1) * size, end)};
    };
    const int64_t column = i % cuts[1], row = i / cuts[1] % cuts[0], all = i / cuts[1] / cuts[0];
    const Box box{all / planes / images, all / planes % images, all % planes,
                  range(rows_, row, box_rows_), range(columns_, column, box_columns_)};
    run_box(operands, box, packed_of(box.group));
  });
}

}  // namespace

std::unique_ptr<const Plan> tap_lanes_plan(const Problem& problem, const Arithmetic& arithmetic) {
  return std::make_unique<TapLanesPlan>(problem, arithmetic);
}

}  // namespace convtbw::simd
