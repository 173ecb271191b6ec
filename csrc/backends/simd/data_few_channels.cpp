// fprop and dgrad where the result has few channels, which would leave most lanes of a vector
// empty: lanes are neighbouring positions of the operand, whose rows are copied as planes
// [channel][position]. A tile's rows are the result's channels for every tap of the last axis, so
// that each vector is loaded once for all of them, and aligned; it sums over channels and the taps
// of the other axes. The sums of one row of the operand then are added, each tap's shifted to the
// windows that it belongs to.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "backends/simd/box_prefetch.h"
#include "backends/simd/directed_plan.h"
#include "backends/simd/edges.h"
#include "backends/simd/folded_runs.h"
#include "backends/simd/lane_blocks.h"
#include "backends/simd/phases.h"
#include "backends/simd/plans.h"
#include "core/cpu.h"
#include "core/parallel.h"
#include "core/scratch.h"

namespace convtbw::simd {

namespace {

class FewChannelsPlan : public DirectedPlan {
 public:
  FewChannelsPlan(const Problem& problem, const Arithmetic& arithmetic);
  void run(const Operands& operands) const override;

 private:
  // Taps of the last axis, of one phase, whose sums are rows of tiles: all or a range of them.
  struct Piece {
    size_t phase;
    int64_t first, taps, row;
  };

  // Which row of taps, along the axes before the last, a run sums over.
  struct RowOfTaps {
    int64_t t0, t1;
  };

  // Runs that are summed one after the other for all tiles of a column, so many at a time: both
  // operands stay in the first-level cache (up to 13 % with 8 lanes, 9x9 from 32 channels, Zen 4).
  struct Parts {
    const Run* runs;
    const int64_t* counts;
    int64_t count;
  };

  // Pieces whose sums are computed together.
  struct Group {
    size_t rows_of = 0;  // the first of the phases that differ in the last axis alone
    std::vector<Piece> pieces;
    int64_t rows = 0, weights = 0;  // offset of its packed weights: [step][row]
    int64_t tap_rows = 0;           // from a tap's rows to the next one's
    std::vector<Run> runs;
    std::vector<RowOfTaps> rows_of_runs;
    std::vector<int64_t> part_counts;  // runs of each part

    Parts parts() const { return {runs.data(), part_counts.data(), std::ssize(part_counts)}; }
  };

  // A thread's parts without absent taps.
  struct PresentParts {
    Run* runs;
    int64_t* counts;
  };

  void choose_sizes();
  void make_groups();
  void add_runs(Group& group) const;
  void pack_weights(const Operands& operands, int64_t group, const Range& channels,
                    char* packed) const;
  void run_box(const Operands& operands, int64_t group, const BoxRange& box, const BoxRange& next,
               const char* packed) const;
  Parts present_parts(const Group& group, const PerAxis<int64_t>& window,
                      const PresentParts& memory) const;
  template <class F>
  void multiply(const Group& group, const Parts& parts, const char* a, const char* b, char* sums,
                int64_t columns, const F& meanwhile) const;

  int64_t tiles_of(const Group& group, int64_t columns) const {
    return row_panels(arithmetic_, group.rows) * std::ssize(group.part_counts) *
           ceil_div(columns, panel_vectors(arithmetic_, group.rows) * arithmetic_.lanes);
  }
  int64_t whole_lines(int64_t units) const {
    // Rows that lie a large power of two apart would share few sets of the cache.
    const int64_t line = 64 / unit(), lines = ceil_div(units, line);
    return (lines + (lines % 4 == 0)) * line;
  }
  // Which positions of a joined row lie inside the operand.
  Range present(const BoxRange& box) const;

