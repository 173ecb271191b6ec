// fprop and dgrad of one tap with channels first: a GEMM whose rows are channels of the result and
// whose lanes are pixels, so that neither tensor is transposed. Pixels of an image are copied into
// blocks as wide as a tile; sums go straight to the result, rounded where it has 16 bits (instead
// of through a buffer: 0.94 of the time with 16 lanes, 0.97 with 8, Ice Lake). Tiles that read the
// operand in place, a channel's vectors a plane apart, took 3 to 13 % longer with 64 or more
// channels on 56x56; at best 10 % less, 32 to 32 channels on 56x56 (Zen 4).
#include <algorithm>

#include "backends/simd/box_prefetch.h"
#include "backends/simd/directed_plan.h"
#include "backends/simd/folded_runs.h"
#include "backends/simd/lane_blocks.h"
#include "backends/simd/panels.h"
#include "backends/simd/plans.h"
#include "core/scratch.h"

namespace convtbw::simd {

namespace {

class PointwisePlan : public DirectedPlan {
 public:
  PointwisePlan(const Problem& problem, const Arithmetic& arithmetic);
  void run(const Operands& operands) const override;

 private:
  void choose_sizes();
  void pack_weights(const Operands& operands, int64_t group, int64_t panel, char* packed) const;
  void pack_pixels(const char* in, int64_t pixels, char* buffer) const;
  void run_box(const Operands& operands, const Panels::Part& part, int64_t box,
               const char* packed) const;

  int64_t width() const { return int64_t{vectors_} * arithmetic_.lanes; }

