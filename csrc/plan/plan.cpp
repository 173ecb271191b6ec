#include "plan/plan.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "plan/cache.h"
#include "plan/preference.h"
#include "plan/timing.h"

namespace convtbw {

const std::vector<const Backend*>& backends() {
  static const std::vector<const Backend*> rows{
      &kSimdBackend,
#ifdef CONVTBW_ONEDNN
      &kOnednnBackend,
#endif
      &kReferenceBackend,
  };
  return rows;
}

std::vector<std::string_view> supported_backends() {
  std::vector<std::string_view> names;
  for (const Backend* row : backends())
    if (row->why_unsupported().empty()) names.push_back(row->name);
  return names;
}

namespace {

// A forced choice, checked: pointers into the tables above.
struct Selection {
  const Backend* backend = nullptr;  // nullptr: none is forced
  // Of the backends that have a target of that name; empty: the best one that is supported.
  std::string_view target;
};

std::string listed(const std::vector<std::string_view>& names) {
  std::string text;
  for (const std::string_view name : names) {
    if (!text.empty()) text += ", ";
    text += name;
  }
  return text.empty() ? "none" : text;
}

std::vector<std::string_view> supported_targets(const Backend& backend) {
  std::vector<std::string_view> names;
  for (const Target& target : backend.targets)
    if (target.supported()) names.push_back(target.name);
  return names;
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// Read once, at the first call, so that a wrong name fails a call in the caller's sight and not the
// import.
const Forced& forced_by_environment() {
  static const Forced wanted{environment("CONVTBW_BACKEND"), environment("CONVTBW_TARGET")};
  return wanted;
}

// `origin`: of the names, where the caller cannot know it. A backend without a target has the
// environment's, if that is one of its own.
Selection select(const Forced& wanted, const char* origin) {
  Selection selection;
  if (wanted.backend.empty()) {
    if (wanted.target.empty()) return selection;
    std::vector<std::string_view> legal;
    for (const Backend* row : backends())
      for (const std::string_view name : supported_targets(*row)) {
        legal.push_back(name);
        if (name == wanted.target) selection.target = name;
      }
    TORCH_CHECK(!selection.target.empty(), "convtbw: no backend has a target named '",
                wanted.target, "'", origin, " here; supported: ", listed(legal));
    return selection;
  }
  std::vector<std::string_view> names;
  for (const Backend* row : backends()) {
    names.push_back(row->name);
    if (row->name == wanted.backend) selection.backend = row;
  }
  TORCH_CHECK(selection.backend, "convtbw: no backend named '", wanted.backend, "'", origin,
              "; available: ", listed(names), "; supported here: ", listed(supported_backends()));
  const std::string reason = selection.backend->why_unsupported();
  TORCH_CHECK(reason.empty(), "convtbw: backend '", wanted.backend, "'", origin,
              " is not supported here: ", reason,
              "; supported here: ", listed(supported_backends()));
  const std::string& target =
      wanted.target.empty() ? forced_by_environment().target : wanted.target;
  for (const std::string_view name : supported_targets(*selection.backend))
    if (name == target) selection.target = name;
  TORCH_CHECK(wanted.target.empty() || !selection.target.empty(), "convtbw: backend '",
              wanted.backend, "' has no target named '", wanted.target, "'", origin,
              " here; supported: ", listed(supported_targets(*selection.backend)));
  return selection;
}

// Set on this thread by force(); otherwise the environment speaks.
thread_local std::optional<Forced> forced_here;
thread_local std::optional<Selection> selection_here;

const Selection& selection() {
  if (!selection_here)  // then nothing was forced on this thread
    selection_here =
        select(forced_by_environment(), " (environment: CONVTBW_BACKEND, CONVTBW_TARGET)");
  return *selection_here;
}

// An empty batch needs no kernel: a weights gradient is zero, a data result has no elements.
class EmptyBatchPlan : public Plan {
 public:
  explicit EmptyBatchPlan(const Problem& problem)
      : wanted_(problem.wanted),
        result_bytes_(problem.epilogue == Epilogue::overwrite ? result_bytes(problem) : 0) {
    kernel = "empty batch";
    bytes = sizeof(EmptyBatchPlan);
  }

  void run(const Operands& operands) const override {
    // Zero bits are zero in every dtype. The address of a data result is null.
    if (result_bytes_) std::memset(operands.data[wanted_], 0, result_bytes_);
  }

 private:
  const Role wanted_;
  const int64_t result_bytes_;
};

// The selected target if the backend has it, or else its best.
std::string_view target_of(const Backend& backend, const Selection& selection) {
  const auto names = supported_targets(backend);
  for (const std::string_view name : names)
    if (name == selection.target) return name;
  return names.empty() ? std::string_view() : names.front();
}

const std::vector<const Backend*>& preferred(const Problem& problem, const Selection& selection) {
  return preference(problem, target_of(kSimdBackend, selection));
}

Prepared prepare(const Backend& backend, const Problem& problem, std::string_view target) {
  if (std::string reason = backend.why_unsupported(); !reason.empty()) return {nullptr, reason};
  if (problem.geometry.batch == 0) return {std::make_unique<EmptyBatchPlan>(problem), {}};
  return backend.prepare(problem, target);
}

std::shared_ptr<const Choice> choose_afresh(const Problem& problem, const Selection& selection,
                                            std::string_view op) {
  auto choice = std::make_shared<Choice>();
  choice->backend = nullptr;
  Problem ruled = problem;
  if (ruled.deterministic) ruled.threads = 1;  // so that no rule can depend on their number
  for (const Backend* row : preferred(ruled, selection)) {
    std::string reason;
    if (selection.backend && row != selection.backend) {
      reason = "not asked: '" + std::string(selection.backend->name) + "' is forced";
    } else if (choice->backend) {
      reason = "not needed: '" + std::string(choice->backend->name) + "' is preferred";
    } else {
      const std::string_view target = target_of(*row, selection);
      Prepared prepared = prepare(*row, problem, target);
      if (prepared.plan) {
        choice->backend = row;
        choice->target = target;
        choice->plan = std::move(prepared.plan);
        continue;
      }
      TORCH_CHECK(!selection.backend, "convtbw::", op, ": the forced backend '", row->name,
                  "' declines: ", prepared.declined);
      reason = std::move(prepared.declined);
    }
    choice->declined.emplace_back(row->name, std::move(reason));
  }
  return choice;
}

std::string in_words(double seconds) {
  char text[32];
  if (seconds < 1e-3)
    std::snprintf(text, sizeof text, "%.1f us", seconds * 1e6);
  else
    std::snprintf(text, sizeof text, "%.2f ms", seconds * 1e3);
  return text;
}

// Runs the backends that accept the problem on a call's operands; the fastest one is chosen, and
// what it computed remains.
std::shared_ptr<const Choice> choose_by_time(const Problem& problem, const Selection& selection,
                                             const Operands& operands) {
  std::vector<Choice> candidates;
  decltype(Choice::declined) declined;
  for (const Backend* row : preferred(problem, selection)) {
    if (row == &kReferenceBackend && !candidates.empty()) {
      // It may take seconds where another takes milliseconds.
      declined.emplace_back(row->name, "not timed: slower than any other");
      continue;
    }
    const std::string_view target = target_of(*row, selection);
    Prepared prepared = prepare(*row, problem, target);
    if (prepared.plan)
      candidates.push_back({row, target, std::move(prepared.plan), {}});
    else
      declined.emplace_back(row->name, std::move(prepared.declined));
  }
  size_t fastest = 0;
  if (candidates.size() == 1) {
    candidates[0].plan->run(operands);
  } else {
    // New memory gets its pages when it is first written; no plan's time may include that.
    std::memset(operands.data[problem.wanted], 0, result_bytes(problem));
    std::vector<const Plan*> plans;
    for (const Choice& candidate : candidates) plans.push_back(candidate.plan.get());
    const Timing timing = time_plans(plans, operands);
    fastest = timing.fastest;
    for (size_t i = 0; i < candidates.size(); ++i)
      if (i != fastest)
        declined.emplace_back(candidates[i].backend->name,
                              "slower: " + in_words(timing.seconds[i]) + " against " +
                                  in_words(timing.seconds[fastest]) + " of '" +
                                  std::string(candidates[fastest].backend->name) + "'");
  }
  auto choice = std::make_shared<Choice>(std::move(candidates[fastest]));
  choice->declined = std::move(declined);
  return choice;
}

std::atomic<bool> benchmark_mode{false};

// A forked child has one thread, deterministic mode no clock, an empty batch nothing to time, and
// what is added to would be added to several times.
bool is_timed(const Problem& problem, const Selection& selected) {
  return benchmark_mode && !selected.backend && !problem.deterministic && !problem.forked &&
         problem.geometry.batch > 0 && problem.epilogue == Epilogue::overwrite;
}

std::shared_ptr<const Choice> choose_by_rules(const Problem& problem, const Selection& selected,
                                              std::string_view op) {
  const CacheKey key{problem, selected.backend, selected.target, false};
  if (auto choice = plan_cache().find(key)) return choice;
  // Two threads may prepare the same plan at once; preparing under the cache's lock would instead
  // make every other call wait for the slowest preparation.
  auto choice = choose_afresh(problem, selected, op);
  plan_cache().insert(key, choice);
  return choice;
}

}  // namespace

std::optional<Forced> force(std::optional<Forced> wanted) {
  if (wanted)
    selection_here = select(*wanted, "");
  else
    selection_here.reset();
  return std::exchange(forced_here, std::move(wanted));
}

std::shared_ptr<const Choice> choose(const Problem& problem, std::string_view op) {
  const Selection& selected = selection();
  if (is_timed(problem, selected))
    if (auto choice = plan_cache().find({problem, nullptr, selected.target, true})) return choice;
  return choose_by_rules(problem, selected, op);
}

bool rules_choose() { return !selection().backend && !benchmark_mode; }

const Backend& preferred(const Problem& problem) {
  return *preferred(problem, selection()).front();
}

std::shared_ptr<const Choice> compute(const Problem& problem, std::string_view op,
                                      const Operands& operands) {
  const Selection& selected = selection();
  std::shared_ptr<const Choice> choice;
  if (is_timed(problem, selected)) {
    const CacheKey key{problem, nullptr, selected.target, true};
    choice = plan_cache().find(key);
    if (!choice) {
      // Without the lock, here too: threads that meet a new problem at once each time it.
      choice = choose_by_time(problem, selected, operands);
      plan_cache().insert(key, choice);
      return choice;  // it has run
    }
  } else {
    choice = choose_by_rules(problem, selected, op);
  }
  choice->plan->run(operands);
  return choice;
}

void set_benchmark(bool on) { benchmark_mode = on; }
bool benchmark() { return benchmark_mode; }

CacheInfo cache_info() { return plan_cache().info(); }
void clear_cache() { plan_cache().clear(); }

}  // namespace convtbw
