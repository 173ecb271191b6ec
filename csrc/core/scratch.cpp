#include "core/scratch.h"

#include <new>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace convtbw::detail {

namespace {

class Block {
 public:
  Block() = default;
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() { release(); }

  void* at_least(int64_t bytes) {
    if (bytes > size_) {
      release();
      data_ = ::operator new(bytes, std::align_val_t{kLineBytes});
      size_ = bytes;
    }
#ifdef __SANITIZE_ADDRESS__  // what was not asked for, although an earlier call left it
    ASAN_POISON_MEMORY_REGION(data_, size_);
    ASAN_UNPOISON_MEMORY_REGION(data_, bytes);
#endif
    return data_;
  }

 private:
  void release() {
    ::operator delete(data_, std::align_val_t{kLineBytes});
    data_ = nullptr;
    size_ = 0;
  }

  void* data_ = nullptr;
  int64_t size_ = 0;
};

thread_local Block local, shared;

}  // namespace

void* local_bytes(int64_t bytes) { return local.at_least(bytes); }
void* shared_bytes(int64_t bytes) { return shared.at_least(bytes); }

}  // namespace convtbw::detail
