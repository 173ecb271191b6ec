// wgrad of groups of few channels (grouped.h): lanes are the channels of the side that has more of
// them. Both sides are packed box by box; the sums of several taps stay in registers along rows of
// pixels.
#include <algorithm>

#include "backends/simd/grouped.h"
#include "backends/simd/plans.h"
#include "backends/simd/scratch.h"
#include "backends/simd/sums.h"
#include "core/parallel.h"

namespace convtbw::simd {

namespace {

// Pixels that are summed at a time, for all taps: so few that their rows stay in the first-level
// cache, and that rounding errors do not grow with the image.
constexpr int64_t kMinSteps = 64, kMaxPiece = 256;

class GroupedWeightsPlan : public Plan {
 public:
  GroupedWeightsPlan(const Problem& problem, const Arithmetic& arithmetic);
  void run(const Operands& operands) const override;

 private:
  // Taps whose sums are in registers together: `rows` rows of `taps` adjacent ones.
  struct Block {
    int64_t first_row, rows, taps;
    int64_t x;     // where the first tap of row 0 begins in a packed panel of x
    int64_t sums;  // ... in the sums of a panel and plane
  };

  PerAxis<Strip> x_strips(const PerAxis<int64_t>& windows) const;
  PerAxis<Strip> y_strips(const PerAxis<int64_t>& windows) const;
  void choose_sizes();
  void choose_blocks();
  int64_t list_runs(const BoxRange& box, Run* runs) const;
  void run_boxes(const Operands& operands, int64_t part, int64_t first_box, int64_t boxes,
                 char* sums) const;
  void finish(const Operands& operands, int64_t panel, const char* sums) const;

  // Units from one pixel of y to the next.
  int64_t y_step() const { return y_in_place_ ? y_tensor_.stride[3] : width_; }
  int64_t unit() const { return problem_.dtype == Dtype::f64 ? 8 : 4; }
  int64_t live(int64_t panel) const { return std::min(width_, lanes_ - panel * width_); }
  int64_t panels_of(int64_t part) const {
    return std::min(part_panels_, panels_ - part * part_panels_);
  }

