// How Winograd's filtering computes fprop and dgrad (data_winograd.h).
#include "backends/simd/data_winograd.h"

#include <algorithm>
#include <atomic>

#include "backends/simd/plans.h"
#include "backends/simd/work_order.h"
#include "core/parallel.h"
#include "core/scratch.h"
#include "core/stream.h"

namespace convtbw::simd {

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
    const int64_t blocks = most_blocks(std::span(parts_).subspan(first, count));
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

std::unique_ptr<const Plan> winograd_plan(const Problem& problem, const Arithmetic& arithmetic) {
  return std::make_unique<WinogradPlan>(problem, arithmetic);
}

}  // namespace convtbw::simd
