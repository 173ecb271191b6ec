// Which windows of a box are computed apart because taps of theirs are absent, and where tiles read
// the operand (data.h).
#include <algorithm>
#include <utility>
#include <vector>

#include "backends/simd/data.h"
#include "backends/simd/edges.h"
#include "backends/simd/plans.h"

namespace convtbw::simd {

namespace {

// So many pieces of so many windows along an axis, which meet so many taps.
struct Pieces {
  int64_t windows, taps, count;
};

// What boxes of `size` windows consist of along an axis; where windows that meet different taps
// are apart, and where they are not.
struct PiecesOfAxis {
  std::vector<Pieces> together, apart;
  bool absent_taps = false;
};

std::vector<Pieces> counted(std::vector<Pieces> pieces) {
  const auto key = [](const Pieces& p) { return std::pair{p.windows, p.taps}; };
  std::ranges::sort(pieces, {}, key);
  std::vector<Pieces> counted;
  for (const Pieces& p : pieces) {
    if (counted.empty() || key(counted.back()) != key(p)) counted.push_back({p.windows, p.taps, 0});
    counted.back().count += p.count;
  }
  return counted;
}

PiecesOfAxis pieces_of(const Phase& phase, int64_t windows, int64_t size, int64_t extent) {
  PiecesOfAxis pieces;
  for (int64_t first = 0; first < windows; first += size) {
    const Range box{std::max(first, phase.begin), std::min(first + size, phase.end)};
    if (box.begin >= box.end) continue;
    pieces.together.push_back({box.end - box.begin, phase.sliding.taps, 1});
    for_each_edge(phase.sliding, extent, box, [&](const Range& range, const Range& taps) {
      pieces.apart.push_back({range.end - range.begin, taps.end - taps.begin, 1});
      pieces.absent_taps |= taps.end - taps.begin < phase.sliding.taps;
    });
  }
  return {counted(std::move(pieces.together)), counted(std::move(pieces.apart)),
          pieces.absent_taps};
}

// What a piece costs, in products of a pixel and a tap: at least that of some pixels, and more.
struct PieceCosts {
  int64_t least_pixels;
  double more;
};

// Of all boxes.
double products(const PerAxis<PiecesOfAxis>& pieces, const PerAxis<bool>& edges,
                const PieceCosts& costs) {
  const auto along = [&](int a) -> const std::vector<Pieces>& {
    return edges[a] ? pieces[a].apart : pieces[a].together;
  };
  double sum = 0;
  for (const Pieces& p0 : along(0))
    for (const Pieces& p1 : along(1))
      for (const Pieces& p2 : along(2))
        for (const Pieces& p3 : along(3)) {
          const int64_t pixels = p0.windows * p1.windows * p2.windows * p3.windows;
          const int64_t taps = p1.taps * p2.taps * p3.taps;
          const int64_t alike = p0.count * p1.count * p2.count * p3.count;
          sum += static_cast<double>(alike) *
                 (static_cast<double>(std::max(pixels, costs.least_pixels) * taps) + costs.more);
        }
  return sum;
}

// Of each element that is copied, in products of a vector. Matrix registers, which multiply faster
// than anyone copies, read in place 3x3 of 64 channels in 0.8 of the time of boxes, 4x4 of stride 2
// in 0.64 to 0.8; 6 and 12 instead of 3 are alike.
double cost_of_copy(const Arithmetic& arithmetic) { return arithmetic.matrices ? 3 : 0.75; }

}  // namespace

bool may_read_in_place(const Problem& p, const Arithmetic& arithmetic) {
  const DataStrides& operand = p.wanted == Role::y ? p.x : p.y;
  if (operand.channel != 1) return false;
  if (p.dtype == Dtype::f32 || p.dtype == Dtype::f64) return true;
  const auto whole_pairs = [](int64_t stride) { return stride % 2 == 0; };
  return p.dtype == Dtype::bf16 && arithmetic.pairs && whole_pairs(operand.batch) &&
         std::ranges::all_of(operand.axes, whole_pairs);
}

// But where boxes are copied all windows that have absent taps are apart, for there are no zeros to
// be met. Else along the axes for which the fewest products are left; not along rows whose pairs
// run on, where taps are not apart.
DataPlan::Products DataPlan::choose_edges() {
  // As many sums as two multiplications a cycle, four cycles long, keep busy; as many pixels as
  // weights from the second-level cache keep up with; and the cycles of a piece beside its
  // products. With half as many sums 7x7 pixels under 3x3 taps took 1.05 to 1.15 times as long,
  // with half as many pixels 512 channels of them 1.12 times (16 lanes), without the cycles 4x4 of
  // stride 2 to 2x16 channels 1.3 times, with half of them 7x7 of stride 4 to 2x50 1.1 (Zen 5).
  constexpr int64_t kSums = 8, kPixels = 4;
  const double cycles = arithmetic_.matrices ? 400 : 100;
  const int64_t vectors = blocks_.front().vectors;
  const int64_t steps = ceil_div(in_channels_, weights_.elements_of_unit());
  const PieceCosts costs{std::max(kPixels, ceil_div(kSums, vectors)),
                         2 * cycles / static_cast<double>(steps * vectors)};
  Products all{0, 0};
  edges_.clear();
  for (const BoxPhase& phase : phases_) {
    PerAxis<PiecesOfAxis> pieces;
    PerAxis<bool> absent_taps{};
    for (int a = 0; a < kBoxRank; ++a) {
      pieces[a] = pieces_of(*phase.axes[a], grid_.extent[a], grid_.size[a], in_.extent[a]);
      absent_taps[a] = pieces[a].absent_taps;
    }
    const double present = products(pieces, absent_taps, costs);
    PerAxis<bool> best{};
    double least = products(pieces, best, costs);
    for (int axes = 1; axes < 8; ++axes) {
      const PerAxis<bool> edges{false, (axes & 1) != 0, (axes & 2) != 0, (axes & 4) != 0};
      if (edges[3] && pairs_run_on_) continue;
      const double left = products(pieces, edges, costs);
      if (left < least) {
        least = left;
        best = edges;
      }
    }
    edges_.push_back(reading_ == Reading::box ? best : absent_taps);
    all.least += least;
    all.present += present;
  }
  return all;
}

// Time of copying boxes over that of reading in place, fprop and dgrad, float32 and bfloat16 pairs,
// by elements that are copied for each product of a vector (Zen 5, 16 lanes, 140 layers; with 8
// lanes, 51 of those chosen, 0.95 to 3, 1.3 in the mean): below 0.06 0.9 to 1.05, to 0.1 1.0 to
// 1.1, to 0.2 1.0 to 1.3, to 0.4 1.2 in the mean, to 1 1.25, more 1.6 to 4.5. What boxes meet of an
// operand in main memory is fetched ahead by both (without that in place takes up to 2.5 times as
// long); 40 MB, fprop of one tap, 2x2 and 3x3 of stride 2, 32 to 256 channels, 45 layers (Zen 5):
// 16 lanes, one vector and two 1.0 to 1.5, 1.13 in the mean, but 2x2 of 32 and 64 channels 0.8 to
// 1.0; more 0.85 to 1.1, 1.0 in the mean; 8 lanes, up to four vectors 1.0 to 1.3, 1.1 in the mean.
// One group of several, whose pixels lie apart, is such an operand too: 2 images of 112x112 of 4
// groups of 16 0.7 to 1.0 (8 lanes).
//
// What cannot be read in place is copied as a whole where boxes would copy it several times. Time
// over that of copying boxes, 100 random layers, half of them dilated, of those chosen (Zen 5):
// channels first, float32 and bfloat16, 16 lanes 0.17 to 1.07, 0.76 in the mean, 8 lanes 0.42 to
// 1.06, 0.86 (up to 1.18 and 1.24 where 1 % is to be gained); but fprop of a stride with 8 lanes
// 0.8 to 1.13; channels last, converted, 16 lanes 0.5 to 1.09, 0.9, 8 lanes 0.8 to 1.26, 1.0, but
// where boxes copy it six times and more (wide dilations of small images, large windows of few
// pixels; 50 layers in 16 bits, Zen 4) 0.67 to 1.13, 0.93 in the mean, twice 1.3; one tap 1.2 to
// 1.3; from 4 MB on 0.26 to 1.8.
DataPlan::Choice DataPlan::best_reading(const Products& products) const {
  constexpr double kLeastShare = 0.3, kLeastShareOf8 = 0.2;  // of lanes, of a far operand
  // Of one whose every element is copied about once, and of one that only one window meets.
  constexpr double kFewCopies = 1.3, kLeastShareOfOneCopy = 0.45;
  constexpr int64_t kLeastChannels = 128;
  const Geometry& g = problem_.geometry;
  const double copied = copied_for_all_parts();
  const double share = copied / (products.least * vectors_of_all_lanes());
  const Choice box{Reading::box, cost_of_boxes(products)};
  const std::optional<Reading> unboxed = unboxed_reading();
  if (!unboxed) return box;
  if (*unboxed == Reading::in_place && far_operand_) {
    const bool met_once = g.taps() > 1 && apart(g);
    const double least_share = arithmetic_.lanes <= 8                      ? kLeastShareOf8
                               : met_once && in_channels_ < kLeastChannels ? 1
                               : copied < kFewCopies * operand_positions() ? kLeastShareOfOneCopy
                                                                           : kLeastShare;
    if (share < least_share) return box;
  }
  const Choice other{*unboxed, cost_of_unboxed(*unboxed, products)};
  return other.cost < box.cost ? other : box;
}

std::optional<DataPlan::Reading> DataPlan::unboxed_reading() const {
  constexpr double kMostBytes = 4 << 20, kManyCopies = 8;
  const Geometry& g = problem_.geometry;
  if (turns_.size() > 1 || pairs_run_on_) return {};
  if (may_read_in_place(problem_, arithmetic_)) return Reading::in_place;
  const bool strides = fprop_ && !unit_strides(g), channels_last = in_.channel == 1;
  const bool many = channels_last && copied_for_all_parts() >= kManyCopies * operand_positions();
  if (g.taps() == 1 || (arithmetic_.lanes <= 8 && !many && (strides || channels_last))) return {};
  const int64_t units = ceil_div(in_channels_, weights_.elements_of_unit()) * unit();
  const double bytes = static_cast<double>(g.groups * units) * operand_positions();
  if (bytes > kMostBytes) return {};
  return Reading::copy;
}

double DataPlan::cost_of_boxes(const Products& products) const {
  return products.least +
         cost_of_copy(arithmetic_) * copied_for_all_parts() / vectors_of_all_lanes();
}

double DataPlan::cost_of_unboxed(Reading reading, const Products& products) const {
  constexpr double kLeastGain = 1.05, kLeastGainOfCopy = 1.03;
  if (reading == Reading::in_place) return kLeastGain * products.present;
  return kLeastGainOfCopy * (products.present + cost_of_copy(arithmetic_) * operand_positions() /
                                                    vectors_of_all_lanes());
}

double DataPlan::copied_for_all_parts() const {
  return copied_positions() * static_cast<double>(std::ssize(parts_)) /
         static_cast<double>(problem_.geometry.groups);
}

double DataPlan::operand_positions() const {
  double positions = 1;
  for (const int64_t extent : in_.extent) positions *= static_cast<double>(extent);
  return positions;
}

double DataPlan::vectors_of_all_lanes() const {
  double vectors = 0;
  for (const LaneBlock& block : blocks_) vectors += block.vectors;
  return vectors;
}

}  // namespace convtbw::simd