  const int vectors_;  // of a tile
  // Of a sum, the bias the first.
  const int64_t steps_;
  Packing packing_;
  BoxGrid grid_;
  Panels panels_;
  FoldedRuns runs_[kMaxVectors + 1][kMaxRows + 1];  // by vectors, by rows
};

PointwisePlan::PointwisePlan(const Problem& problem, const Arithmetic& arithmetic)
    : DirectedPlan(problem, arithmetic),
      vectors_(best_vectors(arithmetic, out_channels_)),
      steps_((arithmetic.pairs ? ceil_div(in_channels_, 2) : in_channels_) + problem.bias),
      packing_{&arithmetic, in_, {}} {
  packing_.strips.fill(strip({Sliding{}}, 1, Apart::windows));
  choose_sizes();
  for (int vectors = 1; vectors <= vectors_; ++vectors)
    panels_.for_each_size([&](int64_t rows) {
      FoldedRuns& runs = runs_[vectors][rows];
      runs = FoldedRuns(most_steps(arithmetic));
      runs.add({0, 0, steps_}, rows, int64_t{vectors} * arithmetic.lanes);
      bytes += runs.bytes();
    });
  kernel = std::string(contraction_name(problem.wanted)) + ", pointwise, pixels in lanes, " +
           arithmetic.name;
  workspace = panels_.workspace() + problem.threads * grid_.size[3] * steps_ * unit();
  bytes += static_cast<int64_t>(sizeof(PointwisePlan)) + panels_.bytes();
}

// Sizes depend on the shape alone, so that results do not depend on the number of threads.
void PointwisePlan::choose_sizes() {
  // 64 to 512 KB of pixels are within 7 % of each other, 11 % with 1024 channels, where more is
  // better; 256 and 512 pixels within 10 %; 1024 took up to 27 % longer (Zen 4).
  constexpr int64_t kBufferBytes = 256 << 10, kPixels = 512;
  constexpr int64_t kItems = 32;  // enough to keep many threads busy until the end
  const int64_t images = problem_.geometry.batch, groups = problem_.geometry.groups;
  const int64_t pixels = out_.extent[3], blocks = ceil_div(pixels, width());
  const int64_t most = std::min(kPixels, kBufferBytes / (steps_ * unit())) / width();
  const int64_t cuts = std::max(ceil_div(blocks, std::max<int64_t>(most, 1)),
                                std::min(ceil_div(kItems, images * groups), ceil_div(blocks, 2)));
  grid_.extent = {images, 1, 1, pixels};
  grid_.size = {1, 1, 1, ceil_div(blocks, cuts) * width()};

  const int64_t panels = ceil_div(out_channels_, arithmetic_.tiles.max_rows[vectors_]);
  panels_ = Panels(problem_, out_channels_, panels, steps_, grid_.boxes(), kItems);
}

// [step][row]
void PointwisePlan::pack_weights(const Operands& operands, int64_t group, int64_t panel,
                                 char* packed) const {
  const int64_t bytes = element_bytes(problem_.dtype);
  const int64_t row = panels_.first_row(panel), rows = panels_.rows(panel);
  if (operands.bias) {
    const char* const bias =
        static_cast<const char*>(operands.bias) + (group * out_channels_ + row) * bytes;
    pack_channel_rows(arithmetic_, problem_.dtype, {bias, 0, 1, packed, rows, 1, 1, rows});
    packed += rows * unit();
  }
  const char* const w =
      static_cast<const char*>(operands.data.w) + (group * problem_.w.group + row * w_out_) * bytes;
  pack_channel_rows(arithmetic_, problem_.dtype,
                    {w, w_in_, w_out_, packed, rows, 1, in_channels_, rows});
}

// [block][step][lane]
void PointwisePlan::pack_pixels(const char* in, int64_t pixels, char* buffer) const {
  const int64_t bytes = element_bytes(problem_.dtype), lanes = arithmetic_.lanes;
  const auto pack = [&](int64_t first, int64_t count, int64_t columns, int64_t padded) {
    char* to = buffer + first * steps_ * unit();
    if (problem_.bias) {
      for (int64_t block = 0; block < count; ++block)
        fill_with_ones(arithmetic_, problem_.dtype, to + block * padded * steps_ * unit(), padded);
      to += padded * unit();
    }
    const Copy copy{in + first * bytes,
                    packing_.tensor.channel,
                    1,
                    to,
                    padded,
                    1,
                    in_channels_,
                    columns,
                    padded - columns,
                    count,
                    padded,
                    padded * steps_};
    pack_channel_rows(arithmetic_, problem_.dtype, copy);
  };
  const int64_t whole = pixels / width(), rest = pixels - whole * width();
  if (whole) pack(0, whole, width(), width());
  if (rest) pack(whole * width(), 1, rest, ceil_div(rest, lanes) * lanes);
}

void PointwisePlan::run_box(const Operands& operands, const Panels::Part& part, int64_t box_index,
                            const char* packed) const {
  const int64_t bytes = element_bytes(problem_.dtype), lanes = arithmetic_.lanes;
  char* const buffer = local_scratch<char>(grid_.size[3] * steps_ * unit());
  const Tensor& tensor = packing_.tensor;
  const char* const in = in_data(operands, part.group);
  const BoxRange box = grid_.box(box_index);
  const int64_t pixels = box.count[3];
  pack_pixels(in + (box.begin[0] * tensor.stride[0] + box.begin[3]) * bytes, pixels, buffer);

  char* const out =
      out_data(operands, part.group) + (box.begin[0] * out_.stride[0] + box.begin[3]) * bytes;
  // While this box is multiplied, the next one is fetched: 256 to 64 channels took 15 % longer
  // without (Zen 4).
  BoxPrefetch prefetch(packing_, in, grid_.box_after(box_index), 0, in_channels_,
                       part.panels * ceil_div(pixels, width()));
  const char* a = packed;
  for (int64_t panel = part.first_panel; panel < part.first_panel + part.panels; ++panel) {
    const int64_t row = panels_.first_row(panel), rows = panels_.rows(panel);
    char* const result = out + row * out_.channel * bytes;
    TileCall call{};
    call.a = a;
    call.c_row = out_.channel;
    call.result = problem_.dtype;
    for (int64_t pixel = 0; pixel < pixels; pixel += width()) {
      const int64_t left = std::min(width(), pixels - pixel), vectors = ceil_div(left, lanes);
      call.b = buffer + pixel * steps_ * unit();
      if (call.b_step != vectors * lanes) call.set_steps(rows, vectors * lanes, unit());
      call.c = result + pixel * bytes;
      call.live = left;
      runs_[vectors][rows].use_in(call);
      // Saves up to 7 %, loses 3 % at worst (Zen 4, float32).
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t at = pixel * bytes; at < (pixel + left) * bytes; at += 64)
          __builtin_prefetch(result + i * out_.channel * bytes + at, 1);
      arithmetic_.tiles.adjacent[vectors][rows](call);
      prefetch.fetch();
    }
    a += rows * steps_ * unit();
  }
}

void PointwisePlan::run(const Operands& operands) const {
  panels_.compute(
      problem_.threads, grid_.boxes(),
      [&](const Panels::Part& part, int64_t panel, char* packed) {
        pack_weights(operands, part.group, panel, packed);
      },
      [&](const Panels::Part& part, int64_t box, const char* packed) {
        run_box(operands, part, box, packed);
      });
}

}  // namespace

std::unique_ptr<const Plan> pointwise_plan(const Problem& problem, const Arithmetic& arithmetic) {
  return std::make_unique<PointwisePlan>(problem, arithmetic);
}

}  // namespace convtbw::simd
