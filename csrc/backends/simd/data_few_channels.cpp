// fprop and dgrad where the result has few channels, which would leave most lanes of a vector
// empty: rows are the result's channels and lanes neighbouring windows. Rows of the operand are
// copied, zero-padded, as planes [channel][window], and the sum runs over the channels of one tap
// at a time.
#include <algorithm>
#include <cstring>
#include <utility>

#include "backends/simd/folded_runs.h"
#include "backends/simd/phases.h"
#include "backends/simd/plans.h"
#include "backends/simd/scratch.h"
#include "core/parallel.h"

namespace convtbw::simd {

namespace {

class FewChannelsPlan : public Plan {
 public:
  FewChannelsPlan(const Problem& problem, const Arithmetic& arithmetic);
  void run(const Operands& operands) const override;

 private:
  void choose_sizes();
  void pack_weights(const Operands& operands, int64_t group, char* packed) const;
  void run_box(const Operands& operands, int64_t group, const BoxRange& box,
               const char* packed) const;

  int64_t unit() const { return problem_.dtype == Dtype::f64 ? 8 : 4; }

  const Problem problem_;
  const Arithmetic& arithmetic_;
  const Tensor out_;
  const int64_t in_channels_, out_channels_;
  const int64_t w_in_, w_out_;  // strides of the weights
  const int64_t in_units_;      // channels summed over, or pairs of them
  const PerAxis<PhasedAxis> axes_;
  std::vector<BoxPhase> phases_;
  std::vector<FoldedRuns> runs_;  // of every phase
  bool complete_ = true;          // every result position belongs to a phase
  Packing packing_;
  BoxGrid grid_;
  int max_vectors_;
  int64_t plane_;  // units from one channel's row in the buffer to the next
  int64_t buffer_units_, stage_pitch_, stage_units_;
  int64_t taps_, group_units_;
};

FewChannelsPlan::FewChannelsPlan(const Problem& problem, const Arithmetic& arithmetic)
    : problem_(problem),
      arithmetic_(arithmetic),
      out_(problem.wanted == Role::y ? y_tensor(problem) : x_tensor(problem)),
      in_channels_(problem.wanted == Role::y ? problem.geometry.x_channels
                                             : problem.geometry.y_channels),
      out_channels_(problem.wanted == Role::y ? problem.geometry.y_channels
                                              : problem.geometry.x_channels),
      w_in_(problem.wanted == Role::y ? problem.w.x_channel : problem.w.y_channel),
      w_out_(problem.wanted == Role::y ? problem.w.y_channel : problem.w.x_channel),
      in_units_(arithmetic.pairs ? ceil_div(in_channels_, 2) : in_channels_),
      axes_(phased_axes(problem)),
      packing_{&arithmetic,
               problem.wanted == Role::y ? x_tensor(problem) : y_tensor(problem),
               {},
               arithmetic.pairs ? Pairing::channels : Pairing::none} {
  for (const PhasedAxis& axis : axes_) complete_ &= axis.complete;
  for (int v = 1; v <= kMaxVectors; ++v)
    if (arithmetic.tiles.max_rows[v] >= out_channels_) max_vectors_ = v;
  choose_sizes();

  phases_ = box_phases(axes_, packing_.strips);
  taps_ = phases_.empty() ? 0 : phases_.back().taps_before + phases_.back().taps;
  for (const BoxPhase& phase : phases_) {
    FoldedRuns runs;
    int64_t a = 0;
    for (int64_t t0 = 0; t0 < phase.axes[1]->sliding.taps; ++t0)
      for (int64_t t1 = 0; t1 < phase.axes[2]->sliding.taps; ++t1)
        for (int64_t t2 = 0; t2 < phase.axes[3]->sliding.taps; ++t2) {
          const int64_t row =
              t0 * phase.footings[1].tap * packing_.strips[2].length + t1 * phase.footings[2].tap;
          runs.add({a, row * in_units_ * plane_ + t2 * phase.footings[3].tap, in_units_},
                   out_channels_, plane_);
          a += in_units_ * out_channels_;
        }
    runs_.push_back(std::move(runs));
  }
  group_units_ = taps_ * in_units_ * out_channels_;

  kernel = std::string(problem.wanted == Role::y ? "fprop" : "dgrad") + ", pixels in lanes, " +
           arithmetic.name;
  workspace =
      (problem.geometry.groups * group_units_ + problem.threads * (buffer_units_ + stage_units_)) *
      unit();
  bytes = sizeof(FewChannelsPlan) +
          static_cast<int64_t>(phases_.size()) * (sizeof(BoxPhase) + sizeof(Run)) +
          taps_ * static_cast<int64_t>(sizeof(Run));
}

// Sizes depend on the shape alone, so that results do not depend on the number of threads.
void FewChannelsPlan::choose_sizes() {
  constexpr int64_t kBufferBytes = 192 << 10;
  constexpr int64_t kWindows = 2048;
  constexpr int64_t kItems = 16;  // enough to keep some threads busy until the end
  const int64_t lanes = arithmetic_.lanes;
  const auto units = [&](const PerAxis<int64_t>& windows) {
    int64_t product = in_units_;
    for (int a = 0; a < kBoxRank; ++a) product *= axes_[a].strip(windows[a], Apart::taps).length;
    return product;
  };
  PerAxis<int64_t> extent, size{1, 1, 1, 1};
  for (int a = 0; a < kBoxRank; ++a) extent[a] = axes_[a].windows;
  // Whole tiles along a row, then rows while they fit.
  size[3] = std::min(extent[3], max_vectors_ * lanes);
  const auto boxes = [&](const PerAxis<int64_t>& windows) {
    return BoxGrid{extent, windows}.boxes() * problem_.geometry.groups;
  };
  for (const int a : {3, 2, 1, 0})
    while (size[a] < extent[a]) {
      PerAxis<int64_t> next = size;
      next[a] = std::min(extent[a], a == 3 ? size[a] + max_vectors_ * lanes : size[a] + 1);
      if (next[0] * next[1] * next[2] * next[3] > kWindows || units(next) * unit() > kBufferBytes ||
          boxes(next) < std::min(kItems, boxes(size)))
        break;
      size = next;
    }
  grid_ = {extent, size};
  int64_t rows = 1;
  for (int a = 0; a < kBoxRank; ++a) {
    packing_.strips[a] = axes_[a].strip(size[a], Apart::taps);
    if (a < kBoxRank - 1) rows *= packing_.strips[a].length;
  }
  // A tile reads whole vectors, up to one beyond the windows. Rows that lie a multiple of 4 KB
  // apart would share their sets of the cache: an odd number of lines.
  const int64_t line = 64 / unit();
  plane_ = ceil_div(packing_.strips[3].length + lanes, line) * line;
  if (plane_ / line % 2 == 0) plane_ += line;
  buffer_units_ = rows * in_units_ * plane_;
  stage_pitch_ = ceil_div(size[3], lanes) * lanes;
  stage_units_ = out_channels_ * stage_pitch_;
}

// [phase][tap][unit][row]
void FewChannelsPlan::pack_weights(const Operands& operands, int64_t group, char* packed) const {
  const int64_t bytes = element_bytes(problem_.dtype);
  for (const BoxPhase& phase : phases_) {
    char* to = packed + phase.taps_before * in_units_ * out_channels_ * unit();
    for_each_tap(phase, problem_.w, [&](int64_t tap) {
      const char* const from =
          static_cast<const char*>(operands.data.w) + (group * problem_.w.group + tap) * bytes;
      pack_channel_rows(arithmetic_, problem_.dtype,
                        {from, w_in_, w_out_, to, out_channels_, 1, in_channels_, out_channels_});
      to += in_units_ * out_channels_ * unit();
    });
  }
}

void FewChannelsPlan::run_box(const Operands& operands, int64_t group, const BoxRange& box,
                              const char* packed) const {
  const int64_t bytes = element_bytes(problem_.dtype);
  char* const buffer = local_scratch<char>((buffer_units_ + stage_units_) * unit());
  char* const stage = buffer + buffer_units_ * unit();
  const bool fprop = problem_.wanted == Role::y;
  const char* const in = static_cast<const char*>(fprop ? operands.data.x : operands.data.y) +
                         group * in_channels_ * packing_.tensor.channel * bytes;
  char* const out = static_cast<char*>(operands.data[problem_.wanted]) +
                    group * out_channels_ * out_.channel * bytes;
  const CopyFunction unpack = arithmetic_.unpack[static_cast<int>(problem_.dtype)];
  const Panel panel{0, in_channels_, 0, in_units_ * plane_, 1, plane_};
  pack_box(packing_, in, box, &panel, 1, buffer);

  const char* const bias =
      operands.bias ? static_cast<const char*>(operands.bias) + group * out_channels_ * bytes
                    : nullptr;
  const CopyFunction widen = arithmetic_.widen[static_cast<int>(problem_.dtype)];
  // One value a channel: the bias or zero.
  const auto start = [&](int64_t windows) {
    if (bias)
      widen({bias, 1, 0, stage, stage_pitch_, 1, out_channels_, windows});
    else
      std::memset(stage, 0, stage_units_ * unit());
  };
  const auto finish = [&](int64_t at, int64_t step, int64_t windows) {
    unpack({stage, 1, stage_pitch_, out + at * bytes, step * out_.stride[3], out_.channel, windows,
            out_channels_});
  };
  if (!complete_) {
    const BoxRange positions = positions_of(box, axes_, out_);
    for_each_row(positions, [&](PerAxis<int64_t> p) {
      for (const int64_t end = p[3] + positions.count[3]; p[3] < end; p[3] += stage_pitch_) {
        const int64_t count = std::min(stage_pitch_, end - p[3]);
        start(count);
        finish(offset(p, out_.stride), 1, count);
      }
    });
  }

  TileCall call{};
  call.a_step = out_channels_;
  call.b_step = plane_;
  call.c_row = stage_pitch_;
  for (size_t index = 0; index < phases_.size(); ++index) {
    const BoxPhase& phase = phases_[index];
    const BoxRange windows = windows_of(box, phase);
    if (windows.empty()) continue;
    call.a = packed + phase.taps_before * in_units_ * out_channels_ * unit();
    call.start = bias ? Start::accumulate : Start::zero;
    runs_[index].use_in(call);
    for_each_row(windows, [&](const PerAxis<int64_t>& u) {
      const auto b_of = [&](int a) {
        return phase.footings[a].offset + (u[a] - box.begin[a]) * phase.footings[a].window;
      };
      const int64_t row =
          (b_of(0) * packing_.strips[1].length + b_of(1)) * packing_.strips[2].length + b_of(2);
      const char* const b = buffer + (row * in_units_ * plane_ + b_of(3)) * unit();
      if (bias) start(windows.count[3]);
      int64_t left = ceil_div(windows.count[3], arithmetic_.lanes);
      for (int64_t done = 0; left > 0;) {
        const int64_t vectors = std::min<int64_t>(left, max_vectors_);
        call.b = b + done * unit();
        call.c = stage + done * unit();
        call.live = vectors * arithmetic_.lanes;
        arithmetic_.tiles.adjacent[vectors][out_channels_](call);
        done += call.live;
        left -= vectors;
      }
      int64_t at = 0;
      for (int a = 0; a < kBoxRank; ++a)
        at += (phase.axes[a]->out + u[a] * phase.axes[a]->out_step) * out_.stride[a];
      finish(at, phase.axes[3]->out_step, windows.count[3]);
    });
  }
}

void FewChannelsPlan::run(const Operands& operands) const {
  const int64_t boxes = grid_.boxes(), groups = problem_.geometry.groups;
  char* const packed = shared_scratch<char>(groups * group_units_ * unit());
  parallel_for(problem_.threads, groups, [&](int64_t group) {
    pack_weights(operands, group, packed + group * group_units_ * unit());
  });
  parallel_for(problem_.threads, groups * boxes, [&](int64_t i) {
    const int64_t group = i / boxes;
    run_box(operands, group, grid_.box(i % boxes), packed + group * group_units_ * unit());
  });
}

}  // namespace

std::unique_ptr<const Plan> few_channels_plan(const Problem& problem,
                                              const Arithmetic& arithmetic) {
  return std::make_unique<FewChannelsPlan>(problem, arithmetic);
}

}  // namespace convtbw::simd
