#include "core/problem.h"

#include <limits>

namespace convtbw {

namespace {

class Hasher {
 public:
  void add(int64_t value) {
    // A sum of products with a power of an odd number each. The products do not wait for each
    // other: 16 ns a problem, where MurmurHash3's finaliser on a running state took 89 (Zen 4).
    factor_ *= 0x9e3779b97f4a7c15;
    sum_ += static_cast<uint64_t>(value) * factor_;
  }
  template <size_t n>
  void add(const std::array<int64_t, n>& values) {
    for (int64_t value : values) add(value);
  }
  // The high bits of the sum depend on all bits of the values, the low ones do not.
  size_t result() const { return sum_ ^ sum_ >> 32; }

 private:
  uint64_t factor_ = 1, sum_ = 0;
};

}  // namespace

Problem one_slice(Problem p) {
  p.geometry.batch /= p.slices;
  if (p.geometry.batch == 1) p.x.batch = p.y.batch = 0;
  p.slices = 1;
  p.x.slice = p.w.slice = p.y.slice = 0;
  return p;
}

Operands operands_of_slice(const Problem& p, const Operands& operands, int64_t slice) {
  Operands result = operands;
  const auto move = [&](Role role, int64_t stride, Dtype dtype) {
    result.data[role] =
        static_cast<char*>(operands.data[role]) + slice * stride * element_bytes(dtype);
  };
  move(Role::x, p.x.slice, p.dtype);
  move(Role::w, p.w.slice, result_dtype(p));
  move(Role::y, p.y.slice, p.dtype);
  return result;
}

Dtype result_dtype(const Problem& p) {
  const bool widened = p.epilogue == Epilogue::overwrite_f32 || p.epilogue == Epilogue::add_to_f32;
  return widened && element_bytes(p.dtype) == 2 ? Dtype::f32 : p.dtype;
}

size_t hash(const Problem& p) {
  Hasher hasher;
  const Geometry& g = p.geometry;
  for (int64_t value : {g.batch, g.groups, g.x_channels, g.y_channels, int64_t{g.rank}})
    hasher.add(value);
  for (const Axis& a : g.axes)
    for (int64_t value : {a.x, a.k, a.y, a.stride, a.pad, a.dilation}) hasher.add(value);
  for (const DataStrides* strides : {&p.x, &p.y}) {
    hasher.add(strides->slice);
    hasher.add(strides->batch);
    hasher.add(strides->channel);
    hasher.add(strides->axes);
  }
  for (int64_t value : {p.w.slice, p.w.group, p.w.y_channel, p.w.x_channel, p.slices})
    hasher.add(value);
  hasher.add(p.w.axes);
  hasher.add(static_cast<int64_t>(p.wanted) | static_cast<int64_t>(p.dtype) << 8 |
             int64_t{p.bias} << 16 | int64_t{p.deterministic} << 17 | int64_t{p.forked} << 18 |
             static_cast<int64_t>(p.epilogue) << 19 | int64_t{p.threads} << 32);
  return hasher.result();
}

int64_t result_bytes(const Problem& p) {
  const Geometry& g = p.geometry;
  int64_t elements = p.slices * g.groups;
  if (p.wanted != Role::w) elements *= g.batch;
  if (p.wanted != Role::x) elements *= g.y_channels;
  if (p.wanted != Role::y) elements *= g.x_channels;
  for (const Axis& axis : g.axes)
    elements *= p.wanted == Role::x ? axis.x : p.wanted == Role::w ? axis.k : axis.y;
  return elements * element_bytes(result_dtype(p));
}

double data_bytes(const Problem& p, Role role) {
  const Geometry& g = p.geometry;
  auto elements = static_cast<double>(role == Role::x ? g.x_channels : g.y_channels) *
                  static_cast<double>(g.batch) * static_cast<double>(g.groups);
  for (const Axis& axis : g.axes)
    elements *= static_cast<double>(role == Role::x ? axis.x : axis.y);
  return elements * static_cast<double>(element_bytes(p.dtype));
}

int64_t flops(const Problem& p) {
  const Geometry& g = p.geometry;
  double count = 2.0 * static_cast<double>(g.batch) * static_cast<double>(g.groups) *
                 static_cast<double>(g.x_channels) * static_cast<double>(g.y_channels);
  for (const Axis& axis : g.axes)
    count *= static_cast<double>(axis.k) * static_cast<double>(axis.y);
  constexpr double limit = 0x1p63;
  return count < limit ? static_cast<int64_t>(count) : std::numeric_limits<int64_t>::max();
}

}  // namespace convtbw
