// A times a matrix whose numbers of 2, 4 or 8 bits are packed in bytes, block by block.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "contrib/contrib.h"

namespace steep {
namespace {

constexpr const char* kWriteAgain = "Quantise the model again.";

/// What the attributes say about W [n, k], of which B holds the packed numbers.
struct Packing {
  int64_t n, k, bits, block;
  int64_t blocks = (k - 1) / block + 1;  // of a row
  int64_t padded = blocks * block;       // numbers of a row
};

int64_t within(const ContribCall& c, std::string_view name, int64_t least) {
  const int64_t value = c.integer(name);
  if (value >= least && value <= kFar) return value;
  c.fail("An attribute is out of range.", fmt::format("{} of {} to {}", name, least, kFar),
         fmt::format("{} = {}", name, value), kWriteAgain);
}

Packing packing_of(const ContribCall& c) {
  Packing p{.n = within(c, "N", 1),
            .k = within(c, "K", 1),
            .bits = c.integer("bits"),
            .block = within(c, "block_size", 16)};
  if (p.bits != 2 && p.bits != 4 && p.bits != 8) {
    c.fail("An attribute is out of range.", "bits of 2, 4 or 8", fmt::format("bits = {}", p.bits),
           kWriteAgain);
  }
  if ((p.block & (p.block - 1)) != 0) {
    c.fail("An attribute is out of range.", "a power of 2 as block_size",
           fmt::format("block_size = {}", p.block), kWriteAgain);
  }
  if (c.integer("weight_prepacked") != 0) {
    c.fail("The weights are in the layout of one device.", "weight_prepacked = 0",
           fmt::format("weight_prepacked = {}", c.integer("weight_prepacked")),
           "Train the file from before it was packed for that device.");
  }
  return p;
}

/// Without the mark of an optional input.
std::string_view name_of_input(const ContribCall& c, size_t i) {
  const std::string_view name = c.op.inputs[i];
  return name.ends_with('?') ? name.substr(0, name.size() - 1) : name;
}

/// Throws ModelError unless input `i` has a dtype among `dtypes`.
void check_dtype(const ContribCall& c, size_t i, std::initializer_list<DType> dtypes) {
  if (std::find(dtypes.begin(), dtypes.end(), c.inputs[i].dtype) != dtypes.end()) return;
  std::vector<std::string_view> names;
  for (const DType dtype : dtypes) names.push_back(name_of(dtype));
  c.fail("An input has another type.",
         fmt::format("{} of {}", name_of_input(c, i), fmt::join(names, " or ")),
         to_string(c.inputs[i]), kWriteAgain);
}

/// Throws ModelError unless input `i` has one of these shapes.
void check_shape(const ContribCall& c, size_t i, const std::vector<Ints>& shapes) {
  static_cast<void>(c.rank(i));  // throws if the shape is unknown
  const Shape& shape = *c.inputs[i].shape;
  for (const Ints& wanted : shapes) {
    if (std::equal(shape.begin(), shape.end(), wanted.begin(), wanted.end(),
                   [](const Dim& a, int64_t b) { return a.known() && a.value() == b; })) {
      return;
    }
  }
  std::vector<std::string> texts;
  for (const Ints& wanted : shapes) texts.push_back(fmt::format("[{}]", fmt::join(wanted, ", ")));
  c.fail("An input has another shape.",
         fmt::format("{} {}", name_of_input(c, i), fmt::join(texts, " or ")),
         to_string(c.inputs[i]), kWriteAgain);
}

void check_inputs(const ContribCall& c, const Packing& p) {
  const int64_t whole = p.n * p.blocks;  // N and K are at most kFar: no overflow
  check_dtype(c, 1, {DType::u8});
  check_shape(c, 1, {{p.n, p.blocks, p.block * p.bits / 8}});
  check_dtype(c, 2, {c.inputs[0].dtype});
  check_shape(c, 2, {{p.n, p.blocks}, {whole}});
  if (c.has(3)) {
    check_dtype(c, 3, {DType::u8, c.inputs[2].dtype});
    const bool packed = c.inputs[3].dtype == DType::u8;
    const int64_t each = packed ? (p.blocks * p.bits + 7) / 8 : p.blocks;
    check_shape(c, 3, {{p.n, each}, {p.n * each}});
  }
  if (c.has(4)) {
    check_dtype(c, 4, {DType::i32});
    check_shape(c, 4, {{p.k}, {p.padded}});
  }
  if (c.has(5)) {
    check_dtype(c, 5, {c.inputs[0].dtype});
    check_shape(c, 5, {{p.n}});
  }
}

class Unpacker {
 public:
  Unpacker(const ContribCall& call, ContribBody& body, const Packing& packing)
      : c_(call), f_(body), p_(packing) {}

  /// W of floats, [N, K].
  std::string weight() {
    const std::string q = unpacked("B", p_.padded);
    reshaped("scales", {p_.n, p_.blocks}, "steps");
    const bool of_bytes = !c_.has(3) || c_.inputs[3].dtype == DType::u8;
    if (!c_.has(3)) {
      f_.add(fmt::format(
          "places = Shape (steps)  zeros = ConstantOfShape <value = uint8[1] {{{}}}> (places)",
          int64_t{1} << (p_.bits - 1)));
    } else if (of_bytes) {
      f_.add(fmt::format("zeros = Identity ({})", unpacked("zero_points", p_.blocks)));
    } else {
      reshaped("zero_points", {p_.n, p_.blocks}, "zeros");
    }
    if (c_.has(4)) return by_groups(q);
    if (!of_bytes) return by_floats(q);
    f_.add(fmt::format("W = DequantizeLinear <axis = 1, block_size = {}> ({}, steps, zeros)",
                       p_.block, q));
    return cut("W", p_.padded, p_.k);
  }

