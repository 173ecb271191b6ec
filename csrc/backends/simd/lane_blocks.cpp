#include "backends/simd/lane_blocks.h"

namespace convtbw::simd {

namespace {

// Blocks of a part of a group, and how many parts' weights are packed at a time.
struct Cut {
  int64_t blocks, per_pass;
};

// How long threads take that share the boxes of all parts, pass by pass, over that of threads that
// never wait for each other; the mean for two and for four of them, for the shape alone decides.
double waiting(const Cut& cut, int64_t parts, int64_t boxes, int64_t all_blocks) {
  constexpr int64_t kThreads[] = {2, 4};
  int64_t turns = 0;
  for (const int64_t threads : kThreads)
    for (int64_t first = 0; first < parts; first += cut.per_pass)
      turns += ceil_div(std::min(cut.per_pass, parts - first) * boxes, threads) * threads;
  return static_cast<double>(turns * cut.blocks) /
         static_cast<double>(std::ssize(kThreads) * boxes * all_blocks);
}

Cut best_cut(int64_t blocks, int64_t groups, int64_t boxes, int64_t most_blocks, int64_t room,
             double copied) {
  // Deep layers of few pixels, two threads, of the time without smaller parts: 512 to 1024 channels
  // of 8x8, 4x4 of stride 2, 0.35 with 16 lanes; 1024 to 512 of 4x4, 5x5 of stride 2, 0.55 to 0.75
  // with 8; 24 random ones, bfloat16 pairs 0.88, float32 0.96 and 1.0 in the mean (Zen 5). Cut in
  // any case, down to one block for 16 items a pass, 1024 to 320 channels of 16x16 took 1.2 times
  // as long, for each part copies its boxes. 0.8 and 0.97 for the gain are as good.
  constexpr double kGain = 0.9, kOfCopy = 0.75;
  Cut best{};
  double least = 0;
  for (int64_t most = std::clamp<int64_t>(most_blocks, 1, blocks); most > 0; --most) {
    const int64_t of_group = ceil_div(blocks, most), parts = groups * of_group;
    const int64_t part_blocks = ceil_div(blocks, of_group);  // even cuts
    const int64_t fit = std::clamp<int64_t>(room / part_blocks, 1, parts);
    const double copying =
        kOfCopy * copied * static_cast<double>(of_group) / static_cast<double>(blocks);
    // Passes as even as can be: threads pack and read the same parts in each.
    const int64_t even = ceil_div(parts, ceil_div(parts, fit));
    for (int64_t per_pass = even; per_pass > even / 2; --per_pass) {
      const Cut cut{part_blocks, per_pass};
      const double time = waiting(cut, parts, boxes, groups * blocks) + copying;
      if (best.blocks == 0 || time < kGain * least) {
        least = time;
        best = cut;
      }
      if (kGain * least < 1) return best;
    }
  }
  return best;
}

}  // namespace

Parting cut_blocks(const std::vector<LaneBlock>& blocks, int lanes, int64_t groups, int64_t boxes,
                   int64_t most_blocks, int64_t room, double copied) {
  const Cut cut = best_cut(std::ssize(blocks), groups, boxes, most_blocks, room, copied);
  Parting parting{block_ranges(blocks, lanes, groups, cut.blocks), cut.per_pass, 0};
  for (const BlockRange& part : parting.parts)
    parting.largest_lanes = std::max(parting.largest_lanes, part.lanes);
  return parting;
}

}  // namespace convtbw::simd
