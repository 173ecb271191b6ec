#include "validate.h"

#include <algorithm>
#include <limits>
#include <ostream>

#include "check.h"

namespace convtbw {

namespace {

bool equal(int64_t a, int64_t b) { return a == b; }
bool equal(const c10::SymInt& a, const c10::SymInt& b) {
  return a.sym_eq(b).expect_true(__FILE__, __LINE__);
}
bool at_least(int64_t a, int64_t b) { return a >= b; }
bool at_least(const c10::SymInt& a, const c10::SymInt& b) {
  return a.sym_ge(b).expect_true(__FILE__, __LINE__);
}

// The value of an integer that is known now.
std::optional<int64_t> known(int64_t value) { return value; }
std::optional<int64_t> known(const c10::SymInt& value) { return value.maybe_as_int(); }

int64_t larger(int64_t a, int64_t b) { return std::max(a, b); }
c10::SymInt larger(const c10::SymInt& a, const c10::SymInt& b) { return a.max(b); }

template <class Int>
Sizes<Int> as(c10::SymIntArrayRef values) {
  if constexpr (std::is_same_v<Int, int64_t>)
    return concrete(values);
  else
    return Sizes<Int>(values.begin(), values.end());
}

template <class Int>
c10::ArrayRef<Int> sizes_of(const at::Tensor& tensor) {
  if constexpr (std::is_same_v<Int, int64_t>)
    return tensor.sizes();
  else
    return tensor.sym_sizes();
}

// std::tolower asks the locale: with it the words of a call took 100 ns, now 30 (Zen 4).
constexpr char lower_case(char c) { return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c; }
bool same_word(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, {}, lower_case, lower_case);
}

// The legal words of a string attribute; the index of `given` among them.
template <size_t n>
int word_index(const Call& call, const char* name, std::string_view given,
               const std::array<std::string_view, n>& legal) {
  std::string list;
  for (size_t i = 0; i < n; ++i) {
    if (same_word(given, legal[i])) return static_cast<int>(i);
    list.append(i ? ", '" : "'").append(legal[i]).append("'");
  }
  check(call, false, name, " is '", given, "'; expected one of ", list);
  return -1;
}

constexpr std::array<std::string_view, 2> kDataFormats{"NXC", "NCX"};
constexpr std::array<std::string_view, 4> kWeightsFormats{"OIX", "XIO", "IOX", "XOI"};
constexpr std::array<std::string_view, 4> kAutoPads{"none", "valid", "same_upper", "same_lower"};
enum AutoPad { kNone, kValid, kSameUpper, kSameLower };

// Where format letter `letter` begins among the dimensions; X stands for `rank` of them.
int position(std::string_view format, char letter, int rank) {
  int at = 0;
  for (const char c : format) {
    if (c == letter) return at;
    at += c == 'X' ? rank : 1;
  }
  return -1;
}

// The one element of a list's axis in words: "strides[1]".
struct Entry {
  const char* list;
  int axis;
};
std::ostream& operator<<(std::ostream& out, const Entry& entry) {
  return out << entry.list << '[' << entry.axis << ']';
}

// Text that is put together only where a check fails.
template <class Write>
struct Text {
  Write write;
  friend std::ostream& operator<<(std::ostream& out, const Text& text) {
    text.write(out);
    return out;
  }
};
template <class Write>
Text(Write) -> Text<Write>;

// Of the result's shape where the caller gives it.
int dimensions_of_shape(const Call& call) {
  return static_cast<int>(call.first.dim()) + (call.op.of_slices ? 1 : 0);
}

const char* dimensions_in_words(const Call& call) {
  return call.op.of_slices ? ", one more than dimensions of " : ", as many as dimensions of ";
}

template <class Int>
class Resolver {
 public:
  Resolver(const Call& call, c10::ArrayRef<Int> shape)
      : call_(call),
        op_(call.op),
        pads_begin_(as<Int>(call.pads_begin)),
        pads_end_(as<Int>(call.pads_end)),
        in_(op_.transposed() ? Role::y : Role::x),
        out_(op_.transposed() ? Role::x : Role::y) {
    check_tensors(call);
    result_.rank = static_cast<int>(call.first.dim()) - 2;
    sizes_[op_.first] = sizes_of<Int>(call.first);
    sizes_[op_.second] = sizes_of<Int>(call.second);
    sizes_[op_.result] = shape;
  }

