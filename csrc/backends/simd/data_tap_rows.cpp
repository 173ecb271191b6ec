// fprop and dgrad into few channels with few taps: a tile's rows are all taps of all channels of
// the result, its lanes neighbouring pixels of the operand, each of which is multiplied once. What
// each tap has for a result is then added, a row of results at a time. (data_few_channels.cpp has
// the taps of a row in a tile's rows, sums over the others, and copies pixels for every box that
// meets them.)
#include <algorithm>
#include <array>
#include <cstring>

#include "backends/simd/box_prefetch.h"
#include "backends/simd/directed_plan.h"
#include "backends/simd/edges.h"
#include "backends/simd/folded_runs.h"
#include "backends/simd/lane_blocks.h"
#include "backends/simd/phases.h"
#include "backends/simd/plans.h"
#include "core/parallel.h"
#include "core/scratch.h"

namespace convtbw::simd {

namespace {

// What the windows of all phases of an axis meet, counted from the window: [first, end).
struct Reach {
  int64_t first, end;
};

Reach reach_of(const PhasedAxis& axis) {
  Reach reach{axis.phases.front().sliding.first, axis.phases.front().sliding.first + 1};
  for (const Phase& phase : axis.phases) {
    const Sliding& s = phase.sliding;
    reach.first = std::min(reach.first, s.first);
    reach.end = std::max(reach.end, s.first + (s.taps - 1) * s.dilation + 1);
  }
  return reach;
}

// Result `at` again, of so many taps of each row alone.
template <class T>
void add_some(const AddedTaps& call, int64_t row_taps, const Range& taps, int64_t at) {
  const auto terms = reinterpret_cast<const T* const*>(call.terms);
  T sum = *static_cast<const T*>(call.start);
  for (int64_t row = 0; row < call.term_count; row += row_taps)
    for (int64_t tap = taps.begin; tap < taps.end; ++tap) sum += terms[row + tap][at];
  static_cast<T*>(call.c)[at] = sum;
}

class TapRowsPlan : public DirectedPlan {
 public:
  TapRowsPlan(const Problem& problem, const Arithmetic& arithmetic);
  void run(const Operands& operands) const override;

 private:
  // A thread's memory.
  struct Local {
    char *pixels, *sums, *results, *joined, *starts;
    const void** terms;
  };

  void choose_sizes();
  void pack_weights(const Operands& operands, int64_t group, int64_t row_of_taps,
                    char* packed) const;
  void multiply_plane(const char* in, const BoxRange& box, int64_t plane, const char* packed,
                      const Local& local) const;
  void multiply_block(const char* pixels, int64_t step, int64_t vectors, const Range& steps,
                      const char* packed, char* sums, BoxPrefetch& next) const;
  void multiply_row(const char* pixels, int64_t step, int64_t count, const Range& steps,
                    const char* packed, char* sums, BoxPrefetch& next) const;
  void add_row(const BoxRange& box, const std::array<const Phase*, 2>& phases,
               const std::array<int64_t, 2>& windows, const Local& local, char* out) const;
  void run_box(const Operands& operands, int64_t group, const BoxRange& box,
               const char* packed) const;

