// The innermost loops, as one table per instruction set. The loop nests around them are ordinary
// C++ that is compiled once; only what stands behind these pointers is compiled per target.
//
// An *arithmetic* is a way to multiply and add: its *unit* is what one lane of an operand holds (a
// float, a double, or a pair of bfloat16) and as wide as its *sum* (float, double, float). Offsets,
// strides and steps of buffers count units; those of tensors count elements.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "core/dtype.h"

namespace convtbw::simd {

inline Dtype sum_dtype(Dtype dtype) { return dtype == Dtype::f64 ? Dtype::f64 : Dtype::f32; }

// A stretch of a sum over which both operands advance by constant steps: offsets and length.
struct Run {
  int64_t a, b, steps;
  bool fold = false;  // a new sum begins behind this run; in the end all of them are added
  // Gathered rows of pairs: one more step, with what is the first element of a pair alone. The
  // second may be another window's, whose infinity times zero would be NaN.
  bool half_step = false;
};

enum class Start : uint8_t {
  zero,
  bias,        // row-independent: `bias` holds one sum a lane
  accumulate,  // zero, and what the result holds is added at the end: sums stay short and exact
};

// How far ahead tiles ask for their operands (tile.h).
inline constexpr int64_t kAheadBytes = 1536;

// A register tile: rows x (vectors * lanes) sums.
//   c[i][j] = start + sum over runs r and steps k of  a[r.a + row(i) + k] * b[r.b + k * b_step + j]
struct TileCall {
  const void *a, *b;
  const Run* runs;
  int64_t run_count;
  void* c;
  int64_t live;  // lanes of the result; those behind them are not read, and are what they were
  Start start = Start::zero;
  const void* bias = nullptr;
  // bf16 or f16: sums are rounded to elements of the result, unless they accumulate. Else the
  // result is of sums.
  Dtype result = Dtype::f32;
  // Gathered rows: row i of a begins at a_rows[i] and advances by 1, b by the tile's width; row i
  // of the result begins at c_rows[i]. Where units are pairs, a_rows count their elements.
  const int64_t *a_rows = nullptr, *c_rows = nullptr;
  bool fetches_result = false;  // its rows may be anywhere in memory, which is asked for them first
  // Each row of the result begins where the live lanes of the one before end, of which the vectors
  // miss no more than are live: all rows but the last may be written as whole vectors, in turn.
  bool rows_follow = false;
  // Adjacent rows: row i of a begins at i and advances by a_step; row i of the result at i * c_row.
  int64_t a_step = 0, b_step = 0, c_row = 0;
  int64_t a_ahead = 0, b_ahead = 0;  // bytes behind each step that are asked of memory meanwhile

