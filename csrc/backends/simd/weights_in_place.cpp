// wgrad of one tap with few channels on one side: both tensors are read where they lie, once.
// Channels first, sums have a lane for each of a vector's pixels, which are added in the end.
// Channels last, lanes are channels of the side with more of them.
#include <algorithm>
#include <cstring>

#include "backends/simd/box.h"
#include "backends/simd/epilogue.h"
#include "backends/simd/folded_runs.h"
#include "backends/simd/pixel_pieces.h"
#include "backends/simd/plans.h"
#include "backends/simd/sums.h"
#include "core/parallel.h"
#include "core/scratch.h"

namespace convtbw::simd {

namespace {

class InPlaceWeightsPlan : public Plan {
 public:
  InPlaceWeightsPlan(const Problem& problem, const Arithmetic& arithmetic,
                     const InPlaceKernels& kernels, Lanes lanes);
  void run(const Operands& operands) const override;

 private:
  struct Side {
    Role role;
    Tensor tensor;
    int64_t channels;
    int64_t w;  // stride of the weights
  };

  void choose_sizes();
  const char* data(const Operands& operands, const Side& side, int64_t group,
                   const PixelPiece& piece) const;
  void add_pixels(const Operands& operands, int64_t group, const PixelPiece& piece,
                  char* sums) const;
  void add_lanes(const Operands& operands, int64_t group, const PixelPiece& piece, char* wide,
                 char* sums) const;
  void run_chunk(const Operands& operands, int64_t part, int64_t chunk, char* wide,
                 char* sums) const;
  void finish(const Operands& operands, int64_t part, char* sums) const;

  int64_t unit() const { return element_bytes(sum_dtype(problem_.dtype)); }
  int64_t element() const { return element_bytes(problem_.dtype); }

