// One call of any operator, as data; and the two ways between that and the
// dispatcher: `implement` registers one handler for all operators under a dispatch key, `dispatch`
// makes a call.
#pragma once

#include <ATen/ATen.h>
#include <torch/library.h>

#include <string_view>

#include "operators.h"

namespace convtbw {

// The arguments, in the caller's words. Views: valid while the kernel that made it runs.
struct Call {
  const Operator& op;
  const at::Tensor& first;
  const at::Tensor& second;
  std::optional<at::Tensor> bias;          // where op.takes_bias
  std::optional<at::Tensor> shape_tensor;  // where op.shape_tensor_name
  at::OptionalSymIntArrayRef shape;        // where op.shape_name
  at::IntArrayRef strides;
  c10::SymIntArrayRef pads_begin, pads_end;
  at::IntArrayRef dilations;
  std::string_view auto_pad;
  at::OptionalSymIntArrayRef output_padding;  // transposed operators only
  int64_t groups;
  std::string_view data_format, weights_format;
  std::optional<at::Tensor> added_to = {};  // where op.adds; its sizes are `shape`
};

// The result; where op.adds, the tensor that it was added to.
at::Tensor dispatch(const Call& call);

const Operator& operator_named(std::string_view name);

using Handler = at::Tensor (*)(const Call&);

// One struct for each shape of schema: its C++ signature, arguments -> Call, Call -> arguments.
namespace schema {

using at::Tensor;
using OptionalTensor = std::optional<at::Tensor>;
using Ints = at::IntArrayRef;
using SymInts = c10::SymIntArrayRef;
using OptionalSymInts = at::OptionalSymIntArrayRef;
using String = std::string_view;

// None of a tensor that has no sizes: validation says what it is.
inline OptionalSymInts sizes_of_result(const Tensor& tensor) {
  if (!tensor.defined() || tensor.is_nested()) return SymInts();
  return tensor.sym_sizes();
}

struct TransposedWeightsGradient {
  using Signature = Tensor(const Tensor&, const Tensor&, const OptionalTensor&, Ints, SymInts,
                           SymInts, Ints, String, OptionalSymInts, int64_t, String, String,
                           OptionalSymInts);

  template <const Operator& op, Handler handle>
  static Tensor kernel(const Tensor& src, const Tensor& diff_dst,
                       const OptionalTensor& shape_tensor, Ints strides, SymInts pads_begin,
                       SymInts pads_end, Ints dilations, String auto_pad,
                       OptionalSymInts output_padding, int64_t groups, String data_format,
                       String weights_format, OptionalSymInts shape) {
    return handle({op,
                   src,
                   diff_dst,
                   {},
                   shape_tensor,
                   shape,
                   strides,
                   pads_begin,
                   pads_end,
                   dilations,
                   auto_pad,
                   output_padding,
                   groups,
                   data_format,
                   weights_format});
  }
  static Tensor call(const c10::TypedOperatorHandle<Signature>& handle, const Call& c) {
    return handle.call(c.first, c.second, c.shape_tensor, c.strides, c.pads_begin, c.pads_end,
                       c.dilations, c.auto_pad, c.output_padding, c.groups, c.data_format,
                       c.weights_format, c.shape);
  }
};

struct WeightsGradient {
  using Signature = Tensor(const Tensor&, const Tensor&, const OptionalTensor&, Ints, SymInts,
                           SymInts, Ints, String, int64_t, String, String, OptionalSymInts);

  template <const Operator& op, Handler handle>
  static Tensor kernel(const Tensor& src, const Tensor& diff_dst,
                       const OptionalTensor& shape_tensor, Ints strides, SymInts pads_begin,
                       SymInts pads_end, Ints dilations, String auto_pad, int64_t groups,
                       String data_format, String weights_format, OptionalSymInts shape) {
    return handle({op,
                   src,
                   diff_dst,
                   {},
                   shape_tensor,
                   shape,
                   strides,
                   pads_begin,
                   pads_end,
                   dilations,
                   auto_pad,
                   {},
                   groups,
                   data_format,
                   weights_format});
  }
  static Tensor call(const c10::TypedOperatorHandle<Signature>& handle, const Call& c) {
    return handle.call(c.first, c.second, c.shape_tensor, c.strides, c.pads_begin, c.pads_end,
                       c.dilations, c.auto_pad, c.groups, c.data_format, c.weights_format, c.shape);
  }
};

struct TransposedWeightsGradientAdd {
  using Signature = void(const Tensor&, const Tensor&, const Tensor&, Ints, SymInts, SymInts, Ints,
                         String, OptionalSymInts, int64_t, String, String);

