// The watershed. Everything that can be wrong with a call is found here, in the caller's words;
// below, only roles and integers remain. One text serves eager calls (Int = int64_t) and traced
// ones (Int = SymInt), where a check becomes a guard or a run-time assertion, and no formula
// branches on a symbolic size.
#pragma once

#include "call.h"
#include "core/geometry.h"

namespace convtbw {

template <class Int>
using Sizes = c10::SmallVector<Int, kMaxRank + 2>;

// Where a data tensor keeps its dimensions.
struct DataLayout {
  int channel, first_axis;
  int dimensions;  // its rank
};

// Where a weights tensor keeps its dimensions, the one of slices included, in terms of roles, and
// how groups read its shape: with `groups_on_y` the dimension of y's channels spans all groups and
// that of x's channels one group (the standard reading of both families); otherwise the other way
// round.
struct WeightsLayout {
  int y_channel, x_channel, first_axis;
  bool groups_on_y = true;
};

// A valid call.
template <class Int>
struct Resolved {
  int rank;  // spatial axes
  DataLayout data;
  WeightsLayout weights;
  Int batch;
  Int slices = 1;               // of the batch; more where op.of_slices
  PerRole<Int> channels;        // per group, of x and of y
  PerRole<Sizes<Int>> extents;  // spatial, of x, w (the taps) and y
  Sizes<Int> pads_begin, pads_end;
  Sizes<Int> output_padding;  // transposed operators only
  Sizes<Int> result;          // the result's sizes, in its own order
};

// The tensors themselves: layout, device, dtype, rank. Part of `resolve`, and all that a tensor
// which no kernel of ours can take is asked.
void check_tensors(const Call& call);

// Of what is added to: elements that share memory would be added to twice, or while they are read.
void check_memory(const Call& call);

// `shape` is the result's shape where op.shape_name is set, empty elsewhere.
template <class Int>
Resolved<Int> resolve(const Call& call, c10::ArrayRef<Int> shape);

// The values of an eager call's list. (asIntArrayRef refuses those below -2^62.)
Sizes<int64_t> concrete(c10::SymIntArrayRef values);

// The result's shape as the call's attribute gives it; throws where the operator needs one and has
// none.
c10::SymIntArrayRef shape_attribute(const Call& call);

// The result's shape as the call's shape tensor gives it.
Sizes<int64_t> shape_tensor_values(const Call& call);

// The memory format of a data result: channels_last where the data input is that and not
// contiguous.
at::MemoryFormat result_memory_format(const Call& call, const DataLayout& layout);

// The name of the reading of the weights' shape that a call uses, for explain().
std::string reading_name(const Call& call, const WeightsLayout& layout);

}  // namespace convtbw
