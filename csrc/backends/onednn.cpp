// The oneDNN backend: the three contractions as convolution primitives. Transposed operators need
// no deconvolution primitive, which would only swap roles a second time. The only file that
// includes oneDNN's header; a shared object of its own (plan/onednn_library.cpp opens it).
#include <omp.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/scratch.h"
#include "plan/backend.h"

namespace convtbw {

namespace {

using dnnl::memory;

// A plan over this bound declines: reorders and im2col buffers grow with the tensors, and a
// gradient must not double what a training step needs.
constexpr int64_t kWorkspaceBound = 16 << 20;

// What keeping a plan costs, mostly generated code: resident memory grew by 80 KB a plan over 400
// shapes of a 2-D transposed convolution (Zen 4, AVX-512).
constexpr int64_t kPlanBytes = 100 << 10;

constexpr int64_t kAlignment = 64;

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

// oneDNN asks OpenMP for the number of threads when it makes a primitive and again when it runs
// one; both must see the problem's.
class OpenMPThreads {
 public:
  explicit OpenMPThreads(int threads) : before_(omp_get_max_threads()) {
    if (threads != before_) omp_set_num_threads(threads);
    changed_ = threads != before_;
  }
  ~OpenMPThreads() {
    if (changed_) omp_set_num_threads(before_);
  }
  OpenMPThreads(const OpenMPThreads&) = delete;
  OpenMPThreads& operator=(const OpenMPThreads&) = delete;

 private:
  const int before_;
  bool changed_;
};

memory::data_type data_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32:
      return memory::data_type::f32;
    case Dtype::bf16:
      return memory::data_type::bf16;
    case Dtype::f16:
      return memory::data_type::f16;
    case Dtype::f64:
      return memory::data_type::f64;
  }
  return memory::data_type::undef;
}

// A tensor of the caller as oneDNN counts its dimensions: (N, C, X) or (groups, Q, C, X).
struct View {
  memory::dims extents, strides;
};

// The end padding that makes the windows of x exactly y; negative where pixels are left over.
int64_t end_padding(const Axis& axis) {
  return reach(axis.y, axis.x + axis.pad, effective_kernel(axis.k, axis.dilation), axis.stride);
}

const Axis* axes_begin(const Geometry& g) { return g.axes.data() + kMaxRank - g.rank; }

View data_view(const Problem& p, Role role) {
  const Geometry& g = p.geometry;
  const DataStrides& s = strides_of(p, role);
  View view{{g.batch, channels_of(p, role)}, {s.batch, s.channel}};
  for (int a = kMaxRank - g.rank; a < kMaxRank; ++a) {
    view.extents.push_back(role == Role::x ? g.axes[a].x : g.axes[a].y);
    view.strides.push_back(s.axes[a]);
  }
  return view;
}

View weights_view(const Problem& p) {
  const Geometry& g = p.geometry;
  View view{{g.y_channels, g.x_channels}, {p.w.y_channel, p.w.x_channel}};
  if (g.groups > 1) {
    view.extents.insert(view.extents.begin(), g.groups);
    view.strides.insert(view.strides.begin(), p.w.group);
  }
  for (int a = kMaxRank - g.rank; a < kMaxRank; ++a) {
    view.extents.push_back(g.axes[a].k);
    view.strides.push_back(p.w.axes[a]);
  }
  return view;
}

// The strides of a dense data tensor in the order (N, C, X) or (N, X, C).
memory::dims dense_strides(const memory::dims& extents, bool channels_last) {
  memory::dims strides(extents.size());
  int64_t step = 1;
  if (channels_last) {
    strides[1] = 1;
    step = extents[1];
  }
  for (size_t d = extents.size() - 1; d >= 2; --d) {
    strides[d] = step;
    step *= extents[d];
  }
  if (!channels_last) {
    strides[1] = step;
    step *= extents[1];
  }
  strides[0] = step;
  return strides;
}

bool is_dense(const View& view, bool channels_last) {
  const memory::dims dense = dense_strides(view.extents, channels_last);
  for (size_t d = 0; d < dense.size(); ++d)
    if (view.extents[d] > 1 && view.strides[d] != dense[d]) return false;
  return true;
}

