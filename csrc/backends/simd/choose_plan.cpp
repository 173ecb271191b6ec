#include "backends/simd/choose_plan.h"

#include <optional>
#include <utility>

#include "backends/simd/plans.h"
#include "backends/simd/rules/rules.h"
#include "core/cpu.h"
#include "core/group_vectors.h"
#include "core/half_vectors.h"
#include "core/winograd.h"

namespace convtbw::simd {

std::unique_ptr<const Plan> choose_plan(const Problem& p, const Kernels& kernels,
                                        const InPlaceKernels& in_place_kernels) {
  const Geometry& g = p.geometry;
  const Arithmetic& plain = p.dtype == Dtype::f64 ? *kernels.f64 : *kernels.f32;
  const bool pairs = p.dtype == Dtype::bf16 && kernels.bf16_pairs != nullptr;
  const bool has_halves = kernels.f32_of_half_lanes != nullptr;
  const bool half_lanes = has_halves && is_zen_4() && fills_half_vectors(p, plain.lanes);
  const Arithmetic& chosen = pairs        ? *kernels.bf16_pairs
                             : half_lanes ? *kernels.f32_of_half_lanes
                                          : plain;
  if (few_pixels(p, plain.lanes, pairs)) return few_pixels_plan(p, plain, in_place_kernels);
  if (dot_products(p, plain.lanes)) return dot_products_plan(p, plain, in_place_kernels);
  if (const std::optional<Lanes> lanes = in_place(p, plain.lanes, chosen.pairs))
    return p.wanted == Role::w ? in_place_weights_plan(p, plain, in_place_kernels, *lanes)
                               : in_place_data_plan(p, plain, in_place_kernels, *lanes);
  if (planes(p, plain.lanes)) {
    if (p.wanted != Role::w) return plane_data_plan(p, plain);
    return g.axes.back().stride > 2 ? window_weights_plan(p, plain) : plane_weights_plan(p, plain);
  }
  if (plane_phases(p, plain.lanes)) return plane_phases_plan(p, plain);
  const bool slides = p.wanted != Role::w && slid_pixels(p, chosen.lanes, chosen.pairs);
  const bool slides_in_phases = slid_phases(p, chosen.lanes, chosen.pairs);
  const bool few_a_group =
      few_channels_a_group(p, plain.lanes) && !groups_one_by_one(p, plain.lanes, pairs);
  if (few_a_group || (!pairs && groups_fill_vectors(p, plain.lanes))) {
    if (slides) return slid_pixels_plan(p, chosen);
    if (slides_in_phases) return slid_phases_plan(p, chosen);
    const bool halves = has_halves && groups_fill_half_vectors(p, plain.lanes);
    const Arithmetic& lanes = halves ? *kernels.f32_of_half_lanes : plain;
    const Arithmetic* const paired = pairs && !halves ? kernels.bf16_lane_pairs : nullptr;
    return p.wanted == Role::w ? grouped_weights_plan(p, lanes, paired)
                               : grouped_data_plan(p, lanes, paired);
  }
  const std::optional<Problem> apart = overwriting(p);
  const Problem& written = apart ? *apart : p;
  const auto added = [&](std::unique_ptr<const Plan> plan) {
    return apart ? added_weights_plan(p, plain, std::move(plan)) : std::move(plan);
  };
  if (chosen.winograd && suits_winograd(written, plain.lanes))
    return p.wanted == Role::w ? added(winograd_weights_plan(written, chosen))
                               : winograd_plan(p, chosen);
  const std::optional<int> phased = phased_axis(p);
  if (p.wanted == Role::w) {
    // Pairs are of windows of the last axis: of one, with zeros, 1.1 to 1.9 times as long (3x3x3
    // with stride 3, 3x3 and 2x2; Zen 4).
    const auto arithmetic_of = [&](int64_t windows) { return windows > 1 ? &chosen : &plain; };
    if (mirrors(written, plain.lanes))
      return added(mirrored_weights_plan(written, *arithmetic_of(g.axes.back().x)));
    const Arithmetic& arithmetic = *arithmetic_of(g.axes.back().y);
    return phased ? phased_plan(p, arithmetic, *phased) : weights_plan(p, arithmetic);
  }
  if (slides) return slid_pixels_plan(p, chosen);
  if (slides_in_phases) return slid_phases_plan(p, chosen);
  if (row_phases(p, chosen.lanes)) return row_phases_plan(p, chosen);
  if (!pairs && tap_lanes(p, chosen.lanes)) return tap_lanes_plan(p, chosen);
  if (tap_rows(p, chosen.lanes, pairs)) return tap_rows_plan(p, chosen);
  if (few_channels(p, chosen.lanes)) return few_channels_plan(p, chosen);
  if (pointwise_pixels(p, chosen.lanes)) return pointwise_plan(p, chosen);
  if (!may_read_in_place(p, chosen) && dilated_rows(p)) {
    if (std::unique_ptr<const Plan> copying = copying_data_plan(p, chosen)) return copying;
    return dilated_rows_plan(p, chosen);
  }
  return phased && p.wanted == Role::x ? phased_plan(p, chosen, *phased)
                                       : data_plan(p, chosen, phased);
}

}  // namespace convtbw::simd
