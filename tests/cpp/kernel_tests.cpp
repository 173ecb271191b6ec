// Kernels against naive sums of integers, without torch or Python, so that sanitizers and emulators
// can run them. Small integers make every partial sum exact: any order of summation must agree.
//   kernel_tests [--backend NAME] [--target NAME] [--quick] [--random COUNT] [--seed SEED]
// A name chooses what runs, and then contractions alone run. --quick, for emulators, runs the large
// shapes in one dtype and layout instead of all, and none at random. --random: so many contractions
// more of each target, the same for the same seed.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <thread>
#include <utility>

#include "backends/simd/sums.h"
#include "core/parallel.h"
#include "core/scratch.h"
#include "core/stream.h"
#include "layout.h"
#include "listed_shapes.h"
#include "plan/backend.h"
#include "plan/timing.h"
#include "random_shape.h"
#include "shape.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

namespace convtbw {
namespace {

int failures = 0;
std::string running;  // what a report of a sanitizer is about

void expect(bool ok, const std::string& what) {
  if (ok) return;
  ++failures;
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
}

// ---- conversions -------------------------------------------------------------------------------

template <class T>
void test_conversions(const std::string& name) {
  for (int bits = 0; bits < 1 << 16; ++bits) {
    const T value{static_cast<uint16_t>(bits)};
    const double wide = to_double(value);
    if (std::isnan(wide)) {
      expect(std::isnan(to_double(from_double<T>(wide))), name + " keeps NaN");
      continue;
    }
    expect(from_double<T>(wide).bits == bits, name + " round trip of " + std::to_string(bits));
    // Between this value and the next the nearer one wins, and in the middle the even one.
    const T next{static_cast<uint16_t>(bits + 1)};
    const double above = to_double(next);
    if (std::isnan(above) || std::isinf(above)) continue;
    const double middle = wide / 2 + above / 2;
    expect(from_double<T>(middle).bits == (bits & 1 ? bits + 1 : bits), name + " ties to even");
    expect(from_double<T>(middle + (wide - middle) * 1e-6).bits == bits, name + " nearest, below");
    expect(from_double<T>(middle + (above - middle) * 1e-6).bits == bits + 1,
           name + " nearest, above");
  }
  expect(to_double(from_double<T>(1e300)) > 1e300, name + " overflows to infinity");
  expect(from_double<T>(-1e-300).bits == 0x8000, name + " underflows to a signed zero");
}

// ---- geometry ----------------------------------------------------------------------------------

void test_incidence() {
  for (int64_t stride = 1; stride < 4; ++stride)
    for (int64_t dilation = 1; dilation < 4; ++dilation)
      for (int64_t pad = 0; pad < 5; ++pad)
        for (int64_t k = 0; k < 4; ++k)
          for (int64_t begin = 0; begin < 5; ++begin)
            for (int64_t end = begin; end < 8; ++end) {
              const Axis axis{8, 4, 6, stride, pad, dilation};
              const Range found = incident(axis, k, {begin, end});
              for (int64_t j = 0; j < axis.y; ++j) {
                const int64_t h = j * stride - pad + k * dilation;
                expect((h >= begin && h < end) == (j >= found.begin && j < found.end),
                       "incident agrees with its definition");
              }
            }
}

void test_problem_key() {
  Problem base;
  base.geometry.rank = 2;
  const auto differs = [&](auto change, const char* field) {
    Problem other = base;
    change(other);
    expect(!(other == base), std::string(field) + " is compared");
    expect(hash(other) != hash(base), std::string(field) + " is hashed");
  };
  differs([](Problem& p) { ++p.geometry.batch; }, "batch");
  differs([](Problem& p) { ++p.geometry.groups; }, "groups");
  differs([](Problem& p) { ++p.geometry.x_channels; }, "x_channels");
  differs([](Problem& p) { ++p.geometry.y_channels; }, "y_channels");
  differs([](Problem& p) { ++p.geometry.rank; }, "rank");
  for (int a = 0; a < kMaxRank; ++a) {
    for (auto member : {&Axis::x, &Axis::k, &Axis::y, &Axis::stride, &Axis::pad, &Axis::dilation})
      differs([&](Problem& p) { ++(p.geometry.axes[a].*member); }, "axis");
    differs([&](Problem& p) { ++p.x.axes[a]; }, "x stride");
    differs([&](Problem& p) { ++p.y.axes[a]; }, "y stride");
    differs([&](Problem& p) { ++p.w.axes[a]; }, "w stride");
  }
  differs([](Problem& p) { ++p.x.batch; }, "x batch stride");
  differs([](Problem& p) { ++p.x.channel; }, "x channel stride");
  differs([](Problem& p) { ++p.y.batch; }, "y batch stride");
  differs([](Problem& p) { ++p.y.channel; }, "y channel stride");
  differs([](Problem& p) { ++p.w.slice; }, "w slice stride");
  differs([](Problem& p) { ++p.w.group; }, "w group stride");
  differs([](Problem& p) { ++p.w.y_channel; }, "w y_channel stride");
  differs([](Problem& p) { ++p.w.x_channel; }, "w x_channel stride");
  differs([](Problem& p) { ++p.slices; }, "slices");
  differs([](Problem& p) { ++p.x.slice; }, "x's slice stride");
  differs([](Problem& p) { p.epilogue = Epilogue::add; }, "epilogue");
  differs([](Problem& p) { p.wanted = Role::w; }, "wanted");
  differs([](Problem& p) { p.dtype = Dtype::bf16; }, "dtype");
  differs([](Problem& p) { p.bias = true; }, "bias");
  differs([](Problem& p) { p.threads = 3; }, "threads");
  differs([](Problem& p) { p.deterministic = true; }, "deterministic");
  differs([](Problem& p) { p.forked = true; }, "forked");
}

void test_result_bytes() {
  Problem p;
  p.geometry = {5, 7, 11, 13, 2, {}};
  p.geometry.axes[2] = {17, 3, 19};
  p.dtype = Dtype::bf16;
  p.wanted = Role::x;
  expect(result_bytes(p) == 2 * 5 * 7 * 11 * 17, "bytes of x");
  p.wanted = Role::w;
  expect(result_bytes(p) == 2 * 7 * 11 * 13 * 3, "bytes of w");
  p.slices = 5;
  expect(result_bytes(p) == 2 * 5 * 7 * 11 * 13 * 3, "bytes of w of slices");
  p.slices = 1;
  p.epilogue = Epilogue::add_to_f32;
  expect(result_bytes(p) == 4 * 7 * 11 * 13 * 3, "bytes of w in float32");
  p.epilogue = Epilogue::overwrite;
  p.wanted = Role::y;
  expect(result_bytes(p) == 2 * 5 * 7 * 13 * 19, "bytes of y");
}

void test_parallel() {
  std::vector<int> seen(1000);
  parallel_for(4, 1000, [&](int64_t i) { ++seen[i]; });
  for (const int count : seen) expect(count == 1, "parallel_for runs each index once");
  bool caught = false;
  try {
    parallel_for(4, 100, [](int64_t i) {
      if (i == 57) throw std::runtime_error("57");
    });
  } catch (const std::runtime_error&) {
    caught = true;
  }
  expect(caught, "parallel_for rethrows");
}

// At every distance from a line, with heads and tails of lines; what lies beside is untouched.
void test_stream() {
  constexpr int64_t kLargest = 300;
  std::array<char, kLargest> from;
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<char>(i % 101 + 1);
  std::array<char, kLargest + 2 * kLineBytes> to;
  for (int64_t first = 0; first <= kLineBytes; ++first)
    for (int64_t bytes = 0; bytes <= kLargest; ++bytes) {
      to.fill(0);
      stream(to.data() + first, from.data() + bytes % 7, std::min(bytes, kLargest - bytes % 7));
      end_streams();
      const int64_t end = first + std::min(bytes, kLargest - bytes % 7);
      for (int64_t i = 0; i < std::ssize(to); ++i)
        expect(to[i] == (i < first || i >= end ? 0 : from[i - first + bytes % 7]),
               "stream copies its bytes alone");
    }
}

// Parts of several lengths, with and without runs of chunks; once each, whoever computes them.
void test_sum_chunks() {
  constexpr int64_t kParts = 3, kUnits = 5000;
  const auto units_of = [](int64_t part) { return kUnits - 1500 * part; };
  for (int64_t chunks = 1; chunks < 20; ++chunks)
    for (int threads = 1; threads < 5; ++threads) {
      std::vector<float> sums(kParts * chunks * kUnits, -1);
      simd::sum_chunks(threads,
                       {Dtype::f32, reinterpret_cast<char*>(sums.data()), kParts, chunks, kUnits},
                       units_of, [&](int64_t part, int64_t chunk, char* to) {
                         auto* const units = reinterpret_cast<float*>(to);
                         for (int64_t i = 0; i < units_of(part); ++i)
                           units[i] = static_cast<float>((chunk + 1) * (i % 97) + part);
                       });
      for (int64_t part = 0; part < kParts; ++part)
        for (int64_t i = 0; i < kUnits; ++i) {
          const int64_t sum = chunks * (chunks + 1) / 2 * (i % 97) + chunks * part;
          expect(
              sums[part * chunks * kUnits + i] == static_cast<float>(i < units_of(part) ? sum : -1),
              "sum_chunks adds every chunk of a part once");
        }
    }
}

// ---- benchmark mode ----------------------------------------------------------------------------

// Sleeps, and writes its name.
class SleepingPlan : public Plan {
 public:
  SleepingPlan(char name, int milliseconds) : name_(name), duration_(milliseconds) {}
  void run(const Operands& operands) const override {
    std::this_thread::sleep_for(duration_);
    *static_cast<char*>(operands.data.y) = name_;
    ++runs;
  }
  mutable int runs = 0;

