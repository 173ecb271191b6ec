// fprop and dgrad with at least a few channels on either side: an implicit GEMM whose rows are
// pixels of the result, whose lanes are its channels, and which sums over taps and the other side's
// channels. Rows of the operand are copied, zero-padded and channels last, into a small buffer, and
// the register tile broadcasts straight from there: taps and channels are one contiguous run.
//
// dgrad is one such problem for every remainder (phase) of a result position modulo the stride,
// with the taps that reach it; fprop has one phase. All phases share the buffer.
#include <algorithm>
#include <cstring>
#include <utility>

#include "backends/simd/box.h"
#include "backends/simd/phases.h"
#include "backends/simd/plans.h"
#include "backends/simd/scratch.h"
#include "core/parallel.h"

namespace convtbw::simd {

namespace {

// Lanes [lane, lane + vectors * width) of the result's channels.
struct Block {
  int64_t lane;
  int vectors;
};

// Two vectors make the best tile; three at the end rather than one (kernels.md's rates: 78 to 94
// against 69 to 89 of 101).
std::vector<Block> blocks_of(int64_t channels, int lanes) {
  std::vector<Block> blocks;
  int64_t left = (channels + lanes - 1) / lanes, lane = 0;
  while (left) {
    const int vectors = left == 1 ? 1 : left == 3 ? 3 : 2;
    blocks.push_back({lane, vectors});
    lane += int64_t{vectors} * lanes;
    left -= vectors;
  }
  return blocks;
}

class DataPlan : public Plan {
 public:
  DataPlan(const Problem& problem, const Arithmetic& arithmetic);
  void run(const Operands& operands) const override;

 private:
  // What one phase of the whole box is.
  struct PhaseOfBox {
    PerAxis<const Phase*> axes;
    PerAxis<Footing> footings;
    int64_t taps;
    int64_t weights;  // offset in a chunk's packed weights for one lane, in units of chunk channels
  };

  // A range of the channels that are summed over.
  struct Chunk {
    int64_t first, channels, units;
    int64_t weights;  // offset of its packed weights, for one lane
    // By phase and by vectors of the block: [phase * (kMaxVectors + 1) + vectors]
    std::vector<std::vector<Run>> runs;
  };

  // A range of the blocks of one group.
  struct Part {
    int64_t group, first_block, blocks, lane, lanes;  // lanes: padded to whole blocks
  };

  void choose_sizes();
  std::vector<Run> runs(const PhaseOfBox& phase, const Chunk& chunk, int vectors) const;
  const char* pack_bias(const void* bias, char* packed) const;
  void pack_weights(const Operands& operands, const Part& part, const Chunk& chunk, size_t phase,
                    void* packed) const;
  void run_box(const Operands& operands, const Part& part, const BoxRange& box, const char* packed,
               const char* bias) const;
  void fill(const Part& part, const BoxRange& positions, char* c, const PerAxis<int64_t>& c_stride,
            const char* bias) const;

  // Result positions that so many windows of each axis cover at most.
  int64_t positions_of(const PerAxis<int64_t>& windows) const {
    int64_t count = 1;
    for (int a = 0; a < kBoxRank; ++a)
      count *= std::min(out_.extent[a], windows[a] * axes_[a].step);
    return count;
  }
  int64_t unit() const { return problem_.dtype == Dtype::f64 ? 8 : 4; }