// Kernels of oneDNN count elements in 32 bits: the AVX-512 weights gradient read the wrong pixels
// of a tensor of 2^31.3 elements.
bool is_beyond_32_bits(const View& view) {
  double last = 0;
  for (size_t d = 0; d < view.extents.size(); ++d)
    last += static_cast<double>(view.extents[d] - 1) * static_cast<double>(view.strides[d]);
  return last >= std::numeric_limits<int>::max();
}

bool has_zero_stride(const View& view) {
  for (size_t d = 0; d < view.extents.size(); ++d)
    if (view.extents[d] > 1 && view.strides[d] == 0) return true;
  return false;
}

// A descriptor of the caller's memory. Where the extent is 1 the stride says nothing, but oneDNN
// wants one that no other dimension overlaps.
memory::desc described(const View& view, memory::data_type type) {
  memory::dims strides = view.strides;
  int64_t beyond = 1;
  for (size_t d = 0; d < strides.size(); ++d)
    if (view.extents[d] > 1) beyond = std::max(beyond, strides[d] * view.extents[d]);
  for (size_t d = 0; d < strides.size(); ++d)
    if (view.extents[d] == 1) strides[d] = beyond;
  return memory::desc(view.extents, type, strides);
}

memory::desc described_dense(const View& view, memory::data_type type, bool channels_last) {
  return memory::desc(view.extents, type, dense_strides(view.extents, channels_last));
}

memory::desc described_any(const View& view, memory::data_type type) {
  return memory::desc(view.extents, type, memory::format_tag::any);
}

// What a contraction's tensors are called by its primitive.
struct Names {
  PerRole<dnnl::query> descriptor;
  PerRole<int> argument;
};

Names names_of(Role wanted) {
  switch (wanted) {
    case Role::y:
      return {{dnnl::query::src_md, dnnl::query::weights_md, dnnl::query::dst_md},
              {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST}};
    case Role::x:
      return {{dnnl::query::diff_src_md, dnnl::query::weights_md, dnnl::query::diff_dst_md},
              {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST}};
    case Role::w:
      break;
  }
  return {{dnnl::query::src_md, dnnl::query::diff_weights_md, dnnl::query::diff_dst_md},
          {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST}};
}

dnnl::primitive_attr attributes() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

bool starts_with_ref(const std::string& kernel) { return kernel.rfind("ref", 0) == 0; }
// "gemm:jit", "x64:gemm:jit"; but "brgemm:…" is not im2col.
bool is_im2col(const std::string& kernel) {
  const size_t at = kernel.find("gemm:");
  return at == 0 || (at != std::string::npos && kernel[at - 1] == ':');
}

// The primitive descriptor for these descriptors, or an empty one.
dnnl::primitive_desc describe(const Problem& p, const PerRole<memory::desc>& d) {
  const Geometry& g = p.geometry;
  memory::dims strides, dilations, begin, end;
  for (const Axis* axis = axes_begin(g); axis != g.axes.data() + kMaxRank; ++axis) {
    strides.push_back(axis->stride);
    dilations.push_back(axis->dilation - 1);  // oneDNN counts the skipped positions
    begin.push_back(axis->pad);
    end.push_back(end_padding(*axis));
  }
  constexpr auto direct = dnnl::algorithm::convolution_direct;
  constexpr auto training = dnnl::prop_kind::forward_training;
  const dnnl::primitive_attr attr = attributes();
  using Forward = dnnl::convolution_forward::primitive_desc;
  if (p.wanted == Role::y && p.bias) {
    const memory::desc bias({g.groups * g.y_channels}, data_type(p.dtype), memory::format_tag::x);
    return Forward(engine(), training, direct, d.x, d.w, bias, d.y, strides, dilations, begin, end,
                   attr, true);
  }
  // The gradients want a forward descriptor as a hint; its types are those of the problem.
  const auto hinted = [&](const memory::desc& desc, Role role) {
    if (desc.get_data_type() == data_type(p.dtype)) return desc;
    return described_any(data_view(p, role), data_type(p.dtype));
  };
  const Forward forward(engine(), training, direct, hinted(d.x, Role::x), d.w, d.y, strides,
                        dilations, begin, end, attr, true);
  if (!forward || p.wanted == Role::y) return forward;
  if (p.wanted == Role::x)
    return dnnl::convolution_backward_data::primitive_desc(
        engine(), direct, d.x, d.w, d.y, strides, dilations, begin, end, forward, attr, true);
  return dnnl::convolution_backward_weights::primitive_desc(
      engine(), direct, d.x, d.w, d.y, strides, dilations, begin, end, forward, attr, true);
}

