// fprop and dgrad of few pixels of y, with weights as rows of neighbours. These are read once,
// where they lie: packed they would be read, written and read again, which takes longer than their
// products. The operand's windows, or y's pixels, are the rows of one product; of dgrad it yields
// what every pixel has for every tap, which is added up at the end.
//
// Where neighbours are channels of the result, lanes are these; where they are summed over, lanes
// are what is summed.
#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <vector>

#include "backends/simd/directed_plan.h"
#include "backends/simd/folded_runs.h"
#include "backends/simd/phases.h"
#include "backends/simd/plans.h"
#include "core/parallel.h"
#include "core/scratch.h"

namespace convtbw::simd {

namespace {

using Position = std::array<int64_t, kMaxRank>;

// f(position)
template <class F>
void for_each_position(const Position& extents, const F& f) {
  for (int64_t i = 0; i < extents[0]; ++i)
    for (int64_t j = 0; j < extents[1]; ++j)
      for (int64_t k = 0; k < extents[2]; ++k) f(Position{i, j, k});
}

template <int64_t Axis::* extent>
Position extents_of(const Geometry& g) {
  return {g.axes[0].*extent, g.axes[1].*extent, g.axes[2].*extent};
}

// Weights as a matrix, or as one for each tap.
struct Matrix {
  int64_t rows, columns, row;  // row: elements from one to the next; columns are neighbours
  bool of_all_taps;            // columns are x's channels x taps
  bool columns_of_x;           // or else of y
};

std::optional<Matrix> matrix_of(const Problem& p) {
  const Geometry& g = p.geometry;
  const int64_t taps = g.taps();
  int64_t next = 1;
  bool neighbours = true;
  for (int a = kMaxRank - 1; a >= 0; --a) {
    if (g.axes[a].k > 1) neighbours &= p.w.axes[a] == next;
    next *= g.axes[a].k;
  }
  if (neighbours && p.w.x_channel == taps)
    return Matrix{g.y_channels, g.x_channels * taps, p.w.y_channel, true, true};
  if (p.w.x_channel == 1) return Matrix{g.y_channels, g.x_channels, p.w.y_channel, false, true};
  if (p.w.y_channel == 1) return Matrix{g.x_channels, g.y_channels, p.w.x_channel, false, false};
  return {};
}

class FewPixelsPlan : public DirectedPlan {
 public:
  FewPixelsPlan(const Problem& problem, const Arithmetic& arithmetic,
                const InPlaceKernels& kernels);
  void run(const Operands& operands) const override;

 private:
  // One that lies in x for some window. first: where its channels begin, in what its matrix has of
  // a pixel.
  struct Tap {
    Position at;
    int64_t matrix, first;
  };

  // Ranges of rows or columns, none shorter than `least` unless there are fewer.
  struct Cuts {
    int64_t extent, size, count;

    Cuts(int64_t all, int64_t least, int64_t wanted)
        : extent(all),
          size(std::max(least, all / std::max<int64_t>(wanted, 1) / least * least)),
          count(std::max<int64_t>(1, all / size)) {}
    Cuts() = default;
    Range operator[](int64_t i) const {
      return {i * size, i + 1 == count ? extent : (i + 1) * size};
    }
  };

  void list_taps();
  void choose_sizes();
  // Where a tap of window j lies in x, and the window of which it lies there; if there is one.
  std::optional<Position> position_of(const Position& j, const Tap& tap) const;
  std::optional<Position> window_at(const Position& h, const Tap& tap) const;
  int64_t pixel_of(int64_t image, const Position& j) const {
    const auto& axes = problem_.geometry.axes;
    return ((image * axes[0].y + j[0]) * axes[1].y + j[1]) * axes[2].y + j[2];
  }
  template <class F>
  void for_each_channels(int64_t work, int64_t channels, const F& f) const;
  void gather(const Operands& operands, char* rows) const;
  void multiply_columns(const char* w, int64_t matrix, const Range& rows, const Range& columns,
                        const char* a, char* sums) const;
  void multiply_rows(const char* w, int64_t matrix, const Range& rows, const char* a,
                     const char* zeros, char* sums) const;
  template <class Sum>
  void add_terms(const char* sums, int64_t pixel, int64_t first, int64_t step, int64_t count,
                 Sum* to) const;
  template <class Sum>
  void finish(const Operands& operands, const char* sums, const char* bias) const;

