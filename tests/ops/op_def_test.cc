#include "ops/op_def.h"

#include <gtest/gtest.h>
#include <onnx/defs/schema.h>

#include <set>

#include "ops/build.h"
#include "plan/choose_kernels.h"
#include "steep/error.h"

namespace steep {
namespace {

using onnx::AttributeProto;

const Attribute* find(const OpDef& op, const std::string& name) {
  for (const Attribute& a : op.attributes) {
    if (a.name == name) return &a;
  }
  return nullptr;
}

/// Whether `proto` holds the same default; ONNX's floats have single precision.
bool is_default(const Attribute& a, const AttributeProto& proto) {
  if (const auto* i = std::get_if<int64_t>(&a.otherwise))
    return proto.type() == AttributeProto::INT && *i == proto.i();
  if (const auto* f = std::get_if<double>(&a.otherwise))
    return proto.type() == AttributeProto::FLOAT && static_cast<float>(*f) == proto.f();
  return proto.type() == AttributeProto::STRING &&
         std::get<std::string_view>(a.otherwise) == proto.s();
}

TEST(OpDef, DefaultsOfAttributesAreThoseOfOnnx) {
  size_t compared = 0;
  for (const OpDef* op : all_ops()) {
    const auto* schema = onnx::OpSchemaRegistry::Schema(std::string(op->name));
    if (schema == nullptr) continue;
    for (const auto& [name, attribute] : schema->attributes()) {
      const AttributeProto& proto = attribute.default_value;
      const bool simple = proto.type() == AttributeProto::INT ||
                          proto.type() == AttributeProto::FLOAT ||
                          proto.type() == AttributeProto::STRING;
      if (!simple) continue;
      const Attribute* ours = find(*op, name);
      ASSERT_NE(ours, nullptr) << op->name << " does not declare " << name;
      EXPECT_TRUE(is_default(*ours, proto)) << op->name << " has another default for " << name;
      ++compared;
    }
  }
  EXPECT_GT(compared, 100U);
}

TEST(OpDef, AnAttributeIsDeclaredOnce) {
  for (const OpDef* op : all_ops()) {
    std::set<std::string_view> names;
    for (const Attribute& a : op->attributes) EXPECT_TRUE(names.insert(a.name).second) << op->name;
  }
}

TEST(OpDef, AttributesAreReadWithTheirDefaults) {
  Graph g;
  const Value x = g.add_input("x", {DType::f32, Shape{2, 3}});
  const Node plain = apply("Softmax", {x}).producer();
  const Node said = apply("Softmax", {x}, {{"axis", int64_t{0}}}).producer();
  EXPECT_EQ(integer_of(plain, "axis"), -1);
  EXPECT_EQ(integer_of(said, "axis"), 0);
  EXPECT_EQ(default_real("steep.Dropout", "ratio"), 0.5);
  EXPECT_THROW(integer_of(plain, "axes"), InternalError);
  EXPECT_THROW(real_of(plain, "axis"), InternalError);
}

/// Expects these view offsets from the operator and from the plan.
void expect_offsets(Node n, const Ints& wanted) {
  EXPECT_EQ(find_op(n.op())->view_offsets(n), wanted);
  EXPECT_EQ(view_offsets(n), wanted);
}

TEST(OpDef, PartsInPlaceAreViews) {
  Graph g;
  const Value x = g.add_input("x", {DType::f32, Shape{6, 4}});
  auto split = [&](int64_t axis, const Ints& sizes) {
    return apply_n("Split", std::vector{x, ints(g, sizes)}, 2, {{"axis", axis}})[0].producer();
  };
  auto slice = [&](int64_t start, int64_t end, int64_t axis, int64_t step) {
    return apply("Slice", {x, ints(g, {start}), ints(g, {end}), ints(g, {axis}), ints(g, {step})})
        .producer();
  };
  expect_offsets(split(0, {2, 4}), {0, 32});
  expect_offsets(split(1, {1, 3}), {});
  expect_offsets(slice(1, 3, 0, 1), {16});
  expect_offsets(slice(-2, 6, 0, 1), {64});
  expect_offsets(slice(0, 6, 0, 2), {});
  expect_offsets(slice(0, 2, 1, 1), {});
}

}  // namespace
}  // namespace steep