  Resolved<Int> run() {
    read_attributes();
    read_formats();
    read_sizes();
    read_channels();
    for (const Role role : {Role::x, Role::w, Role::y}) result_.extents[role].resize(result_.rank);
    result_.pads_begin.resize(result_.rank);
    result_.pads_end.resize(result_.rank);
    if (op_.transposed()) result_.output_padding.resize(result_.rank);
    for (int a = 0; a < result_.rank; ++a) {
      for (const Role role : {Role::x, Role::w, Role::y})
        if (is_given(role)) result_.extents[role][a] = sizes_[role][first_axis(role) + a];
      if (op_.transposed())
        relate_transposed(a);
      else
        relate(a);
    }
    read_bias();
    write_result();
    return std::move(result_);
  }

 private:
  bool is_given(Role role) const { return !sizes_[role].empty(); }
  int first_axis(Role role) const {
    return role == Role::w ? result_.weights.first_axis : result_.data.first_axis;
  }
  const char* name(Role role) const { return op_.name_of(role); }
  char letter(Role role) const { return role == in_ ? 'I' : 'O'; }

  template <class List>
  void check_length(const char* list_name, const List& list) const {
    check(call_, static_cast<int>(list.size()) == result_.rank, list_name, " has ", list.size(),
          " entries ", list, "; expected ", result_.rank, ", one per spatial axis of ",
          op_.first_name, " (rank ", call_.first.dim(), ")");
  }

  template <class List>
  void check_entries(const char* list_name, const List& list, int64_t least) const {
    for (int a = 0; a < static_cast<int>(list.size()); ++a)
      check(call_, at_least(list[a], least), Entry{list_name, a}, " is ", list[a],
            "; expected at least ", least);
  }

  void read_attributes() {
    check_length("strides", call_.strides);
    check_length("dilations", call_.dilations);
    check_entries("strides", call_.strides, 1);
    check_entries("dilations", call_.dilations, 1);
    check(call_, call_.groups >= 1, "groups is ", call_.groups, "; expected at least 1");
    auto_pad_ = static_cast<AutoPad>(word_index(call_, "auto_pad", call_.auto_pad, kAutoPads));
    pads_omitted_ = pads_begin_.empty() && pads_end_.empty();
    if (auto_pad_ != kNone) {  // explicit pads are ignored then, but not a wrong number of them
      if (!pads_begin_.empty()) check_length("pads_begin", pads_begin_);
      if (!pads_end_.empty()) check_length("pads_end", pads_end_);
    } else if (op_.pads_optional && pads_begin_.empty() != pads_end_.empty()) {
      check(call_, false, "pads_begin is ", pads_begin_, " and pads_end is ", pads_end_,
            "; expected both or neither");
    } else if (!op_.pads_optional || !pads_omitted_) {
      check_length("pads_begin", pads_begin_);
      check_length("pads_end", pads_end_);
      check_entries("pads_begin", pads_begin_, 0);
      check_entries("pads_end", pads_end_, 0);
    }
    if (call_.output_padding) {
      output_padding_ = as<Int>(*call_.output_padding);
      check_length("output_padding", *output_padding_);
      for (int a = 0; a < result_.rank; ++a)
        check_output_padding(a, (*output_padding_)[a], "output_padding");
    }
  }

  void check_output_padding(int a, const Int& value, const char* list_name) const {
    const int64_t bound = std::max(call_.strides[a], call_.dilations[a]);
    check(call_, at_least(value, 0) && at_least(Int(bound - 1), value), Entry{list_name, a}, " is ",
          value, "; expected 0 <= output_padding < max(strides[", a, "], dilations[", a,
          "]) = ", bound);
  }

  void read_formats() {
    const int rank = result_.rank;
    const std::string_view data =
        kDataFormats[word_index(call_, "data_format", call_.data_format, kDataFormats)];
    result_.data.channel = data == "NXC" ? rank + 1 : 1;
    result_.data.first_axis = data == "NXC" ? 1 : 2;
    result_.data.dimensions = rank + 2;
    format_ = kWeightsFormats[word_index(call_, op_.weights_format_name, call_.weights_format,
                                         kWeightsFormats)];
    const int first = op_.of_slices ? 1 : 0;
    result_.weights.y_channel = first + position(format_, letter(Role::y), rank);
    result_.weights.x_channel = first + position(format_, letter(Role::x), rank);
    result_.weights.first_axis = first + position(format_, 'X', rank);
  }