  // Both steps, of units of so many bytes.
  void set_steps(int64_t a, int64_t b, int64_t unit) {
    a_step = a;
    b_step = b;
    // Where a step begins, for what lies between the steps of a stride is not read. Always 1536
    // bytes, with strides of 3 and 8 lanes, took 1.13 times as long (Zen 4).
    constexpr int64_t kLeastSteps = 6;
    const auto ahead = [&](int64_t step) {
      return step * std::max(kLeastSteps, kAheadBytes / std::max<int64_t>(step, 1));
    };
    a_ahead = ahead(a * unit);
    b_ahead = ahead(b * unit);
  }
};

using Tile = void (*)(const TileCall&);

inline constexpr int kMaxRows = 32, kMaxVectors = 4;

// Tiles by [vectors][rows]; rows 1 to max_rows[vectors].
struct Tiles {
  int max_rows[kMaxVectors + 1];
  Tile gathered[kMaxVectors + 1][kMaxRows + 1];
  Tile adjacent[kMaxVectors + 1][kMaxRows + 1];
};

// Below, lanes are channels on every side: of x, of w and of y. Where they are no multiple of a
// vector, the last vector overlaps the one before; there is at least one.

enum class Halves : uint8_t { both, first, second };

// Neighbouring taps whose pixels are as far apart as those of results, so that results share what
// they read. Where the first one lies, behind the pixel and in the weights. With pairs each is two
// taps of neighbouring rows, or one of the two.
struct LaneTapRun {
  int64_t a, w, taps;
  Halves halves = Halves::both;
  int64_t plane = 0;  // where lanes are spread (SpreadLanes): of its taps
};

// Runs of one row of results are of 1 tap each; or else of 3 and 2, or of 4 and 3, along at least
// so many pixels.
inline constexpr int kMinRunTaps = 3, kMaxRunTaps = 4, kMinRunPixels = 4;

// Results whose windows meet the same taps.
//   c[i*c_step + lane] = start[lane] + sum over runs r and t < r.taps of
//     a[r.a + (i + t)*a_step + lane] * w[r.w + t*w_step + lane*w_lane]
// Units of w and start; of a and c elements of a tensor, if they lie in one.
struct LaneRow {
  const void *a, *w;
  const LaneTapRun* runs;
  int64_t run_count, most_taps;  // most_taps: of a run
  const void* start;
  void* c;
  int64_t pixels, a_step, w_step, c_step;
  int64_t lanes;
  // What is asked of memory beforehand: units behind each pixel, and behind each result where not
  // 0. No prefetcher of a CPU follows pixels of which a few channels are read at a time.
  const int64_t* ahead;
  int64_t ahead_count, c_ahead;
  int64_t second;  // with pairs: how far behind a pair's first element of a the second one lies
  int64_t w_lane;  // units of w from one lane to the next, of whole vectors
  // Where lanes are spread (SpreadLanes), or one of a is broadcast to those of a group, whole
  // vectors: lanes of one, where in theirs row.lanes begin, lanes of a of each.
  int64_t group, group_lane, planes;
};

// Results of windows that are twice as long as they are apart, in two axes, and whose positions are
// `stride` times as many along the last one, from `pad` behind the first tap on. Some rows of
// positions are met by two rows of windows, with taps that are half a window apart: one row begins
// with them, and the other, which began with those before, ends. Both, or one of them:
//   partial[i*partial_step + lane] = start[lane] + sum over rows r, present positions of window i
//     and its taps t of  a[r*a_row + (i*stride + t - pad)*a_pixel + lane] *
//                        w[r*w_row + t*w_tap + lane]
//   c[i*c_step + lane] = partial[...], from before, + the same sum with w + w_rows
// Where one row ends alone, w is of its own taps; partial sums of whole vectors. Units of w, start,
// partial; of a and c elements.
struct LaneWindowRows {
  const void *a, *w;
  const void* start;
  void *partial, *c;
  int64_t a_rows, a_row, a_pixel, w_row, w_rows, w_tap;
  int64_t windows, stride, pad, lanes, partial_step, c_step;
  bool both, begins;
  int64_t a_ahead;  // asked of memory beforehand: elements behind each position; or 0
};

// Where a row of taps begins: units behind the pixel and in the weights or their sums.
struct LaneTapRow {
  int64_t a, w;
};

// A band: rows of results, a_row units apart in a, of windows that are one pixel apart, as are
// their taps. Their rows of taps come alone, or kRowsTogether of them with as many taps: the second
// and third a_row and w_row units behind the first.
//   c[r*c_row + i*c_step + lane] = start[lane] + sum over tap rows j and those t < taps for which
//     begin <= i + t < end:  a[j.a + r*a_row + (i + t)*a_step + lane] * w[j.w + t*w_tap + lane]
// Units of w and start; of a and c elements of a tensor.
struct LaneBand {
  const void *a, *w;
  const LaneTapRow* tap_rows;
  int64_t tap_row_count, together;
  const void* start;
  void* c;
  int64_t rows, windows, begin, end;
  int64_t a_row, a_step, w_row, w_tap, c_row, c_step;
  int64_t lanes;
  int64_t a_ahead, c_ahead;  // asked of memory beforehand: units behind each row's pixel; or 0
};

inline constexpr int kMaxBandRows = 6, kMinBandTaps = 3, kMaxBandTaps = 11, kRowsTogether = 3;

// By taps; nullptr where not needed.
struct LaneBandFunctions {
  int max_rows[kMaxBandTaps + 1];
  void (*at[kMaxBandTaps + 1])(const LaneBand&);
};

// A row of results of windows that are kScatterStride pixels apart, which are added up column by
// column: each pixel of the operand is multiplied by all taps of its window. With m and p the
// quotient and remainder of tap t by the stride, and `last` the m of the last tap,
//   c[(i*stride + p)*c_step + lane] = start[lane] + sum over tap rows j and those t for which
//     begin <= i + last - m < end:
//       a[j.a + (i + last - m)*a_step + lane] * w[j.w + t*w_tap + lane]
// for from <= i*stride + p < to. Units of w and start; of a and c elements of a tensor.
struct LaneScatter {
  const void *a, *w;
  const LaneTapRow* tap_rows;
  int64_t tap_row_count;
  const void* start;
  void* c;
  int64_t windows, begin, end, from, to;
  int64_t a_step, w_tap, c_step;
  int64_t lanes;
  int64_t a_ahead, c_ahead;  // asked of memory beforehand: units behind each pixel; or 0
};

inline constexpr int kScatterStride = 2, kMinScatterTaps = 3, kMaxScatterTaps = 7;

// By taps - kMinScatterTaps; nullptr where not needed.
using LaneScatterFunctions =
    std::array<void (*)(const LaneScatter&), kMaxScatterTaps - kMinScatterTaps + 1>;

// Which lanes of a vector of a the functions for spread lanes multiply by lane l: l - l % group +
// plane, with groups of 2, 4 or, with 16 lanes, 8 lanes of 32 bits. A plane may be of two lanes
// each instead, pairs of bfloat16.
struct SpreadLanes {
  int64_t group, plane;
};

// Sums over runs of pixels, elements of a tensor if a or b lies in one, of one or two vectors of
// lanes, for some rows of taps that are at a constant distance in each row.
//   sums[v*sums_vector + rows[r].w + t*vector + lane] += sum over runs and their steps i of
//     a[run.a + rows[r].a + t*a_tap + i*a_step + v*vector + lane] * b[run.b + i*b_step + v*vector +
//     lane]
struct LaneTaps {
  const void *a, *b;
  const Run* runs;
  int64_t run_count;
  const LaneTapRow* rows;
  int64_t a_tap, a_step, b_step;
  void* sums;
  int64_t sums_vector;
  // What is asked of memory beforehand, nothing if b_ahead is 0: step i of a run asks for what lies
  // (ahead_turn*(steps - 1) + i)*a_ahead_step + a_ahead[...] units behind its first step; of b
  // likewise.
  // Into the first-level cache or else the second.
  const int64_t* a_ahead;
  int64_t a_ahead_count, b_ahead, a_ahead_step, b_ahead_step, ahead_turn;
  bool ahead_to_first;
  SpreadLanes spread;
};

// The most taps, of all rows, by vectors: accumulators and b fill 16 registers.
inline constexpr int kMaxLaneRows = 6, kMaxLaneTaps[] = {0, 12, 7};

// By [vectors][rows][taps]; nullptr where all together are too many.
struct LaneTapsFunctions {
  void (*at[3][kMaxLaneRows + 1][kMaxLaneTaps[1] + 1])(const LaneTaps&);
};

// Where rows of positions and of windows begin.
struct SlidLine {
  int64_t a, b;
};

// The same where windows slide over lines of positions one by one: tap t of window i - t meets
// position i. There are `windows` of them and so many before; others count as zeros.
//   sums[v*sums_vector + rows[r].w + t*sums_tap + lane] += sum over lines and i < positions of
//     a[line.a + rows[r].a + i*a_step + v*vector + lane] * b[line.b + (i - t)*b_step + v*vector +
//     lane]
struct LaneSlides {
  const void *a, *b;
  const SlidLine* lines;
  int64_t line_count, positions;
  const LaneTapRow* rows;
  int64_t a_step, b_step;
  int64_t before, windows;
  void* sums;
  int64_t sums_vector, sums_tap;
  // What is asked of memory beforehand, by one window in so many, or by none if 0: window i asks
  // for what lies i*a_ahead_step bytes and a_ahead[...] units behind the first position; of b
  // likewise. With pairs of bfloat16 a_ahead_step is 2*a_step.
  int64_t ahead_every;
  const int64_t* a_ahead;
  int64_t a_ahead_count, b_ahead, a_ahead_step, b_ahead_step;
  SpreadLanes spread;
};

inline constexpr int kMaxSlidRows = 6;
inline constexpr int64_t kMaxSlidTaps = 12, kPairedSlidTaps = 5;

// By [vectors][rows][taps]; rows 1 to max_rows[vectors][taps]: 0 for two vectors but where these
// are halves of a cache line, of kPairedSlidTaps.
struct LaneSlidesFunctions {
  int max_rows[3][kMaxSlidTaps + 1];
  void (*at[3][kMaxSlidRows + 1][kMaxSlidTaps + 1])(const LaneSlides&);
};

// Sums over a row of positions of a and the windows that meet them, where windows are twice as long
// as they are apart, in one axis or two: each position is met by this window and the one before,
// and by as many a row of windows before. Column c of position i lies at i*a_step + c*a_column.
//   sums[r*sums_row + w*sums_window + lane / vector * sums_vector + c*vector + lane % vector] +=
//     sum over i < steps of  a[i*a_step + c*a_column + lane] * b[r*b_row + (i - w)*b_step + lane]
struct LaneWindows {
  const void *a, *b;
  int64_t steps, a_column, a_step, b_row, b_step;
  bool begun, ended;  // whether there is a window before the first step, and none at the last one
  bool head, tail;  // of two columns, whether the first step has but the second, the last the first
  int64_t lanes;
  void* sums;
  int64_t sums_row, sums_window, sums_vector;
  int64_t a_ahead, b_ahead;  // asked of memory beforehand: units behind each step; or 0
};

// By [rows - 1][columns - 1].
struct LaneWindowsFunctions {
  void (*at[2][2])(const LaneWindows&);
};

// Channels of one side repeated so that each lane of a vector has its own:
//   to[plane*to_plane + i*to_step + lane] = from[i*from_step + index[lane] + plane]
// Indices ascend. `from` is of elements, of which so many may be read, `to` of units.
struct Spread {
  const void* from;
  int64_t from_step, readable;
  const int32_t* index;
  void* to;
  int64_t to_step, to_plane, planes, positions;
};

// Rows of taps that meet neighbouring rows of pixels: where the first of them begins, in a and in
// w.
struct PlaneSection {
  int64_t a, w, rows;
};

// Rows of results of one channel, whose pixels are neighbours:
//   c[r*c_row + i] = *start + sum over sections s, k < s.rows and t < tap_count of
//     a[s.a + (r + k)*a_row + taps[t] + i] * w[s.w + k*w_row + t],  i < count
// Units, but c is of elements. At least a vector of pixels. Of several sections c may hold sums in
// between, which it must not round.
struct PlaneRows {
  const void *a, *w;
  const PlaneSection* sections;
  int64_t section_count;
  const int64_t* taps;
  int64_t tap_count;
  const void* start;
  void* c;
  int64_t rows, count, a_row, w_row, c_row;
};

// The same where lanes are neighbouring taps, of windows that are `step` apart:
//   c[r*c_row + i] = *start + sum over rows of taps k < tap_rows and t < taps of
//     a[tap_row[k] + r*a_row + i*step + t] * w[k*taps + t],  i < count
// Taps: whole vectors. At least a vector of results.
struct WindowRows {
  const void *a, *w;
  const int64_t* tap_row;
  int64_t tap_rows, taps;
  const void* start;
  void* c;
  int64_t rows, count, step, a_row, c_row;
};

// Sums of the pixels that so many neighbouring rows of taps multiply, and so many taps of each:
//   sums[k*sums_row + t*vector + i % vector] +=
//     sum over rows r and i < count of  a[r*a_row + taps[t] + i] * b_rows[r - k][i]
// a: units; b: elements or units. Of rows shorter than a vector, a and b are read to its end.
struct PlaneTaps {
  const void* a;
  const void* const* b_rows;
  const int64_t* taps;
  void* sums;
  int64_t rows, count, a_row, sums_row;
  // What is asked of memory beforehand: so many bytes with each row, from two places.
  const char* ahead[2];
  int64_t ahead_bytes[2];
};

// A vector of neighbouring taps: how many rows behind the first that a window meets, and where in
// it.
struct WindowTap {
  int64_t row, a;
};

// The same where lanes are neighbouring taps, of windows that are `step` apart:
//   sums[k*sums_row + t*vector + lane] +=
//     sum over rows r and i < count of
//       a_rows[r*a_row + taps[t].row][taps[t].a + i*step + lane] * b_rows[r - k][b + i]
// a: elements of a tensor or units. `ahead`: the row of windows behind each is asked of memory.
struct WindowTaps {
  const void* const* a_rows;
  const void* const* b_rows;
  const WindowTap* taps;
  void* sums;
  int64_t rows, count, step, a_row, b, sums_row;
  bool ahead;
};

// The most taps, by rows: accumulators, a vector of each row or tap and one more fill 16 registers.
inline constexpr int kMaxTapRows = 4, kMaxPlaneTaps[] = {0, 9, 6, 4, 3};

// By [rows][taps].
template <class Call>
struct TapsFunctions {
  void (*at[kMaxTapRows + 1][kMaxPlaneTaps[1] + 1])(const Call&);
};

// The same where windows are 2 apart: of a, which is read where it lies, tap t meets the pixels
// 2*i + (t + odd) % 2.
//   sums[k*sums_row + t*vector + i % vector] += sum over rows r and pixels p = 2*i + (t + odd) % 2
//     of  a[r*a_row + p] * b_rows[r - k][b + i - (t + odd) / 2],  p < count
// a: elements. b's rows are readable, and finite, up to a vector behind the last pixel.
struct DealtTaps {
  const void* a;
  const void* const* b_rows;
  void* sums;
  int64_t rows, count, a_row, b, sums_row;
  int64_t a_ahead;  // asked of memory beforehand: elements behind each pixel; or 0
};

// The most taps, by rows: accumulators, two halves and a vector of b fill 16 registers.
inline constexpr int kMaxDealtRows = 3, kMaxDealtTaps[] = {0, 9, 5, 4};

// By [odd][rows][taps].
struct DealtTapsFunctions {
  void (*at[2][kMaxDealtRows + 1][kMaxDealtTaps[1] + 1])(const DealtTaps&);
};

// Rows of neighbouring pixels, converted to units; copied,
//   to[row*to_row + i] = from[row*from_row + i],  i < count
// or dealt:
//   to[row*to_row + i / 2] or, where i is odd, odd_to[row*to_row + i / 2]
struct PlaneCopy {
  const void* from;
  int64_t from_row;
  void* to;
  int64_t to_row, rows, count;
  void* odd_to = nullptr;
  // With pairs: how far behind an element of the tensor the second one of its pair lies; or pairs
  // are of first elements alone.
  int64_t second = 0;
  Halves halves = Halves::both;
};

// The reverse, of `parts` rows; from sums to elements:
//   to[row*to_row + i] = from[row*from_row + i % parts * from_part + i / parts],  i < count
// Reads whole vectors.
struct PlaneTurns {
  const void* from;
  int64_t from_row, from_part;
  void* to;
  int64_t to_row, rows, count;
  int64_t to_ahead;  // asked of memory beforehand: elements behind each result
};

// By parts.
inline constexpr int kMaxTurnParts = 8;
struct PlaneTurnsFunctions {
  void (*at[kMaxTurnParts + 1])(const PlaneTurns&);
};

// A sum of rows, each shifted against the one before:
//   to[i*to_step] = [the same, or] start + sum over rows r of  from[r*step + i],  i < count
// Reads whole vectors, and writes them where results are neighbours or every second one; what lies
// between these is kept.
struct ShiftedSum {
  const void* from;
  int64_t step, rows;
  const void* start;  // one sum
  bool accumulate;
  void* to;
  int64_t to_step, count;
};

// Results of windows in turn, each the sum of what several windows have for it:
//   c[w*width + i] = start[i] + sum over t < term_count of  terms[t][w*step + i],  i < width;
//   of the last part_count terms i < part alone
// Reads and writes up to a vector behind.
struct AddedTaps {
  const void* const* terms;
  int64_t term_count, part_count, part;
  int64_t step, width;
  const void* start;
  void* c;
  int64_t windows;
};

// A matrix copied between a tensor and a buffer, converted on the way. Any strides; fast where one
// dimension is contiguous on either side.
struct Copy {
  const void* from;
  int64_t from_row, from_column;
  void* to;
  int64_t to_row, to_column;
  int64_t rows, columns;
  int64_t zeros = 0;  // so many columns behind the last one are set to zero
  // So many matrices side by side, of which every row is copied before the next row: tensors with
  // channels last are read as they lie.
  int64_t panels = 1, from_panel = 0, to_panel = 0;
  // bfloat16 pairs: which elements there are (the other is zero), and how far behind the first,
  // from which offsets count, the second lies.
  Halves halves = Halves::both;
  int64_t second = 0;
  bool odd = false;  // the last column's pairs have no second element
  // Where rows are neighbours in the source and columns in the destination, rows may be dealt in
  // turn to so many places: row i goes to place i % deal there, as its row i / deal.
  int64_t deal = 1, to_deal = 0;
  // So many times, each so far behind the one before: all of the above.
  int64_t times = 1, from_time = 0, to_time = 0;
};

using CopyFunction = void (*)(const Copy&);

// Winograd's minimal filtering in two dimensions (Lavin and Gray 2016): 16 products, one a
// frequency, yield all results of windows whose operand is 4 x 4: along each axis two results of
// three taps or three of two. Distances are in units.

// Frequency f of tile t: to[t*to_tile + f*frequency + channel]. At least a vector of channels.
struct WinogradOperand {
  const void* from;
  int64_t row, position, from_tile;
  void* to;
  int64_t frequency, to_tile;
  int64_t channels, tiles;
};

// to[f*frequency + lane]; whole vectors. An absent tap is nullptr.
struct WinogradWeights {
  const void* taps[3][3];
  void* to;
  int64_t frequency, lanes;
};

// The results of each tile from from[t*from_tile + f*frequency + lane]; whole vectors.
struct WinogradResults {
  const void* from;
  int64_t frequency, from_tile;
  const void* bias;  // may be nullptr
  void* to;
  int64_t row, position, to_tile;
  int64_t lanes, tiles;
};

struct Winograd {
  void (*operand)(const WinogradOperand&);
  void (*weights[2][2])(const WinogradWeights&);  // by taps - 2 of the two axes
  bool (*results[2][2])(const WinogradResults&);  // by results - 2; whether all are finite
};

// Kernels that spread lanes of a, all of float32, or of pairs of bfloat16, themselves; c by Dtype.
struct SpreadingKernels {
  void (*row[4])(const LaneRow&);
  LaneTapsFunctions taps;
  LaneSlidesFunctions slides;
};

struct Arithmetic {
  const char* name;
  int lanes;  // of one vector
  bool pairs;
  Tiles tiles;
  // By Dtype of the tensor; nullptr where this arithmetic does not serve the dtype. What sums of
  // 16-bit elements are added to may hold float32.
  CopyFunction pack[4];    // elements to units
  CopyFunction widen[4];   // elements to sums
  CopyFunction unpack[4];  // sums to elements
  CopyFunction keep;       // elements of bfloat16 as they are; for pairs alone
  void (*shifted_sum)(const ShiftedSum&);
  void (*added_taps)(const AddedTaps&);
  // For pairs where nothing is said, or not at all.
  void (*lane_row[4][4])(const LaneRow&);  // by Dtype of a and of c; nullptr where not needed
  LaneBandFunctions lane_bands[4];         // by Dtype of a and c
  LaneScatterFunctions lane_scatter[4];    // by Dtype of a and c
  void (*lane_window_rows[4])(const LaneWindowRows&);  // by Dtype of a and c
  LaneTapsFunctions lane_taps[4][4];  // by Dtype of a and of b; empty where not needed
  LaneSlidesFunctions lane_slides[4][4];
  LaneWindowsFunctions lane_windows[4][4];
  // Empty for float64; of pairs rows in registers alone.
  SpreadingKernels spreading_in_registers, spreading_by_broadcast;
  void (*spread[4])(const Spread&);         // by Dtype of from
  void (*plane_rows[4])(const PlaneRows&);  // by Dtype of c
  void (*window_rows)(const WindowRows&);
  TapsFunctions<PlaneTaps> plane_taps[4];    // by Dtype of b
  DealtTapsFunctions dealt_taps[4];          // by Dtype of a
  TapsFunctions<WindowTaps> window_taps[4];  // by Dtype of a
  void (*plane_deal[4])(const PlaneCopy&);   // by Dtype, also for pairs
  void (*plane_copy[4])(const PlaneCopy&);
  PlaneTurnsFunctions plane_turns[4];  // by Dtype of to
  const Winograd* winograd;            // float32 only
  int64_t least_steps = 0;             // sums are not folded before (folded_runs.h)
  bool matrices = false;               // tiles are in matrix registers (matrix_tile.h)
};

// The kernels that one target offers. All but the first two may be nullptr.
struct Kernels {
  const Arithmetic *f32, *f64;
  const Arithmetic* bf16_pairs;                   // in tiles
  const Arithmetic* bf16_lane_pairs;              // with the operand's channels in lanes
  const Arithmetic* f32_of_half_lanes = nullptr;  // of a vector
};

namespace generic {
extern const Kernels kKernels;
}
namespace generic512 {
extern const Kernels kKernels;
}
namespace avx2 {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}
namespace avx512_bf16 {
extern const Arithmetic kPairs;
}
namespace amx {
extern const Arithmetic kPairs;
}
namespace generic_amx {
extern const Arithmetic kPairs;
}

}  // namespace convtbw::simd