  const Problem problem_;
  const Arithmetic& arithmetic_;
  const InPlaceKernels& kernels_;
  const bool pixels_in_lanes_;
  Side rows_, columns_;
  PixelPieces pieces_;
  int64_t sums_row_, sums_units_, wide_units_;
  const int64_t parts_;                // a group's weights gradient of a slice
  int64_t part_pieces_;                // of its images
  int64_t chunks_, pieces_per_chunk_;  // of a part
};

InPlaceWeightsPlan::InPlaceWeightsPlan(const Problem& problem, const Arithmetic& arithmetic,
                                       const InPlaceKernels& kernels, Lanes lanes)
    : problem_(problem),
      arithmetic_(arithmetic),
      kernels_(kernels),
      pixels_in_lanes_(lanes == Lanes::pixels),
      rows_{Role::x, x_tensor(problem), problem.geometry.x_channels, problem.w.x_channel},
      columns_{Role::y, y_tensor(problem), problem.geometry.y_channels, problem.w.y_channel},
      parts_(problem.slices * problem.geometry.groups) {
  // What tiles of 3 rows and 4 columns load; lanes are the larger side.
  const auto loads = [](int64_t rows, int64_t columns) {
    return rows * ceil_div(columns, 4) + columns * ceil_div(rows, 3);
  };
  const bool exchange = pixels_in_lanes_ ? loads(columns_.channels, rows_.channels) <
                                               loads(rows_.channels, columns_.channels)
                                         : columns_.channels < rows_.channels;
  if (exchange) std::swap(rows_, columns_);
  choose_sizes();
  kernel = std::string("wgrad, in place, ") +
           (pixels_in_lanes_           ? "pixels"
            : columns_.role == Role::x ? "x"
                                       : "y") +
           " in lanes, " + arithmetic.name;
  workspace = ((chunks_ > 1 ? parts_ * chunks_ : problem.threads) * sums_units_ +
               problem.threads * wide_units_) *
              unit();
  bytes = sizeof(InPlaceWeightsPlan);
}

// Sizes depend on the shape alone, so that results do not depend on the number of threads.
void InPlaceWeightsPlan::choose_sizes() {
  constexpr int64_t kPieceBytes = 128 << 10;  // of both sides
  constexpr int64_t kItems = 16;              // enough to keep some threads busy until the end
  const Geometry& g = problem_.geometry;
  const int64_t lanes = arithmetic_.lanes, pixels = g.axes.back().x;
  const int64_t fit = kPieceBytes / ((rows_.channels + columns_.channels) * element());
  pieces_ = pixels_in_lanes_ ? PixelPieces::of_at_most(
                                   std::clamp(fit, 16 * lanes, kMaxSteps * lanes), pixels, lanes)
                             : PixelPieces::of_at_most(kMaxSteps, pixels, 1);
  sums_row_ =
      pixels_in_lanes_ ? columns_.channels * lanes : ceil_div(columns_.channels, lanes) * lanes;
  sums_units_ = rows_.channels * sums_row_;
  wide_units_ = pixels_in_lanes_ || problem_.dtype == sum_dtype(problem_.dtype)
                    ? 0
                    : pieces_.most_pixels() * rows_.channels;
  // Chunks of pieces, each with sums of its own, where there are few parts: as long as these are
  // few beside what is read.
  const int64_t images = g.batch / problem_.slices;
  const int64_t read = images * pixels * (rows_.channels + columns_.channels);
  part_pieces_ = images * pieces_.cuts;
  chunks_ = std::clamp<int64_t>(read / (4 * sums_units_), 1,
                                std::min(part_pieces_, ceil_div(kItems, parts_)));
  pieces_per_chunk_ = ceil_div(part_pieces_, chunks_);
  chunks_ = ceil_div(part_pieces_, pieces_per_chunk_);
}

const char* InPlaceWeightsPlan::data(const Operands& operands, const Side& side, int64_t group,
                                     const PixelPiece& piece) const {
  const Tensor& tensor = side.tensor;
  return static_cast<const char*>(operands.data[side.role]) +
         (group * side.channels * tensor.channel + piece.image * tensor.stride[0] +
          piece.begin * tensor.stride[3]) *
             element();
}

void InPlaceWeightsPlan::add_pixels(const Operands& operands, int64_t group,
                                    const PixelPiece& piece, char* sums) const {
  kernels_.pixel_sums[static_cast<int>(problem_.dtype)](
      {data(operands, rows_, group, piece), data(operands, columns_, group, piece),
       rows_.tensor.channel, columns_.tensor.channel, rows_.channels, columns_.channels,
       piece.pixels, sums});
}

void InPlaceWeightsPlan::add_lanes(const Operands& operands, int64_t group, const PixelPiece& piece,
                                   char* wide, char* sums) const {
  const Tensor& rows = rows_.tensor;
  InPlaceProduct call{};
  call.a = data(operands, rows_, group, piece);
  call.a_row = rows.channel;
  call.a_step = rows.stride[3];
  if (wide_units_) {
    arithmetic_.widen[static_cast<int>(problem_.dtype)](
        {call.a, call.a_step, call.a_row, wide, rows_.channels, 1, piece.pixels, rows_.channels});
    call.a = wide;
    call.a_row = 1;
    call.a_step = rows_.channels;
  }
  call.b = data(operands, columns_, group, piece);
  call.b_step = columns_.tensor.stride[3];
  call.c = sums;
  call.c_row = sums_row_;
  call.rows = rows_.channels;
  call.lanes = columns_.channels;
  call.steps = piece.pixels;
  call.sums = sums;
  call.sums_row = sums_row_;
  call.to_sums = true;
  kernels_.product[static_cast<int>(problem_.dtype)][static_cast<int>(sum_dtype(problem_.dtype))](
      call);
}

void InPlaceWeightsPlan::run_chunk(const Operands& operands, int64_t part, int64_t chunk,
                                   char* wide, char* sums) const {
  const int64_t groups = problem_.geometry.groups, first = chunk * pieces_per_chunk_;
  std::memset(sums, 0, sums_units_ * unit());
  for (int64_t i = first; i < std::min(first + pieces_per_chunk_, part_pieces_); ++i) {
    const PixelPiece piece = pieces_.piece(part / groups * part_pieces_ + i);
    if (pixels_in_lanes_)
      add_pixels(operands, part % groups, piece, sums);
    else
      add_lanes(operands, part % groups, piece, wide, sums);
  }
}

// Writes a part's sums to the weights.
void InPlaceWeightsPlan::finish(const Operands& operands, int64_t part, char* sums) const {
  const int64_t groups = problem_.geometry.groups;
  const int64_t bytes = element_bytes(result_dtype(problem_));
  char* const w = static_cast<char*>(operands.data.w) +
                  (part / groups * problem_.w.slice + part % groups * problem_.w.group) * bytes;
  const int64_t lanes = arithmetic_.lanes, columns = columns_.channels;
  if (pixels_in_lanes_) {
    const auto add = [&](auto* of) {
      for (int64_t i = 0; i < rows_.channels * columns; ++i) {
        auto sum = of[i * lanes];
        for (int64_t lane = 1; lane < lanes; ++lane) sum += of[i * lanes + lane];
        of[i] = sum;
      }
    };
    if (sum_dtype(problem_.dtype) == Dtype::f64)
      add(reinterpret_cast<double*>(sums));
    else
      add(reinterpret_cast<float*>(sums));
    write_weights(problem_, arithmetic_,
                  {sums, columns, 1, w, rows_.w, columns_.w, rows_.channels, columns});
    return;
  }
  // The last vector overlaps the one before.
  const int64_t whole = columns / lanes * lanes, rest = columns - whole;
  write_weights(problem_, arithmetic_,
                {sums, sums_row_, 1, w, rows_.w, columns_.w, rows_.channels, whole});
  if (rest)
    write_weights(problem_, arithmetic_,
                  {sums + (whole + lanes - rest) * unit(), sums_row_, 1,
                   w + whole * columns_.w * bytes, rows_.w, columns_.w, rows_.channels, rest});
}

void InPlaceWeightsPlan::run(const Operands& operands) const {
  if (chunks_ == 1) {
    parallel_for(problem_.threads, parts_, [&](int64_t part) {
      char* const sums = local_scratch<char>((sums_units_ + wide_units_) * unit());
      run_chunk(operands, part, 0, sums + sums_units_ * unit(), sums);
      finish(operands, part, sums);
    });
    return;
  }
  char* const all = shared_scratch<char>(parts_ * chunks_ * sums_units_ * unit());
  sum_chunks(
      problem_.threads, {problem_.dtype, all, parts_, chunks_, sums_units_},
      [&](int64_t) { return sums_units_; },
      [&](int64_t part, int64_t chunk, char* sums) {
        run_chunk(operands, part, chunk, local_scratch<char>(wide_units_ * unit()), sums);
      });
  parallel_for(problem_.threads, parts_, [&](int64_t part) {
    finish(operands, part, all + part * chunks_ * sums_units_ * unit());
  });
}

}  // namespace

std::unique_ptr<const Plan> in_place_weights_plan(const Problem& problem,
                                                  const Arithmetic& arithmetic,
                                                  const InPlaceKernels& kernels, Lanes lanes) {
  return std::make_unique<InPlaceWeightsPlan>(problem, arithmetic, kernels, lanes);
}

}  // namespace convtbw::simd
