// wgrad of depthwise problems with strides, channels first: lanes are neighbouring taps of a
// window. x is read where it lies. Of windows that reach beyond the ends of its rows, *edges*, what
// they meet is copied with zeros; rows that are absent are one row of zeros.
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "backends/simd/edges.h"
#include "backends/simd/epilogue.h"
#include "backends/simd/phases.h"
#include "backends/simd/plans.h"
#include "backends/simd/slid_rows.h"
#include "backends/simd/sums.h"
#include "core/parallel.h"
#include "core/scratch.h"

namespace convtbw::simd {

namespace {

class WindowWeightsPlan : public Plan {
 public:
  WindowWeightsPlan(const Problem& problem, const Arithmetic& arithmetic);
  void run(const Operands& operands) const override;

 private:
  // Windows that one sum takes before it is added to those in memory, so that rounding errors do
  // not grow with the image.
  static constexpr int64_t kMaxSteps = 128;

  // Rows of taps that as many rows follow, `stride` apart, and the vectors of all of them.
  struct TapBlock {
    int64_t row, rows;
    std::vector<WindowTap> taps;
  };

  // Neighbouring windows of a row of a box.
  struct Piece {
    int64_t first, count;
    int64_t edge;  // where its copies begin: units behind those of the row
    bool copied;
  };

  // A thread's: copies of x, rows of y if they are converted, zeros, and where all rows begin.
  // Before the first row of y and behind the last lie rows of zeros.
  struct Memory {
    char *edges, *y, *zeros;
    const void **x_rows, **y_rows;
  };

  void list_blocks();
  void choose_sizes();
  Memory memory() const;
  std::array<Piece, 3> pieces(const BoxRange& box) const;
  void list_y_rows(const Operands& operands, int64_t channel, const BoxRange& box, int64_t plane,
                   const Memory& memory) const;
  void add_plane(const Operands& operands, int64_t channel, const BoxRange& box, int64_t plane,
                 int64_t tap_rows, const Memory& memory, char* sums) const;
  void list_x_rows(const char* x, const Piece& piece, const BoxRange& box,
                   const Memory& memory) const;
  void add(const Piece& piece, const BoxRange& box, int64_t tap_rows, const Memory& memory,
           char* sums) const;
  bool sum_boxes(const Operands& operands, int64_t channel, int64_t first_box, int64_t boxes,
                 int64_t tap_rows, char* sums) const;

  int64_t unit() const { return problem_.dtype == Dtype::f64 ? 8 : 4; }
  bool converts() const { return problem_.dtype == Dtype::bf16 || problem_.dtype == Dtype::f16; }
  // Positions that so many windows meet.
  int64_t length(int a, int64_t windows) const {
    return (windows - 1) * sliding_[a].stride + (sliding_[a].taps - 1) * sliding_[a].dilation + 1;
  }
  int64_t first_position(const BoxRange& box, int a) const {
    return box.begin[a] * sliding_[a].stride + sliding_[a].first;
  }