  template <const Operator& op, Handler handle>
  static void kernel(const Tensor& diff_weights, const Tensor& src, const Tensor& diff_dst,
                     Ints strides, SymInts pads_begin, SymInts pads_end, Ints dilations,
                     String auto_pad, OptionalSymInts output_padding, int64_t groups,
                     String data_format, String weights_format) {
    handle({op,
            src,
            diff_dst,
            {},
            {},
            sizes_of_result(diff_weights),
            strides,
            pads_begin,
            pads_end,
            dilations,
            auto_pad,
            output_padding,
            groups,
            data_format,
            weights_format,
            diff_weights});
  }
  static Tensor call(const c10::TypedOperatorHandle<Signature>& handle, const Call& c) {
    handle.call(*c.added_to, c.first, c.second, c.strides, c.pads_begin, c.pads_end, c.dilations,
                c.auto_pad, c.output_padding, c.groups, c.data_format, c.weights_format);
    return *c.added_to;
  }
};

struct WeightsGradientAdd {
  using Signature = void(const Tensor&, const Tensor&, const Tensor&, Ints, SymInts, SymInts, Ints,
                         String, int64_t, String, String);

  template <const Operator& op, Handler handle>
  static void kernel(const Tensor& diff_weights, const Tensor& src, const Tensor& diff_dst,
                     Ints strides, SymInts pads_begin, SymInts pads_end, Ints dilations,
                     String auto_pad, int64_t groups, String data_format, String weights_format) {
    handle({op,
            src,
            diff_dst,
            {},
            {},
            sizes_of_result(diff_weights),
            strides,
            pads_begin,
            pads_end,
            dilations,
            auto_pad,
            {},
            groups,
            data_format,
            weights_format,
            diff_weights});
  }
  static Tensor call(const c10::TypedOperatorHandle<Signature>& handle, const Call& c) {
    handle.call(*c.added_to, c.first, c.second, c.strides, c.pads_begin, c.pads_end, c.dilations,
                c.auto_pad, c.groups, c.data_format, c.weights_format);
    return *c.added_to;
  }
};

struct TransposedDataGradient {
  using Signature = Tensor(const Tensor&, const Tensor&, Ints, SymInts, SymInts, Ints, String,
                           OptionalSymInts, int64_t, String, String);

  template <const Operator& op, Handler handle>
  static Tensor kernel(const Tensor& diff_dst, const Tensor& weights, Ints strides,
                       SymInts pads_begin, SymInts pads_end, Ints dilations, String auto_pad,
                       OptionalSymInts output_padding, int64_t groups, String data_format,
                       String weights_format) {
    return handle({op,
                   diff_dst,
                   weights,
                   {},
                   {},
                   {},
                   strides,
                   pads_begin,
                   pads_end,
                   dilations,
                   auto_pad,
                   output_padding,
                   groups,
                   data_format,
                   weights_format});
  }
  static Tensor call(const c10::TypedOperatorHandle<Signature>& handle, const Call& c) {
    return handle.call(c.first, c.second, c.strides, c.pads_begin, c.pads_end, c.dilations,
                       c.auto_pad, c.output_padding, c.groups, c.data_format, c.weights_format);
  }
};

struct DataGradient {
  using Signature = Tensor(const Tensor&, const Tensor&, SymInts, Ints, SymInts, SymInts, Ints,
                           String, int64_t, String, String);