  const int64_t in_units_;  // channels summed over, or pairs of them
  const int64_t most_steps_;
  const PerAxis<PhasedAxis> axes_;
  std::vector<BoxPhase> phases_;
  std::vector<Group> groups_;
  bool complete_ = true;  // every result position belongs to a phase
  // All taps of the last axis meet the same positions. Else, where strides or dilations keep them
  // apart, each has its own and they are summed over as the other axes' are.
  bool joined_;
  Packing packing_;
  BoxGrid grid_;
  int64_t plane_;  // units from one channel's row in the buffer to the next
  int64_t sums_pitch_, stage_pitch_;
  Comb columns_;          // joined taps: the positions that a row has sums for
  bool trimmed_ = false;  // whole rows lie in the buffer without padding
  bool interleaved_;      // the stage holds all phases of the last axis, or one after the other
  int64_t stage_positions_;
  int64_t buffer_units_, sums_units_, stage_units_;
  int64_t most_runs_ = 0, most_parts_ = 0;  // of a group
  int64_t local_bytes_;                     // of a thread
  int64_t group_units_;
};

FewChannelsPlan::FewChannelsPlan(const Problem& problem, const Arithmetic& arithmetic)
    : DirectedPlan(problem, arithmetic),
      in_units_(arithmetic.pairs ? ceil_div(in_channels_, 2) : in_channels_),
      most_steps_(most_steps(arithmetic)),
      axes_(phased_axes(problem)),
      packing_{&arithmetic, in_, {}, arithmetic.pairs ? Pairing::channels : Pairing::none} {
  for (const PhasedAxis& axis : axes_) complete_ &= axis.complete;
  choose_sizes();
  phases_ = box_phases(axes_, packing_.strips);
  make_groups();

  kernel = std::string(contraction_name(problem.wanted)) + ", pixels in lanes, " + arithmetic.name;
  local_bytes_ = (buffer_units_ + sums_units_ + stage_units_) * unit() +
                 most_runs_ * int64_t{sizeof(Run)} + most_parts_ * int64_t{sizeof(int64_t)};
  workspace = problem.geometry.groups * group_units_ * unit() + problem.threads * local_bytes_;
  bytes = static_cast<int64_t>(sizeof(FewChannelsPlan) + phases_.size() * sizeof(BoxPhase) +
                               groups_.size() * sizeof(Group));
  for (const Group& group : groups_) {
    bytes += static_cast<int64_t>(group.pieces.size() * sizeof(Piece) +
                                  group.runs.size() * (sizeof(Run) + sizeof(RowOfTaps)) +
                                  group.part_counts.size() * sizeof(int64_t));
  }
}

// Sizes depend on the shape alone, so that results do not depend on the number of threads.
void FewChannelsPlan::choose_sizes() {
  constexpr int64_t kBufferBytes = 320 << 10;
  constexpr int64_t kWindows = 4096, kRowWindows = 256, kStagePositions = 1024;
  constexpr int64_t kItems = 16;  // enough to keep some threads busy until the end
  const int64_t lanes = arithmetic_.lanes;
  const auto units = [&](const PerAxis<int64_t>& windows) {
    int64_t product = in_units_;
    for (int a = 0; a < kBoxRank; ++a) product *= axes_[a].strip(windows[a], Apart::taps).length;
    return product;
  };
  PerAxis<int64_t> extent, size{1, 1, 1, 1};
  for (int a = 0; a < kBoxRank; ++a) extent[a] = axes_[a].windows;
  const auto boxes = [&](const PerAxis<int64_t>& windows) {
    return BoxGrid{extent, windows}.boxes() * problem_.geometry.groups;
  };
  // A box of so short rows that it has as many windows as taps along the other axes: else most of
  // its rows would be packed once more for its neighbours.
  const auto with_rows = [&](PerAxis<int64_t> windows) {
    for (const int a : {1, 2})
      windows[a] = std::min(extent[a], axes_[a].strip(1, Apart::taps).length);
    return windows;
  };
  // Whole tiles along a row, of which windows use all but the first taps; then rows while they fit.
  const int64_t extra = axes_[3].strip(1, Apart::taps).length - 1;
  const int64_t quantum = kMaxVectors * lanes;
  const int64_t first = extra < 64 ? ceil_div(2 * extra + 1, quantum) * quantum - extra : quantum;
  size[3] = std::min(extent[3], first);
  for (const int a : {3, 2, 1, 0})
    while (size[a] < extent[a]) {
      PerAxis<int64_t> next = size;
      next[a] = std::min(extent[a], size[a] + (a == 3 ? quantum : 1));
      if (next[0] * next[1] * next[2] * next[3] > kWindows ||
          (a == 3 && (next[a] > kRowWindows || next[a] * axes_[a].step > kStagePositions)) ||
          units(a == 3 ? with_rows(next) : next) * unit() > kBufferBytes ||
          boxes(next) < std::min(kItems, boxes(size)))
        break;
      size = next;
    }
  for (int a = 0; a < kBoxRank - 1; ++a)  // even cuts
    size[a] = ceil_div(extent[a], ceil_div(extent[a], size[a]));
  // Of a few boxes that cut rows, none should be much shorter than the others: whole vectors.
  if (size[3] < extent[3] && boxes(size) < kItems) {
    const int64_t even = ceil_div(extent[3], ceil_div(extent[3], size[3]));
    size[3] = std::min(size[3], ceil_div(even + extra, lanes) * lanes - extra);
  }
  grid_ = {extent, size};
  int64_t rows = 1;
  for (int a = 0; a < kBoxRank; ++a) {
    packing_.strips[a] = axes_[a].strip(size[a], Apart::taps);
    if (a < kBoxRank - 1) rows *= packing_.strips[a].length;
  }
  Strip& strip = packing_.strips[3];
  joined_ = strip.combs.size() == 1;
  // Rows begin up to a vector behind their place, and tiles and sums read up to one beyond it.
  sums_pitch_ = plane_ = whole_lines(strip.length + 2 * lanes);
  if (joined_) {
    columns_ = strip.combs.front();
    trimmed_ = size[3] == extent[3];
    if (trimmed_) {
      const Range here = present({{}, size});
      Comb& comb = strip.combs.front();
      comb.from += here.begin * comb.from_step;
      comb.extra += here.end - here.begin - comb.length(size[3]);
      plane_ = whole_lines(ceil_div(here.end - here.begin, lanes) * lanes);
    }
  }
  buffer_units_ = rows * in_units_ * plane_;
  interleaved_ = axes_[3].step <= kStagePositions;
  stage_positions_ = size[3] * (interleaved_ ? axes_[3].step : 1);
  stage_pitch_ = whole_lines(stage_positions_ + lanes);
  stage_units_ = out_channels_ * stage_pitch_ + whole_lines(out_channels_);
}

void FewChannelsPlan::make_groups() {
  constexpr int64_t kSumsBytes = 32 << 10;
  const int64_t most_taps =
      std::max<int64_t>(1, kSumsBytes / (sums_pitch_ * unit()) / out_channels_);
  int64_t most_rows = 0;
  group_units_ = 0;
  const auto last_axis = axes_[3].phases.size();
  for (size_t phase = 0; phase < phases_.size(); ++phase) {
    const int64_t taps = joined_ ? phases_[phase].axes[3]->sliding.taps : 1;
    for (int64_t first = 0; first < taps;) {
      const int64_t used = groups_.empty() ? 0 : groups_.back().rows / out_channels_;
      const bool fresh = !joined_ || used >= most_taps || (phase % last_axis == 0 && first == 0) ||
                         (first == 0 && used + taps > most_taps);
      if (fresh) groups_.emplace_back().rows_of = phase - phase % last_axis;
      Group& group = groups_.back();
      const int64_t count = std::min(taps - first, most_taps);
      group.pieces.push_back({phase, first, count, group.rows});
      group.rows += count * out_channels_;
      most_rows = std::max(most_rows, group.rows);
      first += count;
    }
  }
  for (Group& group : groups_) {
    group.weights = group_units_;
    group.tap_rows = out_channels_;
    // Of phases that have as many taps, tap by tap: neighbours in the weights, mostly.
    const std::vector<Piece>& pieces = group.pieces;
    if (std::ranges::all_of(pieces, [&](const Piece& piece) {
          return piece.first == 0 && piece.taps == pieces.front().taps;
        })) {
      group.tap_rows *= std::ssize(pieces);
      for (int64_t row = 0; Piece& piece : group.pieces) {
        piece.row = row;
        row += out_channels_;
      }
    }
    add_runs(group);
    most_runs_ = std::max(most_runs_, static_cast<int64_t>(std::ssize(group.runs)));
    most_parts_ = std::max(most_parts_, static_cast<int64_t>(std::ssize(group.part_counts)));
    const BoxPhase& phase = phases_[group.pieces.front().phase];
    group_units_ +=
        phase.taps / (joined_ ? phase.axes[3]->sliding.taps : 1) * in_units_ * group.rows;
  }
  sums_units_ = most_rows * sums_pitch_;
}

// The taps that are summed over.
void FewChannelsPlan::add_runs(Group& group) const {
  const BoxPhase& phase = phases_[group.pieces.front().phase];
  int64_t a = 0, steps = 0;  // steps: of the last part
  for (int64_t t0 = 0; t0 < phase.axes[1]->sliding.taps; ++t0)
    for (int64_t t1 = 0; t1 < phase.axes[2]->sliding.taps; ++t1)
      for (int64_t t2 = 0; t2 < (joined_ ? 1 : phase.axes[3]->sliding.taps); ++t2) {
        const int64_t row =
            t0 * phase.footings[1].tap * packing_.strips[2].length + t1 * phase.footings[2].tap;
        const int64_t b = row * in_units_ * plane_ + t2 * phase.footings[3].tap;
        const int64_t pieces = ceil_div(in_units_, most_steps_);
        for (int64_t piece = 0, done = 0; piece < pieces; ++piece) {
          const int64_t count = (in_units_ - done) / (pieces - piece);
          if (group.part_counts.empty() || steps + count > most_steps_) {
            group.part_counts.push_back(0);
            steps = 0;
          }
          group.runs.push_back({a + done * group.rows, b + done * plane_, count});
          group.rows_of_runs.push_back({t0, t1});
          ++group.part_counts.back();
          steps += count;
          done += count;
        }
        a += in_units_ * group.rows;
      }
}

// What a row of windows meets of the operand: without padding, 14x14x14 pixels under 5x5x5 taps
// meet half of all rows of taps.
FewChannelsPlan::Parts FewChannelsPlan::present_parts(const Group& group,
                                                      const PerAxis<int64_t>& window,
                                                      const PresentParts& memory) const {
  const BoxPhase& phase = phases_[group.rows_of];
  const auto taps_along = [&](int a) {
    return present_taps(phase.axes[a]->sliding, in_.extent[a], window[a]);
  };
  const Range planes = taps_along(1), rows = taps_along(2);
  const auto all = [&](int a, const Range& taps) {
    return taps.end - taps.begin == phase.axes[a]->sliding.taps;
  };
  if (all(1, planes) && all(2, rows)) return group.parts();
  Parts parts{memory.runs, memory.counts, 0};
  Run* to = memory.runs;
  size_t i = 0;
  for (const int64_t count : group.part_counts) {
    const Run* const first = to;
    for (const size_t end = i + count; i < end; ++i) {
      const RowOfTaps& row = group.rows_of_runs[i];
      if (row.t0 >= planes.begin && row.t0 < planes.end && row.t1 >= rows.begin &&
          row.t1 < rows.end)
        *to++ = group.runs[i];
    }
    if (to != first) memory.counts[parts.count++] = to - first;
  }
  return parts;
}

void FewChannelsPlan::pack_weights(const Operands& operands, int64_t group_index,
                                   const Range& channels, char* packed) const {
  const int64_t bytes = element_bytes(problem_.dtype);
  const char* const w = static_cast<const char*>(operands.data.w) +
                        (group_index * problem_.w.group + channels.begin * w_in_) * bytes;
  const int64_t unit_index = arithmetic_.pairs ? channels.begin / 2 : channels.begin;
  const auto first_tap = [&](const Piece& piece) {
    return phases_[piece.phase].axes[3]->tap * problem_.w.axes[2];
  };
  for (const Group& group : groups_)
    for (size_t i = 0, together; i < group.pieces.size(); i += together) {
      const Piece& piece = group.pieces[i];
      // Columns that are evenly apart in the weights are copied together: a row of the result's
      // channels, or of several phases of its only one.
      together = 1;
      int64_t column = w_out_, columns = out_channels_;
      if (out_channels_ == 1 && group.tap_rows == std::ssize(group.pieces)) {
        const auto apart = [&](size_t next) {
          return first_tap(group.pieces[next]) - first_tap(group.pieces[next - 1]);
        };
        if (i + 1 < group.pieces.size()) column = apart(i + 1);
        while (i + together < group.pieces.size() && apart(i + together) == column) ++together;
        columns = static_cast<int64_t>(together);
      }
      int64_t tap = 0, step = 0;  // of this phase; of this piece
      const int64_t taps = phases_[piece.phase].axes[3]->sliding.taps;
      for_each_tap(phases_[piece.phase], problem_.w, [&](int64_t at) {
        const int64_t t = joined_ ? tap % taps - piece.first : 0;
        ++tap;
        if (t < 0 || t >= piece.taps) return;
        char* const to = packed + (group.weights + (step * in_units_ + unit_index) * group.rows +
                                   piece.row + t * group.tap_rows) *
                                      unit();
        pack_channel_rows(arithmetic_, problem_.dtype,
                          {w + at * bytes, w_in_, column, to, group.rows, 1,
                           channels.end - channels.begin, columns});
        if (t == piece.taps - 1) ++step;
      });
    }
}

// sums[row][column] for whole vectors of columns; calls `meanwhile` after every tile.
template <class F>
void FewChannelsPlan::multiply(const Group& group, const Parts& parts, const char* a, const char* b,
                               char* sums, int64_t columns, const F& meanwhile) const {
  const Tiles& tiles = arithmetic_.tiles;
  const int64_t panels = row_panels(arithmetic_, group.rows),
                most_vectors = panel_vectors(arithmetic_, group.rows);
  TileCall call{};
  call.set_steps(group.rows, plane_, unit());
  call.c_row = sums_pitch_;
  int64_t left = ceil_div(columns, arithmetic_.lanes);
  if (parts.count == 0)
    for (int64_t row = 0; row < group.rows; ++row)
      std::memset(sums + row * sums_pitch_ * unit(), 0, left * arithmetic_.lanes * unit());
  for (int64_t pieces = ceil_div(left, most_vectors); pieces > 0; --pieces) {
    const int64_t vectors = ceil_div(left, pieces);
    left -= vectors;
    call.live = vectors * arithmetic_.lanes;
    call.b = b;
    call.start = Start::zero;
    call.runs = parts.runs;
    for (int64_t part = 0; part < parts.count; ++part) {
      call.run_count = parts.counts[part];
      for (int64_t panel = 0, row = 0; panel < panels; ++panel) {
        const int64_t rows = (group.rows - row) / (panels - panel);
        call.a = a + row * unit();
        call.c = sums + row * sums_pitch_ * unit();
        tiles.adjacent[vectors][rows](call);
        meanwhile();
        row += rows;
      }
      call.start = Start::accumulate;
      call.runs += call.run_count;
    }
    b += call.live * unit();
    sums += call.live * unit();
  }
}

Range FewChannelsPlan::present(const BoxRange& box) const {
  return present_positions(columns_, box.begin[3] * packing_.strips[3].stride + columns_.from,
                           columns_.length(box.count[3]), packing_.tensor.extent[3]);
}

void FewChannelsPlan::run_box(const Operands& operands, int64_t group_index, const BoxRange& box,
                              const BoxRange& next, const char* packed) const {
  const int64_t bytes = element_bytes(problem_.dtype), lanes = arithmetic_.lanes;
  char* const buffer = local_scratch<char>(local_bytes_);
  char* const sums = buffer + buffer_units_ * unit();
  char* const stage = sums + sums_units_ * unit();
  char* const starts = stage + out_channels_ * stage_pitch_ * unit();  // one a channel
  Run* const runs = reinterpret_cast<Run*>(stage + stage_units_ * unit());
  const PresentParts present_memory{runs, reinterpret_cast<int64_t*>(runs + most_runs_)};
  const char* const in = in_data(operands, group_index);
  char* const out = out_data(operands, group_index);
  const CopyFunction unpack = arithmetic_.unpack[static_cast<int>(problem_.dtype)];

  // The first position that is present is aligned; those outside of the operand have no sums but
  // zero.
  Range columns{0, 0};
  int64_t shift = 0;
  if (joined_) {
    columns = present(box);
    shift = ceil_div(columns.begin, lanes) * lanes - columns.begin;
    columns = {columns.begin + shift, columns.end + shift};
    for (int64_t row = 0; row < sums_units_ / sums_pitch_; ++row) {
      char* const to = sums + row * sums_pitch_ * unit();
      std::memset(to, 0, columns.begin * unit());
      std::memset(to + columns.end * unit(), 0, (sums_pitch_ - columns.end) * unit());
    }
  }
  const Panel panel{0, in_channels_, trimmed_ ? 0 : shift, in_units_ * plane_, 1, plane_};
  // Lanes behind a row compute what nobody reads. From what others left there, integers for one,
  // which are denormal numbers, that took ten times as long where each costs the CPU an exception:
  // 384 to 8 channels of 8x8, 5x5, 1.7 ms instead of 0.18 (Sapphire Rapids).
  if (is_intel()) std::memset(buffer, 0, buffer_units_ * unit());
  pack_box(packing_, in, box, &panel, 1, buffer);

  if (operands.bias)
    arithmetic_.widen[static_cast<int>(problem_.dtype)](
        {static_cast<const char*>(operands.bias) + group_index * out_channels_ * bytes, 0, 1,
         starts, 0, 1, 1, out_channels_});
  else
    std::memset(starts, 0, out_channels_ * unit());
  ShiftedSum sum{};
  // The stage holds one row of the result, as planes: [channel][position].
  const PhasedAxis& axis = axes_[3];
  // `position` counts from the box's first.
  const auto add = [&](const char* from, int64_t position, int64_t step, int64_t count) {
    sum.to_step = step;
    sum.count = count;
    for (int64_t c = 0; c < out_channels_; ++c) {
      sum.from = from + c * sums_pitch_ * unit();
      sum.start = starts + c * unit();
      sum.to = stage + (c * stage_pitch_ + position) * unit();
      arithmetic_.shifted_sum(sum);
    }
  };
  const auto finish = [&](const PerAxis<int64_t>& p, int64_t position, int64_t step,
                          int64_t count) {
    unpack({stage + position * unit(), stage_pitch_, 1, out + offset(p, out_.stride) * bytes,
            out_.channel, step * out_.stride[3], out_channels_, count});
  };
  const BoxRange positions = positions_of(box, axes_, out_);
  if (!complete_) {
    add(sums, 0, 1, stage_positions_);  // of no rows
    for_each_row(positions, [&](PerAxis<int64_t> p) {
      for (const int64_t end = p[3] + positions.count[3]; p[3] < end; p[3] += stage_positions_)
        finish(p, 0, 1, std::min(stage_positions_, end - p[3]));
    });
  }

  // While this box is multiplied, the next one is fetched: 1x1 from 64 to 3 channels took 1.5 times
  // as long without (Zen 4).
  int64_t tiles = 0;
  for (const Group& group : groups_) {
    const BoxRange rows = windows_of(box, phases_[group.rows_of]);
    if (rows.count[0] > 0 && rows.count[1] > 0 && rows.count[2] > 0)
      tiles += rows.count[0] * rows.count[1] * rows.count[2] * tiles_of(group, box.count[3]);
  }
  BoxPrefetch prefetch(packing_, in, next, 0, in_channels_, tiles);
  const auto fetch_some = [&] { prefetch.fetch(); };
  // One row of windows, u; p: where its results begin.
  const auto add_group = [&](const Group& group, const PerAxis<int64_t>& u, const char* b,
                             PerAxis<int64_t> p) {
    const char* const a = packed + group.weights * unit();
    const Parts parts = present_parts(group, u, present_memory);
    if (joined_) {
      const int64_t count = columns.end - columns.begin,
                    rest = ceil_div(count, lanes) * lanes - count;
      multiply(group, parts, a, b + (trimmed_ ? 0 : columns.begin) * unit(),
               sums + columns.begin * unit(), count, fetch_some);
      for (int64_t row = 0; row < group.rows && rest; ++row)
        std::memset(sums + (row * sums_pitch_ + columns.end) * unit(), 0, rest * unit());
    }
    for (const Piece& piece : group.pieces) {
      const Phase& phase = *phases_[piece.phase].axes[3];
      const Footing& footing = phases_[piece.phase].footings[3];
      const int64_t first = std::max(box.begin[3], phase.begin) - box.begin[3];
      const int64_t count = std::min(box.count[3], phase.end - box.begin[3]) - first;
      if (count < 1) continue;
      int64_t from = footing.offset + first;
      if (joined_) {
        from += shift + piece.first * footing.tap;
      } else {
        multiply(group, parts, a, b + from * unit(), sums, count, fetch_some);
        from = 0;
      }
      sum.step = group.tap_rows * sums_pitch_ + footing.tap;
      sum.rows = piece.taps;
      sum.accumulate = piece.first > 0;
      const char* const rows = sums + (piece.row * sums_pitch_ + from) * unit();
      if (interleaved_) {
        add(rows, phase.out - axis.out + first * axis.step, axis.step, count);
        continue;
      }
      add(rows, 0, 1, count);
      p[3] = phase.out + (box.begin[3] + first) * axis.step;
      if (!joined_ || piece.first + piece.taps == phase.sliding.taps)
        finish(p, 0, axis.step, count);
    }
  };
  for (auto begin = groups_.begin(); begin != groups_.end();) {
    const auto end = std::find_if(
        begin, groups_.end(), [&](const Group& group) { return group.rows_of != begin->rows_of; });
    const BoxPhase& rows_of = phases_[begin->rows_of];
    BoxRange rows = windows_of(box, rows_of);
    rows.count[3] = box.count[3];
    if (!rows.empty())
      for_each_row(rows, [&](const PerAxis<int64_t>& u) {
        const auto b_of = [&](int a) {
          return rows_of.footings[a].offset + (u[a] - box.begin[a]) * rows_of.footings[a].window;
        };
        const int64_t row =
            (b_of(0) * packing_.strips[1].length + b_of(1)) * packing_.strips[2].length + b_of(2);
        PerAxis<int64_t> p{0, 0, 0, positions.begin[3]};
        for (int a = 0; a < kBoxRank - 1; ++a)
          p[a] = rows_of.axes[a]->out + u[a] * rows_of.axes[a]->out_step;
        for (auto group = begin; group != end; ++group)
          add_group(*group, u, buffer + row * in_units_ * plane_ * unit(), p);
        if (interleaved_)
          finish(p, p[3] - axis.out - box.begin[3] * axis.step, 1, positions.count[3]);
      });
    begin = end;
  }
}

void FewChannelsPlan::run(const Operands& operands) const {
  const int64_t boxes = grid_.boxes(), groups = problem_.geometry.groups;
  char* const packed = shared_scratch<char>(groups * group_units_ * unit());
  // Of so many channels, all taps at a time: neighbouring taps lie in one line, far apart in the
  // packed weights. An even number, for pairs.
  constexpr int64_t kChannels = 64;
  const int64_t blocks = ceil_div(in_channels_, kChannels);
  parallel_for(problem_.threads, groups * blocks, [&](int64_t i) {
    const int64_t group = i / blocks, first = i % blocks * kChannels;
    pack_weights(operands, group, {first, std::min(first + kChannels, in_channels_)},
                 packed + group * group_units_ * unit());
  });
  parallel_for(problem_.threads, groups * boxes, [&](int64_t i) {
    const int64_t group = i / boxes;
    run_box(operands, group, grid_.box(i % boxes), grid_.box_after(i % boxes),
            packed + group * group_units_ * unit());
  });
}

}  // namespace

std::unique_ptr<const Plan> few_channels_plan(const Problem& problem,
                                              const Arithmetic& arithmetic) {
  return std::make_unique<FewChannelsPlan>(problem, arithmetic);
}

}  // namespace convtbw::simd
