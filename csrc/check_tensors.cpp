// What is asked of a call's tensors, before anything that they must fit together for.
#include <ATen/MemoryOverlap.h>

#include "check.h"
#include "validate.h"

namespace convtbw {

namespace {

// All but the dtype.
void check_storage(const Call& call, const at::Tensor& tensor, const char* name) {
  check(call, tensor.defined(), name, " is undefined; expected a tensor");
  check(call, !tensor.is_nested(), name, " is a nested tensor; expected a strided one");
  check(call, tensor.layout() == at::kStrided, name, " has layout ", tensor.layout(),
        "; expected torch.strided");
  check(call, !tensor.is_quantized(), name, " is quantised (", tensor.scalar_type(),
        "); expected float32, bfloat16, float16 or float64");
  check(call, tensor.is_cpu() || tensor.is_meta(), name, " is on device ", tensor.device(),
        "; expected cpu");
  check(call, tensor.device() == call.first.device(), name, " is on device ", tensor.device(),
        " but ", call.op.first_name, " is on ", call.first.device(), "; expected the same device");
}

void check_tensor(const Call& call, const at::Tensor& tensor, const char* name) {
  check_storage(call, tensor, name);
  const at::ScalarType type = tensor.scalar_type();
  check(call, type == at::kFloat || type == at::kDouble || has_16_bits(type), name, " has dtype ",
        type, "; expected float32, bfloat16, float16 or float64");
  check(call, type == call.first.scalar_type(), name, " has dtype ", type, " but ",
        call.op.first_name, " has ", call.first.scalar_type(), "; expected the same dtype");
}

void check_added_to(const Call& call) {
  const at::Tensor& tensor = *call.added_to;
  const char* const name = call.op.result_name;
  check_storage(call, tensor, name);
  const at::ScalarType type = tensor.scalar_type(), data = call.first.scalar_type();
  check(call, may_be_added(data, type), name, " has dtype ", type, " but ", call.op.first_name,
        " has ", data, "; expected ", data, has_16_bits(data) ? " or float32" : "");
}

}  // namespace

void check_tensors(const Call& call) {
  const Operator& op = call.op;
  check_tensor(call, call.first, op.first_name);
  check_tensor(call, call.second, op.second_name);
  if (call.bias) check_tensor(call, *call.bias, "bias");
  if (op.adds) check_added_to(call);
  const int64_t rank = call.first.dim();
  check(call, rank >= 3 && rank <= 5, op.first_name, " has rank ", rank, " ",
        call.first.sym_sizes(), "; expected 3, 4 or 5 (1, 2 or 3 spatial axes)");
  check(call, call.second.dim() == rank, op.second_name, " has rank ", call.second.dim(), " ",
        call.second.sym_sizes(), "; expected ", rank, ", the rank of ", op.first_name);
}

void check_memory(const Call& call) {
  const at::Tensor& tensor = *call.added_to;
  const char* const name = call.op.result_name;
  check(call, at::has_internal_overlap(tensor) != at::MemOverlap::Yes, name,
        " has several elements at one place in memory (strides ", tensor.sym_strides(),
        "); expected a tensor of its own, such as its clone()");
  for (const auto& [other, other_name] :
       {std::pair(&call.first, call.op.first_name), std::pair(&call.second, call.op.second_name)}) {
    const at::MemOverlapStatus status = at::get_overlap_status(tensor, *other);
    check(call, status != at::MemOverlapStatus::Full && status != at::MemOverlapStatus::Partial,
          name, " shares memory with ", other_name, "; expected memory of its own");
  }
}

}  // namespace convtbw
