// Determines which constants are weights: the model's initializers, and constants in bodies of
// control flow. Weights in bodies become constants of the model's graph, which the bodies capture,
// so that they are trained, named and exported like all others.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ir/graph.h"
#include "model/import/check.h"

namespace steep {

class Weights {
 public:
  /// `graph`: the model's graph. `caller_names`: ImportOptions::named. `model`, `graph` and
  /// `caller_names` must outlive the object.
  Weights(const CheckedModel& model, Graph& graph, const std::set<std::string>& caller_names);

  /// Lives while the body in this attribute of the node is imported. A null attribute: a function.
  class InBody {
   public:
    InBody(Weights& weights, const onnx::NodeProto& node, const char* attribute);
    ~InBody() { weights_.path_ = std::move(before_); }
    InBody(const InBody&) = delete;
    InBody& operator=(const InBody&) = delete;

   private:
    Weights& weights_;
    std::optional<std::string> before_;
  };

  bool contains(Value v) const { return ids_.count(v.id()) != 0; }
  /// REQUIRES: `v` is a constant of the model's graph.
  void add(Value v) { ids_.insert(v.id()); }
  /// Lifts an initializer or Constant node of the body that is being imported: returns a constant
  /// of the model's graph under the name that users see. Null: the constant stays in the body.
  Value lift(const std::string& name, const Tensor& tensor, bool constant_node);
  /// Registers a Constant node of the model's graph, which is a weight if ImportOptions::named has
  /// it.
  void note_constant(const std::string& name, Value v);
  bool within_body() const { return path_ && !path_->empty(); }

  /// ImportedModel::initializers of bodies, in order, and ImportedModel::inside.
  const std::vector<std::string>& lifted() const { return lifted_; }
  const std::map<std::string, std::string>& inside() const { return inside_; }

 private:
  /// Collects the names that nodes of bodies read as settings of operators.
  void note_settings(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes);
  /// Why a constant that users see as `public_name` stays in its body; "" when it is lifted.
  std::string why_not(const std::string& public_name, const std::string& name, const Tensor& tensor,
                      bool constant_node) const;

  const CheckedModel& model_;
  Graph& graph_;
  const std::set<std::string>& caller_names_;
  std::unordered_set<uint32_t> ids_;
  /// Path of the body being imported, see model/read/body_names.h; none in functions.
  std::optional<std::string> path_ = "";
  std::unordered_map<std::string, Value> by_name_;  // lifted constants
  std::vector<std::string> lifted_;
  std::map<std::string, std::string> inside_;
  std::unordered_map<std::string, std::string> settings_;  // name that a setting reads → reason
};

}  // namespace steep
