#include <algorithm>
#include <limits>
#include <span>

#include "ir/graph.h"
#include "providers/cpu/elementwise.h"
#include "providers/cpu/elementwise_rows.h"
#include "providers/cpu/philox.h"

namespace steep::cpu {
namespace {

/// The attribute; 0 when the row names none.
double number(const Attrs& attrs, const char* name) {
  if (name == nullptr) return 0;
  const auto* i = std::get_if<int64_t>(attrs.find(name));
  return i != nullptr ? static_cast<double>(*i) : attrs.real(name);
}

double smallest(DType dtype) {
  switch (dtype) {
    case DType::i8: return std::numeric_limits<int8_t>::min();
    case DType::i16: return std::numeric_limits<int16_t>::min();
    case DType::i32: return std::numeric_limits<int32_t>::min();
    case DType::i64: return static_cast<double>(std::numeric_limits<int64_t>::min());
    default: return 0;
  }
}

/// An operand during building: a value of the program, or none.
struct Ref {
  int value = -1;
  DType dtype = DType::undefined;
  int input = -1;                    // the node's input that it comes from, or -1
  const Tensor* constant = nullptr;  // its contents, if known

  bool present() const { return value >= 0 || input >= 0; }
};

class Builder {
 public:
  Builder(const NodeSpec& node, std::string* why_not) : node_(node), why_not_(why_not) {}

  std::optional<Program> build() {
    const Graph* body = node_.op == "steep.Fused" ? &node_.attrs.body("body") : nullptr;
    if (!take_outputs() || !choose_type(body)) return std::nullopt;
    const bool built = body != nullptr ? build_body(*body) : build_single();
    if (!built) return std::nullopt;
    if (values_ > kMaxValues || !assign_slots(program_, values_)) {
      fail("the body needs too many registers");
      return std::nullopt;
    }
    return std::move(program_);
  }

  /// The ops supported in bodies, or as single nodes.
  static std::vector<std::string_view> ops();

 private:
  /// The node being emitted.
  struct Call {
    const Attrs& attrs;
    const std::vector<Ref>& in;
    DType dtype;
    bool last;  ///< only the store of an output reads it
  };

  /// An operator that is not a single instruction in all cases.
  struct CallRow {
    std::string_view op;
    size_t inputs;  ///< the minimal number
    bool (Builder::*emit)(const Call& call, Ref& y);
  };
  static std::span<const CallRow> call_rows();

  bool fail(std::string reason) {
    decline(why_not_, "{}", reason);
    return false;
  }

  bool integral() const { return program_.type == DType::i64 || program_.type == DType::u64; }

  bool take_outputs() {
    bool first = true;
    for (const Operand& y : node_.outputs) {
      if (!y.present()) continue;
      if (!first && y.dims != dims_) return fail("the outputs differ in shape");
      dims_ = y.dims;
      first = false;
    }
    program_.size = element_count(dims_);
    return first ? fail("no output is used") : true;
  }

  /// Chooses one element type for all values: float, unless a dtype is wider; 64-bit integers if
  /// there are no floats.
  bool choose_type(const Graph* body) {
    std::vector<DType> dtypes;
    for (size_t i = 0; i < node_.inputs.size(); ++i) {
      if (node_.inputs[i].present() && !is_seed(body, i)) dtypes.push_back(node_.inputs[i].dtype);
    }
    for (const Operand& y : node_.outputs) {
      if (y.present()) dtypes.push_back(y.dtype);
    }
    if (body != nullptr) {
      for (Node n : body->nodes()) {
        for (int i = 0; i < n.output_count(); ++i) {
          if (n.output(i)) dtypes.push_back(n.output(i).dtype());
        }
      }
    }
    auto any = [&](auto&& test) { return std::any_of(dtypes.begin(), dtypes.end(), test); };
    const bool floats = any(is_float);
    const bool integers = any(is_integer);
    const bool u64 = any([](DType t) { return t == DType::u64; });
    if (u64 && any([](DType t) { return t == DType::i64; })) return fail("mixes uint64 and int64");
    if (any([](DType t) { return bits_of(t) < 8 || is_narrow_float(t); }))
      return fail("a dtype of 8 bits or less supports conversions only");
    if (!floats) {
      program_.type = u64 ? DType::u64 : DType::i64;
    } else if (integers || any([](DType t) { return t == DType::f64; })) {
      // Doubles hold 32-bit integers exactly. Only Pow and Cast mix integers with floats.
      if (integers && body != nullptr &&
          any([](DType t) { return is_integer(t) && size_of(t) > 4; })) {
        return fail("mixes 64-bit integers and floats");
      }
      program_.type = DType::f64;
      mixed_ = integers;
    } else {
      program_.type = DType::f32;
    }
    return true;
  }

