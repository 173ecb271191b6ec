// A weights gradient that is added to what memory holds, of a plan that overwrites.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utility>

#include "backends/simd/epilogue.h"
#include "backends/simd/plans.h"
#include "core/parallel.h"

namespace convtbw::simd {

namespace {

// Elements of the weights, if they fill the memory that they lie in; else 0.
int64_t dense_elements(const Problem& p) {
  const Geometry& g = p.geometry;
  int64_t elements = 1, last = 0;
  const auto count = [&](int64_t extent, int64_t stride) {
    elements *= extent;
    last += (extent - 1) * std::abs(stride);
  };
  count(p.slices, p.w.slice);
  count(g.groups, p.w.group);
  count(g.y_channels, p.w.y_channel);
  count(g.x_channels, p.w.x_channel);
  for (int a = 0; a < kMaxRank; ++a) count(g.axes[a].k, p.w.axes[a]);
  return last + 1 == elements ? elements : 0;
}

class AddedWeightsPlan : public Plan {
 public:
  AddedWeightsPlan(const Problem& problem, const Arithmetic& arithmetic,
                   std::unique_ptr<const Plan> overwriting)
      : problem_(problem),
        arithmetic_(arithmetic),
        plan_(std::move(overwriting)),
        elements_(dense_elements(problem)) {
    kernel = plan_->kernel;
    workspace = plan_->workspace + elements_ * unit();
    bytes = plan_->bytes + static_cast<int64_t>(sizeof(AddedWeightsPlan));
  }

  void run(const Operands& operands) const override {
    constexpr int64_t kPiece = 64 << 10;
    const auto sums = std::make_unique_for_overwrite<char[]>(elements_ * unit());
    Operands apart = operands;
    apart.data.w = sums.get();
    plan_->run(apart);
    parallel_for(problem_.threads, ceil_div(elements_, kPiece), [&](int64_t i) {
      const int64_t first = i * kPiece, count = std::min(kPiece, elements_ - first);
      write_weights(
          problem_, arithmetic_,
          {sums.get() + first * unit(), count, 1,
           static_cast<char*>(operands.data.w) + first * element_bytes(result_dtype(problem_)),
           count, 1, 1, count});
    });
  }

 private:
  int64_t unit() const { return element_bytes(sum_dtype(problem_.dtype)); }

  const Problem problem_;
  const Arithmetic& arithmetic_;
  const std::unique_ptr<const Plan> plan_;
  const int64_t elements_;
};

}  // namespace

std::optional<Problem> overwriting(const Problem& problem) {
  constexpr int64_t kMostBytes = 4 << 20;  // beside what is added to
  if (!adds(problem.epilogue)) return {};
  const int64_t bytes = dense_elements(problem) * element_bytes(sum_dtype(problem.dtype));
  if (bytes == 0 || bytes > kMostBytes) return {};
  Problem result = problem;
  result.epilogue = Epilogue::overwrite_f32;
  return result;
}

std::unique_ptr<const Plan> added_weights_plan(const Problem& problem, const Arithmetic& arithmetic,
                                               std::unique_ptr<const Plan> overwriting) {
  return std::make_unique<AddedWeightsPlan>(problem, arithmetic, std::move(overwriting));
}

}  // namespace convtbw::simd
