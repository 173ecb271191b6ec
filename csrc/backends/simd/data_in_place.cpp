// fprop and dgrad of one tap with few channels on one side: both tensors are read and written where
// they lie, once. Channels first, a tile's rows are channels of the result and its lanes pixels.
// Channels last, rows are pixels and lanes channels of the result.
#include <algorithm>

#include "backends/simd/directed_plan.h"
#include "backends/simd/pixel_pieces.h"
#include "backends/simd/plans.h"
#include "core/parallel.h"
#include "core/scratch.h"

namespace convtbw::simd {

namespace {

constexpr int64_t kSteps = 8;  // of a sum, at a time

class InPlaceDataPlan : public DirectedPlan {
 public:
  InPlaceDataPlan(const Problem& problem, const Arithmetic& arithmetic,
                  const InPlaceKernels& kernels, Lanes lanes);
  void run(const Operands& operands) const override;

 private:
  void run_piece(const Operands& operands, int64_t group, const PixelPiece& piece,
                 const char* weights) const;
  void multiply_planes(InPlaceProduct call, char* sums) const;
  void multiply_pixels(InPlaceProduct call, char* wide) const;

  // Of a group, packed: [step][row], behind its bias if there is one.
  int64_t weights_units() const { return (in_channels_ + problem_.bias) * out_channels_; }
  void multiply(Dtype b, Dtype c, const InPlaceProduct& call) const {
    kernels_.product[static_cast<int>(b)][static_cast<int>(c)](call);
  }

  const InPlaceKernels& kernels_;
  const bool pixels_in_lanes_;
  PixelPieces pieces_;
  int64_t sums_row_, local_units_;
};

// Sizes depend on the shape alone, so that results do not depend on the number of threads.
InPlaceDataPlan::InPlaceDataPlan(const Problem& problem, const Arithmetic& arithmetic,
                                 const InPlaceKernels& kernels, Lanes lanes)
    : DirectedPlan(problem, arithmetic),
      kernels_(kernels),
      pixels_in_lanes_(lanes == Lanes::pixels) {
  pieces_ = PixelPieces::shared(problem.geometry.batch * problem.geometry.groups, out_.extent[3],
                                pixels_in_lanes_ ? arithmetic.lanes : 1);
  const int64_t most = pieces_.most_pixels();
  sums_row_ = ceil_div(most, arithmetic.lanes) * arithmetic.lanes;
  if (pixels_in_lanes_)
    local_units_ = in_channels_ > kSteps ? out_channels_ * sums_row_ : 0;
  else
    local_units_ = sum_dtype(problem_.dtype) != problem.dtype ? most * in_channels_ : 0;
  kernel = std::string(contraction_name(problem.wanted)) + ", in place, " +
           (pixels_in_lanes_ ? "pixels" : "channels") + " in lanes, " + arithmetic.name;
  workspace = (problem.geometry.groups * weights_units() + problem.threads * local_units_) * unit();
  bytes = sizeof(InPlaceDataPlan);
}

// A few planes of the operand at a time: the caches hold few rows that are a power of two apart,
// and prefetchers follow few.
void InPlaceDataPlan::multiply_planes(InPlaceProduct call, char* sums) const {
  call.a_row = 1;
  call.a_step = out_channels_;
  call.b_step = in_.channel;
  call.rows = out_channels_;
  call.sums_row = sums_row_;
  const InPlaceProduct last = call;
  call.c = sums;
  call.c_row = sums_row_;
  call.to_sums = true;
  for (int64_t pieces = ceil_div(in_channels_, kSteps), left = in_channels_; pieces; --pieces) {
    call.steps = left / pieces;
    left -= call.steps;
    if (pieces == 1) {
      call.c = last.c;
      call.c_row = out_.channel;
      call.to_sums = false;
    }
    multiply(problem_.dtype, pieces == 1 ? problem_.dtype : sum_dtype(problem_.dtype), call);
    call.row_start = nullptr;
    call.sums = sums;
    call.a = static_cast<const char*>(call.a) + call.steps * call.a_step * unit();
    call.b = static_cast<const char*>(call.b) + call.steps * call.b_step * element();
  }
}

void InPlaceDataPlan::multiply_pixels(InPlaceProduct call, char* wide) const {
  call.a_row = in_.stride[3];
  call.a_step = in_.channel;
  if (sum_dtype(problem_.dtype) != problem_.dtype) {
    arithmetic_.widen[static_cast<int>(problem_.dtype)](
        {call.a, call.a_row, call.a_step, wide, in_channels_, 1, call.rows, in_channels_});
    call.a = wide;
    call.a_row = in_channels_;
    call.a_step = 1;
  }
  call.b_step = call.lanes = out_channels_;
  call.c_row = out_.stride[3];
  call.steps = in_channels_;
  multiply(sum_dtype(problem_.dtype), problem_.dtype, call);
}

void InPlaceDataPlan::run_piece(const Operands& operands, int64_t group, const PixelPiece& piece,
                                const char* weights) const {
  const auto at = [&](const Tensor& tensor) {
    return (piece.image * tensor.stride[0] + piece.begin * tensor.stride[3]) * element();
  };
  const char* const in = in_data(operands, group) + at(in_);
  const char* const bias = problem_.bias ? weights : nullptr;
  if (problem_.bias) weights += out_channels_ * unit();
  char* const memory = local_scratch<char>(local_units_ * unit());
  InPlaceProduct call{};
  call.c = out_data(operands, group) + at(out_);
  if (pixels_in_lanes_) {
    call.a = weights;
    call.b = in;
    call.lanes = piece.pixels;
    call.row_start = bias;
    multiply_planes(call, memory);
  } else {
    call.a = in;
    call.b = weights;
    call.rows = piece.pixels;
    call.lane_start = bias;
    multiply_pixels(call, memory);
  }
}

void InPlaceDataPlan::run(const Operands& operands) const {
  const int64_t groups = problem_.geometry.groups, pieces = problem_.geometry.batch * pieces_.cuts;
  char* const packed = shared_scratch<char>(groups * weights_units() * unit());
  const CopyFunction widen = arithmetic_.widen[static_cast<int>(problem_.dtype)];
  for (int64_t group = 0; group < groups; ++group) {
    char* to = packed + group * weights_units() * unit();
    if (problem_.bias) {
      widen({static_cast<const char*>(operands.bias) + group * out_channels_ * element(), 0, 1, to,
             out_channels_, 1, 1, out_channels_});
      to += out_channels_ * unit();
    }
    widen({static_cast<const char*>(operands.data.w) + group * problem_.w.group * element(), w_in_,
           w_out_, to, out_channels_, 1, in_channels_, out_channels_});
  }
  parallel_for(problem_.threads, groups * pieces, [&](int64_t i) {
    run_piece(operands, i / pieces, pieces_.piece(i % pieces),
              packed + i / pieces * weights_units() * unit());
  });
}

}  // namespace

std::unique_ptr<const Plan> in_place_data_plan(const Problem& problem, const Arithmetic& arithmetic,
                                               const InPlaceKernels& kernels, Lanes lanes) {
  return std::make_unique<InPlaceDataPlan>(problem, arithmetic, kernels, lanes);
}

}  // namespace convtbw::simd