 private:
  const char name_;
  const std::chrono::milliseconds duration_;
};

void test_timing() {
  for (const bool fast_first : {true, false})
    for (const int milliseconds : {2, 200}) {
      const SleepingPlan fast('f', 0), slow('s', milliseconds);
      char result = 0;
      Operands operands;
      operands.data.y = &result;
      std::vector<const Plan*> plans{&fast, &slow};
      if (!fast_first) std::swap(plans[0], plans[1]);
      const Timing timing = time_plans(plans, operands);
      expect(plans[timing.fastest] == &fast, "the fastest plan wins");
      expect(timing.seconds[1 - timing.fastest] >= 1e-3 * milliseconds, "the loser's time is told");
      expect(result == 'f', "the result is the winner's");
      if (milliseconds == 200)
        expect(slow.runs == 1 && fast.runs == 1 + fast_first, "slow plans run once");
      else
        expect(slow.runs > 1, "short runs are repeated");
    }
}

// ---- contractions ------------------------------------------------------------------------------

// Terms of a shape that is large for --quick: what it leaves takes 190 s in Bochs, boot included
// (Zen 3).
constexpr int64_t kLarge = 200'000;

// `slices`: each of them with the shape's images. Without gaps, and weights in torch's own order.
Problem problem_of(const Shape& shape, Role wanted, Dtype dtype, bool channels_last,
                   int64_t slices) {
  Problem p;
  Geometry& g = p.geometry;
  g = {slices * shape.batch,
       shape.groups,
       shape.x_channels,
       shape.y_channels,
       static_cast<int>(shape.axes.size()),
       {}};
  for (int a = 0; a < g.rank; ++a) g.axes[kMaxRank - g.rank + a] = shape.axes[a];
  p.wanted = wanted;
  p.dtype = dtype;
  p.threads = 2;
  p.slices = slices;
  for (const Role role : {Role::x, Role::y}) lay_out(p, role, data_order(channels_last), no_gap);
  lay_out(p, Role::w, torch_weights_order(), no_gap);
  return p;
}

// Calls f(index of x, index of w, index of y) for every present term of the trilinear form. What is
// the same for all terms of a row is outside its loop: emulators run this too.
template <class F>
void for_each_term(const Problem& p, const F& f) {
  const Geometry& g = p.geometry;
  const auto& [a0, a1, a2] = g.axes;
  // Of the windows of an axis, those for which a tap lies in x. Not core's incident(), on which
  // what is tested rests.
  const auto present = [](const Axis& axis, int64_t k) {
    const int64_t first = k * axis.dilation - axis.pad;  // met by window 0
    int64_t begin = 0, end = axis.y;
    while (begin < end && first + begin * axis.stride < 0) ++begin;
    while (begin < end && first + (end - 1) * axis.stride >= axis.x) --end;
    return std::pair(begin, end);
  };
  const auto x_at = [](const Axis& axis, int64_t k, int64_t j) {
    return j * axis.stride - axis.pad + k * axis.dilation;
  };
  for (int64_t n = 0; n < g.batch; ++n)
    for (int64_t group = 0; group < g.groups; ++group)
      for (int64_t q = 0; q < g.y_channels; ++q)
        for (int64_t c = 0; c < g.x_channels; ++c)
          for (int64_t k0 = 0; k0 < a0.k; ++k0) {
            const auto [begin0, end0] = present(a0, k0);
            for (int64_t k1 = 0; k1 < a1.k; ++k1) {
              const auto [begin1, end1] = present(a1, k1);
              for (int64_t k2 = 0; k2 < a2.k; ++k2) {
                const int64_t w = n / (g.batch / p.slices) * p.w.slice + group * p.w.group +
                                  q * p.w.y_channel + c * p.w.x_channel + k0 * p.w.axes[0] +
                                  k1 * p.w.axes[1] + k2 * p.w.axes[2];
                const auto [begin2, end2] = present(a2, k2);
                for (int64_t j0 = begin0; j0 < end0; ++j0)
                  for (int64_t j1 = begin1; j1 < end1; ++j1) {
                    int64_t x = n * p.x.batch + (group * g.x_channels + c) * p.x.channel +
                                x_at(a0, k0, j0) * p.x.axes[0] + x_at(a1, k1, j1) * p.x.axes[1] +
                                x_at(a2, k2, begin2) * p.x.axes[2];
                    int64_t y = n * p.y.batch + (group * g.y_channels + q) * p.y.channel +
                                j0 * p.y.axes[0] + j1 * p.y.axes[1] + begin2 * p.y.axes[2];
                    for (int64_t j2 = begin2; j2 < end2; ++j2) {
                      f(x, w, y);
                      x += a2.stride * p.x.axes[2];
                      y += p.y.axes[2];
                    }
                  }
              }
            }
          }
}

// With NaN in every dtype: what a plan has not written it must not read, not even to multiply it by
// zero.
void fill_scratch(int threads) {
  constexpr int64_t kBytes = 256 << 10;  // emulators fill it too, each time
  std::memset(shared_scratch<char>(kBytes), 0xff, kBytes);
#pragma omp parallel num_threads(threads)
  std::memset(local_scratch<char>(kBytes), 0xff, kBytes);
}

std::string full_name(const Backend& backend, std::string_view target) {
  return std::string(backend.name) + (target.empty() ? "" : "/") + std::string(target);
}

// Returns whether the backend ran.
bool test_contraction(const Backend& backend, std::string_view target, const Shape& shape,
                      const Problem& p) {
  const Prepared prepared = backend.prepare(p, target);
  if (!prepared.plan) {
    expect(!prepared.declined.empty(), "a decline has a reason");
    return false;
  }
  std::mt19937 random(1);
  constexpr int64_t kGap = std::numeric_limits<int64_t>::max();  // between a tensor's elements
  PerRole<std::vector<int64_t>> integers;
  for (const Role role : {Role::x, Role::w, Role::y}) {
    integers[role].assign(size_of(p, role), kGap);
    // Mostly zeros, but not the one value of a tensor: products of small integers, whose sums in
    // float32 are exact.
    const bool one_value = integers[role].size() == 1;
    for_each_element(p, role, [&](int64_t index, const auto&) {
      const bool zero = role == p.wanted || (!one_value && random() % 4);
      integers[role][index] = zero ? 0 : static_cast<int64_t>(random() % 5) - 2;
    });
  }
  const auto bias_of = [](int64_t channel) { return channel % 7 - 3; };
  if (p.bias)
    for_each_element(p, p.wanted, [&](int64_t index, const auto& position) {
      integers[p.wanted][index] = bias_of(position[1]);
    });
  int64_t *const at_x = integers.x.data(), *const at_w = integers.w.data(),
                 *const at_y = integers.y.data();
  switch (p.wanted) {
    case Role::x:
      for_each_term(p, [=](int64_t x, int64_t w, int64_t y) { at_x[x] += at_w[w] * at_y[y]; });
      break;
    case Role::w:
      for_each_term(p, [=](int64_t x, int64_t w, int64_t y) { at_w[w] += at_x[x] * at_y[y]; });
      break;
    case Role::y:
      for_each_term(p, [=](int64_t x, int64_t w, int64_t y) { at_y[y] += at_x[x] * at_w[w]; });
      break;
  }
  running = full_name(backend, target) + " " + prepared.plan->kernel + " " +
            contraction_name(p.wanted) + " " + dtype_name(p.dtype) + ": " + shape.why +
            ", slices: " + std::to_string(p.slices) + (p.bias ? ", bias" : "") +
            (p.epilogue == Epilogue::overwrite ? "" : ", added");
  bool equal = true, inside = true;
  visit_dtype(p.dtype, [&](auto element) {
    using T = decltype(element);
    // Red zones before and behind every tensor, and NaN between the elements of operands; the
    // result itself starts as NaN: it must be overwritten, never read. What is added to starts as
    // such an integer that no sum is large.
    const auto start = [&](int64_t value) {
      return p.epilogue == Epilogue::overwrite ? NAN : static_cast<double>(1 - value / 2);
    };
    constexpr size_t zone = 256;
    const T red = from_double<T>(7);
    PerRole<std::vector<T>> tensors;
    Operands operands;
    for (const Role role : {Role::x, Role::w, Role::y}) {
      std::vector<T>& tensor = tensors[role];
      tensor.assign(zone, red);
      for (const int64_t value : integers[role])
        tensor.push_back(from_double<T>(value == kGap      ? NAN
                                        : role == p.wanted ? start(value)
                                                           : static_cast<double>(value)));
      tensor.insert(tensor.end(), zone, red);
      operands.data[role] = tensor.data() + zone;
    }
    std::vector<T> bias;
    if (p.bias) {
      const Geometry& g = p.geometry;
      const int64_t channels = p.wanted == Role::x ? g.x_channels : g.y_channels;
      for (int64_t c = 0; c < g.groups * channels; ++c)
        bias.push_back(from_double<T>(static_cast<double>(bias_of(c))));
      operands.bias = bias.data();
    }
    fill_scratch(p.threads);
    prepared.plan->run(operands);
    const std::vector<T>& result = tensors[p.wanted];
    const size_t size = integers[p.wanted].size();
    for (size_t i = 0; i < size; ++i) {
      double expected = static_cast<double>(integers[p.wanted][i]);
      if (p.epilogue != Epilogue::overwrite) expected += start(integers[p.wanted][i]);
      equal &= to_double(result[zone + i]) == to_double(from_double<T>(expected));
    }
    for (size_t i = 0; i < zone; ++i)
      inside &= to_double(result[i]) == 7 && to_double(result[zone + size + i]) == 7;
  });
  expect(equal, running);
  expect(inside, running + " (wrote beyond the result)");
  return true;
}

// One element stands for all along some dimensions, or along every one.
void expand(std::mt19937& random, Problem& p, Role role) {
  const bool every = random() % 2;
  for (const Dimension& d : dimensions(p, role))
    if (every || random() % 3 == 0) *d.stride = 0;
  separate_slices(p, role);
}

// Any layout that a caller may have: results are dense, operands may be parts of larger tensors.
void lay_out_at_random(std::mt19937& random, Problem& p) {
  const auto some = [&] { return random() % 4 ? 0 : 1 + static_cast<int64_t>(random() % 3); };
  for (const Role role : {Role::x, Role::w, Role::y}) {
    const std::vector<Order> orders =
        role == Role::w ? weights_orders() : std::vector{data_order(false), data_order(true)};
    Order order = orders[random() % orders.size()];
    const bool dense = role == p.wanted || random() % 2;
    if (!dense && random() % 4 == 0) std::shuffle(order.begin() + 1, order.end(), random);
    dense ? lay_out(p, role, order, no_gap) : lay_out(p, role, order, some);
    if (role != p.wanted && random() % 4 == 0) expand(random, p, role);
  }
}

// Contractions at random of each target; the most terms of half of them, where sizes vary, and of
// the others, where little is left of every axis.
constexpr int kRandom = 1000;
constexpr int64_t kManyTerms = 2'000'000, kFewTerms = 2'000;

// What the command line chooses; empty: everything that this CPU supports.
struct Chosen {
  std::string backend, target;
  bool quick = false;
  int random = kRandom;
  unsigned seed = 1;
};

struct Counts {
  int ran = 0, declined = 0;
};

void test_random(const Backend& backend, std::string_view target, const Chosen& chosen,
                 Counts& counts) {
  std::mt19937 random(chosen.seed);
  for (int i = 0; i < chosen.random; ++i) {
    const Shape shape = random_shape(random, i % 2 ? kManyTerms : kFewTerms);
    const Role wanted = std::array{Role::x, Role::w, Role::y}[random() % 3];
    const Dtype dtype = std::array{Dtype::f32, Dtype::bf16, Dtype::f16, Dtype::f64}[random() % 4];
    const int64_t slices = wanted == Role::w ? 1 + random() % 2 : 1;
    Problem problem = problem_of(shape, wanted, dtype, random() % 2, slices);
    if (random() % 2) lay_out_at_random(random, problem);
    problem.bias = wanted != Role::w && random() % 2;
    problem.threads = 1 + static_cast<int>(random() % 3);
    ++(test_contraction(backend, target, shape, problem) ? counts.ran : counts.declined);
  }
}

void test_target(const Backend& backend, std::string_view target, const Chosen& chosen) {
  Counts counts;
  auto& [ran, declined] = counts;
  for (const Shape& shape : listed_shapes())
    for (const Role wanted : {Role::x, Role::w, Role::y})
      for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16, Dtype::f64})
        for (const bool channels_last : {false, true}) {
          if (chosen.quick && terms(shape) > kLarge && !(dtype == Dtype::f32 && channels_last))
            continue;
          for (const int64_t slices : {1, 2}) {
            if (slices > 1 && wanted != Role::w) continue;
            const Problem problem = problem_of(shape, wanted, dtype, channels_last, slices);
            ++(test_contraction(backend, target, shape, problem) ? ran : declined);
          }
          if (wanted != Role::w) continue;
          Problem added = problem_of(shape, wanted, dtype, channels_last, 1);
          added.epilogue = Epilogue::add;
          ++(test_contraction(backend, target, shape, added) ? ran : declined);
        }
  test_random(backend, target, chosen, counts);
  const std::string name = full_name(backend, target);
  std::printf("%s: %d contractions ran, %d declined\n", name.c_str(), ran, declined);
  expect(ran > 0, name + " ran");
  expect(&backend != &kReferenceBackend || declined == 0, "the reference accepts everything");
}

