// fprop and dgrad of one tap from many channels into few, channels last: a result is a product of
// two rows that lie in memory, its lanes are the channels that are summed over. Pixels are read
// once, as fast as memory gives them.
#include <cstring>

#include "backends/simd/directed_plan.h"
#include "backends/simd/pixel_pieces.h"
#include "backends/simd/plans.h"
#include "core/parallel.h"
#include "core/scratch.h"

namespace convtbw::simd {

namespace {

class DotProductsPlan : public DirectedPlan {
 public:
  DotProductsPlan(const Problem& problem, const Arithmetic& arithmetic,
                  const InPlaceKernels& kernels);
  void run(const Operands& operands) const override;

 private:
  // Of a group's packed weights: a row for each channel of the result, then the bias.
  int64_t row_units() const { return whole_vectors(in_channels_); }
  int64_t weights_units() const { return out_channels_ * (row_units() + 1); }
  void pack_weights(const Operands& operands, int64_t group, char* to) const;

  const InPlaceKernels& kernels_;
  const PixelPieces pieces_;
};

// Pieces depend on the shape alone; results do not depend on them.
DotProductsPlan::DotProductsPlan(const Problem& problem, const Arithmetic& arithmetic,
                                 const InPlaceKernels& kernels)
    : DirectedPlan(problem, arithmetic),
      kernels_(kernels),
      pieces_(PixelPieces::shared(problem.geometry.batch * problem.geometry.groups, out_.extent[3],
                                  kDotPixels)) {
  kernel = std::string(contraction_name(problem.wanted)) +
           ", in place, summed channels in lanes, " + arithmetic.name;
  workspace = problem.geometry.groups * weights_units() * unit();
  bytes = sizeof(DotProductsPlan);
}

void DotProductsPlan::pack_weights(const Operands& operands, int64_t group, char* to) const {
  const CopyFunction widen = arithmetic_.widen[static_cast<int>(problem_.dtype)];
  const char* const w =
      static_cast<const char*>(operands.data.w) + group * problem_.w.group * element();
  widen({w, w_out_, w_in_, to, row_units(), 1, out_channels_, in_channels_,
         row_units() - in_channels_});
  to += out_channels_ * row_units() * unit();
  if (operands.bias)
    widen({static_cast<const char*>(operands.bias) + group * out_channels_ * element(), 0, 1, to,
           out_channels_, 1, 1, out_channels_});
  else
    std::memset(to, 0, out_channels_ * unit());
}

void DotProductsPlan::run(const Operands& operands) const {
  const int64_t groups = problem_.geometry.groups, pieces = problem_.geometry.batch * pieces_.cuts;
  char* const packed = shared_scratch<char>(groups * weights_units() * unit());
  for (int64_t group = 0; group < groups; ++group)
    pack_weights(operands, group, packed + group * weights_units() * unit());
  parallel_for(problem_.threads, groups * pieces, [&](int64_t i) {
    const int64_t group = i / pieces;
    const PixelPiece piece = pieces_.piece(i % pieces);
    const auto at = [&](const Tensor& tensor) {
      return (piece.image * tensor.stride[0] + piece.begin * tensor.stride[3]) * element();
    };
    const char* const weights = packed + group * weights_units() * unit();
    const int dtype = static_cast<int>(problem_.dtype);
    kernels_.dot_products[dtype][dtype]({in_data(operands, group) + at(in_), weights,
                                         weights + out_channels_ * row_units() * unit(),
                                         out_data(operands, group) + at(out_), in_.stride[3],
                                         row_units(), out_.stride[3], out_.channel, piece.pixels,
                                         out_channels_, in_channels_});
  });
}

}  // namespace

std::unique_ptr<const Plan> dot_products_plan(const Problem& problem, const Arithmetic& arithmetic,
                                              const InPlaceKernels& kernels) {
  return std::make_unique<DotProductsPlan>(problem, arithmetic, kernels);
}

}  // namespace convtbw::simd