  const InPlaceKernels& kernels_;
  const Matrix matrix_;
  const bool columns_are_results_;
  const int64_t tap_step_;  // from one channel of x to the next, in what a matrix has of a pixel
  const int64_t pixels_;
  std::vector<Tap> taps_;
  std::vector<int64_t> matrices_;  // where they begin
  // Of a pixel, in units: what a matrix multiplies, and all of them; what it yields, and all.
  int64_t factors_, row_, results_, sums_row_;
  // What is summed over, of which each cut has sums of its own; and the other side, for threads.
  Cuts summed_, others_;
  int64_t terms_;  // all sums of a result
};

FewPixelsPlan::FewPixelsPlan(const Problem& problem, const Arithmetic& arithmetic,
                             const InPlaceKernels& kernels)
    : DirectedPlan(problem, arithmetic),
      kernels_(kernels),
      matrix_(*matrix_of(problem)),
      columns_are_results_(matrix_.columns_of_x != fprop_),
      tap_step_(matrix_.of_all_taps ? problem.geometry.taps() : 1),
      pixels_(pixels_of_y(problem.geometry)) {
  list_taps();
  choose_sizes();
  kernel = std::string(contraction_name(problem.wanted)) + ", weights read in place, " +
           (columns_are_results_ ? "channels" : "what is summed") + " in lanes, " + arithmetic.name;
  workspace = (pixels_ * (row_ + 1 + terms_ * sums_row_) + out_channels_) * unit();
  bytes = static_cast<int64_t>(sizeof(FewPixelsPlan) + taps_.size() * sizeof(Tap) +
                               matrices_.size() * sizeof(int64_t));
}

void FewPixelsPlan::list_taps() {
  const Geometry& g = problem_.geometry;
  int64_t index = 0;
  for_each_position(extents_of<&Axis::k>(g), [&](const Position& t) {
    const int64_t first = index++;
    int64_t at = 0;
    for (int a = 0; a < kMaxRank; ++a) {
      const Range windows = incident(g.axes[a], t[a], {0, g.axes[a].x});
      if (windows.begin >= windows.end) return;
      at += t[a] * problem_.w.axes[a];
    }
    if (matrix_.of_all_taps) {
      taps_.push_back({t, 0, first});
    } else {
      taps_.push_back({t, std::ssize(matrices_), 0});
      matrices_.push_back(at);
    }
  });
  if (matrix_.of_all_taps) matrices_.push_back(0);
}

// Sizes depend on the shape alone, so that results do not depend on the number of threads.
void FewPixelsPlan::choose_sizes() {
  constexpr int64_t kItems = 16;      // enough to keep many threads busy until the end
  constexpr int64_t kMostRows = 512;  // a sum's error grows with its length
  const int64_t lanes = arithmetic_.lanes, matrices = std::ssize(matrices_);  // perhaps none
  const int64_t wanted = ceil_div(kItems, std::max<int64_t>(matrices, 1));
  const auto [summed, yielded] = columns_are_results_ ? std::pair(matrix_.rows, matrix_.columns)
                                                      : std::pair(matrix_.columns, matrix_.rows);
  factors_ = whole_vectors(summed);
  row_ = fprop_ ? matrices * factors_ : factors_;
  results_ = whole_vectors(yielded);
  sums_row_ = fprop_ ? results_ : matrices * results_;
  if (columns_are_results_) {
    summed_ = Cuts(summed, 8, ceil_div(summed, kMostRows));
    others_ = Cuts(yielded, 8 * lanes, ceil_div(wanted, summed_.count));
  } else {
    summed_ = Cuts(summed, lanes, ceil_div(summed, kMaxSteps * lanes));
    others_ = Cuts(yielded, kDotPixels, wanted);
  }
  terms_ = summed_.count * (fprop_ ? matrices : 1);
}

std::optional<Position> FewPixelsPlan::position_of(const Position& j, const Tap& tap) const {
  Position h;
  for (int a = 0; a < kMaxRank; ++a) {
    const Axis& axis = problem_.geometry.axes[a];
    h[a] = j[a] * axis.stride - axis.pad + tap.at[a] * axis.dilation;
    if (h[a] < 0 || h[a] >= axis.x) return {};
  }
  return h;
}

std::optional<Position> FewPixelsPlan::window_at(const Position& h, const Tap& tap) const {
  Position j;
  for (int a = 0; a < kMaxRank; ++a) {
    const Axis& axis = problem_.geometry.axes[a];
    const int64_t from = h[a] + axis.pad - tap.at[a] * axis.dilation;
    if (from < 0 || from % axis.stride != 0 || from / axis.stride >= axis.y) return {};
    j[a] = from / axis.stride;
  }
  return j;
}

// f(channels): pieces of them, by several threads if there is enough to do.
template <class F>
void FewPixelsPlan::for_each_channels(int64_t work, int64_t channels, const F& f) const {
  constexpr int64_t kPiece = 64, kSerial = 16 << 10;
  const int64_t pieces = ceil_div(channels, kPiece);
  parallel_for(work < kSerial ? 1 : problem_.threads, pieces,
               [&](int64_t i) { f(Range{i * kPiece, std::min(channels, (i + 1) * kPiece)}); });
}

// rows[pixel][matrix][what is summed]
void FewPixelsPlan::gather(const Operands& operands, char* rows) const {
  const Geometry& g = problem_.geometry;
  const CopyFunction widen = arithmetic_.widen[static_cast<int>(problem_.dtype)];
  const char* const in = in_data(operands, 0);
  std::memset(rows, 0, pixels_ * row_ * unit());
  const int64_t work = pixels_ * in_channels_ * (fprop_ ? std::ssize(taps_) : 1);
  for_each_channels(work, in_channels_, [&](const Range& channels) {
    const auto copy = [&](int64_t image, const Position& at, int64_t to, int64_t step) {
      const int64_t from = offset({image, at[0], at[1], at[2]}, in_.stride);
      widen({in + (from + channels.begin * in_.channel) * element(), 0, in_.channel,
             rows + (to + channels.begin * step) * unit(), 0, step, 1,
             channels.end - channels.begin});
    };
    for (int64_t image = 0; image < g.batch; ++image)
      for_each_position(extents_of<&Axis::y>(g), [&](const Position& j) {
        const int64_t row = pixel_of(image, j) * row_;
        if (!fprop_) return copy(image, j, row, 1);
        for (const Tap& tap : taps_)
          if (const auto h = position_of(j, tap))
            copy(image, *h, row + tap.matrix * factors_ + tap.first, tap_step_);
      });
  });
}

// Some columns of the result, summed over some rows. Few rows at a time: prefetchers follow few.
void FewPixelsPlan::multiply_columns(const char* w, int64_t matrix, const Range& rows,
                                     const Range& columns, const char* a, char* sums) const {
  constexpr int64_t kSteps = 8;
  InPlaceProduct call{};
  call.a = a + rows.begin * unit();
  call.b = w + (matrices_[matrix] + rows.begin * matrix_.row + columns.begin) * element();
  call.c = sums + columns.begin * unit();
  call.a_row = row_;
  call.a_step = 1;
  call.b_step = matrix_.row;
  call.c_row = call.sums_row = terms_ * sums_row_;
  call.rows = pixels_;
  call.lanes = columns.end - columns.begin;
  for (int64_t row = rows.begin; row < rows.end; row += kSteps) {
    call.steps = std::min(kSteps, rows.end - row);
    call.to_sums = row + kSteps < rows.end;
    kernels_.product[static_cast<int>(problem_.dtype)][static_cast<int>(sum_dtype(problem_.dtype))](
        call);
    call.sums = call.c;
    call.a = static_cast<const char*>(call.a) + kSteps * unit();
    call.b = static_cast<const char*>(call.b) + kSteps * matrix_.row * element();
  }
}

// Some rows, a result each. Each cut of the columns has sums of its own.
void FewPixelsPlan::multiply_rows(const char* w, int64_t matrix, const Range& rows, const char* a,
                                  const char* zeros, char* sums) const {
  const auto dot_products = kernels_.dot_products[static_cast<int>(problem_.dtype)]
                                                 [static_cast<int>(sum_dtype(problem_.dtype))];
  for (int64_t cut = 0; cut < summed_.count; ++cut, sums += sums_row_ * unit()) {
    const Range columns = summed_[cut];
    dot_products({w + (matrices_[matrix] + rows.begin * matrix_.row + columns.begin) * element(),
                  a + columns.begin * unit(), zeros, sums + rows.begin * unit(), matrix_.row, row_,
                  1, pixels_ > 1 ? terms_ * sums_row_ : 1, rows.end - rows.begin, pixels_,
                  columns.end - columns.begin});
  }
}

// Sums of a pixel, `step` apart, to those of channels.
template <class Sum>
void FewPixelsPlan::add_terms(const char* sums, int64_t pixel, int64_t first, int64_t step,
                              int64_t count, Sum* to) const {
  const Sum* from = reinterpret_cast<const Sum*>(sums) + pixel * terms_ * sums_row_ + first;
  for (int64_t term = 0; term < terms_; ++term, from += sums_row_)
    for (int64_t i = 0; i < count; ++i) to[i] += from[i * step];
}

template <class Sum>
void FewPixelsPlan::finish(const Operands& operands, const char* sums, const char* bias) const {
  const Geometry& g = problem_.geometry;
  const CopyFunction unpack = arithmetic_.unpack[static_cast<int>(problem_.dtype)];
  char* const out = out_data(operands, 0);
  const int64_t work = pixels_ * terms_ * sums_row_;
  for_each_channels(work, out_channels_, [&](const Range& channels) {
    const int64_t count = channels.end - channels.begin;
    Sum* const stage = local_scratch<Sum>(count);
    const auto start = [&] {
      if (bias)
        std::memcpy(stage, bias + channels.begin * unit(), count * unit());
      else
        std::memset(stage, 0, count * unit());
    };
    const auto write = [&](int64_t image, const Position& at) {
      const int64_t to = offset({image, at[0], at[1], at[2]}, out_.stride);
      unpack({stage, 0, 1, out + (to + channels.begin * out_.channel) * element(), 0, out_.channel,
              1, count});
    };
    for (int64_t image = 0; image < g.batch; ++image) {
      if (fprop_)
        for_each_position(extents_of<&Axis::y>(g), [&](const Position& j) {
          start();
          add_terms(sums, pixel_of(image, j), channels.begin, 1, count, stage);
          write(image, j);
        });
      else
        for_each_position(extents_of<&Axis::x>(g), [&](const Position& h) {
          start();
          for (const Tap& tap : taps_)
            if (const auto j = window_at(h, tap))
              add_terms(sums, pixel_of(image, *j),
                        tap.matrix * results_ + tap.first + channels.begin * tap_step_, tap_step_,
                        count, stage);
          write(image, h);
        });
    }
  });
}

void FewPixelsPlan::run(const Operands& operands) const {
  const int dtype = static_cast<int>(problem_.dtype);
  char* const rows = shared_scratch<char>(workspace);
  char* const sums = rows + pixels_ * row_ * unit();
  char* const zeros = sums + pixels_ * terms_ * sums_row_ * unit();
  char* const bias = operands.bias ? zeros + pixels_ * unit() : nullptr;
  if (bias) arithmetic_.widen[dtype]({operands.bias, 0, 1, bias, 0, 1, 1, out_channels_});
  std::memset(zeros, 0, pixels_ * unit());
  gather(operands, rows);
  const char* const w = static_cast<const char*>(operands.data.w);
  const int64_t matrices = std::ssize(matrices_), others = others_.count;
  const int64_t cuts = columns_are_results_ ? summed_.count : 1;
  parallel_for(problem_.threads, matrices * cuts * others, [&](int64_t i) {
    const int64_t matrix = i / others / cuts, cut = i / others % cuts;
    const char* const a = rows + (fprop_ ? matrix * factors_ : 0) * unit();
    const int64_t term = (fprop_ ? matrix * summed_.count : 0) + cut;
    char* const to = sums + (term * sums_row_ + (fprop_ ? 0 : matrix * results_)) * unit();
    if (columns_are_results_)
      multiply_columns(w, matrix, summed_[cut], others_[i % others], a, to);
    else
      multiply_rows(w, matrix, others_[i % others], a, zeros, to);
  });
  if (problem_.dtype == Dtype::f64)
    finish<double>(operands, sums, bias);
  else
    finish<float>(operands, sums, bias);
}

}  // namespace

bool may_leave_weights(const Problem& problem, int64_t lanes) {
  const Geometry& g = problem.geometry;
  if (g.groups > 1 || problem.wanted == Role::w) return false;
  const std::optional<Matrix> matrix = matrix_of(problem);
  return matrix && matrix->columns >= lanes && matrix->rows >= kDotPixels;
}

std::unique_ptr<const Plan> few_pixels_plan(const Problem& problem, const Arithmetic& arithmetic,
                                            const InPlaceKernels& kernels) {
  return std::make_unique<FewPixelsPlan>(problem, arithmetic, kernels);
}

}  // namespace convtbw::simd
