// The operators as data: which role each tensor plays, and what the caller calls it. Eight are the
// family; two weights gradients that are added to an existing one; and two of slices, not public,
// which vmap and autograd call.
#pragma once

#include "core/role.h"

namespace convtbw {

enum class Family { convolution, conv_transpose };

struct Operator {
  const char* name;
  Family family;
  Role first, second, result;
  const char* first_name;
  const char* second_name;
  const char* result_name;        // the shape argument's, where the result's shape is given
  const char* shape_name;         // nullptr: the result's shape follows from the inputs
  const char* shape_tensor_name;  // nullptr: it takes none
  const char* weights_format_name;
  bool pads_optional;  // pads may be left out: they follow from the extents
  bool takes_bias;
  // The images are as many equal slices as the result's shape says in one more dimension, the
  // first, and each slice has a weights gradient of its own.
  bool of_slices = false;
  // The result is added to a tensor of the caller's, which gives its shape.
  bool adds = false;

  constexpr bool transposed() const { return family == Family::conv_transpose; }
  constexpr bool has_weights_input() const { return second == Role::w; }
  // What the caller calls the tensor in a role.
  constexpr const char* name_of(Role role) const {
    return role == first ? first_name : role == second ? second_name : result_name;
  }
};

// Src is the small side of a transposed convolution and the big side of a convolution (role.h).
namespace op {
inline constexpr Operator conv_transpose_backward_weights{"conv_transpose_backward_weights",
                                                          Family::conv_transpose,
                                                          Role::y,
                                                          Role::x,
                                                          Role::w,
                                                          "src",
                                                          "diff_dst",
                                                          "weights_shape",
                                                          "weights_shape",
                                                          "weights_shape_tensor",
                                                          "weights_format",
                                                          false,
                                                          false};
inline constexpr Operator conv_transpose_backprop_filters{"conv_transpose_backprop_filters",
                                                          Family::conv_transpose,
                                                          Role::y,
                                                          Role::x,
                                                          Role::w,
                                                          "input_forward",
                                                          "output_delta",
                                                          "filter_shape",
                                                          "filter_shape",
                                                          "filter_shape_tensor",
                                                          "filter_format",
                                                          false,
                                                          false};
inline constexpr Operator conv_transpose_backward_data{"conv_transpose_backward_data",
                                                       Family::conv_transpose,
                                                       Role::x,
                                                       Role::w,
                                                       Role::y,
                                                       "diff_dst",
                                                       "weights",
                                                       "diff_src",
                                                       nullptr,
                                                       nullptr,
                                                       "weights_format",
                                                       false,
                                                       false};
inline constexpr Operator convolution_backprop_filters{"convolution_backprop_filters",
                                                       Family::convolution,
                                                       Role::x,
                                                       Role::y,
                                                       Role::w,
                                                       "input_forward",
                                                       "output_delta",
                                                       "filter_shape",
                                                       "filter_shape",
                                                       "filter_shape_tensor",
                                                       "filter_format",
                                                       true,
                                                       false};
inline constexpr Operator convolution_backward_weights{"convolution_backward_weights",
                                                       Family::convolution,
                                                       Role::x,
                                                       Role::y,
                                                       Role::w,
                                                       "src",
                                                       "diff_dst",
                                                       "weights_shape",
                                                       "weights_shape",
                                                       "weights_shape_tensor",
                                                       "weights_format",
                                                       true,
                                                       false};
inline constexpr Operator convolution_backward_data{"convolution_backward_data",
                                                    Family::convolution,
                                                    Role::y,
                                                    Role::w,
                                                    Role::x,
                                                    "diff_dst",
                                                    "weights",
                                                    "src_shape",
                                                    "src_shape",
                                                    nullptr,
                                                    "weights_format",
                                                    false,
                                                    false};
inline constexpr Operator conv_transpose{"conv_transpose",
                                         Family::conv_transpose,
                                         Role::y,
                                         Role::w,
                                         Role::x,
                                         "src",
                                         "weights",
                                         "dst",
                                         nullptr,
                                         nullptr,
                                         "weights_format",
                                         false,
                                         true};
inline constexpr Operator convolution{
    "convolution", Family::convolution, Role::x, Role::w, Role::y, "src", "weights", "dst", nullptr,
    nullptr,       "weights_format",    false,   true};

constexpr Operator of_slices(Operator op, const char* name) {
  op.name = name;
  op.of_slices = true;
  return op;
}
inline constexpr Operator conv_transpose_backward_weights_of_slices =
    of_slices(conv_transpose_backward_weights, "_conv_transpose_backward_weights_of_slices");
inline constexpr Operator convolution_backward_weights_of_slices =
    of_slices(convolution_backward_weights, "_convolution_backward_weights_of_slices");

constexpr Operator adding(Operator op, const char* name) {
  op.name = name;
  op.result_name = op.shape_name = "diff_weights";
  op.shape_tensor_name = nullptr;
  op.adds = true;
  return op;
}
inline constexpr Operator conv_transpose_backward_weights_add =
    adding(conv_transpose_backward_weights, "conv_transpose_backward_weights_add_");
inline constexpr Operator convolution_backward_weights_add =
    adding(convolution_backward_weights, "convolution_backward_weights_add_");
}  // namespace op

// The operator of a family that computes the partial with respect to `wanted`.
constexpr const Operator& partial(Family family, Role wanted) {
  if (family == Family::convolution)
    return wanted == Role::x   ? op::convolution_backward_data
           : wanted == Role::w ? op::convolution_backward_weights
                               : op::convolution;
  return wanted == Role::x   ? op::conv_transpose
         : wanted == Role::w ? op::conv_transpose_backward_weights
                             : op::conv_transpose_backward_data;
}

// The weights gradient of a family that is added to an existing one.
constexpr const Operator& adding_weights_gradient(Family family) {
  return family == Family::convolution ? op::convolution_backward_weights_add
                                       : op::conv_transpose_backward_weights_add;
}

// The weights gradients of a family, one for each slice of the images.
constexpr const Operator& partial_of_slices(Family family) {
  return family == Family::convolution ? op::convolution_backward_weights_of_slices
                                       : op::conv_transpose_backward_weights_of_slices;
}

}  // namespace convtbw