  // Positions of the operand that some windows meet along an axis.
  Range met(int a, int64_t first, int64_t count) const {
    const int64_t end = std::min(first + count - 1 + reach_[a].end, in_.extent[a]);
    const int64_t begin = std::max<int64_t>(first + reach_[a].first, 0);
    return {begin, std::max(begin, end)};
  }
  Range met(int a, const BoxRange& box) const { return met(a, box.begin[a], box.count[a]); }
  // Boxes have whole rows, which follow each other, unless there is only one.
  bool one_row() const { return axes_[2].windows == 1 && in_.extent[2] == 1; }
  Range columns_met(const BoxRange& box) const {
    return one_row() ? met(3, box) : Range{0, in_.extent[3]};
  }
  int64_t tiles_of(int64_t pixels) const {
    return row_panels(arithmetic_, rows_) *
           ceil_div(pixels, panel_vectors(arithmetic_, rows_) * arithmetic_.lanes);
  }
  int64_t parts() const { return ceil_div(in_units_, most_steps(arithmetic_)); }
  Range steps_of(int64_t part) const {
    return {in_units_ * part / parts(), in_units_ * (part + 1) / parts()};
  }
  // Channels first, those of a part are copied together, of as many pixels as then fit.
  bool by_part() const { return in_.stride[3] == 1; }
  int64_t terms_bytes() const {  // of a result
    return whole_lines(problem_.geometry.taps() * int64_t{sizeof(void*)});
  }
  // The sums of a plane are kept while results meet it.
  int64_t kept_planes() const { return reach_[1].end - reach_[1].first; }
  char* sums_of(char* sums, int64_t plane) const {
    return sums + plane % kept_planes() * rows_ * sums_pitch_ * unit();
  }