  const Problem problem_;
  const Arithmetic& arithmetic_;
  const Tensor x_, y_;
  const PerAxis<Sliding> sliding_;
  const int64_t taps_;
  const bool asks_ahead_;
  const Range whole_;  // windows of a row that are no edges
  std::vector<TapBlock> tap_blocks_;
  BoxGrid grid_;
  int64_t chunks_, boxes_per_chunk_;
  int64_t edge_row_, y_row_, zeros_, x_row_count_, y_row_count_, local_bytes_;
};

WindowWeightsPlan::WindowWeightsPlan(const Problem& problem, const Arithmetic& arithmetic)
    : problem_(problem),
      arithmetic_(arithmetic),
      x_(x_tensor(problem)),
      y_(y_tensor(problem)),
      sliding_(sliding_of(problem.geometry)),
      taps_(sliding_[1].taps * sliding_[2].taps * sliding_[3].taps),
      asks_ahead_(gains_ahead(problem)),
      whole_(whole_windows(sliding_[3], x_.extent[3], y_.extent[3])) {
  list_blocks();
  choose_sizes();
  kernel = std::string("wgrad, taps of a channel in lanes, in place, ") + arithmetic.name;
  workspace = problem.threads * local_bytes_ + problem.geometry.groups * chunks_ * taps_ * unit();
  bytes = sizeof(WindowWeightsPlan);
  for (const TapBlock& block : tap_blocks_)
    bytes += sizeof(block) + block.taps.size() * sizeof(WindowTap);
}

void WindowWeightsPlan::list_blocks() {
  const int64_t rows = sliding_[2].taps, stride = sliding_[2].stride;
  for (int64_t row = 0; row < std::min(stride, rows); ++row) {
    const int64_t behind = ceil_div(rows - row, stride);
    if (tap_blocks_.empty() || tap_blocks_.back().rows != behind)
      tap_blocks_.push_back({row, behind, {}});
    TapBlock& block = tap_blocks_.back();
    for (int64_t t = 0; t < sliding_[3].taps; t += arithmetic_.lanes)
      block.taps.push_back({row - block.row, t});
  }
}

void WindowWeightsPlan::choose_sizes() {
  constexpr int64_t kItems = 32;              // enough to keep many threads busy until the end
  constexpr int64_t kRowUnits = 16 << 10;     // of one row of a box
  constexpr int64_t kCopiedUnits = 24 << 10;  // of all its rows
  constexpr int64_t kLeastRows = 4;           // rows that boxes share are read for each
  const int64_t groups = problem_.geometry.groups;
  grid_ = {y_.extent, y_.extent};
  PerAxis<int64_t>& size = grid_.size;
  size[0] = 1;
  const auto cut = [&](int a, int64_t least) {
    const int64_t pieces = ceil_div(kItems, groups * grid_.boxes());
    size[a] = std::max(std::min(least, size[a]), ceil_div(size[a], pieces));
  };
  cut(1, 1);
  cut(2, kLeastRows);
  cut(3, 4 * kMaxSteps);
  while (size[3] > 1 && length(3, size[3]) > kRowUnits) size[3] = ceil_div(size[3], 2);
  const int64_t before = std::min(whole_.begin, size[3]);
  const int64_t behind = std::min(y_.extent[3] - whole_.end, size[3]);
  edge_row_ = (before ? length(3, before) : 0) + (behind ? length(3, behind) : 0);
  const auto copied = [&] {
    return length(2, size[2]) * edge_row_ + (converts() ? size[2] * size[3] : 0);
  };
  while (size[2] > 1 && copied() > kCopiedUnits) size[2] = ceil_div(size[2], 2);

  const int64_t boxes = grid_.boxes();
  chunks_ = std::min(boxes, ceil_div(kItems, groups));
  boxes_per_chunk_ = ceil_div(boxes, chunks_);
  chunks_ = ceil_div(boxes, boxes_per_chunk_);
  y_row_ = size[3];
  zeros_ = std::max(length(3, size[3]), y_row_);
  // Those of the next row of windows are asked for.
  x_row_count_ = length(2, size[2]) + sliding_[2].stride;
  y_row_count_ = size[2] + 2 * (kMaxTapRows - 1);
  const int64_t units =
      length(2, size[2]) * edge_row_ + (converts() ? size[2] * y_row_ : 0) + zeros_;
  local_bytes_ =
      ceil_div(units * unit(), 8) * 8 + (x_row_count_ + y_row_count_) * int64_t{sizeof(void*)};
}

WindowWeightsPlan::Memory WindowWeightsPlan::memory() const {
  Memory memory;
  char* const all = local_scratch<char>(local_bytes_);
  memory.x_rows = reinterpret_cast<const void**>(all);
  memory.y_rows = memory.x_rows + x_row_count_ + (kMaxTapRows - 1);
  memory.zeros = reinterpret_cast<char*>(memory.x_rows + x_row_count_ + y_row_count_);
  memory.edges = memory.zeros + zeros_ * unit();
  memory.y = memory.edges + length(2, grid_.size[2]) * edge_row_ * unit();
  return memory;
}

// Those that are no edges; those before them, and behind.
std::array<WindowWeightsPlan::Piece, 3> WindowWeightsPlan::pieces(const BoxRange& box) const {
  const int64_t begin = box.begin[3], end = begin + box.count[3];
  const int64_t first = std::clamp(whole_.begin, begin, end),
                last = std::clamp(whole_.end, first, end);
  const int64_t before = first - begin;
  return {Piece{first, last - first, 0, false}, Piece{begin, before, 0, true},
          Piece{last, end - last, before ? length(3, before) : 0, true}};
}

void WindowWeightsPlan::list_y_rows(const Operands& operands, int64_t channel, const BoxRange& box,
                                    int64_t plane, const Memory& memory) const {
  PerAxis<int64_t> position = box.begin;
  position[1] += plane;
  const char* row =
      static_cast<const char*>(operands.data.y) +
      (channel * y_.channel + offset(position, y_.stride)) * element_bytes(problem_.dtype);
  int64_t step = y_.stride[2] * unit();
  if (converts()) {
    arithmetic_.plane_copy[static_cast<int>(problem_.dtype)](
        {row, y_.stride[2], memory.y, y_row_, box.count[2], box.count[3]});
    row = memory.y;
    step = y_row_ * unit();
  }
  list_rows_between_zeros(row, step, box.count[2], memory.zeros, memory.y_rows);
}

// One plane of y against the planes of x that its windows meet.
void WindowWeightsPlan::add_plane(const Operands& operands, int64_t channel, const BoxRange& box,
                                  int64_t plane, int64_t tap_rows, const Memory& memory,
                                  char* sums) const {
  list_y_rows(operands, channel, box, plane, memory);
  const int64_t plane_taps = sliding_[2].taps * sliding_[3].taps;
  const int64_t first = first_position(box, 1) + plane * sliding_[1].stride;
  for (int64_t t = 0; t < sliding_[1].taps; ++t, sums += plane_taps * unit()) {
    const int64_t depth = first + t * sliding_[1].dilation;
    if (depth < 0 || depth >= x_.extent[1]) continue;
    const char* const x =
        static_cast<const char*>(operands.data.x) +
        (channel * x_.channel + box.begin[0] * x_.stride[0] + depth * x_.stride[1]) *
            element_bytes(problem_.dtype);
    for (const Piece& piece : pieces(box)) {
      if (piece.count == 0) continue;
      list_x_rows(x, piece, box, memory);
      add(piece, box, tap_rows, memory, sums);
    }
  }
}

// Where the first window of a piece begins, in each row of a plane that the box's windows meet.
void WindowWeightsPlan::list_x_rows(const char* x, const Piece& piece, const BoxRange& box,
                                    const Memory& memory) const {
  const int64_t bytes = element_bytes(problem_.dtype), rows = length(2, box.count[2]);
  const int64_t first_row = first_position(box, 2);
  const int64_t begin = std::clamp<int64_t>(-first_row, 0, rows);
  const int64_t end = std::clamp(x_.extent[2] - first_row, begin, rows);
  const int64_t first = sliding_[3].first + piece.first * sliding_[3].stride;
  const char* from = x + ((first_row + begin) * x_.stride[2] + first) * bytes;
  int64_t step = x_.stride[2] * bytes;
  if (piece.copied) {
    char* const edges = memory.edges + piece.edge * unit();
    const int64_t count = length(3, piece.count);
    const int64_t left = std::clamp<int64_t>(-first, 0, count);
    const int64_t right = std::clamp(x_.extent[3] - first, left, count);
    for (int64_t i = begin; i < end; ++i)
      std::memset(edges + i * edge_row_ * unit(), 0, count * unit());
    if (right > left)
      arithmetic_.plane_copy[static_cast<int>(problem_.dtype)](
          {from + left * bytes, x_.stride[2], edges + (begin * edge_row_ + left) * unit(),
           edge_row_, end - begin, right - left});
    from = edges + begin * edge_row_ * unit();
    step = edge_row_ * unit();
  }
  const void** const x_rows = memory.x_rows;
  std::fill(x_rows, x_rows + begin, memory.zeros);
  for (int64_t i = begin; i < end; ++i, from += step) x_rows[i] = from;
  std::fill(x_rows + end, x_rows + x_row_count_, memory.zeros);
}

// Up to `tap_rows` rows of taps together: of those, the rows of y before the first and behind the
// last one are zeros.
void WindowWeightsPlan::add(const Piece& piece, const BoxRange& box, int64_t tap_rows,
                            const Memory& memory, char* sums) const {
  const TapsFunctions<WindowTaps>& functions =
      arithmetic_
          .window_taps[static_cast<int>(piece.copied ? sum_dtype(problem_.dtype) : problem_.dtype)];
  const int64_t row_taps = ceil_div(sliding_[3].taps, arithmetic_.lanes);
  const int64_t stride = sliding_[2].stride,
                most_rows = std::max<int64_t>(1, kMaxSteps / piece.count);
  WindowTaps call{};
  call.count = piece.count;
  call.step = sliding_[3].stride;
  call.a_row = stride;
  call.b = piece.first - box.begin[3];
  call.sums_row = stride * sliding_[3].taps;
  call.ahead = asks_ahead_ && !piece.copied;
  for (const auto& [first_row, block_rows, taps] : tap_blocks_) {
    const int64_t count = std::ssize(taps), row_pieces = ceil_div(block_rows, tap_rows);
    for (int64_t i = 0, k = 0, together; i < row_pieces; ++i, k += together) {
      together = (block_rows - k) / (row_pieces - i);  // as even as can be
      // Whole rows of taps, if they fit: their vectors share cache lines.
      const int64_t most = kMaxPlaneTaps[together];
      const int64_t at_once = most < row_taps ? most : most / row_taps * row_taps;
      const int64_t pieces = ceil_div(count, at_once);
      const int64_t all_rows = box.count[2] + together - 1;
      for (int64_t j = 0, tap = 0, width; j < pieces; ++j, tap += width) {
        width = std::min(at_once, count - tap);
        call.taps = taps.data() + tap;
        call.sums =
            sums + ((first_row + k * stride) * sliding_[3].taps + tap * arithmetic_.lanes) * unit();
        for (int64_t row = 0; row < all_rows; row += most_rows) {
          call.rows = std::min(most_rows, all_rows - row);
          call.a_rows = memory.x_rows + first_row + (k + row) * stride;
          call.b_rows = memory.y_rows + row;
          functions.at[together][width](call);
        }
      }
    }
  }
}

// The sums of a channel over some boxes; whether all are finite.
bool WindowWeightsPlan::sum_boxes(const Operands& operands, int64_t channel, int64_t first_box,
                                  int64_t boxes, int64_t tap_rows, char* sums) const {
  const Memory here = memory();
  std::memset(here.zeros, 0, zeros_ * unit());
  std::memset(sums, 0, taps_ * unit());
  for (int64_t index = first_box; index < first_box + boxes; ++index) {
    const BoxRange box = grid_.box(index);
    for (int64_t plane = 0; plane < box.count[1]; ++plane)
      add_plane(operands, channel, box, plane, tap_rows, here, sums);
  }
  return all_finite(sums, taps_, problem_.dtype);
}

void WindowWeightsPlan::run(const Operands& operands) const {
  const int64_t boxes = grid_.boxes(), groups = problem_.geometry.groups;
  char* const all = shared_scratch<char>(groups * chunks_ * taps_ * unit());
  sum_chunks(
      problem_.threads, {problem_.dtype, all, groups, chunks_, taps_},
      [&](int64_t) { return taps_; },
      [&](int64_t channel, int64_t chunk, char* sums) {
        const int64_t first = chunk * boxes_per_chunk_;
        const int64_t count = std::min(boxes_per_chunk_, boxes - first);
        // An infinity in x, multiplied by zeros, would be NaN where it does not belong.
        if (!sum_boxes(operands, channel, first, count, kMaxTapRows, sums))
          sum_boxes(operands, channel, first, count, 1, sums);
      });
  write_channel_weights(problem_, arithmetic_, all, chunks_ * taps_, operands.data.w);
}

}  // namespace

std::unique_ptr<const Plan> window_weights_plan(const Problem& problem,
                                                const Arithmetic& arithmetic) {
  return std::make_unique<WindowWeightsPlan>(problem, arithmetic);
}

}  // namespace convtbw::simd