  const Problem problem_;
  const Arithmetic& arithmetic_;
  const Role lane_role_;
  const LaneOrder order_;  // of the other side
  const int64_t width_;    // lanes of a panel
  const int64_t lanes_, panels_;
  PerAxis<Sliding> sliding_;
  const Tensor y_tensor_;
  LaneSide x_, y_;
  const LaneWeights weights_;
  const int64_t taps_;
  bool y_in_place_;  // read from its tensor
  BoxGrid grid_;
  int64_t part_panels_, chunks_, boxes_per_chunk_, panel_sums_;
  int64_t y_memory_units_, local_bytes_;
  std::vector<Block> blocks_;
  std::vector<int64_t> rows_;  // of taps: where they begin in a packed panel of x
};

GroupedWeightsPlan::GroupedWeightsPlan(const Problem& problem, const Arithmetic& arithmetic)
    : problem_(problem),
      arithmetic_(arithmetic),
      lane_role_(problem.geometry.y_channels >= problem.geometry.x_channels ? Role::y : Role::x),
      order_(spread_order(problem.geometry, lane_role_)),
      width_(arithmetic.lanes),
      lanes_(order_.lanes),
      panels_(ceil_div(lanes_, width_)),
      y_tensor_(y_tensor(problem)),
      x_(arithmetic, x_tensor(problem),
         lane_role_ == Role::x ? LaneOrder{order_.lanes, 1, 1} : order_),
      y_(arithmetic, y_tensor_, lane_role_ == Role::y ? LaneOrder{order_.lanes, 1, 1} : order_),
      weights_(problem.w, lane_role_, order_),
      taps_(problem.geometry.axes[0].k * problem.geometry.axes[1].k * problem.geometry.axes[2].k) {
  // Rows of y need no zeros. The last panel must not reach beyond its pixel.
  const bool sums = problem.dtype == Dtype::f32 || problem.dtype == Dtype::f64;
  y_in_place_ = sums && lane_role_ == Role::y && problem.y.channel == 1 && lanes_ % width_ == 0;
  for (int a = 0; a < kMaxRank; ++a) {
    const Axis& axis = problem.geometry.axes[a];
    sliding_[a + 1] = {axis.k, -axis.pad, axis.stride, axis.dilation};
  }
  choose_sizes();
  choose_blocks();
  kernel = std::string("wgrad, channels of all groups in lanes, ") + arithmetic.name;
  workspace = chunks_ * panels_ * panel_sums_ * unit() + problem.threads * local_bytes_;
  bytes = sizeof(GroupedWeightsPlan);
}

PerAxis<Strip> GroupedWeightsPlan::x_strips(const PerAxis<int64_t>& windows) const {
  PerAxis<Strip> strips;
  for (int a = 0; a < kBoxRank; ++a) strips[a] = strip({sliding_[a]}, windows[a], Apart::windows);
  return strips;
}

PerAxis<Strip> GroupedWeightsPlan::y_strips(const PerAxis<int64_t>& windows) const {
  PerAxis<Strip> strips;
  for (int a = 0; a < kBoxRank; ++a) strips[a] = strip({Sliding{}}, windows[a], Apart::windows);
  return strips;
}

void GroupedWeightsPlan::choose_sizes() {
  constexpr int64_t kPartialBytes = 4 << 20;  // of all chunks
  constexpr int64_t kItems = 32;              // enough to keep many threads busy until the end

  const Geometry& g = problem_.geometry;
  grid_.extent = {g.batch, g.axes[0].y, g.axes[1].y, g.axes[2].y};
  const auto product = [](const PerAxis<Strip>& strips) {
    return strips[0].length * strips[1].length * strips[2].length * strips[3].length;
  };
  BoxCost cost;
  cost.positions = [&](const PerAxis<int64_t>& windows) {
    return product(x_strips(windows)) + product(y_strips(windows));
  };
  cost.bytes = [&](const PerAxis<int64_t>& windows, int64_t panels) {
    return (x_.units_of(product(x_strips(windows)), panels) +
            (y_in_place_ ? 0 : y_.units_of(product(y_strips(windows)), panels))) *
           unit();
  };
  const PartSizes sizes = part_sizes(grid_.extent, panels_, width_,
                                     problem_.x.channel == 1 || problem_.y.channel == 1, cost);
  part_panels_ = sizes.panels;
  grid_.size = sizes.windows;
  panel_sums_ = order_.planes * taps_ * width_;
  // Chunks of boxes, each with sums of its own, where there are few parts.
  const int64_t boxes = grid_.boxes(), parts = ceil_div(panels_, part_panels_);
  chunks_ = std::clamp<int64_t>(kPartialBytes / (panels_ * panel_sums_ * unit()), 1,
                                std::min(boxes, ceil_div(kItems, parts)));
  boxes_per_chunk_ = ceil_div(boxes, chunks_);
  chunks_ = ceil_div(boxes, boxes_per_chunk_);
  x_.set_sizes(x_strips(grid_.size), part_panels_);
  y_.set_sizes(y_strips(grid_.size), part_panels_);
  y_memory_units_ = y_in_place_ ? 0 : y_.memory_units();
  const int64_t runs =
      grid_.size[0] * grid_.size[1] * grid_.size[2] * ceil_div(grid_.size[3], kMaxPiece);
  local_bytes_ = (x_.memory_units() + y_memory_units_) * unit() + runs * int64_t{sizeof(Run)};
  workspace = chunks_ * panels_ * panel_sums_ * unit() + problem_.threads * local_bytes_;
}

void GroupedWeightsPlan::choose_blocks() {
  const PerAxis<Strip>& strips = x_.strips();
  // Taps that do not lie side by side are rows of one tap each.
  const bool adjacent = strips[3].footings[0].tap == 1;
  const int64_t row_taps = adjacent ? sliding_[3].taps : 1;
  for (int64_t t0 = 0; t0 < sliding_[1].taps; ++t0)
    for (int64_t t1 = 0; t1 < sliding_[2].taps; ++t1)
      for (int64_t t2 = 0; t2 < sliding_[3].taps; t2 += row_taps) {
        const int64_t row =
            t0 * strips[1].footings[0].tap * strips[2].length + t1 * strips[2].footings[0].tap;
        rows_.push_back((row * strips[3].length + t2 * strips[3].footings[0].tap) * width_);
      }
  // Pieces as even as can be.
  const int64_t tap_pieces = ceil_div(row_taps, kMaxLaneTaps);
  for (int64_t piece = 0, tap = 0; piece < tap_pieces; ++piece) {
    const int64_t taps = (row_taps - tap) / (tap_pieces - piece),
                  rows = static_cast<int64_t>(rows_.size());
    const int64_t row_pieces = ceil_div(rows, std::min<int64_t>(kMaxLaneRows, kMaxLaneTaps / taps));
    for (int64_t i = 0, row = 0; i < row_pieces; ++i) {
      const int64_t count = (rows - row) / (row_pieces - i);
      blocks_.push_back({row, count, taps, tap * width_, (row * row_taps + tap) * width_});
      row += count;
    }
    tap += taps;
  }
}

// A run for each row of the box's windows, or piece of a long row.
int64_t GroupedWeightsPlan::list_runs(const BoxRange& box, Run* runs) const {
  const PerAxis<Strip>&x = x_.strips(), &y = y_.strips();
  const int64_t x_step = x[3].footings[0].window * width_;
  Run* run = runs;
  for (int64_t n = 0; n < box.count[0]; ++n)
    for (int64_t j0 = 0; j0 < box.count[1]; ++j0)
      for (int64_t j1 = 0; j1 < box.count[2]; ++j1) {
        const int64_t x_row = (n * x[1].length + j0 * x[1].footings[0].window) * x[2].length +
                              j1 * x[2].footings[0].window;
        const int64_t y_row = (n * y[1].length + j0) * y[2].length + j1;
        const int64_t y_offset =
            y_in_place_ ? offset({n, j0, j1, 0}, y_tensor_.stride) : y_row * y[3].length * width_;
        for (int64_t i = 0; i < box.count[3]; i += kMaxPiece)
          *run++ = {x_row * x[3].length * width_ + i * x_step, y_offset + i * y_step(),
                    std::min(kMaxPiece, box.count[3] - i)};
      }
  return run - runs;
}

void GroupedWeightsPlan::run_boxes(const Operands& operands, int64_t part, int64_t first_box,
                                   int64_t boxes, char* sums) const {
  char* const x_memory = local_scratch<char>(local_bytes_);
  char* const y_memory = x_memory + x_.memory_units() * unit();
  Run* const runs = reinterpret_cast<Run*>(y_memory + y_memory_units_ * unit());
  const int64_t panels = panels_of(part);
  LaneTaps call{};
  call.a_step = x_.strips()[3].footings[0].window * width_;
  call.b_step = y_step();
  const int64_t row_taps = taps_ / static_cast<int64_t>(rows_.size());
  call.sums_row = row_taps * width_;
  for (int64_t index = first_box; index < first_box + boxes; ++index) {
    const BoxRange box = grid_.box(index);
    x_.pack(operands.data.x, box, part * part_panels_, panels, x_memory);
    if (!y_in_place_) y_.pack(operands.data.y, box, part * part_panels_, panels, y_memory);
    const char* const y_box =
        static_cast<const char*>(operands.data.y) +
        (offset(box.begin, y_tensor_.stride) + part * part_panels_ * width_) * unit();
    const int64_t run_count = list_runs(box, runs);
    const int64_t runs_per_call = ceil_div(kMinSteps, std::min(kMaxPiece, box.count[3]));
    for (int64_t i = 0; i < panels; ++i)
      for (int64_t first = 0; first < run_count; first += runs_per_call) {
        call.runs = runs + first;
        call.run_count = std::min(runs_per_call, run_count - first);
        call.accumulate = first > 0 || index > first_box;
        for (int64_t plane = 0; plane < order_.planes; ++plane) {
          const auto plane_of = [&](const LaneSide& side, char* memory) {
            const int64_t of_side = std::min(plane, side.planes() - 1);
            return memory + (i * side.panel_units() + of_side * side.plane_units()) * unit();
          };
          char* const x = plane_of(x_, x_memory);
          char* const plane_sums = sums + (i * panel_sums_ + plane * taps_ * width_) * unit();
          call.b = y_in_place_ ? y_box + i * width_ * unit() : plane_of(y_, y_memory);
          for (const Block& block : blocks_) {
            call.a = x + block.x * unit();
            call.rows = &rows_[block.first_row];
            call.sums = plane_sums + block.sums * unit();
            arithmetic_.lane_taps.at[block.rows][block.taps](call);
          }
        }
      }
  }
}

// Writes a panel's sums to the weights.
void GroupedWeightsPlan::finish(const Operands& operands, int64_t panel, const char* sums) const {
  const WeightsStrides& w = problem_.w;
  const int64_t bytes = element_bytes(problem_.dtype);
  const CopyFunction unpack = arithmetic_.unpack[static_cast<int>(problem_.dtype)];
  for (int64_t plane = 0; plane < order_.planes; ++plane)
    for (int64_t t0 = 0; t0 < sliding_[1].taps; ++t0)
      for (int64_t t1 = 0; t1 < sliding_[2].taps; ++t1) {
        const int64_t taps = sliding_[3].taps;
        char* const to =
            static_cast<char*>(operands.data.w) +
            (plane * weights_.plane_stride() + t0 * w.axes[0] + t1 * w.axes[1]) * bytes;
        weights_.for_each_piece(panel * width_, live(panel),
                                [&](int64_t lane, int64_t lanes, int64_t offset, int64_t stride) {
                                  unpack({sums + lane * unit(), width_, 1, to + offset * bytes,
                                          w.axes[2], stride, taps, lanes});
                                });
        sums += taps * width_ * unit();
      }
}

void GroupedWeightsPlan::run(const Operands& operands) const {
  const int64_t boxes = grid_.boxes(), parts = ceil_div(panels_, part_panels_);
  char* const all = shared_scratch<char>(chunks_ * panels_ * panel_sums_ * unit());
  const auto sums_of = [&](int64_t chunk, int64_t panel) {
    return all + (chunk * panels_ + panel) * panel_sums_ * unit();
  };
  parallel_for(problem_.threads, parts * chunks_, [&](int64_t i) {
    const int64_t part = i / chunks_, chunk = i % chunks_, first = chunk * boxes_per_chunk_;
    run_boxes(operands, part, first, std::min(boxes_per_chunk_, boxes - first),
              sums_of(chunk, part * part_panels_));
  });
  // Chunks are added in their order, whoever computed them.
  parallel_for(problem_.threads, panels_, [&](int64_t panel) {
    char* const sums = sums_of(0, panel);
    add_chunks(problem_.dtype, sums, panels_ * panel_sums_, chunks_, panel_sums_);
    finish(operands, panel, sums);
  });
}

}  // namespace

std::unique_ptr<const Plan> grouped_weights_plan(const Problem& problem,
                                                 const Arithmetic& arithmetic) {
  return std::make_unique<GroupedWeightsPlan>(problem, arithmetic);
}

}  // namespace convtbw::simd
