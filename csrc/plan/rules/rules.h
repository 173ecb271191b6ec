// Which problems oneDNN's kernels suit better than those of simd: rules with the measurements that
// they rest on, a file for each kind of problem. `avx512` says which kernels simd would use.
#pragma once

#include "core/problem.h"

namespace convtbw {

// depthwise.cpp
bool suits_depthwise_kernels(const Problem& p, bool avx512);
bool suits_bfloat16_depthwise_kernels(const Problem& p);  // of AVX-512

// groups.cpp
bool suits_grouped_kernels(const Problem& p, bool avx512);

// few_channels.cpp, of dense problems in float32
bool has_few_channels(const Problem& p);
bool suits_few_channels_kernels(const Problem& p, bool avx512);
bool becomes_few_channels(const Problem& p, bool avx512);
bool suits_narrow_kernels(const Problem& p, bool avx512);
bool suits_apart_kernels(const Problem& p);

// amx.cpp, of bfloat16 where there are matrix registers, instead of all other rules
bool suits_matrix_kernels(const Problem& p);

// dense.cpp
bool suits_dense_kernels(const Problem& p, bool avx512);  // of float32
bool few_pixels(const Problem& p);

// zen_4.cpp, instead of all other rules of dense problems
bool suits_dense_kernels_of_zen_4(const Problem& p);  // of AVX-512

// zen_4_groups.cpp, instead of all other rules of groups
bool suits_grouped_kernels_of_zen_4(const Problem& p);  // of AVX-512

// passes.cpp, the other way round: which it suits less
bool reads_gaps(const Problem& p);
bool bias_outweighs(const Problem& p);
bool one_tap_in_padding(const Problem& p);

// zen_avx2.cpp, as well, of Zen 3 and 4 with AVX2
bool suits_simd_of_avx2(const Problem& p);

// bfloat16.cpp
bool suits_bfloat16_kernels(const Problem& p);          // of AVX-512
bool suits_bfloat16_grouped_kernels(const Problem& p);  // of AVX-512

}  // namespace convtbw