  void read_sizes() {
    if (op_.shape_name) {
      const auto& shape = sizes_[op_.result];
      const int dimensions = dimensions_of_shape(call_);
      check(call_, static_cast<int>(shape.size()) == dimensions, op_.shape_name, " has ",
            shape.size(), " entries ", shape, "; expected ", dimensions, dimensions_in_words(call_),
            op_.first_name);
    }
    for (const Role role : {op_.first, op_.second, op_.result}) {
      if (!is_given(role)) continue;
      const auto& sizes = sizes_[role];
      for (int d = 0; d < static_cast<int>(sizes.size()); ++d) {
        const bool batch = d == 0 && (role != Role::w || op_.of_slices);
        check(call_, at_least(sizes[d], batch ? 0 : 1), name(role), " has extent ", sizes[d],
              " in dimension ", d, " ", sizes, "; expected at least ", batch ? 0 : 1);
      }
    }
    const Role data = op_.first;  // a data tensor in every operator
    result_.batch = sizes_[data][0];
    for (const Role role : {op_.second, op_.result})
      if (role != Role::w && is_given(role))
        check(call_, equal(sizes_[role][0], result_.batch), name(role), " has batch size ",
              sizes_[role][0], " but ", name(data), " has ", result_.batch, " (", name(role), " ",
              sizes_[role], ", ", name(data), " ", sizes_[data], ")");
    if (op_.of_slices) {
      result_.slices = sizes_.w[0];
      const Int images = result_.batch / larger(result_.slices, 1);
      check(call_, equal(result_.slices * images, result_.batch), name(data), " has batch size ",
            result_.batch, "; expected a multiple of the number of slices, ", result_.slices);
    }
  }

  Int total_channels(Role role) const { return sizes_[role][result_.data.channel]; }

  void read_channels() {
    const int64_t groups = call_.groups;
    for (const Role role : {Role::x, Role::y})
      if (is_given(role))
        check(call_, equal(total_channels(role) % groups, 0), name(role), " has ",
              total_channels(role), " channels; expected a multiple of groups = ", groups);
    WeightsLayout& layout = result_.weights;
    // The published text of the transposed weights gradient reads IOX and XOI with the groups on
    // OC, its implementations with the groups on IC. For groups > 1 no shape fits both readings.
    const bool both_readings = op_.transposed() && (format_ == "IOX" || format_ == "XOI");
    if (!fits(true)) {
      const Text alternative{[&](std::ostream& out) {
        if (both_readings) out << " or " << accepted_shape(false);
      }};
      check(call_, both_readings && fits(false), name(Role::w), " is ", sizes_.w, " in format ",
            format_, " with groups = ", groups, channels_in_words(), "; expected ",
            accepted_shape(true), alternative);
      layout.groups_on_y = false;
    }
    const Int& y = sizes_.w[layout.y_channel];
    const Int& x = sizes_.w[layout.x_channel];
    result_.channels.y = layout.groups_on_y ? y / groups : y;
    result_.channels.x = layout.groups_on_y ? x : x / groups;
  }

  // Whether the weights' shape agrees with the channels of the data tensors that are given.
  bool fits(bool groups_on_y) const {
    const Role spanning = groups_on_y ? Role::y : Role::x;
    const Role per_group = groups_on_y ? Role::x : Role::y;
    const Int& all = sizes_.w[channel_dimension(spanning)];
    const Int& one = sizes_.w[channel_dimension(per_group)];
    return equal(all % call_.groups, 0) &&
           (!is_given(spanning) || equal(all, total_channels(spanning))) &&
           (!is_given(per_group) || equal(one, total_channels(per_group) / call_.groups));
  }

  int channel_dimension(Role role) const {
    return role == Role::y ? result_.weights.y_channel : result_.weights.x_channel;
  }

