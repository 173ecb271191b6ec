// From a problem to a plan: the first backend in order of preference that does not decline, or the
// one that is forced. A pure function of the problem, the machine and what is forced; remembered in
// a bounded cache. In benchmark mode instead the one that a clock found fastest.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plan/backend.h"

namespace convtbw {

// A plan and how it came to be chosen.
struct Choice {
  const Backend* backend;
  std::string_view target;  // empty: the backend has no targets
  std::unique_ptr<const Plan> plan;
  std::vector<std::pair<std::string, std::string>> declined;  // every other backend, and why
};

// What would serve a call. In benchmark mode, for a problem that was not timed yet: what the rules
// say. Throws, with `op` in the message, when a forced backend declines.
std::shared_ptr<const Choice> choose(const Problem& problem, std::string_view op);

// Whether rules choose and not a caller or, in benchmark mode, a clock.
bool rules_choose();

// Serves a call: chooses and runs. Throws as `choose` does.
std::shared_ptr<const Choice> compute(const Problem& problem, std::string_view op,
                                      const Operands& operands);

// Benchmark mode, of the process: the first call of a problem times the backends that accept it and
// the fastest serves that problem from then on. Without effect where a backend is forced, in
// deterministic mode and in a forked child.
void set_benchmark(bool on);
bool benchmark();

// All backends, in order of preference where nothing else is known.
const std::vector<const Backend*>& backends();

// Names of those that run on this machine.
std::vector<std::string_view> supported_backends();

// What to force. An empty target: the best one that is supported.
struct Forced {
  std::string backend, target;
};

// Forces a choice on this thread until the next call; nullopt leaves it to the environment again
// (CONVTBW_BACKEND, CONVTBW_TARGET; where they are empty nothing is forced).
// Returns what was set before. Throws, and changes nothing, when there is no such backend or target
// or it does not run here; the message lists the legal names.
std::optional<Forced> force(std::optional<Forced> wanted);

struct CacheInfo {
  int64_t entries, capacity, bytes, byte_capacity, hits, misses;
};

CacheInfo cache_info();
void clear_cache();

}  // namespace convtbw
