// What a call costs beside the arithmetic: the library that tests/call_overhead.py loads. For every
// operator, under the schema that convtbw registered for it:
//   convtbw_noop::<operator>   returns its first argument: the dispatcher and the arguments alone
//   convtbw_timed::<operator>  times calls of both from C++, by typed handles; see `time_calls`
#include <torch/library.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "call.h"

namespace convtbw {

namespace {

template <class Schema>
auto handle_of(const Operator& op, const char* library) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow((std::string(library) + "::" + op.name).c_str(), "")
      .typed<typename Schema::Signature>();
}

at::Tensor return_first(const Call& call) { return call.first; }

// Microseconds per call of convtbw and of convtbw_noop: the best of many interleaved rounds.
at::Tensor time_calls(const Call& call) {
  constexpr int kRounds = 200, kCalls = 50;
  const at::Tensor best = at::full({2}, std::numeric_limits<double>::infinity(), at::kDouble);
  for_each_operator([&]<const Operator & op, class Schema>() {
    if (&op != &call.op) return;
    const std::array handles{handle_of<Schema>(op, "convtbw"),
                             handle_of<Schema>(op, "convtbw_noop")};
    for (int round = 0; round < kRounds; ++round)
      for (size_t i = 0; i < handles.size(); ++i) {
        using Clock = std::chrono::steady_clock;
        const auto begin = Clock::now();
        for (int j = 0; j < kCalls; ++j) Schema::call(handles[i], call);
        const std::chrono::duration<double, std::micro> elapsed = Clock::now() - begin;
        double& shortest = best.mutable_data_ptr<double>()[i];
        shortest = std::min(shortest, elapsed.count() / kCalls);
      }
  });
  return best;
}

void define(torch::Library& m) {
  for_each_operator([&]<const Operator & op, class Schema>() {
    const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(
        (std::string("convtbw::") + op.name).c_str(), "");
    m.def(handle.schema().cloneWithName(op.name, ""));
    // Without this, autograd's fallback would box the arguments and make the no-op slow.
    m.impl(op.name,
           torch::dispatch(c10::DispatchKey::Autograd, torch::CppFunction::makeFallthrough()));
  });
}

}  // namespace

}  // namespace convtbw

TORCH_LIBRARY(convtbw_noop, m) { convtbw::define(m); }
TORCH_LIBRARY(convtbw_timed, m) { convtbw::define(m); }
TORCH_LIBRARY_IMPL(convtbw_noop, CPU, m) { convtbw::implement<&convtbw::return_first>(m); }
TORCH_LIBRARY_IMPL(convtbw_timed, CPU, m) { convtbw::implement<&convtbw::time_calls>(m); }
