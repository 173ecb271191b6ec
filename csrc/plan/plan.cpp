#include "plan/plan.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "plan/cache.h"

namespace convtbw {

const std::vector<const Backend*>& backends() {
  static const std::vector<const Backend*> rows{
#ifdef CONVTBW_ONEDNN
      &kOnednnBackend,
#endif
      &kSimdBackend,
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
  const Backend* backend = nullptr;  // nullptr: nothing is forced
  std::string_view target;           // empty: the best one that is supported
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

// `origin`: of the names, where the caller cannot know it.
Selection select(const Forced& wanted, const char* origin) {
  Selection selection;
  if (wanted.backend.empty()) {
    TORCH_CHECK(wanted.target.empty(), "convtbw: target '", wanted.target, "'", origin,
                " is forced without a backend; force the backend too, one of: ",
                listed(supported_backends()));
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
  if (wanted.target.empty()) return selection;
  for (const std::string_view name : supported_targets(*selection.backend))
    if (name == wanted.target) selection.target = name;
  TORCH_CHECK(!selection.target.empty(), "convtbw: backend '", wanted.backend,
              "' has no target named '", wanted.target, "'", origin,
              " here; supported: ", listed(supported_targets(*selection.backend)));
  return selection;
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// Set on this thread by force(); otherwise the environment speaks. The environment is read once, at
// the first call, so that a wrong name fails a call in the caller's sight and not the import.
thread_local std::optional<Forced> forced_here;
thread_local std::optional<Selection> selection_here;

const Forced& forced_by_environment() {
  static const Forced wanted{environment("CONVTBW_BACKEND"), environment("CONVTBW_TARGET")};
  return wanted;
}

const Selection& selection() {
  if (!selection_here)  // then nothing was forced on this thread
    selection_here =
        select(forced_by_environment(), " (environment: CONVTBW_BACKEND, CONVTBW_TARGET)");
  return *selection_here;
}

// An empty batch needs no kernel: a weights gradient is zero, a data result has no elements.
class EmptyBatchPlan : public Plan {
 public:
  explicit EmptyBatchPlan(const Problem& problem) : wanted_(problem.wanted) {
    kernel = "empty batch";
    const Geometry& g = problem.geometry;
    result_bytes_ = g.groups * g.x_channels * g.y_channels * element_bytes(problem.dtype);
    for (const Axis& axis : g.axes) result_bytes_ *= axis.k;
    bytes = sizeof(EmptyBatchPlan);
  }

  void run(const Operands& operands) const override {
    // A weights gradient is dense (it is allocated above), and zero bits are zero in every dtype.
    if (wanted_ == Role::w) std::memset(operands.data.w, 0, result_bytes_);
  }

 private:
  const Role wanted_;
  int64_t result_bytes_;
};

Prepared prepare(const Backend& backend, const Problem& problem, std::string_view target) {
  if (std::string reason = backend.why_unsupported(); !reason.empty()) return {nullptr, reason};
  if (problem.geometry.batch == 0) return {std::make_unique<EmptyBatchPlan>(problem), {}};
  return backend.prepare(problem, target);
}

std::string_view best_target(const Backend& backend) {
  const auto names = supported_targets(backend);
  return names.empty() ? std::string_view() : names.front();
}

std::shared_ptr<const Choice> choose_afresh(const Problem& problem, const Selection& selection,
                                            std::string_view op) {
  auto choice = std::make_shared<Choice>();
  choice->backend = nullptr;
  for (const Backend* row : backends()) {
    std::string reason;
    if (selection.backend && row != selection.backend) {
      reason = "not asked: '" + std::string(selection.backend->name) + "' is forced";
    } else if (choice->backend) {
      reason = "not needed: '" + std::string(choice->backend->name) + "' is preferred";
    } else {
      const std::string_view target =
          selection.target.empty() ? best_target(*row) : selection.target;
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
  const CacheKey key{problem, selected.backend, selected.target};
  if (auto choice = plan_cache().find(key)) return choice;
  // Two threads may prepare the same plan at once; preparing under the cache's lock would instead
  // make every other call wait for the slowest preparation.
  auto choice = choose_afresh(problem, selected, op);
  plan_cache().insert(key, choice);
  return choice;
}

CacheInfo cache_info() { return plan_cache().info(); }
void clear_cache() { plan_cache().clear(); }

}  // namespace convtbw
