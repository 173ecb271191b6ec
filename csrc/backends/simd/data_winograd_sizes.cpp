// In which boxes, chunks and parts Winograd's filtering computes fprop and dgrad (data_winograd.h).
#include <algorithm>
#include <utility>

#include "backends/simd/data_winograd.h"
#include "backends/simd/plans.h"
#include "core/cpu.h"
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

}  // namespace

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

// Intel's second-level cache of 2 MB holds twice what others do, and the third-level one, from
// which many weights come for each box, is slow: 4x4 of stride 2 from 512 to 256 and from 128 to 64
// channels 0.81 to 1.04 of the time, 0.94 in the mean; of few weights 1.1.
int64_t WinogradPlan::sizes() const {
  constexpr int64_t kManyWeights = 1 << 20;
  return is_intel() && lane_bytes() * out_channels_ >= kManyWeights ? 2 : 1;
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
  const int64_t buffer_bytes = sizes() * (512 << 10), stage_bytes = sizes() * kStageBytes;
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
        if (tiles() > limit || 4 * buffer > buffer_bytes ||
            4 * positions(size) * std::min<int64_t>(out_channels_, 4 * arithmetic_.lanes) >
                stage_bytes) {
          size = before;
          break;
        }
      }
  };
  int64_t limit = sizes() * kTiles;
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
  const int64_t frequency_bytes = sizes() * (256 << 10);
  const int64_t channel_units =  // frequencies of one channel
      kFrequencies * strips_[0].length * strips_[1].length * grid_.size[2] * grid_.size[3];
  const int64_t lanes = arithmetic_.lanes;
  const int64_t most =
      std::max<int64_t>(frequency_bytes / (4 * channel_units) / lanes * lanes, 2 * lanes);
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
  const int64_t product_bytes = sizes() * (256 << 10);
  const int64_t groups = problem_.geometry.groups, boxes = grid_.boxes();
  group_blocks_ = std::max<int64_t>(1, product_bytes / (4 * kFrequencies * list_ * width));
  product_units_ = kFrequencies * odd_lines(list_ * (group_blocks_ * width + arithmetic_.lanes));
  int64_t lanes =
      std::min(sizes() * kStageBytes / (4 * positions(grid_.size)), kPackedBytes / lane_bytes());
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

}  // namespace convtbw::simd