  auto channels_in_words() const {
    return Text{[this](std::ostream& out) {
      for (const Role role : {op_.first, op_.second, op_.result})
        if (role != Role::w && is_given(role))
          out << ", " << name(role) << " with " << total_channels(role) << " channels";
    }};
  }

  // The shape of the weights in a reading, with a letter where a number is free.
  auto accepted_shape(bool groups_on_y) const {
    return Text{[this, groups_on_y](std::ostream& out) {
      const char* separator = "[";
      for (const char dimension : format_) {
        if (dimension == 'X') {
          for (int a = 0; a < result_.rank; ++a, separator = ", ")
            out << separator << sizes_.w[result_.weights.first_axis + a];
          continue;
        }
        const Role role = dimension == letter(Role::y) ? Role::y : Role::x;
        const bool per_group = (role == Role::y) != groups_on_y;
        out << separator;
        separator = ", ";
        if (is_given(role)) {
          out << (per_group ? total_channels(role) / call_.groups : total_channels(role));
        } else {
          out << dimension << 'C';
          if (per_group) out << '/' << call_.groups;
        }
      }
      out << ']';
    }};
  }

  // Convolution: O = floor((I + pb + pe - ek) / s) + 1.
  void relate(int a) {
    const Int& in = result_.extents.x[a];
    const bool out_given = is_given(Role::y);
    check_range(a, in, out_given ? result_.extents.y[a] : Int(1));
    const int64_t stride = call_.strides[a];
    const Int ek = effective_kernel(result_.extents.w[a], call_.dilations[a]);
    if (auto_pad_ == kNone && pads_omitted_)
      split(a, larger(0, reach(result_.extents.y[a], in, ek, stride)), false);
    else if (auto_pad_ == kSameUpper || auto_pad_ == kSameLower)
      split(a, larger(0, reach(Int((in - 1) / stride + 1), in, ek, stride)),
            auto_pad_ == kSameLower);
    else
      take_pads(a);
    const Int pads = result_.pads_begin[a] + result_.pads_end[a];
    check_kernel_fits(a, ek, in, pads, Role::x);
    const Int out = windows(in, pads, ek, stride);
    if (out_given)
      check(call_, equal(result_.extents.y[a], out), name(Role::y), " has extent ",
            result_.extents.y[a], " in spatial axis ", a, "; expected ", out,
            ", the convolution's for ", name(Role::x), "'s extent ", in, kernel_in_words(a));
    result_.extents.y[a] = out;
  }

  // Transposed: O = s * (I - 1) + ek - pb - pe + output_padding.
  void relate_transposed(int a) {
    const int64_t stride = call_.strides[a];
    const bool in_given = is_given(Role::y), out_given = is_given(Role::x);
    check_range(a, out_given ? result_.extents.x[a] : Int(1),
                in_given ? result_.extents.y[a] : Int(1));
    const Int ek = effective_kernel(result_.extents.w[a], call_.dilations[a]);
    if (auto_pad_ == kSameUpper || auto_pad_ == kSameLower)
      split(a, larger(0, ek - stride), auto_pad_ == kSameLower);
    else
      take_pads(a);
    const Int pads = result_.pads_begin[a] + result_.pads_end[a];
    if (!out_given) {  // the forward operator
      result_.output_padding[a] = output_padding_ ? (*output_padding_)[a] : Int(0);
      const Int out = reach(result_.extents.y[a], pads, ek, stride) + result_.output_padding[a];
      check(call_, at_least(out, 1), name(Role::x), " would have extent ", out, " in spatial axis ",
            a, " for ", name(Role::y), "'s extent ", result_.extents.y[a], kernel_in_words(a),
            "; expected at least 1");
      result_.extents.x[a] = out;
      return;
    }
    const Int& out = result_.extents.x[a];
    if (!in_given) {  // the data gradient
      const Int used = output_padding_ ? pads - (*output_padding_)[a] : pads;
      check_kernel_fits(a, ek, out, used, Role::x);
      result_.extents.y[a] = windows(out, used, ek, stride);
    }
    const Int& in = result_.extents.y[a];
    const Int implied = out - reach(in, pads, ek, stride);
    if (output_padding_) {
      const Int& given = (*output_padding_)[a];
      check(call_, equal(implied, given), name(Role::x), " has extent ", out, " in spatial axis ",
            a, "; expected ", reach(in, pads, ek, stride) + given, " for ", name(Role::y),
            "'s extent ", in, " and ", Entry{"output_padding", a}, " = ", given,
            kernel_in_words(a));
    } else {
      const int64_t bound = std::max(stride, call_.dilations[a]);
      check(call_, at_least(implied, 0) && at_least(Int(bound - 1), implied), name(Role::x),
            " has extent ", out, " in spatial axis ", a, "; expected ", reach(in, pads, ek, stride),
            " to ", reach(in, pads, ek, stride) + (bound - 1), ", a transposed convolution's for ",
            name(Role::y), "'s extent ", in, kernel_in_words(a));
    }
    result_.output_padding[a] = implied;
  }