 private:
  void reshaped(const std::string& from, const Ints& dims, const std::string& to) {
    f_.ints(to + "_dims", dims);
    f_.add(fmt::format("{0} = Reshape ({1}, {0}_dims)", to, from));
  }

  /// The first `count` numbers of each row; a row of bytes begins with the lowest bits.
  std::string unpacked(const std::string& name, int64_t count) {
    const int64_t each = 8 / p_.bits, bytes = (count - 1) / each + 1;
    reshaped(name, {p_.n, bytes, 1}, name + "_bytes");
    std::string all = name + "_bytes";
    if (each > 1) {
      Ints places;
      for (int64_t i = 0; i < each; ++i) places.push_back(i * p_.bits);
      f_.add(fmt::format(
          R"({0}_places = Constant <value = uint8[{1}] {{{2}}}> ()
             {0}_mask = Constant <value = uint8 {{{3}}}> ()
             {0}_moved = BitShift <direction = "RIGHT"> ({0}_bytes, {0}_places)
             {0}_numbers = BitwiseAnd ({0}_moved, {0}_mask))",
          name, each, fmt::join(places, ", "), (int64_t{1} << p_.bits) - 1));
      all = name + "_numbers";
    }
    reshaped(all, {p_.n, bytes * each}, name + "_rows");
    return cut(name + "_rows", bytes * each, count);
  }

  /// The first `count` columns of `there`.
  std::string cut(const std::string& x, int64_t there, int64_t count) {
    if (there == count) return x;
    f_.ints(x + "_from", {0});
    f_.ints(x + "_to", {count});
    f_.ints(x + "_axis", {1});
    f_.add(fmt::format("{0}_cut = Slice ({0}, {0}_from, {0}_to, {0}_axis)", x));
    return x + "_cut";
  }

  /// The scales as floats that are known as scales: without this, training would take them, and
  /// zero points that are floats, for weights.
  void as_scale(const std::string& from, const std::string& to) {
    f_.add(fmt::format(
        R"({1}_there = Shape ({0})  {1}_ones = ConstantOfShape <value = int8[1] {{1}}> ({1}_there)
           {1} = DequantizeLinear <axis = 1, block_size = 1> ({1}_ones, {0}))",
        from, to));
  }

  std::string by_floats(const std::string& q) {
    as_scale("steps", "factors");
    as_scale("zeros", "origins");
    f_.ints("last", {2});
    reshaped(q, {p_.n, p_.blocks, p_.block}, "parted");
    f_.add(R"(wide = CastLike (parted, scales)
              origin = Unsqueeze (origins, last)  factor = Unsqueeze (factors, last)
              less = Sub (wide, origin)  scaled = Mul (less, factor))");
    reshaped("scaled", {p_.n, p_.padded}, "W");
    return cut("W", p_.padded, p_.k);
  }

  /// Column j has the scale and the zero point of block g_idx[j].
  std::string by_groups(const std::string& q) {
    as_scale("steps", "factors");
    if (c_.inputs[3].dtype == c_.inputs[2].dtype && c_.has(3)) {
      as_scale("zeros", "origins");
    } else {
      f_.add("origins = CastLike (zeros, scales)");
    }
    std::string groups = "g_idx";
    if (!c_.inputs[4].shape->empty() && (*c_.inputs[4].shape)[0].value() != p_.k) {
      f_.ints("first", {0});
      f_.ints("end", {p_.k});
      f_.add("groups = Slice (g_idx, first, end)");
      groups = "groups";
    }
    // A negative number counts from the end in Gather. Here it is out of range.
    f_.add(fmt::format(
        R"(none = Constant <value = int32 {{0}}> ()  outside = Constant <value = int32 {{{2}}}> ()
           negative = Less ({1}, none)  group = Where (negative, outside, {1})
           wide = CastLike ({0}, scales)
           origin = Gather <axis = 1> (origins, group)  factor = Gather <axis = 1> (factors, group)
           less = Sub (wide, origin)  W = Mul (less, factor))",
        cut(q, p_.padded, p_.k), groups, p_.blocks));
    return "W";
  }

  const ContribCall& c_;
  ContribBody& f_;
  const Packing& p_;
};

Results matmul_nbits(const ContribCall& c, ContribBody& f) {
  const Packing p = packing_of(c);
  check_inputs(c, p);
  f.add(fmt::format("turned = Transpose <perm = [1, 0]> ({})  y = MatMul (A, turned)",
                    Unpacker(c, f, p).weight()));
  if (!c.has(5)) return {"y"};
  f.add("z = Add (y, bias)");
  return {"z"};
}

}  // namespace

extern const ContribOp kContribMatMulNBits = {
    .name = "MatMulNBits",
    .inputs = {"A", "B", "scales", "zero_points?", "g_idx?", "bias?"},
    .attributes = {{"K", 0},
                   {"N", 0},
                   {"accuracy_level", 0},
                   {"bits", 4},
                   {"block_size", 0},
                   {"weight_prepacked", 0}},
    .build = matmul_nbits};

}  // namespace steep
