#include "core/parallel.h"

#include <pthread.h>

#include <atomic>

namespace convtbw {

namespace {

std::atomic<bool> forked{false};

const int registered = pthread_atfork(nullptr, nullptr, [] { forked = true; });

}  // namespace

bool in_forked_child() {
  static_cast<void>(registered);
  return forked;
}

}  // namespace convtbw
