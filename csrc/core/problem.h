// A problem is everything that a plan may depend on, and so the key of the plan cache. What is not
// here cannot influence a result: a plan sees a Problem and raw pointers, nothing else.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "core/geometry.h"
#include "core/role.h"

namespace convtbw {

// Strides in elements; 0 where the extent is 1, so that equal memory gives equal problems.
struct DataStrides {
  int64_t batch = 0, channel = 0;
  std::array<int64_t, kMaxRank> axes{};
  int64_t slice = 0;  // from the data of one slice to the next one's; 0 if there is only one

  bool operator==(const DataStrides&) const = default;
};

// Element (group, q, c, k) of w, whichever reading of the weights' shape the caller used (spec 4).
struct WeightsStrides {
  int64_t slice = 0, group = 0, y_channel = 0, x_channel = 0;
  std::array<int64_t, kMaxRank> axes{};

  bool operator==(const WeightsStrides&) const = default;
};

// What becomes of a weights gradient; other roles are overwritten.
enum class Epilogue {
  overwrite,
  overwrite_f32,  // the memory holds float32 where the data have 16 bits
  add,            // to what the memory holds
  add_to_f32,     // the same, float32 where the data have 16 bits
};
inline bool adds(Epilogue epilogue) {
  return epilogue == Epilogue::add || epilogue == Epilogue::add_to_f32;
}

struct Problem {
  Geometry geometry;
  Role wanted = Role::y;
  Dtype dtype = Dtype::f32;
  DataStrides x, y;
  WeightsStrides w;
  // Weights gradients that are computed together, each of batch / slices images; other roles have
  // one slice.
  int64_t slices = 1;
  Epilogue epilogue = Epilogue::overwrite;
  bool bias = false;  // one value a channel, added to the wanted role; never with Role::w
  int threads = 1;
  bool deterministic = false;  // torch.use_deterministic_algorithms
  bool forked = false;         // in a child of fork(), where OpenMP's pool hangs

  bool operator==(const Problem&) const = default;
};

// Where the data of a call lie. The wanted role is written, the others are read. bias: contiguous.
struct Operands {
  PerRole<void*> data;
  const void* bias = nullptr;
};

// Of x or y.
inline const DataStrides& strides_of(const Problem& p, Role role) {
  return role == Role::x ? p.x : p.y;
}

// Of x or y, all groups.
inline int64_t channels_of(const Problem& p, Role role) {
  const Geometry& g = p.geometry;
  return g.groups * (role == Role::x ? g.x_channels : g.y_channels);
}

// The problem of each slice, and where the data of one of them lie.
Problem one_slice(Problem problem);
Operands operands_of_slice(const Problem& problem, const Operands& operands, int64_t slice);

// Of the wanted role.
Dtype result_dtype(const Problem& problem);

size_t hash(const Problem& problem);

// What the wanted role occupies where it is allocated for the call, and so dense.
int64_t result_bytes(const Problem& problem);

// Of x or y, as if dense: of an expanded tensor more than an integer holds.
double data_bytes(const Problem& problem, Role role);
inline double data_bytes_of_both(const Problem& problem) {
  return data_bytes(problem, Role::x) + data_bytes(problem, Role::y);
}

// Multiply-adds of all taps, absent ones included, times two: the customary count. Saturates.
int64_t flops(const Problem& problem);

}  // namespace convtbw
