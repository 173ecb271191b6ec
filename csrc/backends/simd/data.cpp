// How fprop and dgrad are computed (data.h).
#include "backends/simd/data.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "backends/simd/box_prefetch.h"
#include "backends/simd/edges.h"
#include "backends/simd/work_order.h"
#include "core/parallel.h"
#include "core/scratch.h"
#include "core/stream.h"

namespace convtbw::simd {

namespace {

// Where the rows of a tile begin: one of each window. Not by for_each_row(), whose products for
// every row made short rows of many images take 1.12 to 1.2 times as long (2x2 from 3 channels).
void list_rows(const PerAxis<int64_t>& count, int64_t first, const PerAxis<int64_t>& step,
               int64_t* list) {
  for (int64_t i = 0; i < count[0]; ++i)
    for (int64_t j = 0; j < count[1]; ++j)
      for (int64_t k = 0; k < count[2]; ++k) {
        int64_t row = first + i * step[0] + j * step[1] + k * step[2];
        for (int64_t l = 0; l < count[3]; ++l, row += step[3]) *list++ = row;
      }
}

// Whether each begins so far behind the one before.
bool rows_follow(std::span<const int64_t> rows, int64_t step) {
  for (size_t i = 1; i < rows.size(); ++i)
    if (rows[i] - rows[i - 1] != step) return false;
  return true;
}

}  // namespace

// f(windows, their taps)
template <class F>
void DataPlan::for_each_piece(size_t index, const BoxRange& windows, const F& f) const {
  const BoxPhase& phase = phases_[index];
  const auto along = [&](int a, const auto& then) {
    const Range all{windows.begin[a], windows.begin[a] + windows.count[a]};
    const Sliding& sliding = phase.axes[a]->sliding;
    if (edges_[index][a])
      for_each_edge(sliding, in_.extent[a], all, then);
    else
      then(all, Range{0, sliding.taps});
  };
  along(1, [&](const Range& u1, const Range& t1) {
    along(2, [&](const Range& u2, const Range& t2) {
      along(3, [&](const Range& u3, const Range& t3) {
        f(BoxRange{{windows.begin[0], u1.begin, u2.begin, u3.begin},
                   {windows.count[0], u1.end - u1.begin, u2.end - u2.begin, u3.end - u3.begin}},
          PerAxis<Range>{Range{0, 1}, t1, t2, t3});
      });
    });
  });
}

PerAxis<DataPlan::Walk> DataPlan::walk(const Turn& turn, const BoxPhase& phase, const Chunk& chunk,
                                       const PerAxis<int64_t>& box) const {
  PerAxis<Walk> walk;
  int64_t pitch = chunk.position;
  for (int a = kBoxRank - 1; a >= 0; --a) {
    if (reading_ != Reading::box) {
      const Sliding& s = phase.axes[a]->sliding;
      const int64_t stride = read_stride_[a];
      walk[a] = {s.first * stride, s.stride * stride, s.dilation * stride};
      continue;
    }
    const Footing& f = phase.footings[a];
    walk[a] = {(f.offset - box[a] * f.window) * pitch, f.window * pitch, f.tap * pitch};
    const int64_t length = turn.strips[a].length;
    pitch = a == kBoxRank - 1 ? row_elements(length, chunk) : length * pitch;
  }
  return walk;
}

FoldedRuns DataPlan::runs(const Turn& turn, const BoxPhase& phase, const PerAxis<Range>& taps,
                          const Chunk& chunk, int vectors) const {
  FoldedRuns runs(most_steps_);
  const PerAxis<Walk> walk = this->walk(turn, phase, chunk, {});
  const int64_t width = int64_t{vectors} * arithmetic_.lanes;
  const int64_t elements = weights_.elements_of_unit();
  // Packed, an odd number of channels ends with an element that is zero.
  const int64_t channels = reading_ == Reading::in_place ? chunk.channels : chunk.position;
  const auto all = [&](int a) { return phase.axes[a]->sliding.taps; };
  for (int64_t t0 = taps[1].begin; t0 < taps[1].end; ++t0)
    for (int64_t t1 = taps[2].begin; t1 < taps[2].end; ++t1) {
      const auto add = [&](int64_t first, int64_t count) {
        const int64_t steps = count * channels;
        const int64_t a = t0 * walk[1].tap + t1 * walk[2].tap + first * walk[3].tap;
        const int64_t b = (t0 * all(2) + t1) * weights_.units(all(3), chunk.channels) +
                          weights_.units(first, chunk.channels);
        runs.add({a / elements, b * width, steps / elements, false, steps % elements != 0}, 1,
                 width);
      };
      if (walk[3].tap == channels && taps[3].begin < taps[3].end)
        add(taps[3].begin, taps[3].end - taps[3].begin);
      else
        for (int64_t t2 = taps[3].begin; t2 < taps[3].end; ++t2) add(t2, 1);
    }
  return runs;
}

// All lanes of the part for some windows of a box; calls `meanwhile` after every tile.
template <class F>
void DataPlan::run_windows(const BlockRange& part, const Chunk& chunk, const Turn& turn,
                           size_t index, const BoxRange& box, const BoxRange& windows,
                           const PerAxis<Range>& taps, const Place& place, const char* packed,
                           const char* bias, const F& meanwhile) const {
  const BoxPhase& phase = phases_[index];
  const PerAxis<Walk> walk = this->walk(turn, phase, chunk, box.begin);
  int64_t a_first = 0, c_first = 0, pixels = 1;
  PerAxis<int64_t> a_step, c_step;
  for (int a = 0; a < kBoxRank; ++a) {
    const Phase& axis = *phase.axes[a];
    a_step[a] = walk[a].window;
    c_step[a] = axis.out_step * place.c_stride[a];
    a_first += walk[a].from + windows.begin[a] * a_step[a];
    c_first += axis.out * place.c_stride[a] + windows.begin[a] * c_step[a];
    pixels *= windows.count[a];
  }
  list_rows(windows.count, a_first, a_step, place.a_rows);
  list_rows(windows.count, c_first, c_step, place.c_rows);

  const bool whole = taps == all_taps(phase);
  FoldedRuns some_runs;
  int some_vectors = 0;
  const char* b = packed + (chunk.weights + chunk.phase_units[index]) * part.lanes * unit();
  for (int64_t i = part.first_block; i < part.first_block + part.blocks; ++i) {
    const LaneBlock& block = blocks_[i];
    const int64_t width = int64_t{block.vectors} * arithmetic_.lanes;
    if (!whole && some_vectors != block.vectors) {
      some_vectors = block.vectors;
      some_runs = runs(turn, phase, taps, chunk, block.vectors);
    }
    const FoldedRuns& runs =
        whole ? chunk.runs[index * (kMaxVectors + 1) + static_cast<size_t>(block.vectors)]
              : some_runs;
    TileCall call{};
    call.a = place.a;
    call.b = b;
    call.c = place.c + (block.lane - part.lane) * written();
    call.live = staged_ ? width : block.live;
    if (!staged_) {
      call.result = problem_.dtype;
      call.fetches_result = true;
    }
    runs.use_in(call);
    const bool first = &chunk == chunks_.data() && &turn == turns_.data();
    call.start = first ? Start::zero : Start::accumulate;
    if (bias && call.start == Start::zero) {
      call.start = Start::bias;
      call.bias = bias + block.lane * unit();
    }
    const int64_t max_rows = arithmetic_.tiles.max_rows[block.vectors];
    const int64_t tiles = ceil_div(pixels, max_rows), least = pixels / tiles;
    const int64_t even = tiles - pixels % tiles;  // tiles of the least rows; others have one more
    call.a_rows = place.a_rows;
    call.c_rows = place.c_rows;
    // Stores under a mask are slow: 9 % to 15 % of the time of short sums into 12 and 24 channels
    // (AVX-512, Zen 4).
    const int64_t pixel = c_step[3];
    const bool may_follow =
        !staged_ && block.live < width && 2 * block.live >= width && pixel == block.live;
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t rows = least + (tile >= even);
      call.rows_follow = may_follow && rows_follow({call.c_rows, static_cast<size_t>(rows)}, pixel);
      arithmetic_.tiles.gathered[block.vectors][rows](call);
      meanwhile();
      call.a_rows += rows;
      call.c_rows += rows;
    }
    b += weights_.units(phase, chunk.channels) * width * unit();
  }
}

