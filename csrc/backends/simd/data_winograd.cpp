// fprop and dgrad of many channels in float32, where windows have two or three taps along the last
// two axes, as in 3x3 convolutions, or do so in each phase of the stride, as in 4x4 ones of stride
// 2: by Winograd's minimal filtering, 2.25 times fewer products. The operand's windows of
// 4x4 are transformed to 16 frequencies, each of which is a GEMM of its own over channels and the
// taps of the first axis; the products are transformed to results. Sums are shorter than those of
// the direct method by the taps, and so is the rounding error: of 3x3, 64 and 512 channels, 0.6 and
// 0.35 of that of torch's.
//
// The transforms join pixels that no window joins, which matters where they are not finite: then
// the direct method computes the call again.
#include <algorithm>
#include <atomic>
#include <utility>

#include "backends/simd/box_prefetch.h"
#include "backends/simd/directed_plan.h"
#include "backends/simd/folded_runs.h"
#include "backends/simd/lane_blocks.h"
#include "backends/simd/phases.h"
#include "backends/simd/plans.h"
#include "backends/simd/winograd_tiles.h"
#include "backends/simd/work_order.h"
#include "core/parallel.h"
#include "core/scratch.h"
#include "core/stream.h"
#include "core/winograd.h"

namespace convtbw::simd {

namespace {

// Every pass over so many of the weights transforms the operand again. Time over that with 4 MB,
// 4x4 of stride 2 and 3x3 of volumes, 256 to 1024 channels, 150 to 600 tiles (Zen 5, 16 and 8
// lanes): 8 MB 0.67 to 1.0 and 0.87 to 1.03, 16 MB 0.65 to 1.0 and 0.9 to 1.04. 8 MB on Zen 4:
// 0.9 to 1.12, 0.99 in the mean.
constexpr int64_t kPackedBytes = 8 << 20;
constexpr int64_t kStageBytes = 256 << 10;
constexpr int64_t kItems = 16;  // enough to keep many threads busy until the end

int64_t most_taps(const PhasedAxis& axis) {
  int64_t most = 0;
  for (const Phase& phase : axis.phases) most = std::max(most, phase.sliding.taps);
  return most;
}

// The axes with phases whose windows slide by one, or by as much as their taps are apart. Those of
// a strided fprop yield the same results, and are added: each has the taps, and the positions of
// the operand, that leave one remainder. Those of a dilation are the results that share taps.
PerAxis<PhasedAxis> tiled_axes(const Problem& problem) {
  PerAxis<PhasedAxis> axes = phased_axes(problem);
  for (const int a : {2, 3}) {
    const Axis& axis = problem.geometry.axes[a - 1];
    const Phase whole = axes[a].phases.front();
    if (problem.wanted == Role::y && axis.stride > 1) {
      axes[a].phases.clear();
      for (int64_t tap = 0; tap < axis.stride; ++tap)
        axes[a].phases.push_back(
            {{ceil_div(axis.k - tap, axis.stride), tap - axis.pad, axis.stride, axis.stride},
             0,
             axis.y,
             0,
             1,
             tap,
             axis.stride});
    } else if (axis.dilation > 1) {
      const int64_t d = axis.dilation;
      axes[a].phases.clear();
      axes[a].windows = ceil_div(axes[a].windows, d);
      axes[a].step = d;
      for (int64_t i = 0; i < d; ++i)
        axes[a].phases.push_back({{whole.sliding.taps, whole.sliding.first + i, d, d},
                                  0,
                                  axes[a].windows,
                                  whole.out + i,
                                  d,
                                  whole.tap,
                                  whole.tap_step});
    }
  }
  return axes;
}

class WinogradPlan : public DirectedPlan {
 public:
  WinogradPlan(const Problem& problem, const Arithmetic& arithmetic);
  void run(const Operands& operands) const override;

 private:
  // A range of the channels that are summed over, whose frequencies are in the cache together.
  struct Chunk {
    int64_t first, channels;
    int64_t row = 0;                 // of the packed weights: units for one lane before it
    std::vector<FoldedRuns> runs{};  // [phase of axis 1][vectors]
  };

