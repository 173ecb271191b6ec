// wgrad of many channels in float32 by Winograd's minimal filtering, where windows have two or
// three taps along the last two axes for each remainder (phase) of their stride (data_winograd.cpp,
// with the roles turned: the results are the taps, and y is what slides over x). Each of 16
// frequencies is a GEMM that sums over tiles of y. With a dilation, the positions of y that leave
// one remainder are an image of their own (class); all yield the same taps.
#include <algorithm>
#include <atomic>

#include "backends/simd/box_prefetch.h"
#include "backends/simd/epilogue.h"
#include "backends/simd/folded_runs.h"
#include "backends/simd/lane_blocks.h"
#include "backends/simd/phases.h"
#include "backends/simd/plans.h"
#include "backends/simd/sums.h"
#include "backends/simd/winograd_tiles.h"
#include "core/parallel.h"
#include "core/scratch.h"
#include "core/winograd.h"

namespace convtbw::simd {

namespace {

class WinogradWeightsPlan : public Plan {
 public:
  WinogradWeightsPlan(const Problem& problem, const Arithmetic& arithmetic);
  void run(const Operands& operands) const override;

 private:
  // A part of one group's weights: some channels of both sides.
  struct Part : BlockRange {
    int64_t x_channel, x_channels;
  };

  void choose_sizes();
  void list_parts();
  void choose_boxes();
  void run_boxes(const Operands& operands, const Part& part, int64_t first, int64_t end,
                 char* memory, char* sums) const;
  void transform_y(const Part& part, const BoxRange& box, const Footing& down, const Footing& along,
                   const char* buffer, char* frequencies) const;
  void multiply(const Part& part, const BoxRange& box, const char* x, const char* y, Start start,
                char* sums, BoxPrefetch& next_x, BoxPrefetch& next_y) const;
  bool finish(const Operands& operands, const Part& part, const Range& channels, const char* sums,
              char* taps) const;

  const Axis& axis(int a) const { return problem_.geometry.axes[a]; }
  // Taps of a phase along geometry axis a.
  int64_t taps_of(int a, int64_t phase) const {
    return ceil_div(axis(a).k - phase, axis(a).stride);
  }
  int64_t phases() const { return axis(1).stride * axis(2).stride; }
  // Sums of a part: [phase][frequency][tap of the first axis][channel of x][lane]
  int64_t sums_pitch(const Part& part) const {
    return odd_lines(axis(0).k * part.x_channels * part.lanes);
  }
  int64_t phase_units(const Part& part) const { return kFrequencies * sums_pitch(part); }
  // Units from one frequency of the operands to the next.
  int64_t x_pitch(int64_t channels) const {
    return odd_lines(x_strips_[0].length * x_strips_[1].length * grid_.size[2] * grid_.size[3] *
                     channels);
  }
  int64_t y_pitch(int64_t lanes) const {
    return odd_lines(grid_.size[0] * grid_.size[1] * grid_.size[2] * grid_.size[3] * lanes);
  }
  // Of an axis, where every phase has as many.
  int64_t padded_taps(int a) const { return taps_[a + 1] * axis(a).stride; }
  int64_t all_parts() const { return all_.slices * static_cast<int64_t>(parts_.size()); }
  // A thread's: packed boxes of x and y, their frequencies, the taps of a few channels, a part's
  // sums where no chunks keep them.
  int64_t taps_offset() const {
    return x_units_ + y_units_ + x_frequency_units_ + y_frequency_units_;
  }
  int64_t local_units() const {
    return taps_offset() + taps_units_ + (chunks_ == 1 ? part_units_ : 0);
  }

  static constexpr int64_t kFinished = 4;  // channels of x whose taps are written together

