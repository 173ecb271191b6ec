// The CPU key.
#include "ops.h"

#include <ATen/Parallel.h>
#include <sys/mman.h>

#include "control.h"
#include "core/parallel.h"
#include "plan/plan.h"

namespace convtbw {

namespace {

Dtype dtype_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return Dtype::f32;
    case at::kBFloat16:
      return Dtype::bf16;
    case at::kHalf:
      return Dtype::f16;
    default:
      return Dtype::f64;
  }
}

int64_t stride_of(const at::Tensor& tensor, int dimension) {
  return tensor.size(dimension) == 1 ? 0 : tensor.stride(dimension);
}

DataStrides data_strides(const at::Tensor& tensor, const DataLayout& layout, int rank) {
  DataStrides strides{stride_of(tensor, 0), stride_of(tensor, layout.channel), {}};
  for (int a = 0; a < rank; ++a)
    strides.axes[kMaxRank - rank + a] = stride_of(tensor, layout.first_axis + a);
  return strides;
}

WeightsStrides weights_strides(const at::Tensor& tensor, const Resolved<int64_t>& call) {
  const WeightsLayout& layout = call.weights;
  WeightsStrides strides{
      0, 0, stride_of(tensor, layout.y_channel), stride_of(tensor, layout.x_channel), {}};
  if (call.slices > 1) strides.slice = tensor.stride(0);
  strides.group = layout.groups_on_y ? strides.y_channel * call.channels.y
                                     : strides.x_channel * call.channels.x;
  if (call.channels.y == 1) strides.y_channel = 0;
  if (call.channels.x == 1) strides.x_channel = 0;
  for (int a = 0; a < call.rank; ++a)
    strides.axes[kMaxRank - call.rank + a] = stride_of(tensor, layout.first_axis + a);
  return strides;
}

Geometry geometry_of(const Call& call, const Resolved<int64_t>& resolved) {
  Geometry geometry{resolved.batch,      call.groups,   resolved.channels.x,
                    resolved.channels.y, resolved.rank, {}};
  for (int a = 0; a < resolved.rank; ++a)
    geometry.axes[kMaxRank - resolved.rank + a] = {resolved.extents.x[a],  resolved.extents.w[a],
                                                   resolved.extents.y[a],  call.strides[a],
                                                   resolved.pads_begin[a], call.dilations[a]};
  return geometry;
}

// Asks for huge pages under a large new result: first touches of small pages took 15 % of a
// gradient of 67 MB (Zen 4; Linux in its default mode gives huge pages to those who ask).
void ask_for_huge_pages(const at::Tensor& result) {
#ifdef MADV_HUGEPAGE
  constexpr uintptr_t kHugePage = 2 << 20;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(result.mutable_data_ptr());
  const uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t end = (begin + result.nbytes()) / kHugePage * kHugePage;
  if (first < end) madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
#else
  static_cast<void>(result);
#endif
}

PerRole<const at::Tensor*> tensors_of(const Call& call, const at::Tensor& result) {
  PerRole<const at::Tensor*> tensors;
  tensors[call.op.first] = &call.first;
  tensors[call.op.second] = &call.second;
  tensors[call.op.result] = &result;
  return tensors;
}

at::Tensor run(const Call& call) {
  const Sizes<int64_t> shape =
      call.shape_tensor ? shape_tensor_values(call) : concrete(shape_attribute(call));
  const Resolved<int64_t> resolved = resolve<int64_t>(call, shape);
  if (call.op.adds) check_memory(call);
  const at::Tensor result =
      call.op.adds ? *call.added_to
                   : at::empty(resolved.result,
                               call.first.options().device(explaining() ? at::kMeta : at::kCPU),
                               result_memory_format(call, resolved.data));
  serve(call, resolved, problem_of(call, resolved, result), result);
  return result;
}

}  // namespace

Problem problem_here() {
  Problem problem;
  problem.forked = in_forked_child();
  problem.threads = problem.forked || at::in_parallel_region() ? 1 : at::get_num_threads();
  problem.deterministic = at::globalContext().deterministicAlgorithms();
  return problem;
}

Problem problem_of(const Call& call, const Resolved<int64_t>& resolved, const at::Tensor& result) {
  const PerRole<const at::Tensor*> tensors = tensors_of(call, result);
  Problem problem = problem_here();
  problem.geometry = geometry_of(call, resolved);
  problem.wanted = call.op.result;
  problem.dtype = dtype_of(call.first);
  problem.x = data_strides(*tensors.x, resolved.data, resolved.rank);
  problem.y = data_strides(*tensors.y, resolved.data, resolved.rank);
  problem.w = weights_strides(*tensors.w, resolved);
  problem.slices = resolved.slices;
  if (problem.slices > 1) {
    const int64_t images = resolved.batch / problem.slices;
    problem.x.slice = images * problem.x.batch;
    problem.y.slice = images * problem.y.batch;
  }
  if (call.op.adds)
    problem.epilogue = dtype_of(result) == problem.dtype ? Epilogue::add : Epilogue::add_to_f32;
  problem.bias = call.bias.has_value();
  return problem;
}

void serve(const Call& call, const Resolved<int64_t>& resolved, const Problem& problem,
           const at::Tensor& result) {
  if (explaining()) {
    explain({choose(problem, call.op.name),
             problem,
             reading_name(call, resolved.weights),
             {call.op.name_of(Role::x), call.op.name_of(Role::w), call.op.name_of(Role::y)}});
    return;
  }
  if (!call.op.adds) ask_for_huge_pages(result);
  const PerRole<const at::Tensor*> tensors = tensors_of(call, result);
  const at::Tensor bias = call.bias ? call.bias->contiguous() : at::Tensor();
  Operands operands;
  for (const Role role : {Role::x, Role::w, Role::y})
    operands.data[role] = role == problem.wanted
                              ? result.mutable_data_ptr()
                              : const_cast<void*>(tensors[role]->const_data_ptr());
  if (problem.bias) operands.bias = bias.const_data_ptr();
  ran(*compute(problem, call.op.name, operands));
}

}  // namespace convtbw

TORCH_LIBRARY_IMPL(convtbw, CPU, m) { convtbw::implement<&convtbw::run>(m); }