  void take_pads(int a) {
    result_.pads_begin[a] = auto_pad_ == kValid ? Int(0) : pads_begin_[a];
    result_.pads_end[a] = auto_pad_ == kValid ? Int(0) : pads_end_[a];
  }

  // The odd pixel goes to the end, or to the beginning with `lower`.
  void split(int a, const Int& total, bool lower) {
    result_.pads_begin[a] = (total + (lower ? 1 : 0)) / 2;
    result_.pads_end[a] = total - result_.pads_begin[a];
  }

  void check_kernel_fits(int a, const Int& ek, const Int& extent, const Int& pads,
                         Role role) const {
    check(call_, at_least(extent + pads, ek), "the dilated kernel's extent ", ek,
          " exceeds the padded extent ", extent + pads, " of ", name(role), " in spatial axis ", a,
          " (extent ", extent, kernel_in_words(a), "); expected at most ", extent + pads);
  }

  auto kernel_in_words(int a) const {
    return Text{[this, a](std::ostream& out) {
      out << " (kernel " << result_.extents.w[a] << ", stride " << call_.strides[a] << ", dilation "
          << call_.dilations[a] << ", pads " << result_.pads_begin[a] << " + "
          << result_.pads_end[a] << ')';
    }};
  }

  // No later sum can leave 64 bits if this one does not. Symbolic extents are not asked: the
  // program that is traced for them asks the real ones when it runs.
  void check_range(int a, const Int& x, const Int& y) const {
    using Wide = __int128;
    constexpr Wide limit = std::numeric_limits<int64_t>::max();
    Wide sum = 0;
    bool exceeded = false;
    const auto add = [&](const Wide& term) {
      sum += term;
      exceeded |= sum > limit;
      if (exceeded) sum = 0;  // so that no later term can leave 128 bits
    };
    const Wide stride = call_.strides[a], dilation = call_.dilations[a];
    add(stride);
    add(dilation);
    if (const auto taps = known(result_.extents.w[a])) add((Wide(*taps) - 1) * dilation + 1);
    if (const auto windows = known(y)) add((Wide(*windows) - 1) * stride);
    if (const auto extent = known(x)) add(*extent);
    if (auto_pad_ == kNone && !pads_omitted_)
      for (const Int& pad : {pads_begin_[a], pads_end_[a]})
        if (const auto pixels = known(pad)) add(*pixels);
    check(call_, !exceeded, "spatial axis ", a, " overflows 64 bits: (extent ", y, " - 1) * ",
          Entry{"strides", a}, " ", call_.strides[a], " + (kernel ", result_.extents.w[a],
          " - 1) * ", Entry{"dilations", a}, " ", call_.dilations[a], " + extent ", x,
          " + pads_begin ", pads_begin_, " + pads_end ", pads_end_, "; expected less than 2^63");
  }

  void read_bias() const {
    if (!call_.bias) return;
    const Int channels = result_.channels[op_.result] * call_.groups;
    const auto sizes = sizes_of<Int>(*call_.bias);
    check(call_, sizes.size() == 1 && equal(sizes[0], channels), "bias has shape ", sizes,
          "; expected [", channels, "], one value a channel of ", name(op_.result));
  }

