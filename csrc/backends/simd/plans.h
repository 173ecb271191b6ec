// The plans of the SIMD backend, one for each way to see a problem.
#pragma once

#include <memory>
#include <optional>

#include "backends/simd/in_place.h"
#include "backends/simd/kernels.h"
#include "plan/backend.h"

namespace convtbw::simd {

// Whether tiles of fprop and dgrad could read the operand where it lies.
bool may_read_in_place(const Problem& problem, const Arithmetic& arithmetic);
// fprop's `phased` axis, if there is one: computed phase by phase. Along it x is longer than its
// stride times its dilation.
std::unique_ptr<const Plan> data_plan(const Problem& problem, const Arithmetic& arithmetic,
                                      std::optional<int> phased = {});
// The same where tiles read a copy of all of the operand; else nothing.
std::unique_ptr<const Plan> copying_data_plan(const Problem& problem, const Arithmetic& arithmetic);
std::unique_ptr<const Plan> few_channels_plan(const Problem& problem, const Arithmetic& arithmetic);
// For fprop of stride 1 and dgrad, of which every result has a tap; rows of the operand follow each
// other.
std::unique_ptr<const Plan> tap_rows_plan(const Problem& problem, const Arithmetic& arithmetic);
// For fprop of stride 1 and dgrad without dilation, of windows as long as they are apart or longer
// and channels that are neighbours in the operand; the first of three axes has one tap of stride 1
// without padding. Not for pairs.
std::unique_ptr<const Plan> tap_lanes_plan(const Problem& problem, const Arithmetic& arithmetic);
// For dgrad of one group without dilation, whose windows are whole strides long along the last
// axis, where x has at least one stride; its pixels, their channels and the taps of these lie side
// by side.
std::unique_ptr<const Plan> row_phases_plan(const Problem& problem, const Arithmetic& arithmetic);
// For fprop and dgrad of 2-D images without stride whose rows have a dilation. Multiples of it are
// the padding before the rows of x and the difference between the tensors' rows, of which each has
// at least as many.
std::unique_ptr<const Plan> dilated_rows_plan(const Problem& problem, const Arithmetic& arithmetic);
// Where suits_winograd (core/winograd.h), in float32.
std::unique_ptr<const Plan> winograd_plan(const Problem& problem, const Arithmetic& arithmetic);
std::unique_ptr<const Plan> winograd_weights_plan(const Problem& problem,
                                                  const Arithmetic& arithmetic);
std::unique_ptr<const Plan> slid_phases_plan(const Problem& problem, const Arithmetic& arithmetic);
std::unique_ptr<const Plan> slid_pixels_plan(const Problem& problem, const Arithmetic& arithmetic);
// For one tap of stride 1 without padding, along one axis whose pixels are neighbours.
std::unique_ptr<const Plan> pointwise_plan(const Problem& problem, const Arithmetic& arithmetic);

// For one tap of stride 1 without padding, along one axis; not for pairs. Lanes are at least a
// vector's pixels, neighbours in both tensors; or channels, neighbours: of the result, or the more
// of a weights gradient's two sides.
enum class Lanes : uint8_t { pixels, channels };
std::unique_ptr<const Plan> in_place_data_plan(const Problem& problem, const Arithmetic& arithmetic,
                                               const InPlaceKernels& kernels, Lanes lanes);
// For such a tap into few channels: those that are summed over are neighbours, a row of pixels has
// at least kDotPixels.
std::unique_ptr<const Plan> dot_products_plan(const Problem& problem, const Arithmetic& arithmetic,
                                              const InPlaceKernels& kernels);
// For few pixels of y, of one group, where may_leave_weights.
bool may_leave_weights(const Problem& problem, int64_t lanes);
std::unique_ptr<const Plan> few_pixels_plan(const Problem& problem, const Arithmetic& arithmetic,
                                            const InPlaceKernels& kernels);
std::unique_ptr<const Plan> in_place_weights_plan(const Problem& problem,
                                                  const Arithmetic& arithmetic,
                                                  const InPlaceKernels& kernels, Lanes lanes);

std::unique_ptr<const Plan> weights_plan(const Problem& problem, const Arithmetic& arithmetic);
// For weights that are overwritten, and strides of 1; the last tap of every axis meets x at the
// first window, or what lies behind.
std::unique_ptr<const Plan> mirrored_weights_plan(const Problem& problem,
                                                  const Arithmetic& arithmetic);
// Adds what a plan of overwriting(problem), where there is such a problem, computes in memory of
// its own: that plan may have to compute it twice, as those above and Winograd's do where sums are
// not finite.
std::optional<Problem> overwriting(const Problem& problem);
std::unique_ptr<const Plan> added_weights_plan(const Problem& problem, const Arithmetic& arithmetic,
                                               std::unique_ptr<const Plan> overwriting);
// For a weights gradient of one slice, or dgrad without dilation whose windows meet all rows; along
// the axis x is longer than its stride times its dilation.
std::unique_ptr<const Plan> phased_plan(const Problem& problem, const Arithmetic& arithmetic,
                                        int axis);

// For groups of few channels; not for pairs, which serve where they have functions for it.
std::unique_ptr<const Plan> grouped_data_plan(const Problem& problem, const Arithmetic& arithmetic,
                                              const Arithmetic* pairs);
std::unique_ptr<const Plan> grouped_weights_plan(const Problem& problem,
                                                 const Arithmetic& arithmetic,
                                                 const Arithmetic* pairs);

// For depthwise problems whose pixels are neighbours along the last axis, in both tensors. The axis
// before has no dilation, and dgrad no stride; where the last axis has a stride, it has no
// dilation, and its taps are whole vectors: window_weights_plan is for those, plane_weights_plan
// for the others.
std::unique_ptr<const Plan> plane_data_plan(const Problem& problem, const Arithmetic& arithmetic);
// dgrad with strides and without dilation, of windows that are a stride long at least.
std::unique_ptr<const Plan> plane_phases_plan(const Problem& problem, const Arithmetic& arithmetic);
std::unique_ptr<const Plan> plane_weights_plan(const Problem& problem,
                                               const Arithmetic& arithmetic);
std::unique_ptr<const Plan> window_weights_plan(const Problem& problem,
                                                const Arithmetic& arithmetic);

}  // namespace convtbw::simd