  bool is_seed(const Graph* body, size_t input) const {
    if (body == nullptr) return input == 1 && node_.op.starts_with("steep.Dropout");
    const Value v = body->inputs()[input];
    for (Node n : body->nodes()) {
      if (n.op().starts_with("steep.Dropout") && n.input(1) == v) return true;
    }
    return false;
  }

  bool build_single() {
    std::vector<Ref> inputs;
    for (size_t i = 0; i < node_.inputs.size(); ++i) {
      if (!node_.inputs[i].present()) {
        inputs.push_back({});
      } else if (is_seed(nullptr, i)) {
        inputs.push_back({.dtype = DType::i64, .input = static_cast<int>(i)});
      } else if (!load_input(i, inputs.emplace_back())) {
        return false;
      }
    }
    single_ = true;
    Ref y;
    return emit(node_.op, node_.attrs, inputs, node_.out(0).dtype, true, y) && store(y, 0);
  }

  bool build_body(const Graph& body) {
    if (body.inputs().size() != node_.inputs.size())
      return fail("the body's inputs are not the node's");
    std::vector<Ref> refs(body.value_count());
    for (size_t i = 0; i < body.inputs().size(); ++i) {
      Ref& r = refs[body.inputs()[i].id()];
      if (!node_.inputs[i].present()) continue;
      if (is_seed(&body, i)) {
        r = {.dtype = DType::i64, .input = static_cast<int>(i)};
      } else if (!load_input(i, r)) {
        return false;
      }
    }
    const auto users = body.users();
    for (Node n : body.nodes()) {
      std::vector<Ref> inputs;
      for (int i = 0; i < n.input_count(); ++i) {
        const Value v = n.input(i);
        if (v && !refs[v.id()].present() && v.tensor() != nullptr &&
            !load_constant(*v.tensor(), refs[v.id()])) {
          return false;
        }
        inputs.push_back(v ? refs[v.id()] : Ref());
      }
      const Value y = n.output(0);
      if (!y) return fail("a node of the body has no output");
      if (n.op().starts_with("steep.Dropout") && y.type().concrete() && y.type().dims() != dims_) {
        return fail("dropout of another shape than the output's");
      }
      if (!emit(n.op(), n.attrs(), inputs, y.dtype(), users[y.id()].empty(), refs[y.id()])) {
        return false;
      }
    }
    for (size_t i = 0; i < body.outputs().size(); ++i) {
      const Value v = body.outputs()[i].value;
      if (!node_.out(i).present()) continue;
      if (!refs[v.id()].present() && v.tensor() != nullptr &&
          !load_constant(*v.tensor(), refs[v.id()])) {
        return false;
      }
      if (!store(refs[v.id()], i)) return false;
    }
    return true;
  }

  bool load_input(size_t i, Ref& ref) {
    const Operand& x = node_.inputs[i];
    ref = {
        .value = values_++, .dtype = x.dtype, .input = static_cast<int>(i), .constant = x.constant};
    Program::Load load;
    load.input = static_cast<uint16_t>(i);
    return add_load(std::move(load), ref, x.dims);
  }

  bool load_constant(const Tensor& tensor, Ref& ref) {
    ref = {.value = values_++, .dtype = tensor.dtype(), .constant = &tensor};
    Program::Load load;
    load.constant = tensor;
    return add_load(std::move(load), ref, tensor.dims());
  }

