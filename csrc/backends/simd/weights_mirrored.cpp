// wgrad without strides whose y has few channels, as that of the problem with x and y exchanged and
// taps in reverse: what is done for few channels of x, whose taps join them, so serves those of y.
//
// Windows are then the pixels of x. Those at its border meet zeros where y ends, which matters
// where they are not finite: then all is computed again as it was asked for.
#include <algorithm>
#include <memory>
#include <utility>

#include "backends/simd/plans.h"
#include "backends/simd/weights.h"

namespace convtbw::simd {

namespace {

Problem mirrored(Problem p) {
  std::swap(p.geometry.x_channels, p.geometry.y_channels);
  std::swap(p.x, p.y);
  std::swap(p.w.x_channel, p.w.y_channel);
  for (int a = 0; a < kMaxRank; ++a) {
    Axis& axis = p.geometry.axes[a];
    std::swap(axis.x, axis.y);
    axis.pad = (axis.k - 1) * axis.dilation - axis.pad;
    p.w.axes[a] = -p.w.axes[a];
  }
  return p;
}

class MirroredWeightsPlan : public Plan {
 public:
  MirroredWeightsPlan(const Problem& problem, const Arithmetic& arithmetic)
      : mirrored_(mirrored(problem), arithmetic), direct_(weights_plan(problem, arithmetic)) {
    for (int a = 0; a < kMaxRank; ++a)
      last_tap_ += (problem.geometry.axes[a].k - 1) * problem.w.axes[a];
    last_tap_ *= element_bytes(result_dtype(problem));
    kernel = "mirrored, " + mirrored_.kernel;
    workspace = std::max(mirrored_.workspace, direct_->workspace);
    bytes = mirrored_.bytes + direct_->bytes + static_cast<int64_t>(sizeof(MirroredWeightsPlan));
  }

  void run(const Operands& operands) const override {
    Operands exchanged = operands;
    std::swap(exchanged.data.x, exchanged.data.y);
    exchanged.data.w = static_cast<char*>(operands.data.w) + last_tap_;
    if (!mirrored_.run_checked(exchanged)) direct_->run(operands);
  }

 private:
  const WeightsPlan mirrored_;
  const std::unique_ptr<const Plan> direct_;
  int64_t last_tap_ = 0;  // bytes behind the first one
};

}  // namespace

std::unique_ptr<const Plan> mirrored_weights_plan(const Problem& problem,
                                                  const Arithmetic& arithmetic) {
  return std::make_unique<MirroredWeightsPlan>(problem, arithmetic);
}

}  // namespace convtbw::simd