  const int64_t in_units_;  // channels summed over, or pairs of them
  const PerAxis<PhasedAxis> axes_;
  PerAxis<Reach> reach_;
  int64_t rows_;  // taps times channels of the result
  int64_t lead_;  // what windows reach before the first pixel of a row
  Packing packing_;
  BoxGrid grid_;  // of windows
  bool in_place_;
  int64_t copied_;                     // steps that are copied together
  int64_t piece_;                      // pixels that are copied at a time
  int64_t pixels_pitch_, sums_pitch_;  // of a channel; of a row of tiles
  int64_t results_pitch_;              // of a channel's row of results
  int64_t pixel_units_, sum_units_, result_units_, local_bytes_;
};

TapRowsPlan::TapRowsPlan(const Problem& problem, const Arithmetic& arithmetic)
    : DirectedPlan(problem, arithmetic),
      in_units_(arithmetic.pairs ? ceil_div(in_channels_, 2) : in_channels_),
      axes_(phased_axes(problem)),
      rows_(problem.geometry.taps() * out_channels_),
      packing_{&arithmetic, in_, {}, arithmetic.pairs ? Pairing::channels : Pairing::none} {
  packing_.tensor.extent[3] *= packing_.tensor.extent[2];
  packing_.tensor.extent[2] = 1;
  packing_.strips.fill(strip({Sliding{}}, 1, Apart::windows));
  for (int a = 0; a < kBoxRank; ++a) reach_[a] = reach_of(axes_[a]);
  choose_sizes();
  kernel = std::string(contraction_name(problem.wanted)) + ", taps in rows, pixels in lanes, " +
           arithmetic.name;
  workspace = problem.geometry.groups * in_units_ * rows_ * unit() + problem.threads * local_bytes_;
  bytes = static_cast<int64_t>(sizeof(TapRowsPlan));
  for (const PhasedAxis& axis : axes_)
    bytes += static_cast<int64_t>(axis.phases.size() * sizeof(Phase));
}

// Sizes depend on the shape alone, so that results do not depend on the number of threads.
void TapRowsPlan::choose_sizes() {
  constexpr int64_t kPixelBytes = 192 << 10, kSumBytes = 512 << 10;
  constexpr int64_t kItems = 8, kFewest = 4;  // enough to keep some threads busy until the end
  const int64_t lanes = arithmetic_.lanes, behind = kMaxVectors * lanes;
  for (int a = 0; a < kBoxRank; ++a) grid_.extent[a] = axes_[a].windows;
  grid_.size = grid_.extent;
  grid_.size[0] = 1;
  // Boxes meet what lies across their edges, too: they are long, unless threads had nothing to do.
  const auto across = [&](int a) { return reach_[a].end - reach_[a].first - 1; };
  // Cuts an axis whose windows meet so many pixels each.
  const auto cut = [&](int a, int64_t pixels, int64_t least) {
    const int64_t windows = grid_.extent[a];
    const int64_t items = grid_.boxes() * problem_.geometry.groups;
    const auto of_items = [&](int64_t count) { return ceil_div(windows, ceil_div(count, items)); };
    const int64_t fits = kSumBytes / (kept_planes() * rows_ * pixels * unit()) - across(a);
    const int64_t some =
        std::max({of_items(kItems), std::min(8 * across(a), of_items(kFewest)), least});
    const int64_t most = std::min(some, std::max(fits, 4 * across(a)));
    grid_.size[a] = ceil_div(windows, ceil_div(windows, std::clamp<int64_t>(most, 1, windows)));
  };
  if (one_row())
    cut(3, 1, 4 * behind);
  else
    cut(2, in_.extent[3], 1);
  const int64_t items = grid_.boxes() * problem_.geometry.groups, planes = grid_.extent[1];
  const int64_t some_planes =
      std::max(ceil_div(planes, ceil_div(kItems, items)), 4 * kept_planes());
  grid_.size[1] = ceil_div(planes, ceil_div(planes, std::min(planes, some_planes)));

  const int64_t box_pixels =
      one_row() ? grid_.size[3] + across(3) : (grid_.size[2] + across(2)) * in_.extent[3];
  lead_ = std::max<int64_t>(0, -reach_[3].first);
  // Windows of the last row reach behind it.
  sums_pitch_ =
      odd_lines(lead_ + box_pixels + grid_.size[3] + std::max<int64_t>(reach_[3].end, 0) + behind);
  const Range last = steps_of(parts() - 1);  // no part has more
  // Channels first. Tiles of 8 lanes, which read one line of a channel, wait for memory: 1.2 to 1.5
  // times the time of copies (Zen 4).
  in_place_ = by_part() && element() == unit() && lanes > 8;
  copied_ = by_part() ? last.end - last.begin : in_units_;
  const int64_t most_pixels = kPixelBytes / (copied_ * unit()) / behind * behind;
  piece_ = std::min(ceil_div(box_pixels, lanes) * lanes, std::max(most_pixels, behind));
  pixels_pitch_ = odd_lines(in_place_ ? lanes : piece_);
  results_pitch_ = odd_lines(grid_.size[3] * axes_[3].step + 2 * behind);

  pixel_units_ = copied_ * pixels_pitch_ + behind;
  sum_units_ = kept_planes() * rows_ * sums_pitch_;
  result_units_ = out_channels_ * results_pitch_;
  local_bytes_ = terms_bytes();
  for (const int64_t units :
       {pixel_units_, sum_units_, result_units_, results_pitch_, out_channels_ * lanes})
    local_bytes_ += whole_lines(units * unit());
}

// [channel that is summed over][tap][channel of the result]
void TapRowsPlan::pack_weights(const Operands& operands, int64_t group, int64_t row_of_taps,
                               char* packed) const {
  const auto& [depth, rows, row] = problem_.geometry.axes;
  const WeightsStrides& w = problem_.w;
  const int64_t at =
      group * w.group + row_of_taps / rows.k * w.axes[0] + row_of_taps % rows.k * w.axes[1];
  const char* from = static_cast<const char*>(operands.data.w) + at * element();
  char* to = packed + row_of_taps * row.k * out_channels_ * unit();
  const bool one = out_channels_ == 1;
  for (int64_t tap = 0; tap < (one ? 1 : row.k); ++tap) {
    pack_channel_rows(arithmetic_, problem_.dtype,
                      {from, w_in_, one ? w.axes[2] : w_out_, to, rows_, 1, in_channels_,
                       one ? row.k : out_channels_});
    from += w.axes[2] * element();
    to += out_channels_ * unit();
  }
}

// Adds so many steps' products of a tile's width of pixels, `step` units from one step to the next,
// to sums[row][pixel], or starts with them.
void TapRowsPlan::multiply_block(const char* pixels, int64_t step, int64_t vectors,
                                 const Range& steps, const char* packed, char* sums,
                                 BoxPrefetch& next) const {
  const int64_t panels = row_panels(arithmetic_, rows_);
  const Run run{0, 0, steps.end - steps.begin};
  TileCall call{};
  call.set_steps(rows_, step, unit());
  call.b = pixels;
  call.c_row = sums_pitch_;
  call.runs = &run;
  call.run_count = 1;
  call.live = vectors * arithmetic_.lanes;
  call.start = steps.begin ? Start::accumulate : Start::zero;
  packed += steps.begin * rows_ * unit();
  for (int64_t panel = 0, row = 0; panel < panels; ++panel) {
    const int64_t tile_rows = (rows_ - row) / (panels - panel);
    call.a = packed + row * unit();
    call.c = sums + row * sums_pitch_ * unit();
    arithmetic_.tiles.adjacent[vectors][tile_rows](call);
    next.fetch();
    row += tile_rows;
  }
}

// So many steps' products of a row of whole vectors of pixels.
void TapRowsPlan::multiply_row(const char* pixels, int64_t step, int64_t count, const Range& steps,
                               const char* packed, char* sums, BoxPrefetch& next) const {
  for (int64_t left = ceil_div(count, arithmetic_.lanes), vectors; left > 0; left -= vectors) {
    vectors = ceil_div(left, ceil_div(left, panel_vectors(arithmetic_, rows_)));
    multiply_block(pixels, step, vectors, steps, packed, sums, next);
    pixels += vectors * arithmetic_.lanes * unit();
    sums += vectors * arithmetic_.lanes * unit();
  }
}

// What all taps have for the windows of a box, of one plane of the operand: of pixels that follow
// each other, row after row.
void TapRowsPlan::multiply_plane(const char* in, const BoxRange& box, int64_t plane,
                                 const char* packed, const Local& local) const {
  const Range rows = met(2, box), columns = columns_met(box);
  const int64_t pixels = (rows.end - rows.begin) * (columns.end - columns.begin);
  const int64_t lanes = arithmetic_.lanes, together = arithmetic_.pairs ? 2 : 1;
  char* const sums = sums_of(local.sums, plane) + lead_ * unit();
  const char* const first =
      in + offset({box.begin[0], plane, rows.begin, columns.begin}, in_.stride) * element();
  const bool in_place = in_place_ && pixels >= lanes;
  const int64_t whole = in_place ? pixels / lanes * lanes : pixels;
  const auto channels_of = [&](const Range& steps) {
    return Range{together * steps.begin, std::min(together * steps.end, in_channels_)};
  };
  const auto copy = [&](int64_t begin, int64_t count, const Range& steps) {
    const auto [channel, end] = channels_of(steps);
    pack_channel_rows(
        arithmetic_, problem_.dtype,
        {first + (begin * in_.stride[3] + channel * in_.channel) * element(), in_.channel,
         in_.stride[3], local.pixels, pixels_pitch_, 1, end - channel, count});
  };
  // What is copied next, fetched meanwhile: of the same pixels or of those behind them.
  const auto fetch = [&](int64_t begin, const Range& steps, int64_t tiles) {
    const int64_t count = std::min(piece_, whole - begin);
    if (in_place || count <= 0) return BoxPrefetch();
    const auto [channel, end] = channels_of(steps);
    const int64_t pixel = rows.begin * in_.extent[3] + columns.begin + begin;
    return BoxPrefetch(packing_, in, {{box.begin[0], plane, 0, pixel}, {1, 1, 1, count}}, channel,
                       end - channel, tiles);
  };
  const auto multiply_piece = [&](int64_t begin, int64_t count) {
    const int64_t tiles = tiles_of(count);
    BoxPrefetch next;
    if (!by_part()) {
      const Range all{0, in_units_};
      if (!in_place) copy(begin, count, all);
      next = fetch(begin + piece_, all, parts() * tiles);
    }
    for (int64_t part = 0; part < parts(); ++part) {
      const Range steps = steps_of(part);
      const char* from = local.pixels;
      if (in_place) {
        from = first + (begin + steps.begin * in_.channel) * unit();
      } else if (by_part()) {
        copy(begin, count, steps);
        next = part + 1 < parts() ? fetch(begin, steps_of(part + 1), tiles)
                                  : fetch(begin + piece_, steps_of(0), tiles);
      } else {
        from += steps.begin * pixels_pitch_ * unit();
      }
      multiply_row(from, in_place ? in_.channel : pixels_pitch_, count, steps, packed,
                   sums + begin * unit(), next);
    }
  };
  for (int64_t begin = 0; begin < whole; begin += piece_)
    multiply_piece(begin, std::min(piece_, whole - begin));
  // The last vector begins before the end of the one before: nothing is read behind the tensor.
  if (whole < pixels) multiply_piece(pixels - lanes, lanes);
}

// One row of results.
void TapRowsPlan::add_row(const BoxRange& box, const std::array<const Phase*, 2>& phases,
                          const std::array<int64_t, 2>& windows, const Local& local,
                          char* out) const {
  const Geometry& g = problem_.geometry;
  const int64_t lanes = arithmetic_.lanes, first_row = met(2, box).begin;
  const Range columns = columns_met(box);
  const PhasedAxis& axis = axes_[3];
  const int64_t first_result = axis.out + box.begin[3] * axis.step;
  const auto taps_along = [&](int a) {
    return present_taps(phases[a]->sliding, in_.extent[a + 1], windows[a]);
  };
  const Range planes = taps_along(0), rows = taps_along(1);
  const auto tap_of = [](const Phase& phase, int64_t t) { return phase.tap + t * phase.tap_step; };
  const auto met_by = [&](int a, int64_t t) {
    return phases[a]->sliding.first + windows[a] + t * phases[a]->sliding.dilation;
  };
  for (int64_t channel = 0; channel < out_channels_; ++channel)
    for (const Phase& phase : axis.phases) {
      const Sliding& sliding = phase.sliding;
      const int64_t begin = std::max(phase.begin, box.begin[3]);
      const int64_t end = std::min(phase.end, box.begin[3] + box.count[3]);
      if (begin >= end) continue;
      AddedTaps call{};
      call.terms = local.terms;
      for (int64_t t0 = planes.begin; t0 < planes.end; ++t0)
        for (int64_t t1 = rows.begin; t1 < rows.end; ++t1) {
          const int64_t taps =
              (tap_of(*phases[0], t0) * g.axes[1].k + tap_of(*phases[1], t1)) * g.axes[2].k;
          const char* const sums =
              sums_of(local.sums, met_by(0, t0)) +
              (lead_ + (met_by(1, t1) - first_row) * (columns.end - columns.begin) + begin +
               sliding.first - columns.begin) *
                  unit();
          for (int64_t t2 = 0; t2 < sliding.taps; ++t2)
            local.terms[call.term_count++] =
                sums + (((taps + tap_of(phase, t2)) * out_channels_ + channel) * sums_pitch_ +
                        t2 * sliding.dilation) *
                           unit();
        }
      char* const results = local.results + channel * results_pitch_ * unit();
      call.step = call.width = lanes;
      call.start = local.starts + channel * lanes * unit();
      call.c = axis.step == 1 ? results : local.joined;
      call.windows = ceil_div(end - begin, lanes);
      arithmetic_.added_taps(call);
      // Windows that reach beyond the row have met its neighbours.
      const Range whole = whole_windows(sliding, in_.extent[3], end);
      const auto add_edge = [&](int64_t from, int64_t to) {
        for (int64_t window = from; window < to; ++window) {
          const Range taps = present_taps(sliding, in_.extent[3], window);
          if (problem_.dtype == Dtype::f64)
            add_some<double>(call, sliding.taps, taps, window - begin);
          else
            add_some<float>(call, sliding.taps, taps, window - begin);
        }
      };
      add_edge(begin, std::min(whole.begin, end));
      add_edge(std::max(whole.end, begin), end);
      if (axis.step == 1) continue;
      const int64_t zero = 0;
      arithmetic_.shifted_sum({local.joined, 0, 1, &zero, false,
                               results + (phase.out + begin * axis.step - first_result) * unit(),
                               axis.step, end - begin});
    }
  const BoxRange positions = positions_of(box, axes_, out_);
  arithmetic_.unpack[static_cast<int>(problem_.dtype)](
      {local.results + (positions.begin[3] - first_result) * unit(), results_pitch_, 1,
       out + positions.begin[3] * out_.stride[3] * element(), out_.channel, out_.stride[3],
       out_channels_, positions.count[3]});
}

void TapRowsPlan::run_box(const Operands& operands, int64_t group, const BoxRange& box,
                          const char* packed) const {
  Local local;
  local.terms = reinterpret_cast<const void**>(local_scratch<char>(local_bytes_));
  char* memory = reinterpret_cast<char*>(local.terms) + terms_bytes();
  const auto part = [&](int64_t units) {
    memory += whole_lines(units * unit());
    return memory - whole_lines(units * unit());
  };
  local.pixels = part(pixel_units_);
  local.sums = part(sum_units_);
  local.results = part(result_units_);
  local.joined = part(results_pitch_);
  local.starts = part(out_channels_ * arithmetic_.lanes);
  std::memset(local.starts, 0, out_channels_ * arithmetic_.lanes * unit());
  if (operands.bias)
    arithmetic_.widen[static_cast<int>(problem_.dtype)](
        {static_cast<const char*>(operands.bias) + group * out_channels_ * element(), 1, 0,
         local.starts, arithmetic_.lanes, 1, out_channels_, arithmetic_.lanes});

  const char* const in = in_data(operands, group);
  char* const out = out_data(operands, group) + box.begin[0] * out_.stride[0] * element();
  int64_t plane = met(1, box).begin;
  for (int64_t u0 = box.begin[1]; u0 < box.begin[1] + box.count[1]; ++u0) {
    for (const int64_t end = met(1, u0, 1).end; plane < end; ++plane)
      multiply_plane(in, box, plane, packed, local);
    for (const Phase& depth : axes_[1].phases) {
      if (u0 < depth.begin || u0 >= depth.end) continue;
      for (int64_t u1 = box.begin[2]; u1 < box.begin[2] + box.count[2]; ++u1)
        for (const Phase& row : axes_[2].phases) {
          if (u1 < row.begin || u1 >= row.end) continue;
          const int64_t at = (depth.out + u0 * depth.out_step) * out_.stride[1] +
                             (row.out + u1 * row.out_step) * out_.stride[2];
          add_row(box, {&depth, &row}, {u0, u1}, local, out + at * element());
        }
    }
  }
}

void TapRowsPlan::run(const Operands& operands) const {
  const Geometry& g = problem_.geometry;
  const int64_t weights = in_units_ * rows_ * unit(), rows_of_taps = g.axes[0].k * g.axes[1].k;
  char* const packed = shared_scratch<char>(g.groups * weights);
  parallel_for(problem_.threads, g.groups * rows_of_taps, [&](int64_t i) {
    pack_weights(operands, i / rows_of_taps, i % rows_of_taps, packed + i / rows_of_taps * weights);
  });
  const int64_t boxes = grid_.boxes();
  parallel_for(problem_.threads, g.groups * boxes, [&](int64_t i) {
    run_box(operands, i / boxes, grid_.box(i % boxes), packed + i / boxes * weights);
  });
}

}  // namespace

std::unique_ptr<const Plan> tap_rows_plan(const Problem& problem, const Arithmetic& arithmetic) {
  return std::make_unique<TapRowsPlan>(problem, arithmetic);
}

}  // namespace convtbw::simd
