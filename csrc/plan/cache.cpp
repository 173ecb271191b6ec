#include "plan/cache.h"

#include <pthread.h>

namespace convtbw {

std::shared_ptr<const Choice> PlanCache::find(const CacheKey& key) {
  const std::lock_guard guard(mutex_);
  const auto found = index_.find(key);
  if (found == index_.end()) {
    ++misses_;
    return nullptr;
  }
  ++hits_;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->second;
}

void PlanCache::insert(const CacheKey& key, std::shared_ptr<const Choice> choice) {
  std::list<Entry> dropped;  // destroyed after the lock is released
  const std::lock_guard guard(mutex_);
  if (index_.contains(key)) return;  // another thread prepared the same plan meanwhile
  bytes_ += choice->plan->bytes;
  entries_.emplace_front(key, std::move(choice));
  index_.emplace(key, entries_.begin());
  while (std::ssize(entries_) > kCapacity || (bytes_ > kByteCapacity && std::ssize(entries_) > 1)) {
    bytes_ -= entries_.back().second->plan->bytes;
    index_.erase(entries_.back().first);
    dropped.splice(dropped.begin(), entries_, std::prev(entries_.end()));
  }
}

CacheInfo PlanCache::info() const {
  const std::lock_guard guard(mutex_);
  return {std::ssize(entries_), kCapacity, bytes_, kByteCapacity, hits_, misses_};
}

void PlanCache::clear() {
  std::list<Entry> dropped;
  const std::lock_guard guard(mutex_);
  index_.clear();
  dropped.swap(entries_);
  bytes_ = hits_ = misses_ = 0;
}

PlanCache& plan_cache() {
  // Never destroyed: threads may still call operators while the process ends.
  static PlanCache* const cache = [] {
    auto* made = new PlanCache;
    pthread_atfork([] { plan_cache().lock(); }, [] { plan_cache().unlock(); },
                   [] { plan_cache().unlock(); });
    return made;
  }();
  return *cache;
}

}  // namespace convtbw