  const Problem problem_;
  const Arithmetic& arithmetic_;
  const bool fprop_;
  Tensor out_;
  int64_t in_channels_, out_channels_;
  int64_t w_in_, w_out_;  // strides of the weights
  std::vector<Block> blocks_;
  PerAxis<PhasedAxis> axes_;
  std::vector<PhaseOfBox> phases_;
  std::vector<Chunk> chunks_;
  Packing packing_;
  BoxGrid grid_;
  std::vector<Part> parts_;
  int64_t parts_per_pass_, largest_part_lanes_ = 0;
  bool staged_;
  bool complete_ = true;  // every result position belongs to a phase
  int64_t buffer_units_, stage_units_, tile_list_;
  int64_t part_units_, bias_lanes_, workspace_units_;
  int64_t taps_;           // of all phases
  int64_t weights_units_;  // packed weights for one lane
};

DataPlan::DataPlan(const Problem& problem, const Arithmetic& arithmetic)
    : problem_(problem),
      arithmetic_(arithmetic),
      fprop_(problem.wanted == Role::y),
      out_(fprop_ ? y_tensor(problem) : x_tensor(problem)),
      in_channels_(fprop_ ? problem.geometry.x_channels : problem.geometry.y_channels),
      out_channels_(fprop_ ? problem.geometry.y_channels : problem.geometry.x_channels),
      w_in_(fprop_ ? problem.w.x_channel : problem.w.y_channel),
      w_out_(fprop_ ? problem.w.y_channel : problem.w.x_channel),
      blocks_(blocks_of(out_channels_, arithmetic.lanes)),
      packing_{&arithmetic, fprop_ ? x_tensor(problem) : y_tensor(problem), {},
               arithmetic.pairs ? Pairing::channels : Pairing::none} {
  axes_[0] = images_axis(problem.geometry.batch);
  for (int a = 0; a < kMaxRank; ++a)
    axes_[a + 1] = fprop_ ? fprop_axis(problem.geometry.axes[a]) : dgrad_axis(problem.geometry.axes[a]);
  for (const PhasedAxis& axis : axes_) complete_ &= axis.complete;
  const bool sums = problem.dtype == Dtype::f32 || problem.dtype == Dtype::f64;
  staged_ = !sums || (out_.channel != 1 && out_channels_ > 1);

  choose_sizes();

  for (size_t i0 = 0; i0 < axes_[1].phases.size(); ++i0)
    for (size_t i1 = 0; i1 < axes_[2].phases.size(); ++i1)
      for (size_t i2 = 0; i2 < axes_[3].phases.size(); ++i2) {
        const PerAxis<size_t> index{0, i0, i1, i2};
        PhaseOfBox phase{{}, {}, 1, taps_};
        for (int a = 0; a < kBoxRank; ++a) {
          phase.axes[a] = &axes_[a].phases[index[a]];
          phase.footings[a] = packing_.strips[a].footings[index[a]];
          phase.taps *= phase.axes[a]->sliding.taps;
        }
        taps_ += phase.taps;
        phases_.push_back(phase);
      }
  weights_units_ = 0;
  for (Chunk& chunk : chunks_) {
    chunk.weights = weights_units_;
    weights_units_ += taps_ * chunk.units;
    for (const PhaseOfBox& phase : phases_)
      for (int vectors = 0; vectors <= kMaxVectors; ++vectors)
        chunk.runs.push_back(runs(phase, chunk, vectors));
  }

  bias_lanes_ = blocks_.back().lane + int64_t{blocks_.back().vectors} * arithmetic_.lanes;
  part_units_ = weights_units_ * largest_part_lanes_;
  workspace_units_ = parts_per_pass_ * part_units_ +
                     (problem.bias ? problem.geometry.groups * bias_lanes_ : 0);
  kernel = std::string(fprop_ ? "fprop" : "dgrad") + ", channels in lanes, " + arithmetic.name;
  workspace = 0;
}

// Sizes depend on the shape alone, so that results do not depend on the number of threads.
void DataPlan::choose_sizes() {
  // 128 KB of operand rows: 32 to 512 KB are within 4 % of each other (Zen 3).
  constexpr int64_t kBufferBytes = 128 << 10, kStageBytes = 192 << 10;
  constexpr int64_t kPixels = 256, kFewPixels = 48;
  constexpr int64_t kPackedBytes = 4 << 20;
  constexpr int64_t kItems = 32;  // enough to keep many threads busy until the end

  const auto pack_axis = [&](int a, int64_t windows) {
    std::vector<Sliding> ways;
    for (const Phase& phase : axes_[a].phases) ways.push_back(phase.sliding);
    return strip(ways, windows, Apart::windows);
  };
  PerAxis<int64_t> size{1, 1, 1, 1};
  const auto positions = [&](const PerAxis<int64_t>& windows) {
    int64_t product = 1;
    for (int a = 0; a < kBoxRank; ++a) product *= pack_axis(a, windows[a]).length;
    return product;
  };
  const auto pixels = [](const PerAxis<int64_t>& w) { return w[0] * w[1] * w[2] * w[3]; };
  const int64_t part_lanes = std::min<int64_t>(out_channels_, 256);
  // Fewer channels at a time where else only few pixels would fit.
  int64_t channels = in_channels_;
  const auto fits = [&](const PerAxis<int64_t>& windows) {
    return positions(windows) * channels * unit() <= kBufferBytes &&
           (!staged_ || positions_of(windows) * part_lanes * unit() <= kStageBytes);
  };
  const auto grow = [&](int64_t limit) {
    size = {1, 1, 1, 1};
    for (const int a : {3, 2, 1, 0})
      while (size[a] < axes_[a].windows) {
        PerAxis<int64_t> next = size;
        // Even cuts: the last box of an axis is not a small remainder.
        const int64_t cuts = ceil_div(axes_[a].windows, size[a]);
        next[a] = cuts <= 1 ? axes_[a].windows : ceil_div(axes_[a].windows, cuts - 1);
        if (a == 3 && next[a] < std::min<int64_t>(16, axes_[a].windows))
          next[a] = std::min<int64_t>(16, axes_[a].windows);
        if (pixels(next) > limit || !fits(next)) break;
        size = next;
      }
  };
  int64_t limit = kPixels;
  grow(limit);
  int64_t all_pixels = 1;
  for (const PhasedAxis& axis : axes_) all_pixels *= axis.windows;
  while (pixels(size) < std::min(kFewPixels, all_pixels) && channels > 64) {
    channels = (channels + 1) / 2;
    grow(limit);
  }
  const auto box_count = [&] {
    int64_t count = 1;
    for (int a = 0; a < kBoxRank; ++a) count *= ceil_div(axes_[a].windows, size[a]);
    return count;
  };
  const int64_t groups = problem_.geometry.groups;
  while (box_count() * groups < kItems && limit > kFewPixels) {
    limit /= 2;
    grow(limit);
  }
  grid_.size = size;
  for (int a = 0; a < kBoxRank; ++a) {
    grid_.extent[a] = axes_[a].windows;
    packing_.strips[a] = pack_axis(a, size[a]);
  }

  const int64_t chunk_count = ceil_div(in_channels_, channels);
  channels = ceil_div(in_channels_, chunk_count);
  if (arithmetic_.pairs) channels += channels % 2;
  taps_ = 0;
  int64_t largest = 0;
  for (int64_t first = 0; first < in_channels_; first += channels) {
    const int64_t count = std::min(channels, in_channels_ - first);
    chunks_.push_back({first, count, arithmetic_.pairs ? (count + 1) / 2 : count, 0, {}});
    largest = std::max(largest, chunks_.back().units);
  }
  buffer_units_ = positions(size) * largest;

  // Parts of the result's channels: what fits in the packed weights, and enough for the threads.
  int64_t all_taps = 1;
  for (const Axis& axis : problem_.geometry.axes) all_taps *= axis.k;
  const int64_t lane_bytes = all_taps * (in_channels_ + 1) * unit();
  const int64_t width = 2 * arithmetic_.lanes;
  int64_t lanes = std::max(width, kPackedBytes / lane_bytes / width * width);
  lanes = std::min(lanes, staged_ ? std::max(width, part_lanes) : lanes);
  const int64_t wanted = ceil_div(kItems, box_count() * groups);
  if (wanted > 1) lanes = std::min(lanes, std::max(width, ceil_div(out_channels_, wanted)));
  const int64_t blocks = static_cast<int64_t>(blocks_.size());
  int64_t part_blocks = std::max<int64_t>(1, lanes / width);
  part_blocks = ceil_div(blocks, ceil_div(blocks, part_blocks));
  for (int64_t group = 0; group < groups; ++group)
    for (int64_t block = 0; block < blocks; block += part_blocks) {
      const int64_t count = std::min(part_blocks, blocks - block);
      const Block& last = blocks_[block + count - 1];
      const int64_t end = last.lane + int64_t{last.vectors} * arithmetic_.lanes;
      parts_.push_back({group, block, count, blocks_[block].lane, end - blocks_[block].lane});
      largest_part_lanes_ = std::max(largest_part_lanes_, parts_.back().lanes);
    }
  parts_per_pass_ = std::clamp<int64_t>(kPackedBytes / (lane_bytes * largest_part_lanes_), 1,
                                        static_cast<int64_t>(parts_.size()));
  tile_list_ = pixels(size);
  stage_units_ = staged_ ? positions_of(size) * largest_part_lanes_ : 0;
}

std::vector<Run> DataPlan::runs(const PhaseOfBox& phase, const Chunk& chunk, int vectors) const {
  std::vector<Run> runs;
  const int64_t width = int64_t{vectors} * arithmetic_.lanes;
  int64_t b = 0;
  const int64_t taps = phase.axes[3]->sliding.taps;
  for (int64_t t0 = 0; t0 < phase.axes[1]->sliding.taps; ++t0)
    for (int64_t t1 = 0; t1 < phase.axes[2]->sliding.taps; ++t1) {
      const int64_t row =
          t0 * phase.footings[1].tap * packing_.strips[2].length + t1 * phase.footings[2].tap;
      const int64_t a = row * packing_.strips[3].length * chunk.units;
      if (taps == 1 || phase.footings[3].tap == 1) {
        if (taps) runs.push_back({a, b, taps * chunk.units});
        b += taps * chunk.units * width;
        continue;
      }
      for (int64_t t2 = 0; t2 < taps; ++t2, b += chunk.units * width)
        runs.push_back({a + t2 * phase.footings[3].tap * chunk.units, b, chunk.units});
    }
  return runs;
}

// [chunk][phase][block][tap][unit][lane]
void DataPlan::pack_weights(const Operands& operands, const Part& part, const Chunk& chunk,
                            size_t index, void* packed) const {
  const PhaseOfBox& phase = phases_[index];
  const int64_t bytes = element_bytes(problem_.dtype);
  const CopyFunction copy = arithmetic_.pack[static_cast<int>(problem_.dtype)];
  const char* const w = static_cast<const char*>(operands.data.w) +
                        (part.group * problem_.w.group + chunk.first * w_in_) * bytes;
  char* to = static_cast<char*>(packed) +
             (chunk.weights + phase.weights * chunk.units) * part.lanes * unit();
  for (int64_t i = part.first_block; i < part.first_block + part.blocks; ++i) {
    const Block& block = blocks_[i];
    const int64_t width = int64_t{block.vectors} * arithmetic_.lanes;
    const int64_t live = std::min(width, out_channels_ - block.lane);
    const PerAxis<const Phase*>& axes = phase.axes;
    for (int64_t t0 = 0; t0 < axes[1]->sliding.taps; ++t0)
      for (int64_t t1 = 0; t1 < axes[2]->sliding.taps; ++t1)
        for (int64_t t2 = 0; t2 < axes[3]->sliding.taps; ++t2) {
          const int64_t tap = (axes[1]->tap + t0 * axes[1]->tap_step) * problem_.w.axes[0] +
                              (axes[2]->tap + t1 * axes[2]->tap_step) * problem_.w.axes[1] +
                              (axes[3]->tap + t2 * axes[3]->tap_step) * problem_.w.axes[2];
          const char* const from = w + (tap + block.lane * w_out_) * bytes;
          Copy call{from, w_in_, w_out_, to, width, 1, chunk.units, live, width - live};
          if (arithmetic_.pairs) {
            call.from_row *= 2;
            call.second = w_in_;
            call.rows = chunk.channels / 2;
            if (call.rows) copy(call);
            if (chunk.channels % 2) {
              call.from = from + (chunk.channels - 1) * w_in_ * bytes;
              call.to = to + call.rows * width * unit();
              call.rows = 1;
              call.halves = Halves::first;
              copy(call);
            }
          } else {
            copy(call);
          }
          to += chunk.units * width * unit();
        }
  }
}

void DataPlan::run_box(const Operands& operands, const Part& part, const BoxRange& box,
                       const char* packed, const char* bias) const {
  const int64_t bytes = element_bytes(problem_.dtype);
  const int64_t lists = 2 * tile_list_ * static_cast<int64_t>(sizeof(int64_t));
  char* const memory =
      local_scratch<char>(lists + (buffer_units_ + stage_units_) * unit() + 64 * unit());
  int64_t* const a_rows = reinterpret_cast<int64_t*>(memory);
  int64_t* const c_rows = a_rows + tile_list_;
  char* const buffer = memory + lists;
  char* const stage = buffer + buffer_units_ * unit();

  BoxRange positions;  // of the result
  PerAxis<int64_t> c_stride;
  for (int a = 0; a < kBoxRank; ++a) {
    const int64_t begin = axes_[a].out + box.begin[a] * axes_[a].step;
    positions.begin[a] = std::max<int64_t>(0, begin);
    positions.count[a] =
        std::min(out_.extent[a], begin + box.count[a] * axes_[a].step) - positions.begin[a];
  }
  const char* const in =
      static_cast<const char*>(fprop_ ? operands.data.x : operands.data.y) +
      part.group * in_channels_ * packing_.tensor.channel * bytes;
  char* const out = static_cast<char*>(operands.data[problem_.wanted]) +
                    (part.group * out_channels_ + part.lane) * out_.channel * bytes;
  // c: where result position 0, lane part.lane would lie.
  char* c = out;
  if (staged_) {
    c = stage;
    c_stride[3] = part.lanes;
    for (int a = kBoxRank - 2; a >= 0; --a) c_stride[a] = c_stride[a + 1] * positions.count[a + 1];
    for (int a = 0; a < kBoxRank; ++a) c -= positions.begin[a] * c_stride[a] * unit();
  } else {
    c_stride = out_.stride;
  }
  if (!complete_) fill(part, positions, c, c_stride, bias);

  for (const Chunk& chunk : chunks_) {
    const Panel panel{chunk.first, chunk.channels, 0, packing_.strips[3].length * chunk.units,
                      chunk.units, 1};
    pack_box(packing_, in, box, &panel, 1, buffer);
    for (size_t index = 0; index < phases_.size(); ++index) {
      const PhaseOfBox& phase = phases_[index];
      PerAxis<int64_t> begin, end;
      bool empty = false;
      for (int a = 0; a < kBoxRank; ++a) {
        begin[a] = std::max(box.begin[a], phase.axes[a]->begin);
        end[a] = std::min(box.begin[a] + box.count[a], phase.axes[a]->end);
        empty |= begin[a] >= end[a];
      }
      if (empty) continue;
      int64_t pixels = 0;
      PerAxis<int64_t> u;
      const auto a_of = [&](int a) {
        return phase.footings[a].offset + (u[a] - box.begin[a]) * phase.footings[a].window;
      };
      const auto c_of = [&](int a) {
        return (phase.axes[a]->out + u[a] * phase.axes[a]->out_step) * c_stride[a];
      };
      for (u[0] = begin[0]; u[0] < end[0]; ++u[0])
        for (u[1] = begin[1]; u[1] < end[1]; ++u[1])
          for (u[2] = begin[2]; u[2] < end[2]; ++u[2]) {
            const int64_t row = (a_of(0) * packing_.strips[1].length + a_of(1)) *
                                    packing_.strips[2].length +
                                a_of(2);
            const int64_t c_row = c_of(0) + c_of(1) + c_of(2);
            u[3] = begin[3];
            int64_t a_row = (row * packing_.strips[3].length + a_of(3)) * chunk.units;
            int64_t c_pixel = c_row + c_of(3);
            for (; u[3] < end[3]; ++u[3]) {
              a_rows[pixels] = a_row;
              c_rows[pixels++] = c_pixel;
              a_row += phase.footings[3].window * chunk.units;
              c_pixel += phase.axes[3]->out_step * c_stride[3];
            }
          }

      const char* b =
          packed + (chunk.weights + phase.weights * chunk.units) * part.lanes * unit();
      for (int64_t i = part.first_block; i < part.first_block + part.blocks; ++i) {
        const Block& block = blocks_[i];
        const int64_t width = int64_t{block.vectors} * arithmetic_.lanes;
        const std::vector<Run>& runs =
            chunk.runs[index * (kMaxVectors + 1) + static_cast<size_t>(block.vectors)];
        TileCall call{buffer, b, runs.data(), static_cast<int64_t>(runs.size()),
                      c + (block.lane - part.lane) * unit(),
                      staged_ ? width : std::min(width, out_channels_ - block.lane)};
        if (&chunk != chunks_.data()) {
          call.start = Start::accumulate;
        } else if (bias) {
          call.start = Start::bias;
          call.bias = bias + block.lane * unit();
        }
        const int64_t max_rows = arithmetic_.tiles.max_rows[block.vectors];
        const int64_t tiles = ceil_div(pixels, max_rows);
        for (int64_t tile = 0, pixel = 0; tile < tiles; ++tile) {
          const int64_t rows = (pixels - pixel) / (tiles - tile);
          call.a_rows = a_rows + pixel;
          call.c_rows = c_rows + pixel;
          arithmetic_.tiles.gathered[block.vectors][rows](call);
          pixel += rows;
        }
        b += phase.taps * chunk.units * width * unit();
      }
    }
  }
  if (!staged_) return;

  Copy copy{nullptr, part.lanes, 1, nullptr, out_.stride[3], out_.channel, positions.count[3],
            std::min(part.lanes, out_channels_ - part.lane)};
  const CopyFunction unpack = arithmetic_.unpack[static_cast<int>(problem_.dtype)];
  for_each_row(positions, [&](const PerAxis<int64_t>& p) {
    copy.from = c + offset(p, c_stride) * unit();
    copy.to = out + offset(p, out_.stride) * bytes;
    unpack(copy);
  });
}

// Where no tap may reach, the result is the bias or zero.
void DataPlan::fill(const Part& part, const BoxRange& positions, char* c,
                    const PerAxis<int64_t>& c_stride, const char* bias) const {
  const int64_t lanes = std::min(part.lanes, out_channels_ - part.lane) * unit();
  for_each_row(positions, [&](const PerAxis<int64_t>& p) {
    for (int64_t i = 0; i < positions.count[3]; ++i) {
      char* const pixel = c + (offset(p, c_stride) + i * c_stride[3]) * unit();
      if (bias)
        std::memcpy(pixel, bias + part.lane * unit(), lanes);
      else
        std::memset(pixel, 0, lanes);
    }
  });
}

void DataPlan::run(const Operands& operands) const {
  const int64_t boxes = grid_.boxes(), pieces = static_cast<int64_t>(chunks_.size() * phases_.size());
  const int64_t parts = static_cast<int64_t>(parts_.size());
  char* const packed = shared_scratch<char>(workspace_units_ * unit());
  const char* const bias = operands.bias ? pack_bias(operands.bias, packed) : nullptr;
  for (int64_t first = 0; first < parts; first += parts_per_pass_) {
    const int64_t count = std::min(parts_per_pass_, parts - first);
    const auto weights_of = [&](int64_t part) { return packed + part * part_units_ * unit(); };
    parallel_for(problem_.threads, count * pieces, [&](int64_t i) {
      const int64_t part = i / pieces, phase = i % static_cast<int64_t>(phases_.size());
      const Chunk& chunk = chunks_[i % pieces / static_cast<int64_t>(phases_.size())];
      pack_weights(operands, parts_[first + part], chunk, phase, weights_of(part));
    });
    parallel_for(problem_.threads, count * boxes, [&](int64_t i) {
      const Part& part = parts_[first + i / boxes];
      run_box(operands, part, grid_.box(i % boxes), weights_of(i / boxes),
              bias ? bias + part.group * bias_lanes_ * unit() : nullptr);
    });
  }
}

// Behind the packed weights: [group][lane], padded to whole blocks.
const char* DataPlan::pack_bias(const void* bias, char* packed) const {
  char* const to = packed + (workspace_units_ - problem_.geometry.groups * bias_lanes_) * unit();
  arithmetic_.widen[static_cast<int>(problem_.dtype)]({bias, out_channels_, 1, to, bias_lanes_, 1,
                                                 problem_.geometry.groups, out_channels_,
                                                 bias_lanes_ - out_channels_});
  return to;
}

}  // namespace

std::unique_ptr<const Plan> data_plan(const Problem& problem, const Arithmetic& arithmetic) {
  return std::make_unique<DataPlan>(problem, arithmetic);
}

}  // namespace convtbw::simd
