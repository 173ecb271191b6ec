// The oneDNN backend's row. Its code lives in a shared object of its own, opened at first use, so
// that this library needs no libdnnl: without it the backend is unsupported, with the reason.
#include <dlfcn.h>

#include "plan/backend.h"

namespace convtbw {

namespace {

struct Library {
  const Backend* backend = nullptr;
  std::string why_not;
};

std::string own_folder() {
  Dl_info info;
  if (!dladdr(reinterpret_cast<void*>(&own_folder), &info) || !info.dli_fname) return "";
  const std::string path = info.dli_fname;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash + 1);
}

Library open_library() {
  // RTLD_NODELETE: its plans stay in the cache until the process ends.
  void* const handle = dlopen((own_folder() + "libconvtbw_onednn.so").c_str(),
                              RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!handle) return {nullptr, dlerror()};
  using Entry = const Backend* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(handle, "convtbw_onednn_backend"));
  if (!entry) return {nullptr, dlerror()};
  const Backend* const backend = entry();
  return {backend, backend->why_unsupported()};
}

const Library& library() {
  static const Library opened = open_library();
  return opened;
}

}  // namespace

const Backend kOnednnBackend{
    .name = "onednn",
    .targets = {},
    .why_unsupported = [] { return library().why_not; },
    .prepare = [](const Problem& problem, std::string_view target) -> Prepared {
      return library().backend->prepare(problem, target);
    },
};

}  // namespace convtbw
