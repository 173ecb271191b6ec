#include "control.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <optional>

namespace convtbw {

namespace {

thread_local std::string_view last_used_here;
thread_local bool explaining_here = false;
thread_local std::optional<Explanation> explanation_here;

using Strings = std::vector<std::string>;

Strings available() {
  Strings names;
  for (const Backend* row : backends()) names.emplace_back(row->name);
  return names;
}

Strings supported() {
  const auto names = supported_backends();
  return Strings(names.begin(), names.end());
}

Strings targets() {
  Strings supported, others;
  for (const Backend* row : backends())
    for (const Target& target : row->targets)
      (target.supported() ? supported : others).emplace_back(target.name);
  supported.insert(supported.end(), others.begin(), others.end());
  return supported;
}

using MaybeString = std::optional<std::string>;

// No backend: the environment's choice. Returns what was forced before, to be restored.
std::tuple<MaybeString, MaybeString> force_backend(const MaybeString& backend,
                                                   const MaybeString& target) {
  const std::optional<Forced> before =
      force(backend ? std::optional<Forced>({*backend, target.value_or("")}) : std::nullopt);
  if (!before) return {};
  return {before->backend, before->target};
}

std::string last_used() { return std::string(last_used_here); }

void explain_begin() {
  explaining_here = true;
  explanation_here.reset();
}

using Report = std::tuple<std::string, std::string, std::string, Strings, Strings, int64_t, int64_t,
                          Strings, std::string, int64_t>;

// That another backend was preferred says nothing of one that does not run on this machine.
std::string why_not(std::string_view name, const std::string& declined) {
  for (const Backend* row : backends())
    if (row->name == name)
      if (std::string reason = row->why_unsupported(); !reason.empty()) return reason;
  return declined;
}

// backend, target, kernel, names of the others, why they declined, flops, workspace, reorders,
// reading, threads.
Report explain_end() {
  explaining_here = false;
  const std::optional<Explanation> found = std::exchange(explanation_here, std::nullopt);
  if (!found) return {};
  if (!found->choice)
    return {"torch", "", "aten", available(), Strings(backends().size(), found->why_torch),
            0,       0,  {},     "",          at::get_num_threads()};
  const Choice& choice = *found->choice;
  Strings names, reasons;
  for (const auto& [name, reason] : choice.declined) {
    names.push_back(name);
    reasons.push_back(why_not(name, reason));
  }
  Strings reorders;
  for (const Role role : choice.plan->reorders)
    reorders.push_back(std::string(found->names[role]) +
                       (role == found->problem.wanted ? " from " : " to ") +
                       std::string(choice.backend->name) + "'s layout");
  return {std::string(choice.backend->name),
          std::string(choice.target),
          choice.plan->kernel,
          names,
          reasons,
          flops(found->problem),
          choice.plan->workspace,
          reorders,
          found->reading,
          found->problem.threads};
}

std::vector<int64_t> cache_numbers() {
  const CacheInfo info = cache_info();
  return {info.entries, info.capacity, info.bytes, info.byte_capacity, info.hits, info.misses};
}

}  // namespace

bool explaining() { return explaining_here; }
void explain(Explanation explanation) {
  // The first: a call on dual tensors plans its tangents too.
  if (!explanation_here) explanation_here = std::move(explanation);
}
void explain_torch(const char* why) { explain({nullptr, {}, {}, {}, why}); }
void ran(const Choice& choice) { last_used_here = choice.backend->name; }
void ran_in_torch() { last_used_here = "torch"; }

}  // namespace convtbw

TORCH_LIBRARY(convtbw_backends, m) {
  m.def("available() -> str[]", &convtbw::available);
  m.def("supported() -> str[]", &convtbw::supported);
  m.def("targets() -> str[]", &convtbw::targets);
  m.def("force(str? backend, str? target) -> (str?, str?)", &convtbw::force_backend);
  m.def("last_used() -> str", &convtbw::last_used);
  m.def("explain_begin() -> ()", &convtbw::explain_begin);
  m.def("explain_end() -> (str, str, str, str[], str[], int, int, str[], str, int)",
        &convtbw::explain_end);
  m.def("set_benchmark(bool on) -> ()", &convtbw::set_benchmark);
  m.def("benchmark() -> bool", &convtbw::benchmark);
  m.def("cache_info() -> int[]", &convtbw::cache_numbers);
  m.def("clear_cache() -> ()", &convtbw::clear_cache);
}