// Whether some tap of the kernel meets no position of x at all: its gradient is zero.
bool has_tap_without_terms(const Geometry& g) {
  for (const Axis& axis : g.axes)
    for (int64_t k = 0; k < axis.k; ++k) {
      const Range j = incident(axis, k, {0, axis.x});
      if (j.begin >= j.end) return true;
    }
  return false;
}

// Whether some position of y meets no tap at all: its window lies in the padding.
bool has_window_without_terms(const Geometry& g) {
  for (const Axis& axis : g.axes)
    for (int64_t j = 0; j < axis.y; ++j) {
      int64_t k = 0;
      const auto absent = [&] {
        const int64_t h = j * axis.stride - axis.pad + k * axis.dilation;
        return h < 0 || h >= axis.x;
      };
      while (k < axis.k && absent()) ++k;
      if (k == axis.k) return true;
    }
  return false;
}

// Whether an axis has both padding and a stride beyond 2.
bool has_padded_long_stride(const Geometry& g) {
  for (const Axis& axis : g.axes)
    if (axis.stride > 2 && (axis.pad > 0 || end_padding(axis) > 0)) return true;
  return false;
}

// What the kernels of oneDNN 3.2 other than im2col compute wrong, found by running them on random
// geometries, over memory filled with NaN and with a NaN among the data.
bool is_defective(const Problem& p, const std::string& kernel) {
  const Geometry& g = p.geometry;
  // Where a window lies in the padding the bf16 forward kernel by brgemm wrote beyond the result
  // (seen by red zones around it).
  if (has_window_without_terms(g)) return true;
  // It also did with strides of 4 and 7 and padding of 3 and 4. No rule in its source was found:
  // long strides with padding are not trusted, and 8,000 other geometries showed no such write.
  if (p.dtype != Dtype::f32 && p.wanted == Role::y && has_padded_long_stride(g)) return true;
  // The jit weights gradients leave a tap without terms unwritten.
  if (p.wanted == Role::w && has_tap_without_terms(g)) return true;
  // The jit kernels of one tap copy the positions that strides meet, whole vectors of channels at a
  // time, and write behind their scratchpad where these fill none (seen by valgrind).
  constexpr int64_t kVector = 16;
  if (kernel.starts_with("jit_1x1") && !unit_strides(g) && g.x_channels % kVector != 0) return true;
  // The bf16 kernels sum in pairs: channels of a group, or pixels of a row for the weights
  // gradient. The last of an odd number is paired with a foreign element times zero, so a NaN or
  // Inf there reaches results that it has no part in. Depthwise kernels sum no pairs. No CPU at
  // hand runs the float16 kernels: they are taken for alike.
  const int64_t summed = p.wanted == Role::y   ? g.x_channels
                         : p.wanted == Role::x ? g.y_channels
                                               : g.axes.back().y;
  return p.dtype != Dtype::f32 && summed % 2 != 0 && kernel.find("_dw:") == std::string::npos;
}