void DataPlan::run_box(const Operands& operands, const char* copy, const BlockRange& part,
                       const BoxRange& box, const BlockRange& next_part, const BoxRange& next_box,
                       const char* packed, const char* bias) const {
  const int64_t bytes = element_bytes(problem_.dtype);
  char* const memory = local_scratch<char>(local_bytes());
  int64_t* const a_rows = reinterpret_cast<int64_t*>(memory);
  int64_t* const c_rows = a_rows + tile_list_;
  char* const buffer = reinterpret_cast<char*>(c_rows + tile_list_);
  char* const stage = buffer + buffer_units_ * unit();

  const BoxRange positions = positions_of(box, axes_, out_);
  PerAxis<int64_t> c_stride;
  const char* const in = in_data(operands, part.group);
  const int64_t read_bytes = copies() ? unit() / weights_.elements_of_unit() : bytes;
  const char* const read = copies() ? copy + part.group * read_group_ * read_bytes : in;
  char* const out = out_data(operands, part.group) + part.lane * out_.channel * bytes;
  // c: where result position 0, lane part.lane would lie.
  char* c = out;
  if (staged_) {
    c = stage;
    c_stride[3] = stage_pitch(largest_part_lanes_);
    for (int a = kBoxRank - 2; a >= 0; --a) c_stride[a] = c_stride[a + 1] * positions.count[a + 1];
    for (int a = 0; a < kBoxRank; ++a) c -= positions.begin[a] * c_stride[a] * unit();
  } else {
    c_stride = out_.stride;
  }
  if (!complete_) fill(part, positions, c, c_stride, bias);

  // While a chunk of this box is multiplied, the next one is fetched: with it channels first takes
  // 0.88 to 1.0 of the time, channels last 0.96 to 1.03 (Zen 5, 8 lanes). Read in place, what lies
  // in the caches takes 1.01 to 1.1 of the time with it.
  int64_t tiles = 0;
  for (size_t i = turns_.front().first_phase; i < turns_.front().end_phase; ++i) {
    const BoxRange windows = windows_of(box, phases_[i]);
    if (!windows.empty())
      tiles += part.blocks *
               ceil_div(windows.count[0] * windows.count[1] * windows.count[2] * windows.count[3],
                        arithmetic_.tiles.max_rows[blocks_.front().vectors]);
  }
  const size_t turns = turns_.size(), steps = chunks_.size() * turns;
  for (size_t step = 0; step < steps; ++step) {
    const Chunk& chunk = chunks_[step / turns];
    const Turn& turn = turns_[step % turns];
    const Place place{reading_ == Reading::box ? buffer : read + chunk.first * read_bytes, c,
                      c_stride, a_rows, c_rows};
    const bool last = step + 1 == steps;
    if (reading_ == Reading::box) {
      // In what is packed: units, or elements of bfloat16 as they are.
      const int64_t packed_elements = pairs_run_on_ ? 1 : weights_.elements_of_unit();
      const Panel panel{chunk.first,
                        chunk.channels,
                        0,
                        row_elements(turn.packing.strips[3].length, chunk) / packed_elements,
                        chunk.position / packed_elements,
                        1};
      pack_box(turn.packing, in, box, &panel, 1, buffer);
    }
    BoxPrefetch prefetch;
    if (reading_ == Reading::box || (reading_ == Reading::in_place && far_operand_)) {
      const Chunk& next_chunk = chunks_[last ? 0 : (step + 1) / turns];
      prefetch = BoxPrefetch(turns_[(step + 1) % turns].packing,
                             last ? in_data(operands, next_part.group) : in, last ? next_box : box,
                             next_chunk.first, next_chunk.channels, tiles);
    }
    BoxPrefetch results;
    if (far_result_ && last)
      results = BoxPrefetch(unpacking_, out, positions, 0,
                            std::min(part.lanes, out_channels_ - part.lane), tiles);
    for (size_t index = turn.first_phase; index < turn.end_phase; ++index) {
      const BoxRange windows = windows_of(box, phases_[index]);
      if (windows.empty()) continue;
      for_each_piece(index, windows, [&](const BoxRange& piece, const PerAxis<Range>& taps) {
        run_windows(part, chunk, turn, index, box, piece, taps, place, packed, bias, [&] {
          prefetch.fetch();
          results.fetch();
        });
      });
    }
  }
  if (staged_)
    unpack_positions(arithmetic_, out_, positions, c, c_stride,
                     std::min(part.lanes, out_channels_ - part.lane), out);
}