  const Problem all_, problem_;  // of all slices, of one
  const Arithmetic& arithmetic_;
  const Tensor x_, y_;
  const std::vector<LaneBlock> blocks_;    // of y's channels
  PerAxis<int64_t> taps_{1, 1, 1, 1};      // of the phase that has most
  PerAxis<int64_t> per_tile_{1, 1, 1, 1};  // positions of y
  Packing x_packing_, y_packing_;
  // Where the tiles of a packed box are: y's of each class, x's of each class or phase.
  PerAxis<Strip> x_strips_, y_strips_;
  BoxGrid grid_;  // of tiles of y
  std::vector<Part> parts_;
  int64_t chunks_, boxes_per_chunk_;
  int64_t x_units_ = 0, y_units_ = 0;  // packed boxes
  int64_t x_frequency_units_ = 0, y_frequency_units_ = 0, part_units_ = 0, taps_units_ = 0;
  const std::unique_ptr<const Plan> direct_;
};

WinogradWeightsPlan::WinogradWeightsPlan(const Problem& problem, const Arithmetic& arithmetic)
    : all_(problem),
      problem_(one_slice(problem)),
      arithmetic_(arithmetic),
      x_(x_tensor(problem_)),
      y_(y_tensor(problem_)),
      blocks_(lane_blocks(problem.geometry.y_channels, arithmetic.lanes,
                          best_vectors(arithmetic, problem.geometry.x_channels))),
      x_packing_{&arithmetic, x_, {}},
      y_packing_{&arithmetic, y_, {}},
      direct_(weights_plan(problem, arithmetic)) {
  for (const int a : {1, 2}) {
    taps_[a + 1] = taps_of(a, 0);
    per_tile_[a + 1] = results_of_taps(taps_[a + 1]);
  }
  choose_sizes();
  kernel = std::string("wgrad, Winograd, ") + (all_.slices > 1 ? "slices, " : "") + arithmetic.name;
  workspace =
      std::max(direct_->workspace, 4 * (problem.threads * local_units() +
                                        (chunks_ > 1 ? part_units_ * all_parts() * chunks_ : 0)));
  bytes = direct_->bytes +
          static_cast<int64_t>(sizeof(WinogradWeightsPlan) + parts_.size() * sizeof(Part) +
                               blocks_.size() * sizeof(LaneBlock));
}

// Sizes depend on the shape alone, so that results do not depend on the number of threads.
void WinogradWeightsPlan::choose_sizes() {
  constexpr int64_t kPartialBytes = 8 << 20;  // of all chunks
  constexpr int64_t kItems = 16;              // enough to keep some threads busy until the end
  list_parts();
  choose_boxes();
  const int64_t boxes = grid_.boxes(), parts = all_parts();
  chunks_ = std::clamp<int64_t>(kPartialBytes / (4 * part_units_ * parts), 1,
                                std::min(boxes, ceil_div(kItems, parts)));
  boxes_per_chunk_ = ceil_div(boxes, chunks_);
  chunks_ = ceil_div(boxes, boxes_per_chunk_);
}

// The longer side is halved until the sums are small. No part has less than a vector of x.
void WinogradWeightsPlan::list_parts() {
  // Smaller ones where there are few parts, because what threads do not compute by parts they must
  // add: 3x3, 96 to 256 channels, 1.0 and 0.88 of the time with threads whose third-level caches
  // are one and two. Each part transforms its operands, which strides and volumes do several times:
  // 1.1 and 0.96.
  constexpr int64_t kSumBytes = 1 << 20, kFewSumBytes = 256 << 10, kFew = 4;
  const Geometry& g = problem_.geometry;
  const int64_t width = best_vectors(arithmetic_, g.x_channels) * arithmetic_.lanes;
  const int64_t blocks = static_cast<int64_t>(blocks_.size());
  int64_t part_blocks = blocks, cuts = 1;
  const auto part_channels = [&] { return ceil_div(g.x_channels, cuts); };
  const auto most_bytes = [&] {
    const int64_t parts = all_.slices * g.groups * ceil_div(blocks, part_blocks) * cuts;
    return parts < kFew && phases() == 1 && g.axes[0].k == 1 ? kFewSumBytes : kSumBytes;
  };
  while (4 * kFrequencies * phases() * g.axes[0].k * part_channels() * part_blocks * width >
         most_bytes()) {
    const bool divisible = part_channels() >= 2 * arithmetic_.lanes;
    if (part_blocks > 1 && (part_blocks * width >= part_channels() || !divisible))
      part_blocks = ceil_div(part_blocks, 2);
    else if (divisible)
      ++cuts;
    else
      break;
  }
  for (const BlockRange& range : block_ranges(blocks_, arithmetic_.lanes, g.groups, part_blocks))
    for (int64_t cut = 0; cut < cuts; ++cut) {
      const int64_t first = g.x_channels * cut / cuts;
      parts_.push_back({range, first, g.x_channels * (cut + 1) / cuts - first});
    }
  for (const Part& part : parts_) {
    part_units_ = std::max(part_units_, phases() * phase_units(part));
    taps_units_ = std::max(taps_units_, kFinished * padded_taps(1) * padded_taps(2) * part.lanes);
  }
}

// Of tiles.
void WinogradWeightsPlan::choose_boxes() {
  constexpr int64_t kBufferBytes = 512 << 10, kFrequencyBytes = 768 << 10;
  constexpr int64_t kTiles = 64;
  const Geometry& g = problem_.geometry;
  int64_t most_channels = 0, most_lanes = 0;
  for (const Part& part : parts_) {
    most_channels = std::max(most_channels, part.x_channels);
    most_lanes = std::max(most_lanes, part.lanes);
  }
  grid_.extent = {g.batch, g.axes[0].y, ceil_div(g.axes[1].y, g.axes[1].dilation * per_tile_[2]),
                  ceil_div(g.axes[2].y, g.axes[2].dilation * per_tile_[3])};
  PerAxis<int64_t>& size = grid_.size;
  size = {1, 1, 1, 1};
  const auto x_strip = [&](int a) {
    if (a == 0) return strip({Sliding{}}, size[0], Apart::windows);
    const Axis& axis = g.axes[a - 1];
    if (a == 1)
      return strip({{axis.k, -axis.pad, axis.stride, axis.dilation}}, size[1], Apart::windows);
    const int64_t apart = axis.stride * axis.dilation;  // one of them is 1
    std::vector<Sliding> ways;
    for (int64_t i = 0; i < apart; ++i)
      ways.push_back({4, i - axis.pad, apart * per_tile_[a], apart});
    return strip(ways, size[a], Apart::windows);
  };
  const auto y_strip = [&](int a) {
    const int64_t apart = a < 2 ? 1 : g.axes[a - 1].dilation;
    std::vector<Sliding> ways;
    for (int64_t i = 0; i < apart; ++i)
      ways.push_back({per_tile_[a], i, apart * per_tile_[a], apart});
    return strip(ways, size[a], Apart::windows);
  };
  const auto x_positions = [&] {
    int64_t product = 1;
    for (int a = 0; a < kBoxRank; ++a) product *= x_strip(a).length;
    return product;
  };
  const auto x_planes = [&] { return x_strip(0).length * x_strip(1).length; };
  const auto tiles = [&] { return size[0] * size[1] * size[2] * size[3]; };
  for (const int a : {3, 2, 1, 0})
    while (size[a] < grid_.extent[a]) {
      const PerAxis<int64_t> before = size;
      const int64_t pieces = ceil_div(grid_.extent[a], size[a]);
      size[a] = pieces <= 1 ? grid_.extent[a] : ceil_div(grid_.extent[a], pieces - 1);
      if (tiles() > kTiles || 4 * x_positions() * most_channels > kBufferBytes ||
          4 * kFrequencies *
                  (x_planes() * size[2] * size[3] * most_channels + tiles() * most_lanes) >
              kFrequencyBytes) {
        size = before;
        break;
      }
    }
  for (int a = 0; a < kBoxRank; ++a) {
    x_strips_[a] = x_strip(a);
    y_strips_[a] = y_strip(a);
  }
  x_packing_.strips = x_strips_;
  join_rows(x_packing_, grid_);
  y_packing_.strips = y_strips_;
  join_rows(y_packing_, grid_);
  x_units_ = x_positions() * most_channels;
  y_units_ = most_lanes;
  for (const Strip& strip : y_strips_) y_units_ *= strip.length;
  x_frequency_units_ = kFrequencies * x_pitch(most_channels);
  y_frequency_units_ = kFrequencies * y_pitch(most_lanes);
}

void WinogradWeightsPlan::transform_y(const Part& part, const BoxRange& box, const Footing& down,
                                      const Footing& along, const char* buffer,
                                      char* frequencies) const {
  const int64_t y_row = y_strips_[3].length * part.lanes;
  WinogradWeights tile{};
  tile.frequency = y_pitch(part.lanes);
  tile.lanes = part.lanes;
  int64_t index = 0;
  for (int64_t n = 0; n < box.count[0]; ++n)
    for (int64_t u = 0; u < box.count[1]; ++u)
      for (int64_t v = 0; v < box.count[2]; ++v)
        for (int64_t h = 0; h < box.count[3]; ++h, ++index) {
          for (int64_t i = 0; i < per_tile_[2]; ++i)
            for (int64_t j = 0; j < per_tile_[3]; ++j)
              tile.taps[i][j] =
                  buffer + (((n * y_strips_[1].length + u) * y_strips_[2].length + down.offset +
                             v * down.window + i * down.tap) *
                                y_row +
                            (along.offset + h * along.window + j * along.tap) * part.lanes) *
                               4;
          tile.to = frequencies + index * part.lanes * 4;
          arithmetic_.winograd->weights[per_tile_[2] - 2][per_tile_[3] - 2](tile);
        }
}

// Adds the products of a box's tiles to the sums of a phase.
void WinogradWeightsPlan::multiply(const Part& part, const BoxRange& box, const char* x,
                                   const char* y, Start start, char* sums, BoxPrefetch& next_x,
                                   BoxPrefetch& next_y) const {
  const PerAxis<Strip>& strips = x_strips_;
  const Footing &image = strips[0].footings.front(), &depth = strips[1].footings.front();
  const int64_t channels = part.x_channels, plane_tiles = box.count[2] * box.count[3];
  for (int64_t tap = 0; tap < axis(0).k; ++tap) {
    FoldedRuns runs(most_steps(taps_[2], taps_[3]));
    for (int64_t n = 0; n < box.count[0]; ++n)
      for (int64_t u = 0; u < box.count[1]; ++u) {
        const int64_t plane = (image.offset + n * image.window) * strips[1].length + depth.offset +
                              u * depth.window + tap * depth.tap;
        runs.add({plane * plane_tiles * channels, (n * box.count[1] + u) * plane_tiles * part.lanes,
                  plane_tiles},
                 channels, part.lanes);
      }
    TileCall call{};
    call.start = start;
    call.set_steps(channels, part.lanes, sizeof(float));
    call.c_row = part.lanes;
    runs.use_in(call);
    for (int64_t f = 0; f < kFrequencies; ++f)
      for (int64_t i = part.first_block; i < part.first_block + part.blocks; ++i) {
        const LaneBlock& block = blocks_[i];
        const int64_t lane = block.lane - part.lane;
        call.live = int64_t{block.vectors} * arithmetic_.lanes;
        call.b = y + (f * y_pitch(part.lanes) + lane) * 4;
        const char* const a = x + f * x_pitch(channels) * 4;
        char* const c = sums + (f * sums_pitch(part) + tap * channels * part.lanes + lane) * 4;
        const int64_t calls = ceil_div(channels, arithmetic_.tiles.max_rows[block.vectors]);
        for (int64_t done = 0, left = calls; left > 0; --left) {
          const int64_t rows = (channels - done) / left;
          call.a = a + done * 4;
          call.c = c + done * part.lanes * 4;
          arithmetic_.tiles.adjacent[block.vectors][rows](call);
          next_x.fetch();
          next_y.fetch();
          done += rows;
        }
      }
  }
}

void WinogradWeightsPlan::run_boxes(const Operands& operands, const Part& part, int64_t first,
                                    int64_t end, char* memory, char* sums) const {
  const int64_t bytes = element_bytes(problem_.dtype);
  const Geometry& g = problem_.geometry;
  char* const x_buffer = memory;
  char* const y_buffer = x_buffer + x_units_ * 4;
  char* const x_frequencies = y_buffer + y_units_ * 4;
  char* const y_frequencies = x_frequencies + x_frequency_units_ * 4;
  const char* const x =
      static_cast<const char*>(operands.data.x) + part.group * g.x_channels * x_.channel * bytes;
  const char* const y =
      static_cast<const char*>(operands.data.y) + part.group * g.y_channels * y_.channel * bytes;
  const int64_t live = std::min(part.lanes, g.y_channels - part.lane);
  for (int64_t index = first; index < end; ++index) {
    const BoxRange box = grid_.box(index);
    const Panel x_panel{part.x_channel,
                        part.x_channels,
                        0,
                        x_packing_.strips[3].length * part.x_channels,
                        part.x_channels,
                        1};
    const Panel y_panel{
        part.lane,        live, 0, y_packing_.strips[3].length * part.lanes, part.lanes, 1,
        part.lanes - live};
    pack_box(x_packing_, x, box, &x_panel, 1, x_buffer);
    pack_box(y_packing_, y, box, &y_panel, 1, y_buffer);
    // While this box is multiplied, the next one is fetched: channels first takes 0.87 to 0.98 of
    // the time, channels last 0.97 (Zen 5, 8 lanes).
    BoxPrefetch next_x, next_y;
    if (index + 1 < end) {
      const int64_t calls =
          axis(1).dilation * axis(2).dilation * phases() * axis(0).k * kFrequencies * part.blocks *
          ceil_div(part.x_channels, arithmetic_.tiles.max_rows[blocks_.front().vectors]);
      next_x = {x_packing_, x, grid_.box(index + 1), part.x_channel, part.x_channels, calls};
      next_y = {y_packing_, y, grid_.box(index + 1), part.lane, live, calls};
    }
    for (int64_t down = 0; down < axis(1).dilation; ++down)
      for (int64_t along = 0; along < axis(2).dilation; ++along) {
        transform_y(part, box, y_strips_[2].footings[down], y_strips_[3].footings[along], y_buffer,
                    y_frequencies);
        const bool begun = index > first || down + along > 0;
        for (int64_t phase = 0; phase < phases(); ++phase) {
          transform_tiles(*arithmetic_.winograd, x_strips_,
                          x_strips_[2].footings[down + phase / axis(2).stride],
                          x_strips_[3].footings[along + phase % axis(2).stride], box, box.count,
                          x_buffer, part.x_channels, part.x_channels, x_pitch(part.x_channels),
                          x_frequencies);
          multiply(part, box, x_frequencies, y_frequencies, begun ? Start::accumulate : Start::zero,
                   sums + phase * phase_units(part) * 4, next_x, next_y);
        }
      }
  }
}

// Writes the taps that a part's sums yield for some channels of x. Whether all are finite.
bool WinogradWeightsPlan::finish(const Operands& operands, const Part& part, const Range& channels,
                                 const char* sums, char* taps) const {
  const WeightsStrides& w = problem_.w;
  const int64_t bytes = element_bytes(result_dtype(problem_));
  const int64_t live = std::min(part.lanes, problem_.geometry.y_channels - part.lane);
  const int64_t rows = axis(1).k, columns = axis(2).k, row = padded_taps(2) * part.lanes;
  const int64_t of_channel = padded_taps(1) * row;
  // All taps of a channel at once where they are at a constant distance: lines of the result often
  // lie a multiple of the cache's size apart (4x4 of stride 2, 512 to 256 channels, channels first:
  // a row of a phase's taps at a time takes 1.05 to 1.09 times as long).
  const bool flat = row == columns * part.lanes && w.axes[1] == columns * w.axes[2];
  bool finite = true;
  for (int64_t first = channels.begin; first < channels.end; first += kFinished)
    for (int64_t tap = 0; tap < axis(0).k; ++tap) {
      const int64_t count = std::min(kFinished, channels.end - first);
      const int64_t from = (tap * part.x_channels + first) * part.lanes;
      for (int64_t phase = 0; phase < phases(); ++phase) {
        const int64_t p1 = phase / axis(2).stride, p2 = phase % axis(2).stride;
        finite &= arithmetic_.winograd->results[taps_[2] - 2][taps_[3] - 2](
            {sums + (phase * phase_units(part) + from) * 4, sums_pitch(part), part.lanes, nullptr,
             taps + (p1 * row + p2 * part.lanes) * 4, axis(1).stride * row,
             axis(2).stride * part.lanes, of_channel, part.lanes, count});
      }
      for (int64_t channel = 0; channel < count; ++channel)
        for (int64_t t = 0; t < (flat ? 1 : rows); ++t)
          write_weights(
              problem_, arithmetic_,
              {taps + (channel * of_channel + t * row) * 4, part.lanes, 1,
               static_cast<char*>(operands.data.w) +
                   (part.group * w.group + (part.x_channel + first + channel) * w.x_channel +
                    part.lane * w.y_channel + tap * w.axes[0] + t * w.axes[1]) *
                       bytes,
               w.axes[2], w.y_channel, flat ? rows * columns : columns, live});
    }
  return finite;
}

void WinogradWeightsPlan::run(const Operands& operands) const {
  const int64_t slice_parts = static_cast<int64_t>(parts_.size()), parts = all_parts();
  const int64_t boxes = grid_.boxes();
  const auto slice = [&](int64_t i) { return operands_of_slice(all_, operands, i / slice_parts); };
  const auto part = [&](int64_t i) -> const Part& { return parts_[i % slice_parts]; };
  std::atomic<bool> finite = true;
  if (chunks_ == 1) {
    parallel_for(problem_.threads, parts, [&](int64_t i) {
      char* const memory = local_scratch<char>(4 * local_units());
      char* const taps = memory + 4 * taps_offset();
      char* const sums = taps + 4 * taps_units_;
      run_boxes(slice(i), part(i), 0, boxes, memory, sums);
      if (!finish(slice(i), part(i), {0, part(i).x_channels}, sums, taps)) finite = false;
    });
  } else {
    char* const all = shared_scratch<char>(4 * part_units_ * parts * chunks_);
    sum_chunks(
        problem_.threads, {problem_.dtype, all, parts, chunks_, part_units_},
        [&](int64_t i) { return phases() * phase_units(part(i)); },
        [&](int64_t i, int64_t chunk, char* sums) {
          const int64_t first = chunk * boxes_per_chunk_;
          run_boxes(slice(i), part(i), first, std::min(boxes, first + boxes_per_chunk_),
                    local_scratch<char>(4 * local_units()), sums);
        });
    constexpr int64_t kPieces = 4;
    parallel_for(problem_.threads, parts * kPieces, [&](int64_t i) {
      const int64_t whole = i / kPieces, piece = i % kPieces, channels = part(whole).x_channels;
      const Range range{channels * piece / kPieces, channels * (piece + 1) / kPieces};
      if (!finish(slice(whole), part(whole), range, all + whole * chunks_ * part_units_ * 4,
                  local_scratch<char>(4 * taps_units_)))
        finite = false;
    });
  }
  if (!finite) direct_->run(operands);
}

}  // namespace

std::unique_ptr<const Plan> winograd_weights_plan(const Problem& problem,
                                                  const Arithmetic& arithmetic) {
  return std::make_unique<WinogradWeightsPlan>(problem, arithmetic);
}

}  // namespace convtbw::simd