  void choose_sizes();
  void choose_boxes();
  void cut_channels();
  void cut_result(int64_t width);
  int64_t lane_bytes() const;
  int64_t groups_at_once() const;
  int64_t positions(const PerAxis<int64_t>& tiles) const;
  void pack_weights(const Operands& operands, const BlockRange& part, const LaneBlock& block,
                    const Range& channels, bool streamed, char* packed) const;
  bool run_box(const Operands& operands, const BlockRange& part, const BoxRange& box,
               const BlockRange& next_part, const BoxRange& next_box, const char* packed,
               const char* bias) const;
  bool run_phase(const BlockRange& part, const BoxRange& box, size_t i1, size_t i2, size_t i3,
                 const char* packed, const char* bias, char* memory, BoxPrefetch& prefetch) const;
  void unpack(const Operands& operands, const BlockRange& part, const BoxRange& box,
              const char* stage) const;
  const char* pack_bias(const void* bias, char* packed) const;

  // A thread's: where the rows of tiles begin, the operand's rows, frequencies, products, results.
  int64_t local_bytes() const {
    return 2 * list_ * int64_t{sizeof(int64_t)} +
           (buffer_units_ + frequency_units_ + product_units_ + stage_units_) * 4;
  }
  // Units from one frequency of the operand to the next.
  int64_t frequency_pitch(const Chunk& chunk) const {
    return odd_lines(strips_[0].length * strips_[1].length * grid_.size[2] * grid_.size[3] *
                     chunk.channels);
  }
  const BoxPhase& phase(size_t i1, size_t i2, size_t i3) const {
    return phases_[(i1 * axes_[2].phases.size() + i2) * axes_[3].phases.size() + i3];
  }
  // Rows of packed weights, units for one lane: of a frequency of a chunk's phase (an odd number,
  // as for odd_lines), and of all phases before it.
  int64_t frequency_rows(const Chunk& chunk, size_t i1) const {
    return axes_[1].phases[i1].sliding.taps * chunk.channels | 1;
  }
  int64_t rows_before(const Chunk& chunk, size_t i1, size_t i2, size_t i3) const {
    const auto across = static_cast<int64_t>(axes_[2].phases.size() * axes_[3].phases.size());
    int64_t rows = static_cast<int64_t>(i2 * axes_[3].phases.size() + i3) *
                   (i1 < axes_[1].phases.size() ? frequency_rows(chunk, i1) : 0);
    for (size_t i = 0; i < i1; ++i) rows += across * frequency_rows(chunk, i);
    return kFrequencies * rows;
  }
  // Where the packed weights of a block begin, in those of a part.
  int64_t block_offset(const Chunk& chunk, size_t i1, size_t i2, size_t i3, const BlockRange& part,
                       const LaneBlock& block) const {
    return (chunk.row + rows_before(chunk, i1, i2, i3)) * part.lanes +
           kFrequencies * frequency_rows(chunk, i1) * (block.lane - part.lane);
  }
  // Result positions of an axis for so many tiles.
  int64_t covered(int a, int64_t tiles) const { return tiles * per_tile_[a] * axes_[a].step; }

