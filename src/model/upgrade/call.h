// The input of a rule of rules.h: one node of the file, its operands, and the graph to write to.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "ops/op_def.h"

namespace steep {

/// The meaning of a name in the file: a value, or a sequence whose items are all known at import.
/// Operators on such a sequence are evaluated at import. A sequence known only at run time is a
/// value.
class Binding {
 public:
  Binding() = default;
  Binding(Value value) : value_(value) {}
  /// `dtype` is that of the items; needed when there are no items.
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

/// Where rules write nodes: the importer.
class GraphWriter {
 public:
  virtual ~GraphWriter() = default;
  /// A number that is unique in this import; identifies random streams.
  virtual int64_t next_stream() = 0;
  /// Adds a node of a canonical operator, or the nodes by which ONNX defines it: see Call::emit().
  virtual std::vector<Value> emit(const Call& call, const std::string& op, std::vector<Value> in,
                                  Attrs attrs, int outputs) = 0;
  /// A binding as one value: a sequence of known values becomes a node that constructs it.
  virtual Value materialise(const Binding& binding) = 0;
};

/// One node of the file during import: what a rule of rules.h reads, and how it writes.
struct Call {
  GraphWriter& writer;
  Graph& graph;
  std::string op;
  std::string name;
  std::vector<Binding> inputs;
  Attrs attrs;
  std::optional<Type> type{};  ///< an attribute that is a type
  std::vector<bool> wanted;    ///< per output: it is read, or it is not optional
  bool training;               ///< ImportOptions::training
  bool from_pytorch;           ///< the file was written by an exporter of PyTorch
  bool stops_gradient;         ///< the node's metadata has kStopGradientKey
  bool sample_variance;        ///< the node's metadata has kSampleVarianceKey

  int outputs() const { return static_cast<int>(wanted.size()); }
  bool wants(size_t output) const { return output < wanted.size() && wanted[output]; }
  bool has(size_t i) const { return i < inputs.size() && inputs[i]; }
  /// Input i as a value, also when it is a sequence; null when absent.
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
  /// The attribute, or the present default of the operator. Use it only if no opset had another
  /// default.
  int64_t integer(std::string_view attribute) const {
    return attrs.integer(attribute, default_integer(op, attribute));
  }
  /// The operator as in the file, with all its attributes.
  std::vector<Binding> as_is() const;

  [[noreturn]] void fail(std::string what, std::string expected, std::string received,
                         std::string remedy) const;
};

/// The integers of a value whose contents are known at import.
std::optional<Ints> known_ints(Value v);

}  // namespace steep