// The layouts to try, in this order: channels last in place, whatever oneDNN likes best (with
// reorders), channels first in place. The first kernel that is not im2col wins: with reorders it
// beats im2col in place. If all are im2col, one in place saves the reorders. Weights are small
// beside the data: always whatever oneDNN likes best.
dnnl::primitive_desc best_descriptor(const Problem& p, memory::data_type x_type) {
  const memory::data_type type = data_type(p.dtype);
  const View x = data_view(p, Role::x), y = data_view(p, Role::y);
  const memory::desc w = described_any(weights_view(p), type);
  dnnl::primitive_desc im2col;
  // The descriptor for a layout if it wins at once, else an empty one.
  const auto acceptable = [&](const PerRole<memory::desc>& layout, bool in_place) {
    const dnnl::primitive_desc none, found = describe(p, layout);
    if (!found || starts_with_ref(found.impl_info_str())) return none;
    if (is_im2col(found.impl_info_str())) {
      if (!im2col || in_place) im2col = found;
      return none;
    }
    return is_defective(p, found.impl_info_str()) ? none : found;
  };
  const auto dense = [&](bool channels_last) {
    if (!is_dense(x, channels_last) || !is_dense(y, channels_last)) return dnnl::primitive_desc();
    return acceptable(
        {described_dense(x, x_type, channels_last), w, described_dense(y, type, channels_last)},
        true);
  };
  if (dnnl::primitive_desc found = dense(true)) return found;
  if (dnnl::primitive_desc found =
          acceptable({described_any(x, x_type), w, described_any(y, type)}, false))
    return found;
  if (dnnl::primitive_desc found = dense(false)) return found;
  return im2col;
}

class OnednnPlan : public Plan {
 public:
  // `bias_after`: the data gradient's primitive takes no bias, so it writes float32 and the bias is
  // added afterwards, with the one rounding to 16 bits.
  OnednnPlan(const Problem& p, const dnnl::primitive_desc& descriptor, bool bias_after)
      : problem_(p), names_(names_of(p.wanted)), bias_after_(bias_after) {
    kernel = descriptor.impl_info_str();
    bytes = kPlanBytes;
    caller_.x = described_caller(data_view(p, Role::x));
    caller_.y = described_caller(data_view(p, Role::y));
    caller_.w = described(weights_view(p), data_type(p.dtype));
    if (bias_after_ && p.dtype != Dtype::f32) {
      rounded_ = caller_.x;
      caller_.x = memory::desc(rounded_.get_dims(), memory::data_type::f32, rounded_.get_strides());
      sums_offset_ = reserve(caller_.x.get_size());
    }
    for (const Role role : {Role::x, Role::w, Role::y}) {
      primitive_[role] = descriptor.query_md(names_.descriptor[role]);
      if (primitive_[role] == caller_[role]) continue;
      offset_[role] = reserve(primitive_[role].get_size());
      reorder_[role] = role == p.wanted ? reorder(primitive_[role], caller_[role])
                                        : reorder(caller_[role], primitive_[role]);
      reorders.push_back(role);
    }
    // The bf16 weights gradients multiply padding of their transposed copies by zero without having
    // written it; found as NaN over memory filled with NaN.
    clears_scratchpad_ = p.dtype != Dtype::f32 && p.wanted == Role::w && !is_im2col(kernel);
    main_ = step(descriptor);
    if (bias_after_) prepare_bias();
    scratchpad_offset_ = reserve(scratchpad_bytes_);
  }

  void run(const Operands& operands) const override {
    const OpenMPThreads threads(problem_.threads);
    char* const space = shared_scratch<char>(workspace);
    dnnl::stream stream(engine());
    PerRole<memory> mine;
    for (const Role role : {Role::x, Role::w, Role::y}) {
      void* data = operands.data[role];
      if (role == Role::x && sums_offset_) data = space + *sums_offset_;
      mine[role] = memory(caller_[role], engine(), data);
    }
    PerRole<memory> theirs = mine;
    std::unordered_map<int, memory> arguments;
    for (const Role role : {Role::x, Role::w, Role::y}) {
      if (offset_[role]) {
        theirs[role] = memory(primitive_[role], engine(), space + *offset_[role]);
        if (role != problem_.wanted) copy(reorder_[role], mine[role], theirs[role], space, stream);
      }
      arguments.emplace(names_.argument[role], theirs[role]);
    }
    if (problem_.bias && !bias_after_) {
      const int64_t channels = channels_of(problem_, Role::y);
      arguments.emplace(DNNL_ARG_BIAS,
                        memory({{channels}, data_type(problem_.dtype), memory::format_tag::x},
                               engine(), const_cast<void*>(operands.bias)));
    }
    if (clears_scratchpad_) std::memset(space + scratchpad_offset_, 0, main_.scratchpad.get_size());
    execute(main_, std::move(arguments), space, stream);
    const Role wanted = problem_.wanted;
    if (offset_[wanted]) copy(reorder_[wanted], theirs[wanted], mine[wanted], space, stream);
    stream.wait();
    if (bias_after_) add_bias(mine.x, operands, space, stream);
  }