  bool add_load(Program::Load load, const Ref& ref, const Dims& dims) {
    load.value = static_cast<uint16_t>(ref.value);
    load.dtype = ref.dtype;
    if (dims.size() > dims_.size()) return fail("an input has more axes than the output");
    const size_t lead = dims_.size() - dims.size();
    const Dims own = row_major_strides(dims);
    bool whole = true;
    for (size_t a = 0; a < dims_.size(); ++a) {
      const int64_t d = a < lead ? 1 : dims[a - lead];
      if (d != dims_[a] && d != 1) return fail("an input does not broadcast to the output");
      whole &= d == dims_[a];
      if (dims_[a] == 1) continue;
      const int64_t stride = d == 1 ? 0 : own[a - lead];
      // Merge with the previous axis if the operand's strides allow.
      if (!load.dims.empty() && load.strides.back() == stride * dims_[a]) {
        load.dims.back() *= dims_[a];
        load.strides.back() = stride;
      } else {
        load.dims.push_back(dims_[a]);
        load.strides.push_back(stride);
      }
    }
    using Kind = Program::Load::Kind;
    if (whole) {
      load.kind = load.dtype == program_.type ? Kind::direct : Kind::convert;
      for (size_t o = 0; o < node_.outputs.size() && !load.constant.defined(); ++o) {
        if (node_.outputs[o].present() && size_of(node_.outputs[o].dtype) == size_of(load.dtype)) {
          program_.may_share.emplace_back(load.input, static_cast<int>(o));
        }
      }
    } else {
      load.kind = element_count(dims) == 1 ? Kind::scalar : Kind::broadcast;
      if (load.dims.size() > kMaxBroadcastAxes) return fail("too many axes to broadcast");
    }
    program_.loads.push_back(std::move(load));
    return true;
  }

  /// Adds an instruction, and one that rounds or wraps its result to a narrower dtype, unless the
  /// store does so.
  bool instruct(Code code, std::initializer_list<Ref> in, DType dtype, Ref& y, Params params = {}) {
    for (const Ref& r : in) {
      if (r.value < 0) return fail("an operand is missing");
    }
    if (mixed_ && is_integer(dtype) && code != Code::pow)
      return fail("integer arithmetic beside floats");
    params.dtype = dtype;
    const Ref* r = in.begin();
    const auto at = [&](size_t i) {
      return static_cast<uint16_t>(i < in.size() ? r[i].value : r[0].value);
    };
    y = {.value = values_++, .dtype = dtype};
    program_.instructions.push_back({.code = code,
                                     .dst = static_cast<uint16_t>(y.value),
                                     .a = at(0),
                                     .b = at(1),
                                     .c = at(2),
                                     .params = params});
    const bool divides =
        code == Code::div || code == Code::mod || code == Code::fmod || code == Code::pow;
    if (integral()) program_.may_fault |= divides;
    if (program_.type == DType::i64 && !single_ && is_integer(dtype) && size_of(dtype) < 8 &&
        code != Code::wrap) {
      const Ref wide = y;
      return instruct(Code::wrap, {wide}, dtype, y);
    }
    return true;
  }

  bool emit(std::string_view op, const Attrs& attrs, const std::vector<Ref>& in, DType dtype,
            bool last, Ref& y) {
    for (const OpRow& row : kOps) {
      if (row.op != op) continue;
      if (static_cast<int>(in.size()) < row.inputs) return fail("an operand is missing");
      Params params{number(attrs, row.p0), number(attrs, row.p1), dtype};
      if (row.code == Code::div) params.p0 = smallest(dtype);
      if (row.inputs == 1) return instruct(row.code, {in[0]}, dtype, y, params);
      if (row.inputs == 2) return instruct(row.code, {in[0], in[1]}, dtype, y, params);
      return instruct(row.code, {in[0], in[1], in[2]}, dtype, y, params);
    }
    for (const CallRow& row : call_rows()) {
      if (row.op != op) continue;
      if (in.size() < row.inputs) return fail("an operand is missing");
      return (this->*row.emit)({attrs, in, dtype, last}, y);
    }
    return fail(fmt::format("{} is not elementwise", op));
  }