  std::vector<LaneBlock> blocks_;
  const PerAxis<PhasedAxis> axes_;
  PerAxis<int64_t> per_tile_{1, 1, 1, 1};  // windows of a tile
  PerAxis<bool> summed_{};                 // an axis' phases yield the same results
  PerAxis<int64_t> taps_{1, 1, 1, 1};      // of all of an axis' phases, absent ones included
  std::vector<BoxPhase> phases_;
  std::vector<Chunk> chunks_;
  PerAxis<Strip> strips_;  // where the tiles of a packed box are
  Packing packing_;
  BoxGrid grid_;  // of tiles
  std::vector<BlockRange> parts_;
  int64_t parts_per_pass_, largest_part_lanes_;
  int64_t weights_rows_ = 0;  // of all packed weights
  int64_t all_taps_ = 1;      // of the weights
  bool taps_contiguous_;      // in the weights, where channels are not
  int64_t list_;              // tiles of a box
  int64_t group_blocks_;      // whose products are in the cache together
  int64_t buffer_units_, frequency_units_, product_units_, stage_units_;
  int64_t bias_lanes_, workspace_units_;
  PerAxis<int64_t> stage_;  // strides
  const std::unique_ptr<const Plan> direct_;
};

WinogradPlan::WinogradPlan(const Problem& problem, const Arithmetic& arithmetic)
    : DirectedPlan(problem, arithmetic),
      axes_(tiled_axes(problem)),
      packing_{&arithmetic, in_, {}},
      taps_contiguous_(w_in_ != 1 && w_out_ != 1),
      direct_(data_plan(problem, arithmetic)) {
  for (const int a : {2, 3}) {
    taps_[a] = most_taps(axes_[a]);
    per_tile_[a] = results_of_taps(taps_[a]);
    summed_[a] = fprop_ && problem.geometry.axes[a - 1].stride > 1;
  }
  for (int a = kMaxRank - 1; a >= 0; --a) {
    const int64_t taps = problem.geometry.axes[a].k;
    taps_contiguous_ &= taps == 1 || problem.w.axes[a] == all_taps_;
    all_taps_ *= taps;
  }
  choose_sizes();
  phases_ = box_phases(axes_, strips_);

  for (Chunk& chunk : chunks_)
    for (size_t i1 = 0; i1 < axes_[1].phases.size(); ++i1)
      for (int vectors = 0; vectors <= kMaxVectors; ++vectors) {
        const int64_t plane = grid_.size[2] * grid_.size[3] * chunk.channels;
        FoldedRuns runs(most_steps(per_tile_[2], per_tile_[3]));
        for (int64_t t = 0; t < axes_[1].phases[i1].sliding.taps; ++t)
          runs.add({t * strips_[1].footings[i1].tap * plane,
                    t * chunk.channels * vectors * arithmetic.lanes, chunk.channels},
                   1, int64_t{vectors} * arithmetic.lanes);
        chunk.runs.push_back(runs);
        bytes += runs.bytes();
      }
  kernel = std::string(contraction_name(problem.wanted)) + ", Winograd, " + arithmetic.name;
  workspace = std::max(direct_->workspace, 4 * workspace_units_ + problem.threads * local_bytes());
  bytes += direct_->bytes +
           static_cast<int64_t>(sizeof(WinogradPlan) + parts_.size() * sizeof(BlockRange) +
                                phases_.size() * sizeof(BoxPhase));
}

// Sizes depend on the shape alone, so that results do not depend on the number of threads.
void WinogradPlan::choose_sizes() {
  choose_boxes();
  const int vectors = best_vectors(arithmetic_, list_, kPackedBytes / lane_bytes());
  blocks_ = lane_blocks(out_channels_, arithmetic_.lanes, vectors);
  cut_channels();
  cut_result(vectors * arithmetic_.lanes);
  join_rows(packing_, grid_);
}

// Bytes of a lane's packed weights, about.
int64_t WinogradPlan::lane_bytes() const {
  int64_t depth_taps = 0;
  for (const Phase& phase : axes_[1].phases) depth_taps += phase.sliding.taps;
  return 4 * kFrequencies * depth_taps *
         static_cast<int64_t>(axes_[2].phases.size() * axes_[3].phases.size()) * in_channels_;
}

// Those whose packed weights fit are computed at the same time.
int64_t WinogradPlan::groups_at_once() const {
  return std::clamp<int64_t>(kPackedBytes / (lane_bytes() * out_channels_), 1,
                             problem_.geometry.groups);
}

// Result positions of so many tiles.
int64_t WinogradPlan::positions(const PerAxis<int64_t>& tiles) const {
  int64_t product = 1;
  for (int a = 0; a < kBoxRank; ++a) product *= covered(a, tiles[a]);
  return product;
}

void WinogradPlan::choose_boxes() {
  constexpr int64_t kBufferBytes = 512 << 10;
  constexpr int64_t kTiles = 48, kFewTiles = 12;
  PerAxis<std::vector<Sliding>> ways;
  for (int a = 0; a < kBoxRank; ++a) {
    grid_.extent[a] = ceil_div(axes_[a].windows, per_tile_[a]);
    for (const Phase& phase : axes_[a].phases)
      ways[a].push_back(a < 2 ? phase.sliding
                              : Sliding{4, phase.sliding.first, per_tile_[a] * phase.sliding.stride,
                                        phase.sliding.dilation});
  }
  PerAxis<int64_t>& size = grid_.size;
  const auto strip_of = [&](int a) { return strip(ways[a], size[a], Apart::windows); };
  const auto tiles = [&] { return size[0] * size[1] * size[2] * size[3]; };
  const auto grow = [&](int64_t limit) {
    size = {1, 1, 1, 1};
    for (const int a : {3, 2, 1, 0})
      while (size[a] < grid_.extent[a]) {
        const PerAxis<int64_t> before = size;
        const int64_t cuts = ceil_div(grid_.extent[a], size[a]);
        size[a] = cuts <= 1 ? grid_.extent[a] : ceil_div(grid_.extent[a], cuts - 1);
        int64_t buffer = in_channels_;
        for (int b = 0; b < kBoxRank; ++b) buffer *= strip_of(b).length;
        if (tiles() > limit || 4 * buffer > kBufferBytes ||
            4 * positions(size) * std::min<int64_t>(out_channels_, 4 * arithmetic_.lanes) >
                kStageBytes) {
          size = before;
          break;
        }
      }
  };
  int64_t limit = kTiles;
  grow(limit);
  while (grid_.boxes() * groups_at_once() < kItems && limit > kFewTiles) {
    limit /= 2;
    grow(limit);
  }
  buffer_units_ = in_channels_;
  for (int a = 0; a < kBoxRank; ++a) {
    strips_[a] = strip_of(a);
    buffer_units_ *= strips_[a].length;
  }
  packing_.strips = strips_;
  list_ = tiles();
}

// Chunks of whole vectors, but for the last one.
void WinogradPlan::cut_channels() {
  constexpr int64_t kFrequencyBytes = 256 << 10;
  const int64_t channel_units =  // frequencies of one channel
      kFrequencies * strips_[0].length * strips_[1].length * grid_.size[2] * grid_.size[3];
  const int64_t lanes = arithmetic_.lanes;
  const int64_t most =
      std::max<int64_t>(kFrequencyBytes / (4 * channel_units) / lanes * lanes, 2 * lanes);
  const int64_t cuts = ceil_div(in_channels_, most);
  const int64_t channels = ceil_div(ceil_div(in_channels_, cuts), lanes) * lanes;
  for (int64_t first = 0; first < in_channels_; first += channels)
    chunks_.push_back({first, std::min(channels, in_channels_ - first)});
  // Transforms work on whole vectors.
  if (chunks_.size() > 1 && chunks_.back().channels < lanes) {
    chunks_[chunks_.size() - 2].channels += chunks_.back().channels;
    chunks_.pop_back();
  }
  frequency_units_ = 0;
  for (Chunk& chunk : chunks_) {
    frequency_units_ = std::max(frequency_units_, kFrequencies * frequency_pitch(chunk));
    chunk.row = weights_rows_;
    weights_rows_ += rows_before(chunk, axes_[1].phases.size(), 0, 0);
  }
}

// Parts of the result's channels, in blocks of so many lanes: what fits in the stage and in the
// packed weights, and enough for the threads.
void WinogradPlan::cut_result(int64_t width) {
  constexpr int64_t kProductBytes = 256 << 10;
  const int64_t groups = problem_.geometry.groups, boxes = grid_.boxes();
  group_blocks_ = std::max<int64_t>(1, kProductBytes / (4 * kFrequencies * list_ * width));
  product_units_ = kFrequencies * odd_lines(list_ * (group_blocks_ * width + arithmetic_.lanes));
  int64_t lanes = std::min(kStageBytes / (4 * positions(grid_.size)), kPackedBytes / lane_bytes());
  const int64_t wanted = ceil_div(kItems, boxes * groups_at_once());
  if (wanted > 1) lanes = std::min(lanes, ceil_div(out_channels_, wanted));
  Parting parting = cut_blocks(blocks_, arithmetic_.lanes, groups, boxes, lanes / width,
                               kPackedBytes / (lane_bytes() * width), 1);
  parts_ = std::move(parting.parts);
  parts_per_pass_ = parting.per_pass;
  largest_part_lanes_ = parting.largest_lanes;
  stage_[3] = stage_pitch(largest_part_lanes_);
  for (int a = kBoxRank - 2; a >= 0; --a)
    stage_[a] = stage_[a + 1] * covered(a + 1, grid_.size[a + 1]);
  stage_units_ = stage_[0] * grid_.size[0];
  bias_lanes_ = padded_lanes(blocks_, arithmetic_.lanes);
  workspace_units_ = parts_per_pass_ * weights_rows_ * largest_part_lanes_ +
                     (problem_.bias ? groups * bias_lanes_ : 0);
}

// [chunk][phase][block][frequency][tap of the first axis][channel][lane]. 256 to 512 channels, k4
// s2, take a third of the time since frequencies are not whole pages apart.
void WinogradPlan::pack_weights(const Operands& operands, const BlockRange& part,
                                const LaneBlock& block, const Range& all, bool streamed,
                                char* packed) const {
  const int64_t bytes = element_bytes(problem_.dtype);
  const int64_t width = int64_t{block.vectors} * arithmetic_.lanes;
  const CopyFunction pack = arithmetic_.pack[static_cast<int>(problem_.dtype)];
  const Geometry& g = problem_.geometry;
  // The taps of so many channels, and where they are streamed their frequencies, are on their way.
  constexpr int64_t kTileBytes = 64 << 10;
  const int64_t together =
      std::clamp<int64_t>(kTileBytes / (all_taps_ * width * 4), 1, kPackedChannels);
  const int64_t tile_bytes = together * all_taps_ * width * 4;
  char* const tile =
      local_scratch<char>(tile_bytes + (streamed ? kFrequencies * together * width * 4 : 0));
  char* const stage = tile + tile_bytes;
  const int64_t tap_step = (taps_contiguous_ ? 1 : together) * width * 4,
                channel_step = (taps_contiguous_ ? all_taps_ : 1) * width * 4;
  // Of one tap: a cache line of channels that are neighbours. One after the other, 3x3 of 256 to
  // 256 took 1.6 times as long with 14x14 pixels of two images (16 lanes, Zen 5). Or of all taps,
  // where those of one channel follow those of the one before: channel by channel, vectors of 9
  // elements, 128 to 1024 channels took 1.05 to 1.4 times as long (28x28 to 6x6, Zen 4).
  const auto fill_tile = [&](int64_t channel, int64_t channels) {
    const char* const w =
        static_cast<const char*>(operands.data.w) +
        (part.group * problem_.w.group + channel * w_in_ + block.lane * w_out_) * bytes;
    Copy copy{w, 1, w_out_, tile, width, 1, all_taps_, block.live, width - block.live};
    if (taps_contiguous_) {
      if (w_in_ == all_taps_) {
        copy.rows *= channels;
      } else {
        copy.times = channels;
        copy.from_time = w_in_;
        copy.to_time = all_taps_ * width;
      }
      return pack(copy);
    }
    copy.from_row = w_in_;
    copy.rows = channels;
    for (int64_t tap = 0; tap < all_taps_; ++tap) {
      const int64_t columns = g.axes[2].k, rows = g.axes[1].k;
      const int64_t at = tap / columns / rows * problem_.w.axes[0] +
                         tap / columns % rows * problem_.w.axes[1] +
                         tap % columns * problem_.w.axes[2];
      copy.from = w + at * bytes;
      copy.to = tile + tap * tap_step;
      pack(copy);
    }
  };
  const Chunk* chunk = chunks_.data();
  for (int64_t channel = all.begin, count; channel < all.end; channel += count) {
    while (channel >= chunk->first + chunk->channels) ++chunk;
    count = std::min({together, all.end - channel, chunk->first + chunk->channels - channel});
    fill_tile(channel, count);
    for (size_t i1 = 0; i1 < axes_[1].phases.size(); ++i1)
      for (size_t i2 = 0; i2 < axes_[2].phases.size(); ++i2)
        for (size_t i3 = 0; i3 < axes_[3].phases.size(); ++i3) {
          const BoxPhase& phase = this->phase(i1, i2, i3);
          const auto tap = [&](int a, int64_t t) {
            return phase.axes[a]->tap + t * phase.axes[a]->tap_step;
          };
          const int64_t depth_taps = phase.axes[1]->sliding.taps;
          const int64_t frequency = frequency_rows(*chunk, i1) * width * 4;
          const int64_t staged_frequency = count * width * 4;
          WinogradWeights weights{};
          weights.lanes = width;
          weights.frequency = (streamed ? staged_frequency : frequency) / 4;
          for (int64_t t0 = 0; t0 < depth_taps; ++t0) {
            char* const to = packed + (block_offset(*chunk, i1, i2, i3, part, block) +
                                       (t0 * chunk->channels + channel - chunk->first) * width) *
                                          4;
            for (int64_t c = 0; c < count; ++c) {
              for (int64_t t1 = 0; t1 < phase.axes[2]->sliding.taps; ++t1)
                for (int64_t t2 = 0; t2 < phase.axes[3]->sliding.taps; ++t2)
                  weights.taps[t1][t2] =
                      tile + c * channel_step +
                      ((tap(1, t0) * g.axes[1].k + tap(2, t1)) * g.axes[2].k + tap(3, t2)) *
                          tap_step;
              weights.to = (streamed ? stage : to) + c * width * 4;
              arithmetic_.winograd->weights[taps_[2] - 2][taps_[3] - 2](weights);
            }
            for (int64_t f = 0; streamed && f < kFrequencies; ++f)
              stream(to + f * frequency, stage + f * staged_frequency, staged_frequency);
          }
        }
  }
}

// The results of a phase, or of those that are added, for all lanes of the part. Whether all are
// finite.
bool WinogradPlan::run_phase(const BlockRange& part, const BoxRange& box, size_t i1, size_t i2,
                             size_t i3, const char* packed, const char* bias, char* memory,
                             BoxPrefetch& prefetch) const {
  const BoxPhase& phase = this->phase(i1, i2, i3);
  int64_t* const a_rows = reinterpret_cast<int64_t*>(memory);
  int64_t* const c_rows = a_rows + list_;
  char* const buffer = reinterpret_cast<char*>(c_rows + list_);
  char* const frequencies = buffer + buffer_units_ * 4;
  char* const products = frequencies + frequency_units_ * 4;
  char* const stage = products + product_units_ * 4;
  const PerAxis<int64_t>& size = grid_.size;
  const int64_t tiles = box.count[0] * box.count[1] * box.count[2] * box.count[3];

  // All products are of the same frequencies.
  const bool same = chunks_.size() == 1 && !summed_[2] && !summed_[3];
  bool finite = true;
  for (int64_t group = 0; group < part.blocks; group += group_blocks_) {
    const int64_t blocks = std::min(group_blocks_, part.blocks - group);
    const LaneBlock* const block = blocks_.data() + part.first_block + group;
    const LaneBlock& last = block[blocks - 1];
    const int64_t lanes = last.lane + int64_t{last.vectors} * arithmetic_.lanes - block->lane;
    const int64_t product_pitch = odd_lines(tiles * lanes);
    Start start = Start::zero;
    const auto add = [&](size_t t2, size_t t3, const Chunk& chunk) {
      if (!same || (i1 == 0 && group == 0))
        transform_tiles(*arithmetic_.winograd, strips_, strips_[2].footings[t2],
                        strips_[3].footings[t3], box, size, buffer + chunk.first * 4, in_channels_,
                        chunk.channels, frequency_pitch(chunk), frequencies);
      int64_t tile = 0;
      for (int64_t n = 0; n < box.count[0]; ++n)
        for (int64_t u = 0; u < box.count[1]; ++u) {
          const auto at = [&](int a, int64_t window) {
            return phase.footings[a].offset + window * phase.footings[a].window;
          };
          const int64_t plane = at(0, n) * strips_[1].length + at(1, u);
          for (int64_t v = 0; v < box.count[2]; ++v)
            for (int64_t h = 0; h < box.count[3]; ++h, ++tile) {
              a_rows[tile] = ((plane * size[2] + v) * size[3] + h) * chunk.channels;
              c_rows[tile] = tile * lanes;
            }
        }
      for (int64_t i = 0; i < blocks; ++i) {
        const int64_t width = int64_t{block[i].vectors} * arithmetic_.lanes;
        TileCall call{};
        call.live = width;
        call.start = start;
        chunk.runs[i1 * (kMaxVectors + 1) + block[i].vectors].use_in(call);
        const char* b = packed + block_offset(chunk, i1, t2, t3, part, block[i]) * 4;
        const int64_t calls = ceil_div(tiles, arithmetic_.tiles.max_rows[block[i].vectors]);
        for (int64_t f = 0; f < kFrequencies; ++f) {
          call.a = frequencies + f * frequency_pitch(chunk) * 4;
          call.b = b;
          call.c = products + (f * product_pitch + block[i].lane - block->lane) * 4;
          for (int64_t done = 0, left = calls; left > 0; --left) {
            const int64_t rows = (tiles - done) / left;
            call.a_rows = a_rows + done;
            call.c_rows = c_rows + done;
            arithmetic_.tiles.gathered[block[i].vectors][rows](call);
            prefetch.fetch();
            done += rows;
          }
          b += frequency_rows(chunk, i1) * width * 4;
        }
      }
      start = Start::accumulate;
    };
    for (size_t t2 = i2; t2 < (summed_[2] ? axes_[2].phases.size() : i2 + 1); ++t2)
      for (size_t t3 = i3; t3 < (summed_[3] ? axes_[3].phases.size() : i3 + 1); ++t3)
        for (const Chunk& chunk : chunks_) add(t2, t3, chunk);

    // Positions in the stage are counted from the first that any phase has.
    const auto first = [&](int a) { return phase.axes[a]->out - axes_[a].out; };
    int64_t tile = 0;
    for (int64_t n = 0; n < box.count[0]; ++n)
      for (int64_t u = 0; u < box.count[1]; ++u)
        for (int64_t v = 0; v < box.count[2]; ++v, tile += box.count[3]) {
          const int64_t to = n * stage_[0] + (first(1) + u * axes_[1].step) * stage_[1] +
                             (first(2) + v * covered(2, 1)) * stage_[2] + first(3) * stage_[3] +
                             block->lane - part.lane;
          finite &= arithmetic_.winograd->results[per_tile_[2] - 2][per_tile_[3] - 2](
              {products + tile * lanes * 4, product_pitch, lanes,
               bias ? bias + block->lane * 4 : nullptr, stage + to * 4, axes_[2].step * stage_[2],
               axes_[3].step * stage_[3], covered(3, 1) * stage_[3], lanes, box.count[3]});
        }
  }
  return finite;
}

// Whether all results are finite.
bool WinogradPlan::run_box(const Operands& operands, const BlockRange& part, const BoxRange& box,
                           const BlockRange& next_part, const BoxRange& next_box,
                           const char* packed, const char* bias) const {
  char* const memory = local_scratch<char>(local_bytes());
  char* const buffer = memory + 2 * list_ * int64_t{sizeof(int64_t)};
  const Panel panel{0, in_channels_, 0, packing_.strips[3].length * in_channels_, in_channels_, 1};
  pack_box(packing_, in_data(operands, part.group), box, &panel, 1, buffer);
  // While this box is multiplied, the next one is fetched: channels first takes 0.94 to 0.98 of the
  // time, channels last 1.0 (Zen 5, 8 lanes).
  const int64_t calls = std::ssize(phases_) * std::ssize(chunks_) * part.blocks * kFrequencies *
                        ceil_div(box.count[0] * box.count[1] * box.count[2] * box.count[3],
                                 arithmetic_.tiles.max_rows[blocks_.front().vectors]);
  BoxPrefetch prefetch(packing_, in_data(operands, next_part.group), next_box, 0, in_channels_,
                       calls);
  bool finite = true;
  for (size_t i2 = 0; i2 < (summed_[2] ? 1 : axes_[2].phases.size()); ++i2)
    for (size_t i3 = 0; i3 < (summed_[3] ? 1 : axes_[3].phases.size()); ++i3)
      for (size_t i1 = 0; i1 < axes_[1].phases.size(); ++i1)
        finite &= run_phase(part, box, i1, i2, i3, packed, bias, memory, prefetch);
  unpack(operands, part, box, buffer + (buffer_units_ + frequency_units_ + product_units_) * 4);
  return finite;
}

void WinogradPlan::unpack(const Operands& operands, const BlockRange& part, const BoxRange& box,
                          const char* stage) const {
  const int64_t bytes = element_bytes(problem_.dtype);
  char* const out = out_data(operands, part.group) + part.lane * out_.channel * bytes;
  BoxRange positions;
  for (int a = 0; a < kBoxRank; ++a) {
    const int64_t begin = axes_[a].out + covered(a, box.begin[a]);
    positions.begin[a] = std::max<int64_t>(0, begin);
    positions.count[a] =
        std::min(out_.extent[a], begin + covered(a, box.count[a])) - positions.begin[a];
    stage -= begin * stage_[a] * 4;  // where position 0 would lie
  }
  if (!positions.empty())
    unpack_positions(arithmetic_, out_, positions, stage, stage_,
                     std::min(part.lanes, out_channels_ - part.lane), out);
}

void WinogradPlan::run(const Operands& operands) const {
  const int64_t boxes = grid_.boxes(), parts = static_cast<int64_t>(parts_.size());
  char* const packed = shared_scratch<char>(workspace_units_ * 4);
  const int64_t part_bytes = weights_rows_ * largest_part_lanes_ * 4;
  const char* const bias = operands.bias ? pack_bias(operands.bias, packed) : nullptr;
  std::atomic<bool> finite = true;
  for (int64_t first = 0; first < parts; first += parts_per_pass_) {
    const int64_t count = std::min(parts_per_pass_, parts - first);
    const WorkOrder order{count, boxes, groups_share_lines(problem_)};
    const bool streamed = order.shares_parts(problem_.threads);
    const int64_t blocks = parts_[first].blocks;  // the most of any part
    const int64_t pieces = packed_pieces(count * blocks, in_channels_);
    parallel_for(problem_.threads, count * blocks * pieces, [&](int64_t i) {
      const int64_t index = i / pieces / blocks, block = i / pieces % blocks;
      const BlockRange& part = parts_[first + index];
      const Range channels = packed_piece(i % pieces, pieces, in_channels_);
      if (block < part.blocks)
        pack_weights(operands, part, blocks_[part.first_block + block], channels, streamed,
                     packed + index * part_bytes);
    });
    parallel_for(problem_.threads, order.items(), [&](int64_t i) {
      const WorkOrder::Item item = order.item(i), next = order.item_after(i);
      const BlockRange& part = parts_[first + item.part];
      if (!run_box(operands, part, grid_.box(item.box), parts_[first + next.part],
                   grid_.box(next.box), packed + item.part * part_bytes,
                   bias ? bias + part.group * bias_lanes_ * 4 : nullptr))
        finite = false;
    });
  }
  if (!finite) direct_->run(operands);
}

// Behind the packed weights: [group][lane], padded to whole blocks.
const char* WinogradPlan::pack_bias(const void* bias, char* packed) const {
  const int64_t groups = problem_.geometry.groups;
  char* const to = packed + (workspace_units_ - groups * bias_lanes_) * 4;
  simd::pack_bias(arithmetic_, problem_.dtype, bias, groups, out_channels_, bias_lanes_, to);
  return to;
}

}  // namespace

std::unique_ptr<const Plan> winograd_plan(const Problem& problem, const Arithmetic& arithmetic) {
  return std::make_unique<WinogradPlan>(problem, arithmetic);
}

}  // namespace convtbw::simd
