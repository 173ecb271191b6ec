// The plan cache: least recently used goes first; bounded by entries and by bytes.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include "plan/plan.h"

namespace convtbw {

struct CacheKey {
  Problem problem;
  const Backend* forced;    // nullptr: none
  std::string_view target;  // of a Target, so that it outlives the key
  bool timed;               // chosen by time, not by the rules

  bool operator==(const CacheKey&) const = default;
};

struct CacheKeyHash {
  size_t operator()(const CacheKey& key) const {
    return hash(key.problem) ^ std::hash<const void*>()(key.forced) ^
           std::hash<std::string_view>()(key.target) ^ static_cast<size_t>(key.timed);
  }
};

class PlanCache {
 public:
  std::shared_ptr<const Choice> find(const CacheKey& key);
  void insert(const CacheKey& key, std::shared_ptr<const Choice> choice);
  CacheInfo info() const;
  void clear();

  // Held over a fork(), so that the child finds the cache whole and unlocked.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  // A network has tens of convolutions, each with up to three contractions: 512 plans hold several
  // networks, in about 50 MB where all are oneDNN's.
  static constexpr int64_t kCapacity = 512, kByteCapacity = 64 << 20;

  using Entry = std::pair<CacheKey, std::shared_ptr<const Choice>>;

  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<CacheKey, std::list<Entry>::iterator, CacheKeyHash> index_;
  int64_t bytes_ = 0, hits_ = 0, misses_ = 0;
};

PlanCache& plan_cache();

}  // namespace convtbw