  template <const Operator& op, Handler handle>
  static Tensor kernel(const Tensor& diff_dst, const Tensor& weights, SymInts src_shape,
                       Ints strides, SymInts pads_begin, SymInts pads_end, Ints dilations,
                       String auto_pad, int64_t groups, String data_format, String weights_format) {
    return handle({op,
                   diff_dst,
                   weights,
                   {},
                   {},
                   src_shape,
                   strides,
                   pads_begin,
                   pads_end,
                   dilations,
                   auto_pad,
                   {},
                   groups,
                   data_format,
                   weights_format});
  }
  static Tensor call(const c10::TypedOperatorHandle<Signature>& handle, const Call& c) {
    return handle.call(c.first, c.second, *c.shape, c.strides, c.pads_begin, c.pads_end,
                       c.dilations, c.auto_pad, c.groups, c.data_format, c.weights_format);
  }
};

struct TransposedForward {
  using Signature = Tensor(const Tensor&, const Tensor&, const OptionalTensor&, Ints, SymInts,
                           SymInts, Ints, String, OptionalSymInts, int64_t, String, String);

  template <const Operator& op, Handler handle>
  static Tensor kernel(const Tensor& src, const Tensor& weights, const OptionalTensor& bias,
                       Ints strides, SymInts pads_begin, SymInts pads_end, Ints dilations,
                       String auto_pad, OptionalSymInts output_padding, int64_t groups,
                       String data_format, String weights_format) {
    return handle({op,
                   src,
                   weights,
                   bias,
                   {},
                   {},
                   strides,
                   pads_begin,
                   pads_end,
                   dilations,
                   auto_pad,
                   output_padding,
                   groups,
                   data_format,
                   weights_format});
  }
  static Tensor call(const c10::TypedOperatorHandle<Signature>& handle, const Call& c) {
    return handle.call(c.first, c.second, c.bias, c.strides, c.pads_begin, c.pads_end, c.dilations,
                       c.auto_pad, c.output_padding, c.groups, c.data_format, c.weights_format);
  }
};

struct Forward {
  using Signature = Tensor(const Tensor&, const Tensor&, const OptionalTensor&, Ints, SymInts,
                           SymInts, Ints, String, int64_t, String, String);

  template <const Operator& op, Handler handle>
  static Tensor kernel(const Tensor& src, const Tensor& weights, const OptionalTensor& bias,
                       Ints strides, SymInts pads_begin, SymInts pads_end, Ints dilations,
                       String auto_pad, int64_t groups, String data_format, String weights_format) {
    return handle({op,
                   src,
                   weights,
                   bias,
                   {},
                   {},
                   strides,
                   pads_begin,
                   pads_end,
                   dilations,
                   auto_pad,
                   {},
                   groups,
                   data_format,
                   weights_format});
  }
  static Tensor call(const c10::TypedOperatorHandle<Signature>& handle, const Call& c) {
    return handle.call(c.first, c.second, c.bias, c.strides, c.pads_begin, c.pads_end, c.dilations,
                       c.auto_pad, c.groups, c.data_format, c.weights_format);
  }
};

}  // namespace schema

// Calls f<op, Schema>() for each operator with its shape of schema.
template <class F>
void for_each_operator(F&& f) {
  f.template operator()<op::conv_transpose_backward_weights, schema::TransposedWeightsGradient>();
  f.template operator()<op::conv_transpose_backprop_filters, schema::TransposedWeightsGradient>();
  f.template operator()<op::conv_transpose_backward_data, schema::TransposedDataGradient>();
  f.template operator()<op::convolution_backprop_filters, schema::WeightsGradient>();
  f.template operator()<op::convolution_backward_weights, schema::WeightsGradient>();
  f.template operator()<op::convolution_backward_data, schema::DataGradient>();
  f.template operator()<op::conv_transpose, schema::TransposedForward>();
  f.template operator()<op::convolution, schema::Forward>();
  f.template
  operator()<op::conv_transpose_backward_weights_add, schema::TransposedWeightsGradientAdd>();
  f.template operator()<op::convolution_backward_weights_add, schema::WeightsGradientAdd>();
  f.template
  operator()<op::conv_transpose_backward_weights_of_slices, schema::TransposedWeightsGradient>();
  f.template operator()<op::convolution_backward_weights_of_slices, schema::WeightsGradient>();
}

// Registers `handle` as the kernel of every operator, under the key of the library block `m`.
template <Handler handle>
void implement(torch::Library& m) {
  for_each_operator([&]<const Operator & op, class Schema>() {
    m.impl(op.name, &Schema::template kernel<op, handle>);
  });
}

}  // namespace convtbw
