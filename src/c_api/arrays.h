// Arrays, names and types on their way through the boundary.
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "c_api/handles.h"
#include "steep/steep.h"
#include "steep/tensor.h"
#include "steep_c.h"

namespace steep::c_api {

/// What a steep_tensors holds.
class Tensors : public Object {
 public:
  static constexpr std::string_view kKind = "steep_tensors";
  using Items = std::vector<std::pair<std::string, Tensor>>;
  explicit Tensors(Items given) : items(std::move(given)) {}
  std::string_view kind() const override { return kKind; }

  const Items items;
};

class Bytes : public Object {
 public:
  static constexpr std::string_view kKind = "steep_bytes";
  explicit Bytes(std::string given) : data(std::move(given)) {}
  std::string_view kind() const override { return kKind; }

  const std::string data;
};

class Strings : public Object {
 public:
  static constexpr std::string_view kKind = "steep_strings";
  explicit Strings(std::vector<std::string> given) : items(std::move(given)) {}
  std::string_view kind() const override { return kKind; }

  const std::vector<std::string> items;
};

/// Arrays that the caller lends for a call, looked at: types, extents, sizes, alignment. Throws
/// ArgumentError and ShapeError, naming the array.
class Fed {
 public:
  Fed(const steep_array* arrays, size_t count);

  /// None has a name: their order says which is which. Throws ArgumentError where only some have.
  bool in_order() const { return in_order_; }
  const std::vector<Tensor>& tensors() const { return tensors_; }
  /// By name. Throws ArgumentError for arrays without names, and for two of a name.
  std::map<std::string, Tensor> named() const;
  /// By name; those without names by the places of `wanted`. Throws as named(), and DataError for
  /// another number of them.
  std::map<std::string, Tensor> named(const std::vector<TensorInfo>& wanted) const;
  /// In the order of `wanted`, those behind the last that is there left out. Throws DataError for
  /// one that is missing before that, and for another name.
  std::vector<Tensor> ordered(const std::vector<TensorInfo>& wanted) const;

  /// A result may be an input, seen otherwise, whose bytes are the caller's: such a one is copied.
  Tensor own(const Tensor& result) const;

 private:
  std::vector<std::string> names_;
  std::vector<Tensor> tensors_;
  bool in_order_ = true;
};

/// Gives results to the caller, unless `result` is null. `names` and `outputs` are of one length.
void give_tensors(steep_tensors** result, const std::vector<std::string>& names,
                  const std::vector<Tensor>& outputs, const Fed& fed);
void give_tensors(steep_tensors** result, std::map<std::string, Tensor> tensors);
void give_bytes(steep_bytes** result, std::string bytes);
void give_strings(steep_strings** result, std::vector<std::string> strings);

/// Those of `names`, in that order; all for null. Throws ModelError for a name that is not there.
void give_chosen(steep_tensors** result, const char* const* names, size_t count,
                 const std::map<std::string, Tensor>& all);
/// Writes what a step was, unless `step` is null.
void put_step(steep_step* step, const StepResult& done);

/// Names, and pointers to them as C has them. Neither moves.
class Names {
 public:
  explicit Names(std::vector<std::string> names);
  const char* const* data() const { return pointers_.data(); }
  size_t size() const { return pointers_.size(); }
  const std::vector<std::string>& strings() const { return names_; }

 private:
  std::vector<std::string> names_;
  std::vector<const char*> pointers_;
};

/// Types as C has them.
class Values {
 public:
  explicit Values(std::vector<TensorInfo> infos);
  const std::vector<TensorInfo>& infos() const { return infos_; }
  std::vector<std::string> names() const;
  /// Throws ArgumentError for null.
  void put(const steep_value** values, size_t* count) const;

 private:
  std::vector<TensorInfo> infos_;
  std::vector<std::vector<const char*>> symbols_;
  std::vector<steep_value> values_;
};

}  // namespace steep::c_api