 private:
  memory::desc described_caller(const View& view) const {
    for (const bool channels_last : {true, false})
      if (is_dense(view, channels_last))
        return described_dense(view, data_type(problem_.dtype), channels_last);
    return described(view, data_type(problem_.dtype));
  }

  int64_t reserve(int64_t size) {
    const int64_t offset = workspace;
    workspace += (size + kAlignment - 1) / kAlignment * kAlignment;
    return offset;
  }

  struct Step {
    dnnl::primitive primitive;
    memory::desc scratchpad;
  };

  // Steps run one after the other and share one scratchpad, as large as the largest.
  Step step(const dnnl::primitive_desc_base& descriptor) {
    const memory::desc scratchpad = descriptor.scratchpad_desc();
    scratchpad_bytes_ = std::max<int64_t>(scratchpad_bytes_, scratchpad.get_size());
    return {dnnl::primitive(descriptor.get()), scratchpad};
  }

  Step reorder(const memory::desc& from, const memory::desc& to) {
    return step(dnnl::reorder::primitive_desc(engine(), from, engine(), to, attributes()));
  }

  void execute(const Step& step, std::unordered_map<int, memory> arguments, char* space,
               dnnl::stream& stream) const {
    arguments.emplace(DNNL_ARG_SCRATCHPAD,
                      memory(step.scratchpad, engine(), space + scratchpad_offset_));
    step.primitive.execute(stream, arguments);
  }

  void copy(const Step& reorder, const memory& from, const memory& to, char* space,
            dnnl::stream& stream) const {
    execute(reorder, {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}}, space, stream);
  }

  // The sum is of float32: of other dtypes oneDNN has but its slow reference.
  void prepare_bias() {
    memory::dims extents(caller_.x.get_dims().size(), 1);
    extents[1] = channels_of(problem_, Role::x);
    bias_ = memory::desc(extents, memory::data_type::f32, dense_strides(extents, false));
    add_bias_ = step(dnnl::binary::primitive_desc(engine(), dnnl::algorithm::binary_add, caller_.x,
                                                  bias_, caller_.x, attributes()));
    if (sums_offset_) round_ = reorder(caller_.x, rounded_);
  }

  void add_bias(const memory& sums, const Operands& operands, char* space,
                dnnl::stream& stream) const {
    std::vector<float> bias(bias_.get_dims()[1]);
    visit_dtype(problem_.dtype, [&](auto element) {
      const auto* const from = static_cast<const decltype(element)*>(operands.bias);
      for (size_t c = 0; c < bias.size(); ++c) bias[c] = static_cast<float>(to_double(from[c]));
    });
    execute(add_bias_,
            {{DNNL_ARG_SRC_0, sums},
             {DNNL_ARG_SRC_1, memory(bias_, engine(), bias.data())},
             {DNNL_ARG_DST, sums}},
            space, stream);
    if (sums_offset_)
      copy(round_, sums, memory(rounded_, engine(), operands.data.x), space, stream);
    stream.wait();
  }

  const Problem problem_;
  const Names names_;
  const bool bias_after_;
  PerRole<memory::desc> caller_, primitive_;  // how the caller's and oneDNN's tensors lie
  PerRole<Step> reorder_;                     // between the two, where they differ
  PerRole<std::optional<int64_t>> offset_;    // of oneDNN's tensor in the workspace
  std::optional<int64_t> sums_offset_;        // of a float32 result that awaits its bias
  Step main_, add_bias_, round_;
  memory::desc bias_, rounded_;
  bool clears_scratchpad_;
  int64_t scratchpad_bytes_ = 0, scratchpad_offset_ = 0;
};

