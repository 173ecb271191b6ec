// What a plan of fprop and dgrad decides once (data.h).
#include <algorithm>
#include <utility>

#include "backends/simd/data.h"
#include "backends/simd/edges.h"
#include "backends/simd/plans.h"
#include "core/cpu.h"

namespace convtbw::simd {

namespace {

// Time over that with 4 MB, 26 layers of 100 to 1000 pixels, Zen 5, 8 and 16 lanes: 3x3 of stride
// 2 of 512 channels, 14x14, 0.75 to 0.8 and 0.9 to 0.97, others 0.95 to 1.04; with 8 MB 0.9
// to 1.06, with 16 0.75 to 1.37.
constexpr int64_t kMostPackedBytes = 6 << 20;
// Intel's third-level cache is slower beside its second-level one of 2 MB: with 1 MB 512 to 256
// channels of 8x8, 4x4 of stride 2, take 0.6 of the time (AMX), of sequences 0.78 (float32).
int64_t packed_bytes() { return is_intel() ? 1 << 20 : kMostPackedBytes; }
constexpr int64_t kItems = 16;  // enough to keep many threads busy until the end

// That all windows meet, absent ones too.
double taps_of_windows(const PerAxis<PhasedAxis>& axes) {
  double product = 1;
  for (const PhasedAxis& axis : axes) {
    int64_t along = 0;
    for (const Phase& phase : axis.phases) along += (phase.end - phase.begin) * phase.sliding.taps;
    product *= static_cast<double>(along);
  }
  return product;
}

// Whether pairs of bfloat16 should run on from one tap of a row to the next: with a pair without a
// second element at every tap, few channels take up to twice the products. But then windows that
// reach beyond a row keep their absent taps.
bool pairs_run_on(const Arithmetic& arithmetic, int64_t channels, const PhasedAxis& row,
                  int64_t extent) {
  constexpr int64_t kMostChannels = 63;  // so many are one chunk
  if (!arithmetic.pairs || channels % 2 == 0 || channels > kMostChannels) return false;
  int64_t running = 0, apart = 0;  // units of a row
  for (const Phase& phase : row.phases) {
    const Sliding& s = phase.sliding;
    if (s.taps > 1 && s.dilation > 1) return false;
    running += (phase.end - phase.begin) * ceil_div(s.taps * channels, 2);
    for_each_edge(
        s, extent, {phase.begin, phase.end}, [&](const Range& windows, const Range& taps) {
          apart += (windows.end - windows.begin) * (taps.end - taps.begin) * ceil_div(channels, 2);
        });
  }
  return running < apart;
}

}  // namespace

DataPlan::DataPlan(const Problem& problem, const Arithmetic& arithmetic, std::optional<int> phased)
    : DirectedPlan(problem, arithmetic),
      axes_(phased_axes(problem)),
      pairs_run_on_(pairs_run_on(arithmetic, in_channels_, axes_[3], in_.extent[3])),
      weights_(problem, arithmetic, pairs_run_on_),
      unpacking_{&arithmetic, out_, {}} {
  most_steps_ = most_steps(arithmetic);
  unpacking_.strips.fill(strip({Sliding{}}, 1, Apart::windows));
  for (const PhasedAxis& axis : axes_) complete_ &= axis.complete;
  // Others sum dgrad's few channels for each tap, and then the taps. Of FCN's upsampling, 21
  // channels and 4 taps, one sum errs 1.36 times as much as torch's, folded 0.77 times; 16x16 and
  // 64x64 windows of stride 8 and 32 take 1.0 to 1.05 of the time (Zen 5). From 32 channels on
  // others err more.
  constexpr int64_t kFewChannels = 32;
  if (in_channels_ <= kFewChannels &&
      std::ranges::any_of(axes_, [](const PhasedAxis& axis) { return axis.step > 1; }))
    most_steps_ = most_steps(arithmetic, kFewChannels);
  // Lines of rows that lie far apart are fetched before they are written: 1 to 512 channels of
  // 3000, 24 MB, 0.8 of the time, 3x3 from 3 to 64, 26 MB, 0.8 to 1.0; of 4 to 13 MB 0.9 to 1.1
  // (Ice Lake).
  constexpr int64_t kFarBytes = 16 << 20;
  const bool transposed = out_.channel != 1 && out_channels_ > 1;
  far_result_ = transposed && data_bytes(problem, problem.wanted) >= kFarBytes;
  far_operand_ = data_bytes(problem, operand_) > kFarBytes / problem.geometry.groups;
  // Results with channels last are written in place, of 16 bits too: 0.7 to 0.8 of the time for few
  // steps (one tap; 4x4 from 3 channels) with 16 lanes, 0.9 with 8 (Ice Lake). So are those of
  // which phases of a row write pieces of the same cache lines at different times: 45 layers of 8
  // to 144 channels, 2 to 64 phases, up to 50 MB, 0.66 to 1.05, 0.94 in the mean, with AVX2 0.68
  // to 1.06, 0.96 (Zen 4).
  // Where no tap may reach, zeros are written, in place too: one tap of stride 2, dgrad, 0.62
  // to 1.0, 0.82 in the mean; but not a bias, which is float32.
  bool staged = transposed || (rounded() && !complete_ && problem.bias);

  turns_.push_back({axes_, {}, {}, 0, 0});
  if (phased) {
    const std::vector<PhasedAxis> rows = fprop_phases(problem.geometry.axes[*phased]);
    turns_.resize(rows.size(), turns_.front());
    for (size_t i = 0; i < rows.size(); ++i) turns_[i].axes[*phased + 1] = rows[i];
    staged |= rounded();  // sums of all turns are rounded once
  }

  choose_layout(staged);
  weights_units_ = 0;
  for (Chunk& chunk : chunks_) {
    chunk.weights = weights_units_;
    for (const Turn& turn : turns_)
      for (size_t i = turn.first_phase; i < turn.end_phase; ++i) {
        const BoxPhase& phase = phases_[i];
        chunk.phase_units.push_back(weights_units_ - chunk.weights);
        weights_units_ += weights_.units(phase, chunk.channels);
        for (int vectors = 0; vectors <= kMaxVectors; ++vectors) {
          const bool used = std::ranges::any_of(
              blocks_, [&](const LaneBlock& block) { return block.vectors == vectors; });
          chunk.runs.push_back(used ? runs(turn, phase, all_taps(phase), chunk, vectors)
                                    : FoldedRuns());
          bytes += chunk.runs.back().bytes();
        }
      }
  }

  bias_lanes_ = padded_lanes(blocks_, arithmetic_.lanes);
  part_units_ = weights_units_ * largest_part_lanes_;
  workspace_units_ = parts_per_pass_ * part_units_ +
                     (problem.bias ? problem.geometry.groups * bias_lanes_ : 0) + copy_units_;
  kernel = (phased ? "phase by phase, " : "") + std::string(contraction_name(problem.wanted)) +
           ", channels in lanes, " + (pairs_run_on_ ? "taps joined with channels, " : "") +
           (reading_ == Reading::in_place ? "read in place, " : "") +
           (copies() ? "copied once, " : "") + arithmetic.name;
  workspace = workspace_units_ * unit() + problem.threads * local_bytes();
  bytes += static_cast<int64_t>(sizeof(DataPlan) + parts_.size() * sizeof(BlockRange) +
                                phases_.size() * sizeof(BoxPhase) + turns_.size() * sizeof(Turn));
}

// Boxes of few pixels of many images leave out more absent taps than those of an image's rows:
// windows at the same place of all images miss the same. Time over that of rows, of those chosen,
// two threads of Zen 4: AVX-512 kernels, float32 and bfloat16, 5x5 to 9x9 of 4x4 to 14x14, 8 to 32
// images 0.72 to 1.0, 0.85 in the mean, of up to 28x28, 4 images and more, 0.93; AVX2 kernels 0.97.
void DataPlan::choose_layout(bool staged) {
  constexpr double kLeastGain = 1.03;
  lay_out({Growth::rows, Reading::box}, staged);
  const Choice rows = best_reading(choose_edges());
  Layout best{Growth::rows, rows.reading};
  double least = rows.cost / kLeastGain;
  const auto try_out = [&](Reading reading) {
    lay_out({Growth::images, reading}, staged);
    const Products products = choose_edges();
    const double cost =
        reading == Reading::box ? cost_of_boxes(products) : cost_of_unboxed(reading, products);
    if (cost >= least) return;
    best = {Growth::images, reading};
    least = cost;
  };
  if (problem_.geometry.batch > 1 && !far_result_ && !far_operand_) {
    try_out(Reading::box);
    if (const std::optional<Reading> unboxed = unboxed_reading()) try_out(*unboxed);
  }
  lay_out(best, staged);
  choose_edges();
}

// `staged`: whether results must be, whatever the sizes.
void DataPlan::lay_out(const Layout& layout, bool staged) {
  reading_ = layout.reading;
  staged_ = staged;
  choose_sizes(layout.growth);
  read_stride_ = in_.stride;
  copy_units_ = 0;
  if (copies()) lay_out_copy();
  phases_.clear();
  for (Turn& turn : turns_) {
    turn.first_phase = phases_.size();
    for (const BoxPhase& phase : box_phases(turn.axes, turn.strips)) phases_.push_back(phase);
    turn.end_phase = phases_.size();
  }
}

// [group][position][channel], in the arithmetic's units.
void DataPlan::lay_out_copy() {
  // At a time: what is on its way to the copy stays in the second-level cache.
  constexpr int64_t kBytes = 128 << 10, kLeastPositions = 16, kMostPositions = 256;
  const int64_t most_positions =
      std::clamp(kBytes / (in_channels_ * unit()), kLeastPositions, kMostPositions);
  copy_packing_ = {&arithmetic_, in_, {}, turns_.front().packing.pairing};
  copy_grid_ = {in_.extent, {1, 1, 1, 1}};
  int64_t step = weights_.elements(in_channels_), positions = 1;
  for (int a = kBoxRank - 1; a >= 0; --a) {
    const int64_t extent = in_.extent[a];
    read_stride_[a] = step;
    step *= extent;
    copy_grid_.size[a] =
        ceil_div(extent, ceil_div(extent, std::max<int64_t>(1, most_positions / positions)));
    positions *= extent;
    copy_packing_.strips[a] = strip({Sliding{}}, copy_grid_.size[a], Apart::windows);
  }
  read_group_ = step;
  copy_units_ = problem_.geometry.groups * step / weights_.elements_of_unit();
  join_rows(copy_packing_, copy_grid_);
}

// Sizes depend on the shape alone, so that results do not depend on the number of threads.
void DataPlan::choose_sizes(Growth growth) {
  // 128 KB of operand rows: 32 to 512 KB are within 4 % of each other (Zen 3). Read in place, 2 MB
  // take 0.8 to 1.0 of the time of 128 KB where they save sums of parts of the channels; else the
  // next 512 KB, which are fetched, still fit in the second-level cache: 0.9 to 1.0 (Zen 5).
  // Matrix registers, whose multiplications are short beside copies: 256 KB and twice the pixels
  // 0.8 to 1.0.
  const int64_t kBufferBytes = (arithmetic_.matrices ? 256 : 128) << 10;
  constexpr int64_t kMostBufferBytes = 512 << 10;
  constexpr int64_t kInPlaceBytes = 512 << 10, kMostInPlaceBytes = 2 << 20;
  constexpr int64_t kStageBytes = 256 << 10;
  const int64_t kPixels = arithmetic_.matrices ? 512 : 256;
  constexpr int64_t kFewPixels = 48;
  // Where only planes or rows have several taps, boxes are so long at first: (3, 1, 1) of 64
  // channels of 16x56x56 0.95 of the time, channels first 0.88; 32 and 128 are slower (Zen 4).
  constexpr int64_t kRow = 64;

  for (int a = 0; a < kBoxRank; ++a) grid_.extent[a] = axes_[a].windows;
  PerAxis<int64_t>& size = grid_.size;
  const auto positions = [&](const PerAxis<int64_t>& windows) {
    int64_t product = 1;
    // No turn has more taps than the first.
    for (int a = 0; a < kBoxRank; ++a)
      product *= turns_.front().axes[a].strip(windows[a], Apart::windows).length;
    return product;
  };
  const auto one_tap_along = [&](int a) {
    return std::ranges::all_of(axes_[a].phases,
                               [](const Phase& phase) { return phase.sliding.taps == 1; });
  };
  const auto pixels = [](const PerAxis<int64_t>& w) { return w[0] * w[1] * w[2] * w[3]; };
  int64_t all_pixels = 1;
  for (const PhasedAxis& axis : axes_) all_pixels *= axis.windows;
  const int vectors =
      best_vectors(arithmetic_, all_pixels, kMostPackedBytes / lane_bytes(), most_phase_steps());
  const int64_t width = vectors * arithmetic_.lanes;
  blocks_ = lane_blocks(out_channels_, arithmetic_.lanes, vectors);
  // Lanes of the stage: all, or so many that enough windows fit.
  const int64_t part_lanes = std::min(
      out_channels_,
      std::max<int64_t>(64, kStageBytes / (128 * covered({1, 1, 1, 1}) * unit()) / width * width));
  const bool boxed = reading_ == Reading::box;
  // Fewer channels at a time, or a larger buffer, where else only few pixels would fit.
  int64_t channels = in_channels_, buffer_bytes = boxed ? kBufferBytes : kInPlaceBytes;
  const auto fits = [&](const PerAxis<int64_t>& windows) {
    return positions(windows) * channels * unit() <= buffer_bytes &&
           (!staged_ || covered(windows) * part_lanes * unit() <= kStageBytes);
  };
  const auto grow_along = [&](int a, int64_t most, int64_t limit) {
    while (size[a] < most) {
      PerAxis<int64_t> next = size;
      // Even cuts: the last box of an axis is not a small remainder.
      const int64_t cuts = ceil_div(axes_[a].windows, size[a]);
      next[a] = cuts <= 1 ? axes_[a].windows : ceil_div(axes_[a].windows, cuts - 1);
      if (a == 3) next[a] = std::max(next[a], std::min<int64_t>(16, axes_[a].windows));
      if (next[a] > most || pixels(next) > limit || !fits(next)) break;
      size = next;
    }
  };
  const auto grow = [&](int64_t limit) {
    size = {1, 1, 1, 1};
    // More rows and planes share what their windows meet.
    if (one_tap_along(3) && !(one_tap_along(1) && one_tap_along(2)))
      for (const int a : {3, 2, 1})
        grow_along(a, a == 3 ? std::min(kRow, axes_[a].windows) : axes_[a].windows, limit);
    // What is transposed keeps its rows.
    constexpr PerAxis<int> kRows{3, 2, 1, 0}, kImages{0, 3, 2, 1}, kRowsOfImages{3, 0, 2, 1};
    for (const int a : growth == Growth::rows ? kRows : staged_ ? kRowsOfImages : kImages)
      grow_along(a, axes_[a].windows, limit);
  };
  int64_t limit = kPixels;
  grow(limit);
  const int64_t most_bytes = boxed ? kMostBufferBytes : kMostInPlaceBytes;
  while (pixels(size) < std::min(kFewPixels, all_pixels) &&
         (channels > 64 || buffer_bytes < most_bytes)) {
    if (channels > 64 && (boxed || buffer_bytes >= most_bytes)) {
      channels = (channels + 1) / 2;
      staged_ |= rounded();  // sums over all channels are rounded once
    } else {
      buffer_bytes *= 2;
    }
    grow(limit);
  }
  // Of as many images as can be; parts of the result's channels are items, too.
  const int64_t least_boxes = growth == Growth::rows ? kItems : kItems / 2;
  while (grid_.boxes() * groups_at_once() < least_boxes && limit > kFewPixels) {
    limit /= 2;
    grow(limit);
  }
  for (Turn& turn : turns_)
    for (int a = 0; a < kBoxRank; ++a) turn.strips[a] = turn.axes[a].strip(size[a], Apart::windows);
  cut_channels(channels);
  cut_result(width, part_lanes);
  tile_list_ = pixels(size);
  stage_units_ = staged_ ? covered(size) * stage_pitch(largest_part_lanes_) : 0;
}

// Of the phase with the most taps.
int64_t DataPlan::most_phase_steps() const {
  int64_t steps = 1;
  for (int a = 0; a < kBoxRank; ++a) {
    int64_t most = 0;
    for (const Phase& phase : axes_[a].phases) most = std::max(most, phase.sliding.taps);
    steps *= a == kBoxRank - 1 ? weights_.units(most, in_channels_) : most;
  }
  return steps;
}

// Bytes of a lane's packed weights: all taps, all channels.
int64_t DataPlan::lane_bytes() const {
  const Geometry& g = problem_.geometry;
  return g.taps() / g.axes[2].k * weights_.units(g.axes[2].k, in_channels_) * unit();
}

// Those whose packed weights fit are computed at the same time.
int64_t DataPlan::groups_at_once() const {
  return std::clamp<int64_t>(packed_bytes() / (lane_bytes() * out_channels_), 1,
                             problem_.geometry.groups);
}

// Chunks of at most so many of the channels that are summed over, and how boxes of them are packed.
void DataPlan::cut_channels(int64_t most) {
  const PerAxis<Strip>& strips = turns_.front().strips;
  int64_t channels = ceil_div(in_channels_, ceil_div(in_channels_, most));
  if (arithmetic_.pairs) channels += channels % 2;
  int64_t largest = 0;
  chunks_.clear();
  for (int64_t first = 0; first < in_channels_; first += channels) {
    const int64_t count = std::min(channels, in_channels_ - first);
    chunks_.push_back({first, count, weights_.elements(count), 0, {}, {}});
    largest = std::max(largest, row_elements(strips[3].length, chunks_.back()));
  }
  buffer_units_ = reading_ != Reading::box
                      ? 0
                      : strips[0].length * strips[1].length * strips[2].length * largest /
                            weights_.elements_of_unit();
  const Pairing pairing = arithmetic_.pairs && !pairs_run_on_ ? Pairing::channels : Pairing::none;
  for (Turn& turn : turns_) {
    turn.packing = {&arithmetic_, in_, turn.strips, pairing, pairs_run_on_};
    // Rows whose last unit is half empty do not follow each other.
    if (!pairs_run_on_ || strips[3].length % 2 == 0) join_rows(turn.packing, grid_);
  }
}

// Parts of the result's channels: what fits in the packed weights, and enough for the threads.
// `width`: lanes of a block; `stage_lanes`: so many at most, if results are staged.
void DataPlan::cut_result(int64_t width, int64_t stage_lanes) {
  const int64_t boxes = grid_.boxes();
  int64_t lanes = std::max(width, packed_bytes() / lane_bytes() / width * width);
  if (staged_) lanes = std::min(lanes, std::max(width, stage_lanes));
  const int64_t wanted = ceil_div(kItems, boxes * groups_at_once());
  if (wanted > 1) lanes = std::min(lanes, std::max(width, ceil_div(out_channels_, wanted)));
  Parting parting =
      cut_blocks(blocks_, arithmetic_.lanes, problem_.geometry.groups, boxes, lanes / width,
                 packed_bytes() / (lane_bytes() * width),
                 reading_ == Reading::box ? copied_positions() / taps_of_windows(axes_) : 0);
  parts_ = std::move(parting.parts);
  parts_per_pass_ = parting.per_pass;
  largest_part_lanes_ = parting.largest_lanes;
}

// That all boxes meet, for each part.
double DataPlan::copied_positions() const {
  auto copied = static_cast<double>(grid_.boxes());
  for (const Strip& strip : turns_.front().strips) copied *= static_cast<double>(strip.length);
  return copied;
}

std::unique_ptr<const Plan> data_plan(const Problem& problem, const Arithmetic& arithmetic,
                                      std::optional<int> phased) {
  return std::make_unique<DataPlan>(problem, arithmetic, phased);
}

std::unique_ptr<const Plan> copying_data_plan(const Problem& problem,
                                              const Arithmetic& arithmetic) {
  auto plan = std::make_unique<DataPlan>(problem, arithmetic, std::nullopt);
  if (!plan->copies()) return nullptr;
  return plan;
}

}  // namespace convtbw::simd