// Throws if nothing of what was chosen exists and runs on this CPU.
void test_backends(const std::vector<const Backend*>& backends, const Chosen& chosen) {
  std::string existing;
  bool ran = false;
  for (const Backend* backend : backends) {
    std::vector<Target> targets = backend->targets;
    if (targets.empty()) targets.push_back({"", [] { return true; }});
    for (const Target& target : targets) {
      const std::string name = full_name(*backend, target.name);
      existing += " " + name;
      if (!chosen.backend.empty() && chosen.backend != backend->name) continue;
      if (!chosen.target.empty() && chosen.target != target.name) continue;
      std::string reason = backend->why_unsupported();
      if (reason.empty() && !target.supported()) reason = "this CPU lacks its instructions";
      if (reason.empty()) {
        test_target(*backend, target.name, chosen);
        ran = true;
      } else {
        std::printf("%s: not supported here: %s\n", name.c_str(), reason.c_str());
      }
    }
  }
  if (!ran)
    throw std::runtime_error("nothing ran of backend '" + chosen.backend + "' and target '" +
                             chosen.target + "' (empty: any); there are:" + existing);
}

Chosen parse(const std::vector<std::string>& arguments) {
  Chosen chosen;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    const std::string* const value = i + 1 < arguments.size() ? &arguments[i + 1] : nullptr;
    if (argument == "--quick") {
      chosen.quick = true;
      chosen.random = 0;
      continue;
    }
    if (argument == "--backend" && value)
      chosen.backend = *value;
    else if (argument == "--target" && value)
      chosen.target = *value;
    else if (argument == "--random" && value)
      chosen.random = std::stoi(*value);
    else if (argument == "--seed" && value)
      chosen.seed = static_cast<unsigned>(std::stoul(*value));
    else
      throw std::runtime_error("bad argument '" + argument +
                               "'; there are: --backend NAME, --target NAME, --quick, --random "
                               "COUNT, --seed SEED");
    ++i;
  }
  return chosen;
}