  void write_result() {
    if (op_.shape_name) {
      result_.result.assign(sizes_[op_.result].begin(), sizes_[op_.result].end());
    } else {
      result_.result.resize(result_.rank + 2);
      result_.result[0] = result_.batch;
      result_.result[result_.data.channel] = result_.channels[op_.result] * call_.groups;
      for (int a = 0; a < result_.rank; ++a)
        result_.result[result_.data.first_axis + a] = result_.extents[op_.result][a];
    }
    int64_t bytes = static_cast<int64_t>(call_.first.element_size());
    bool overflow = false;
    for (const Int& extent : result_.result)
      if (const auto pixels = known(extent))
        overflow |= __builtin_mul_overflow(bytes, std::max<int64_t>(*pixels, 1), &bytes);
    check(call_, !overflow, name(op_.result), " of shape ", c10::ArrayRef<Int>(result_.result),
          " overflows 64 bits; expected less than 2^63 bytes");
  }

  const Call& call_;
  const Operator& op_;
  const Sizes<Int> pads_begin_, pads_end_;
  const Role in_, out_;                // of the forward operator's src and dst
  PerRole<c10::ArrayRef<Int>> sizes_;  // empty where it follows from the others
  std::optional<Sizes<Int>> output_padding_;
  std::string_view format_;
  AutoPad auto_pad_ = kNone;
  bool pads_omitted_ = false;
  Resolved<Int> result_;
};

}  // namespace

template <class Int>
Resolved<Int> resolve(const Call& call, c10::ArrayRef<Int> shape) {
  return Resolver<Int>(call, shape).run();
}

template Resolved<int64_t> resolve(const Call&, c10::ArrayRef<int64_t>);
template Resolved<c10::SymInt> resolve(const Call&, c10::ArrayRef<c10::SymInt>);

Sizes<int64_t> concrete(c10::SymIntArrayRef values) {
  Sizes<int64_t> result;
  for (const c10::SymInt& value : values) result.push_back(value.guard_int(__FILE__, __LINE__));
  return result;
}

c10::SymIntArrayRef shape_attribute(const Call& call) {
  if (!call.op.shape_name) return {};
  check(call, call.shape.has_value(), "neither ", call.op.shape_name, " nor ",
        call.op.shape_tensor_name, " is given; expected one of them: the kernel's extents do not ",
        "follow from ", call.op.first_name, " and ", call.op.second_name);
  return *call.shape;
}

Sizes<int64_t> shape_tensor_values(const Call& call) {
  const at::Tensor& tensor = *call.shape_tensor;
  const char* const name = call.op.shape_tensor_name;
  check(call, !tensor.is_nested(), name, " is a nested tensor; expected a strided one");
  check(call, tensor.layout() == at::kStrided, name, " has layout ", tensor.layout(),
        "; expected torch.strided");
  check(call, tensor.is_cpu(), name, " is on device ", tensor.device(), "; expected cpu");
  check(call, tensor.scalar_type() == at::kInt || tensor.scalar_type() == at::kLong, name,
        " has dtype ", tensor.scalar_type(), "; expected int32 or int64");
  check(call, tensor.dim() == 1, name, " has rank ", tensor.dim(), "; expected 1");
  check(call, tensor.numel() == dimensions_of_shape(call), name, " has ", tensor.numel(),
        " entries; expected ", dimensions_of_shape(call), dimensions_in_words(call),
        call.op.first_name);
  const at::Tensor values = tensor.to(at::kLong).contiguous();
  const int64_t* begin = values.const_data_ptr<int64_t>();
  return Sizes<int64_t>(begin, begin + values.numel());
}

at::MemoryFormat result_memory_format(const Call& call, const DataLayout& layout) {
  if (call.op.result == Role::w || layout.channel != 1 || layout.dimensions < 4)
    return at::MemoryFormat::Contiguous;
  const at::MemoryFormat channels_last =
      layout.dimensions == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::ChannelsLast3d;
  const at::Tensor& data = call.first;
  return !data.is_contiguous_or_false() && data.is_contiguous_or_false(channels_last)
             ? channels_last
             : at::MemoryFormat::Contiguous;
}

std::string reading_name(const Call& call, const WeightsLayout& layout) {
  if (call.groups == 1) return "one group";
  // y is dst of a convolution and src of a transposed one.
  const bool on_output = layout.groups_on_y != call.op.transposed();
  return on_output ? "groups on O: (IC/g, OC)" : "groups on I: (IC, OC/g)";
}

}  // namespace convtbw
