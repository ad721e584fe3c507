// What a rule of rules.h works on: one node of the file, its operands, and the graph to write to.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "ops/op_def.h"

namespace steep {

/// What a name in the file stands for: a value, or a sequence of values that are all known at
/// import; each operator on those is carried out right here. A sequence that only a run can know is
/// a value.
class Binding {
 public:
  Binding() = default;
  Binding(Value value) : value_(value) {}
  /// `dtype` is that of the items; it matters where there are none.
  Binding(std::vector<Value> items, DType dtype)
      : items_(std::make_shared<const std::vector<Value>>(std::move(items))), dtype_(dtype) {}

  explicit operator bool() const { return static_cast<bool>(value_) || items_ != nullptr; }
  /// Null for a sequence.
  Value value() const { return value_; }
  /// nullptr for a value.
  const std::vector<Value>* items() const { return items_.get(); }
  DType dtype() const { return dtype_; }

 private:
  Value value_;
  std::shared_ptr<const std::vector<Value>>
      items_;  // shared: a sequence has many readers and never changes
  DType dtype_ = DType::undefined;
};

struct Call;

/// Where rules write: the importer.
class GraphWriter {
 public:
  virtual ~GraphWriter() = default;
  /// A number that no other node of this import has got: names random streams.
  virtual int64_t next_stream() = 0;
  /// Adds a node of a canonical operator, or what ONNX defines it by: see Call::emit().
  virtual std::vector<Value> emit(const Call& call, const std::string& op, std::vector<Value> in,
                                  Attrs attrs, int outputs) = 0;
  /// The one value for a binding: a sequence of known values becomes a node that gathers them.
  virtual Value materialise(const Binding& binding) = 0;
};

/// One node of the file on its way into the graph: what a rule of rules.h reads, and writes with.
struct Call {
  GraphWriter& writer;
  Graph& graph;
  std::string op;
  std::string name;
  std::vector<Binding> inputs;
  Attrs attrs;
  std::optional<Type> type{};  ///< an attribute that is a type
  std::vector<bool> wanted;    ///< which outputs are read, or are not optional
  bool training;               ///< ImportOptions::training
  bool from_pytorch;           ///< the file was written by an exporter of PyTorch
  bool stops_gradient;         ///< kStopGradientKey is among the node's metadata
  bool sample_variance;        ///< kSampleVarianceKey is

  int outputs() const { return static_cast<int>(wanted.size()); }
  bool wants(size_t output) const { return output < wanted.size() && wanted[output]; }
  bool has(size_t i) const { return i < inputs.size() && inputs[i]; }
  /// Input i as a value of the graph, a sequence too; null when absent.
  Value any(size_t i) const;
  /// Input i; null when absent. Throws ModelError when it is no tensor.
  Value in(size_t i) const;
  /// As in(). Throws ModelError when absent.
  Value need(size_t i) const;

  /// Adds a node of a canonical operator. An operator without an OpDef that ONNX defines by a
  /// function is replaced by that function's body.
  std::vector<Value> emit(const std::string& canonical, std::vector<Value> in, Attrs attrs = {},
                          int outputs = 1) const;
  Value emit1(const std::string& canonical, std::vector<Value> in, Attrs attrs = {}) const {
    return emit(canonical, std::move(in), std::move(attrs))[0];
  }
  Value ints(const Ints& values) const;
  /// The attribute, or what the operator declares today: where no opset had another default.
  int64_t integer(std::string_view attribute) const {
    return attrs.integer(attribute, default_integer(op, attribute));
  }
  /// The operator as the file has it, attributes and all.
  std::vector<Binding> as_is() const;

  [[noreturn]] void fail(std::string what, std::string expected, std::string received,
                         std::string remedy) const;
};

/// The integers that a value is known to hold at import, if it is.
std::optional<Ints> known_ints(Value v);

}  // namespace steep