// Where no tap may reach, the result is the bias or zero.
void DataPlan::fill(const BlockRange& part, const BoxRange& positions, char* c,
                    const PerAxis<int64_t>& c_stride, const char* bias) const {
  const int64_t bytes = std::min(part.lanes, out_channels_ - part.lane) * written();
  for_each_row(positions, [&](const PerAxis<int64_t>& p) {
    for (int64_t i = 0; i < positions.count[3]; ++i) {
      char* const pixel = c + (offset(p, c_stride) + i * c_stride[3]) * written();
      if (bias)
        std::memcpy(pixel, bias + part.lane * unit(), bytes);
      else
        std::memset(pixel, 0, bytes);
    }
  });
}

// A box of a group's positions, which follow each other in the copy of the operand.
void DataPlan::copy_box(const Operands& operands, int64_t index, bool streamed, char* copy) const {
  const int64_t boxes = copy_grid_.boxes(), group = index / boxes;
  const BoxRange box = copy_grid_.box(index % boxes);
  const int64_t elements = weights_.elements_of_unit();
  const int64_t position = read_stride_[3] / elements;
  char* const to =
      copy + (group * read_group_ + offset(box.begin, read_stride_)) / elements * unit();
  const int64_t bytes =
      box.count[0] * box.count[1] * box.count[2] * box.count[3] * position * unit();
  char* const packed = streamed ? local_scratch<char>(bytes) : to;
  const Panel panel{0, in_channels_, 0, copy_packing_.strips[3].length * position, position, 1};
  pack_box(copy_packing_, in_data(operands, group), box, &panel, 1, packed);
  if (streamed) stream(to, packed, bytes);
}