// The plan of one slice, for one after the other.
class SlicesPlan : public Plan {
 public:
  SlicesPlan(const Problem& p, std::unique_ptr<const Plan> plan)
      : problem_(p), plan_(std::move(plan)) {
    kernel = plan_->kernel + ", slice by slice";
    workspace = plan_->workspace;
    reorders = plan_->reorders;
    bytes = plan_->bytes + int64_t{sizeof(SlicesPlan)};
  }

  void run(const Operands& operands) const override {
    for (int64_t slice = 0; slice < problem_.slices; ++slice)
      plan_->run(operands_of_slice(problem_, operands, slice));
  }

 private:
  const Problem problem_;
  const std::unique_ptr<const Plan> plan_;
};

Prepared declined(std::string reason) { return {nullptr, std::move(reason)}; }

Prepared prepare(const Problem& p, std::string_view target) {
  if (p.slices > 1) {
    Prepared one = prepare(one_slice(p), target);
    if (one.plan) one.plan = std::make_unique<SlicesPlan>(p, std::move(one.plan));
    return one;
  }
  if (p.epilogue != Epilogue::overwrite)
    return declined("its weights gradients overwrite; this one is added to what is there");
  if (p.forked) return declined("forked process: OpenMP's threads do not survive fork()");
  if (p.deterministic)
    return declined("deterministic algorithms are asked for; its sums depend on the threads");
  if (p.dtype == Dtype::f64) return declined("float64: it has no such convolution");
  const View x = data_view(p, Role::x), y = data_view(p, Role::y), w = weights_view(p);
  for (const View* view : {&x, &y, &w}) {
    for (const int64_t extent : view->extents)
      if (extent > std::numeric_limits<int>::max()) return declined("an extent beyond 2^31");
    if (is_beyond_32_bits(*view)) return declined("a tensor of more than 2^31 elements");
    if (has_zero_stride(*view)) return declined("an expanded tensor: it would have to copy it");
  }
  for (const Axis& axis : p.geometry.axes)
    if (std::max({axis.stride, axis.pad, axis.dilation}) > std::numeric_limits<int>::max() / 4)
      return declined("a stride, pad or dilation beyond 2^29");
  try {
    const OpenMPThreads threads(p.threads);
    const bool bias_after = p.bias && p.wanted == Role::x;
    const dnnl::primitive_desc descriptor =
        best_descriptor(p, bias_after ? memory::data_type::f32 : data_type(p.dtype));
    if (!descriptor)
      return declined(std::string("it has no ") + dtype_name(p.dtype) + " " +
                      contraction_name(p.wanted) +
                      " for this geometry on this CPU other than its slow reference");
    auto plan = std::make_unique<OnednnPlan>(p, descriptor, bias_after);
    if (plan->workspace > kWorkspaceBound)
      return declined("workspace of " + std::to_string(plan->workspace >> 20) +
                      " MiB; the bound is " + std::to_string(kWorkspaceBound >> 20) + " MiB");
    return {std::move(plan), {}};
  } catch (const dnnl::error& error) {
    // Overlapping strides and end padding that a primitive cannot express end here.
    return declined(std::string("it refuses the problem: ") + error.message);
  }
}

std::string why_unsupported() {
  const dnnl_version_t* found = dnnl_version();
  const auto text = [](int major, int minor, int patch) {
    return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
  };
  const std::string have = text(found->major, found->minor, found->patch);
  const std::string want = text(DNNL_VERSION_MAJOR, DNNL_VERSION_MINOR, DNNL_VERSION_PATCH);
  if (have != want) return "built for oneDNN " + want + ", found " + have;
  return "";
}

const Backend kBackend{
    .name = "onednn",
    .targets = {},
    .why_unsupported = &why_unsupported,
    .prepare = &prepare,
};

}  // namespace

// The plan cache remembers primitives, under a bound of its own. oneDNN's would keep each a second
// time, up to 1024 of them.
extern "C" __attribute__((visibility("default"))) const Backend* convtbw_onednn_backend() {
  dnnl::set_primitive_cache_capacity(0);
  return &kBackend;
}

}  // namespace convtbw