  bool emit_mod(const Call& call, Ref& y) {
    const Code code = call.attrs.integer("fmod") != 0 ? Code::fmod : Code::mod;
    return instruct(code, {call.in[0], call.in[1]}, call.dtype, y);
  }

  bool emit_shift(const Call& call, Ref& y) {
    const bool left = call.attrs.string("direction") == "LEFT";
    return instruct(left ? Code::bit_shift_left : Code::bit_shift_right, {call.in[0], call.in[1]},
                    call.dtype, y);
  }

  bool emit_gelu(const Call& call, Ref& y) {
    const bool tanh = call.attrs.string("approximate") == "tanh";
    return instruct(tanh ? Code::gelu_tanh : Code::gelu, {call.in[0]}, call.dtype, y);
  }

  bool emit_gelu_grad(const Call& call, Ref& y) {
    const bool tanh = call.attrs.string("approximate") == "tanh";
    return instruct(tanh ? Code::gelu_tanh_grad : Code::gelu_grad, {call.in[0], call.in[1]},
                    call.dtype, y);
  }

  template <Code kCode>
  bool emit_chain(const Call& call, Ref& y) {
    if (call.in.size() == 1) return instruct(Code::copy, {call.in[0]}, call.dtype, y);
    y = call.in[0];
    for (size_t i = 1; i < call.in.size(); ++i) {
      const Ref so_far = y;
      if (!instruct(kCode, {so_far, call.in[i]}, call.dtype, y)) return false;
    }
    return true;
  }

  bool emit_mean(const Call& call, Ref& y) {
    Ref sum;
    return emit_chain<Code::add>(call, sum) &&
           instruct(Code::scale, {sum}, call.dtype, y,
                    {1.0 / static_cast<double>(call.in.size()), 0, call.dtype});
  }

  bool emit_clip(const Call& call, Ref& y) {
    const std::vector<Ref>& in = call.in;
    const DType dtype = call.dtype;
    Ref x = in[0];
    if (in.size() > 1 && in[1].present()) {
      if (!instruct(Code::max, {in[0], in[1]}, dtype, x)) return false;
    }
    if (in.size() > 2 && in[2].present()) return instruct(Code::min, {x, in[2]}, dtype, y);
    return instruct(Code::copy, {x}, dtype, y);
  }

  /// Constant exponents for which there is a cheaper, equally exact form.
  bool emit_pow(const Call& call, Ref& y) {
    const std::vector<Ref>& in = call.in;
    const DType dtype = call.dtype;
    const Tensor* exponent = in[1].constant;
    if (exponent != nullptr && exponent->size() == 1 && is_float(dtype) && !integral()) {
      double e = 0;
      find_convert(exponent->dtype(), DType::f64)(exponent->data(), &e, 1);
      if (e == 1) return instruct(Code::copy, {in[0]}, dtype, y);
      if (e == 2) return instruct(Code::square, {in[0]}, dtype, y);
      if (e == 3) return instruct(Code::cube, {in[0]}, dtype, y);
      if (e == 0.5) return instruct(Code::root, {in[0]}, dtype, y);
      if (e == -1) return instruct(Code::reciprocal, {in[0]}, dtype, y);
    }
    return instruct(Code::pow, {in[0], in[1]}, dtype, y);
  }

  bool emit_cast(const Call& call, Ref& y) {
    const Ref& x = call.in[0];
    const DType to = call.dtype;
    if (to == DType::boolean) return instruct(Code::nonzero, {x}, to, y);
    if (integral()) return instruct(Code::copy, {x}, to, y);
    if (x.value >= 0 && (to == DType::f32 ? program_.type == DType::f32 && is_float(x.dtype)
                                          : call.last && is_float(to) && size_of(to) == 2)) {
      // Nothing to do: the load has widened it, or the store will narrow it.
      y = {.value = x.value, .dtype = to};
      return true;
    }
    if (is_integer(to)) return fail("a float is cast to an integer inside");
    Code round = Code::copy;
    if (to == DType::bf16) round = Code::round_bf16;
    if (to == DType::f16) round = Code::round_f16;
    if (to == DType::f32) round = Code::round_f32;
    if (x.dtype == to || x.dtype == DType::boolean) round = Code::copy;
    return instruct(round, {x}, to, y);
  }