void DataPlan::run(const Operands& operands) const {
  const int64_t boxes = grid_.boxes(), chunks = std::ssize(chunks_), turns = std::ssize(turns_);
  const int64_t parts = std::ssize(parts_);
  char* const packed = shared_scratch<char>(workspace_units_ * unit());
  const char* const bias = operands.bias ? pack_bias(operands.bias, packed) : nullptr;
  char* const copy = packed + (workspace_units_ - copy_units_) * unit();
  if (copies()) {
    // All parts read the copy, whichever thread computes them.
    const bool streamed = parts > 1 && gains_by_streams(problem_.threads);
    parallel_for(problem_.threads, problem_.geometry.groups * copy_grid_.boxes(),
                 [&](int64_t i) { copy_box(operands, i, streamed, copy); });
  }
  for (int64_t first = 0; first < parts; first += parts_per_pass_) {
    const int64_t count = std::min(parts_per_pass_, parts - first);
    const auto weights_of = [&](int64_t part) { return packed + part * part_units_ * unit(); };
    const WorkOrder order{count, boxes, groups_share_lines(problem_)};
    const bool streamed = order.shares_parts(problem_.threads);
    const int64_t blocks = most_blocks(std::span(parts_).subspan(first, count));
    const int64_t wholes = count * chunks * turns * blocks;
    const int64_t pieces = pairs_run_on_ ? 1 : packed_pieces(wholes, chunks_.front().channels);
    parallel_for(problem_.threads, wholes * pieces, [&](int64_t i) {
      const int64_t whole = i / pieces, piece = i % pieces;
      const int64_t index = whole / blocks / turns / chunks, block = whole % blocks;
      const BlockRange& part = parts_[first + index];
      const Turn& turn = turns_[whole / blocks % turns];
      if (block >= part.blocks || turn.first_phase == turn.end_phase) return;
      const Chunk& chunk = chunks_[whole / blocks / turns % chunks];
      const Range channels = packed_piece(piece, pieces, chunk.channels);
      if (channels.begin == channels.end) return;
      const LaneBlock& lanes = blocks_[part.first_block + block];
      const int64_t units_before = chunk.weights + chunk.phase_units[turn.first_phase];
      weights_.pack(
          operands.data.w,
          std::span(phases_).subspan(turn.first_phase, turn.end_phase - turn.first_phase),
          {part.group, chunk.first + channels.begin, channels.end - channels.begin, chunk.first,
           chunk.channels, lanes.lane, lanes.live, int64_t{lanes.vectors} * arithmetic_.lanes,
           weights_of(index) + units_before * part.lanes * unit(), part.lanes,
           lanes.lane - part.lane, streamed});
    });
    parallel_for(problem_.threads, order.items(), [&](int64_t i) {
      const WorkOrder::Item item = order.item(i), next = order.item_after(i);
      const BlockRange& part = parts_[first + item.part];
      run_box(operands, copy, part, grid_.box(item.box), parts_[first + next.part],
              grid_.box(next.box), weights_of(item.part),
              bias ? bias + part.group * bias_lanes_ * unit() : nullptr);
    });
  }
}

// Behind the packed weights: [group][lane], padded to whole blocks.
const char* DataPlan::pack_bias(const void* bias, char* packed) const {
  char* const to = packed + parts_per_pass_ * part_units_ * unit();
  simd::pack_bias(arithmetic_, problem_.dtype, bias, problem_.geometry.groups, out_channels_,
                  bias_lanes_, to);
  return to;
}

}  // namespace convtbw::simd
