#include "backends/simd/weights_planes.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backends/simd/epilogue.h"
#include "backends/simd/phases.h"
#include "backends/simd/plans.h"
#include "backends/simd/sums.h"
#include "core/parallel.h"
#include "core/scratch.h"

namespace convtbw::simd {

PlaneWeightsPlan::PlaneWeightsPlan(const Problem& problem, const Arithmetic& arithmetic)
    : problem_(problem),
      arithmetic_(arithmetic),
      x_(x_tensor(problem)),
      y_(y_tensor(problem)),
      slid_(problem, arithmetic),
      ask_ahead_(gains_ahead(problem)),
      dealt_(problem.geometry.axes[2].stride == 2 && problem.geometry.axes[2].dilation == 1),
      taps_(slid_.all_taps()) {
  choose_sizes();
  kernel = std::string("wgrad, pixels of a channel in lanes, ") + (dealt_ ? "in place, " : "") +
           arithmetic.name;
  workspace = problem.threads * local_bytes_ + problem.geometry.groups * chunks_ * taps_ * unit();
  bytes = sizeof(PlaneWeightsPlan) + slid_.sections().size() * sizeof(PlaneSection) +
          slid_.row_taps().size() * sizeof(int64_t);
}

void PlaneWeightsPlan::choose_sizes() {
  constexpr int64_t kSumsUnits = 8 << 10;
  constexpr int64_t kChannels = 8;  // at a time: what a box costs once is little then
  const int64_t lanes = arithmetic_.lanes, groups = problem_.geometry.groups;
  const int64_t most = std::clamp<int64_t>(kSumsUnits / (taps_ * arithmetic_.lanes), 1, kChannels);
  channels_ = ceil_div(groups, ceil_div(groups, most));
  blocks_ = ceil_div(groups, channels_);
  const int64_t most_chunks = ceil_div(slid_.items(groups), blocks_);
  grid_ = slid_.cut(most_chunks);
  const int64_t boxes = grid_.boxes();
  chunks_ = std::min(boxes, most_chunks);
  boxes_per_chunk_ = ceil_div(boxes, chunks_);
  chunks_ = ceil_div(boxes, boxes_per_chunk_);
  // Windows that taps of the box's pixels would belong to, and a vector's end.
  if (dealt_) margin_ = ceil_div(slid_.sliding()[3].taps / 2 + 1, lanes) * lanes + lanes;
  y_row_ = ceil_div(grid_.size[3], lanes) * lanes + 2 * margin_;
  y_units_ = grid_.size[2] * y_row_;
  sums_units_ = ceil_div(channels_ * taps_ * arithmetic_.lanes, lanes) * lanes;
  const int64_t rows = grid_.size[2] + 2 * (kMaxTapRows - 1);
  local_bytes_ = (slid_.buffer_units() + y_units_ + y_row_ + sums_units_) * unit() +
                 rows * int64_t{sizeof(void*)};
}

PlaneWeightsPlan::Memory PlaneWeightsPlan::memory() const {
  Memory memory;
  memory.x = local_scratch<char>(local_bytes_);
  memory.y = memory.x + slid_.buffer_units() * unit();
  memory.zeros = memory.y + y_units_ * unit();
  memory.sums = memory.zeros + y_row_ * unit();
  memory.y_rows =
      reinterpret_cast<const void**>(memory.sums + sums_units_ * unit()) + (kMaxTapRows - 1);
  return memory;
}

// The first row of a plane of a box.
const char* PlaneWeightsPlan::y_row(const Operands& operands, const BoxRange& box, int64_t channel,
                                    int64_t plane) const {
  PerAxis<int64_t> position = box.begin;
  position[1] += plane;
  return static_cast<const char*>(operands.data.y) +
         (channel * y_.channel + offset(position, y_.stride)) * element_bytes(problem_.dtype);
}

void PlaneWeightsPlan::list_rows(const Operands& operands, const BoxRange& box, int64_t channel,
                                 int64_t plane, const Memory& memory) const {
  const char* row = y_row(operands, box, channel, plane);
  int64_t step = y_.stride[2] * element_bytes(problem_.dtype);
  if (!in_place(box)) {
    arithmetic_.plane_copy[static_cast<int>(problem_.dtype)](
        {row, y_.stride[2], memory.y, y_row_, box.count[2], box.count[3]});
    row = memory.y;
    step = y_row_ * unit();
  }
  list_rows_between_zeros(row, step, box.count[2], memory.zeros, memory.y_rows);
}

// One plane of y against the planes of x that its windows meet, up to `tap_rows` rows of taps
// together: of those, the rows of y before the first and behind the last one are zeros.
void PlaneWeightsPlan::add(const BoxRange& box, const char* x, const Memory& memory,
                           int64_t tap_rows, const Ahead& x_ahead, const Ahead& y_ahead,
                           char* sums) const {
  const int64_t lanes = arithmetic_.lanes;
  const std::vector<int64_t>& taps = slid_.row_taps();
  const int64_t most_rows = std::max<int64_t>(1, kMaxSteps / ceil_div(box.count[3], lanes));
  const int64_t count = std::ssize(taps), w_row = slid_.sliding()[2].stride * count;
  const TapsFunctions<PlaneTaps>& functions =
      arithmetic_
          .plane_taps[static_cast<int>(in_place(box) ? problem_.dtype : sum_dtype(problem_.dtype))];
  PlaneTaps call{};
  call.count = box.count[3];
  call.a_row = slid_.row_step();
  call.sums_row = w_row * lanes;
  // With the rows of the first taps, all that is asked for.
  const Ahead* const aheads[] = {&x_ahead, &y_ahead};
  for (int side = 0; side < 2; ++side)
    call.ahead_bytes[side] = ceil_div(aheads[side]->bytes, box.count[2] * 64) * 64;
  for (const PlaneSection& section : slid_.sections()) {
    const int64_t row_pieces = ceil_div(section.rows, tap_rows);
    for (int64_t i = 0, k = 0, together; i < row_pieces; ++i, k += together) {
      together = (section.rows - k) / (row_pieces - i);  // as even as can be
      const int64_t pieces = ceil_div(count, kMaxPlaneTaps[together]);
      const int64_t all_rows = box.count[2] + together - 1;
      for (int64_t piece = 0, tap = 0, width; piece < pieces; ++piece, tap += width) {
        width = (count - tap) / (pieces - piece);
        call.taps = taps.data() + tap;
        call.sums = sums + (section.w + k * w_row + tap) * lanes * unit();
        for (int64_t row = 0; row < all_rows; row += most_rows) {
          call.rows = std::min(most_rows, all_rows - row);
          call.a = x + (section.a + (k + row) * call.a_row) * unit();
          call.b_rows = memory.y_rows + row;
          for (int side = 0; side < 2; ++side)
            call.ahead[side] = aheads[side]->from + row * call.ahead_bytes[side];
          functions.at[together][width](call);
        }
        call.ahead_bytes[0] = call.ahead_bytes[1] = 0;
      }
    }
  }
}

// The sums of a block's channels over some boxes: weights[channel*chunks*taps + tap], units.
void PlaneWeightsPlan::run_boxes(const Operands& operands, int64_t block, int64_t first_box,
                                 int64_t boxes, char* weights) const {
  // An infinity in x, multiplied by zeros, would be NaN where it does not belong.
  if (!sum_boxes(operands, block, first_box, boxes, dealt_, kMaxTapRows, weights))
    sum_boxes(operands, block, first_box, boxes, false, 1, weights);
}

// Whether all sums are finite.
bool PlaneWeightsPlan::sum_boxes(const Operands& operands, int64_t block, int64_t first_box,
                                 int64_t boxes, bool dealt, int64_t tap_rows, char* weights) const {
  const Memory here = memory();
  const int64_t first = first_channel(block), channels = channels_of(block);
  const int64_t channel_sums = taps_ * arithmetic_.lanes;
  std::memset(here.zeros, 0, (y_row_ + sums_units_) * unit());
  for (int64_t index = first_box; index < first_box + boxes; ++index) {
    const BoxRange box = grid_.box(index);
    if (!dealt) std::memset(here.x, 0, slid_.buffer_units() * unit());
    if (dealt || !in_place(box)) std::memset(here.y, 0, y_units_ * unit());
    for (int64_t channel = 0; channel < channels; ++channel) {
      if (!dealt) slid_.copy(operands.data.x, first + channel, box, here.x);
      for (int64_t plane = 0; plane < box.count[1]; ++plane) {
        Ahead x_ahead{}, y_ahead{};
        if (ask_ahead_ && channel + 1 < channels) {
          const int64_t next = first + channel + 1;
          if (!dealt) x_ahead = slid_.ahead(operands.data.x, next, box, plane, box.count[1]);
          y_ahead = {y_row(operands, box, next, plane),
                     box.count[2] * y_.stride[2] * element_bytes(problem_.dtype)};
        }
        char* const sums = here.sums + channel * channel_sums * unit();
        if (dealt) {
          list_rows_with_margins(operands, box, first + channel, plane, here);
          add_dealt(operands, box, first + channel, plane, here, y_ahead, sums);
          continue;
        }
        list_rows(operands, box, first + channel, plane, here);
        add(box, here.x + plane * slid_.plane_step() * unit(), here, tap_rows, x_ahead, y_ahead,
            sums);
      }
    }
  }
  const auto fold = [&](const auto* sums, auto* to) {
    bool finite = true;
    for (int64_t channel = 0; channel < channels; ++channel, to += chunks_ * taps_)
      for (int64_t tap = 0; tap < taps_; ++tap, sums += arithmetic_.lanes) {
        to[tap] = sums[0];
        for (int64_t lane = 1; lane < arithmetic_.lanes; ++lane) to[tap] += sums[lane];
        finite &= std::isfinite(to[tap]);
      }
    return finite;
  };
  if (problem_.dtype == Dtype::f64)
    return fold(reinterpret_cast<const double*>(here.sums), reinterpret_cast<double*>(weights));
  return fold(reinterpret_cast<const float*>(here.sums), reinterpret_cast<float*>(weights));
}

void PlaneWeightsPlan::run(const Operands& operands) const {
  const int64_t boxes = grid_.boxes(), groups = problem_.geometry.groups;
  char* const all = shared_scratch<char>(groups * chunks_ * taps_ * unit());
  const auto weights_of = [&](int64_t channel, int64_t chunk) {
    return all + (channel * chunks_ + chunk) * taps_ * unit();
  };
  parallel_for(problem_.threads, blocks_ * chunks_, [&](int64_t i) {
    const int64_t block = i / chunks_, chunk = i % chunks_, first = chunk * boxes_per_chunk_;
    run_boxes(operands, block, first, std::min(boxes_per_chunk_, boxes - first),
              weights_of(first_channel(block), chunk));
  });
  add_chunks(problem_.threads, {problem_.dtype, all, groups, chunks_, taps_},
             [&](int64_t) { return taps_; });
  write_channel_weights(problem_, arithmetic_, all, chunks_ * taps_, operands.data.w);
}

std::unique_ptr<const Plan> plane_weights_plan(const Problem& problem,
                                               const Arithmetic& arithmetic) {
  return std::make_unique<PlaneWeightsPlan>(problem, arithmetic);
}

}  // namespace convtbw::simd