  template <Code kCode>
  bool emit_dropout(const Call& call, Ref& y) {
    const std::vector<Ref>& in = call.in;
    if (in.size() < 2 || in[1].input < 0) return fail("dropout without a seed input");
    if (integral()) return fail("dropout of integers");
    const double ratio = call.attrs.real("ratio");
    if (!(ratio >= 0 && ratio <= 1)) return fail(fmt::format("ratio is {}", ratio));
    if (!instruct(kCode, {in[0]}, call.dtype, y)) return false;
    Program::Instruction& i = program_.instructions.back();
    i.dropout = {keep_threshold(ratio), call.attrs.integer("stream"),
                 ratio < 1 ? 1 / (1 - ratio) : 0};
    i.seed_input = static_cast<uint16_t>(in[1].input);
    return true;
  }

  /// Stores an output. An output that is an input, or that is already stored with its dtype, is
  /// copied to a value of its own.
  bool store(Ref v, size_t output) {
    if (v.value < 0) return fail("an output is not computed");
    const DType dtype = node_.out(output).dtype;
    auto same = [&](const auto& x) { return x.value == v.value; };
    auto in_its_type = [&](const Program::Store& s) {
      return same(s) && s.dtype == program_.type && dtype == program_.type;
    };
    if (std::any_of(program_.loads.begin(), program_.loads.end(), same) ||
        std::any_of(program_.stores.begin(), program_.stores.end(), in_its_type)) {
      const Ref x = v;
      if (!instruct(Code::copy, {x}, v.dtype, v)) return false;
    }
    program_.stores.push_back(
        {static_cast<uint16_t>(v.value), static_cast<uint16_t>(output), dtype, false});
    return true;
  }

  static constexpr size_t kMaxBroadcastAxes = 16;

  const NodeSpec& node_;
  std::string* why_not_;
  Program program_;
  Dims dims_;
  int values_ = 0;
  bool mixed_ = false;   // integers beside floats
  bool single_ = false;  // a single node: the store rounds the result
};

std::span<const Builder::CallRow> Builder::call_rows() {
  static constexpr CallRow kRows[] = {
      {"BitShift", 2, &Builder::emit_shift},
      {"Pow", 2, &Builder::emit_pow},
      {"Mod", 2, &Builder::emit_mod},
      {"Gelu", 1, &Builder::emit_gelu},
      {"steep.GeluGrad", 2, &Builder::emit_gelu_grad},
      {"Clip", 1, &Builder::emit_clip},
      {"Min", 1, &Builder::emit_chain<Code::min>},
      {"Max", 1, &Builder::emit_chain<Code::max>},
      {"Sum", 1, &Builder::emit_chain<Code::add>},
      {"Mean", 1, &Builder::emit_mean},
      {"Cast", 1, &Builder::emit_cast},
      {"CastLike", 1, &Builder::emit_cast},
      {"steep.Dropout", 1, &Builder::emit_dropout<Code::dropout>},
      {"steep.DropoutMask", 1, &Builder::emit_dropout<Code::dropout_mask>},
  };
  return kRows;
}

std::vector<std::string_view> Builder::ops() {
  std::vector<std::string_view> ops = {"steep.Fused"};
  for (const OpRow& row : kOps) ops.push_back(row.op);
  for (const CallRow& row : call_rows()) ops.push_back(row.op);
  return ops;
}

}  // namespace

std::optional<Program> build_program(const NodeSpec& node, std::string* why_not) {
  return Builder(node, why_not).build();
}

std::vector<std::string_view> elementwise_ops() { return Builder::ops(); }

}  // namespace steep::cpu