void run(const Chosen& chosen) {
  if (chosen.backend.empty() && chosen.target.empty()) {
    test_conversions<bfloat16>("bfloat16");
    test_conversions<float16>("float16");
    test_incidence();
    test_problem_key();
    test_result_bytes();
    test_timing();
    test_parallel();
    test_stream();
    test_sum_chunks();
  }
  std::vector<const Backend*> backends{&kSimdBackend, &kReferenceBackend};
#ifdef CONVTBW_ONEDNN_LIBRARY
  void* const library = dlopen(CONVTBW_ONEDNN_LIBRARY, RTLD_NOW);
  if (!library) throw std::runtime_error(dlerror());
  using Entry = const Backend* (*)();
  backends.push_back(reinterpret_cast<Entry>(dlsym(library, "convtbw_onednn_backend"))());
#endif
  test_backends(backends, chosen);
}

}  // namespace
}  // namespace convtbw

int main(int argc, char** argv) {
  using namespace convtbw;
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_set_death_callback([] { std::fprintf(stderr, "during: %s\n", running.c_str()); });
#endif
  try {
    run(parse({argv + 1, argv + argc}));
  } catch (const std::exception& error) {
    expect(false, error.what());
  }
  std::printf(failures ? "%d checks failed\n" : "kernel tests passed\n", failures);
  return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
