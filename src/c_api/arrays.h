// Converts arrays, names and types between C and C++.
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

/// The object behind a steep_tensors.
class Tensors : public Object {
 public:
  static constexpr std::string_view kKind = "steep_tensors";
  using Items = std::vector<std::pair<std::string, Tensor>>;
  explicit Tensors(Items arrays) : items(std::move(arrays)) {}
  std::string_view kind() const override { return kKind; }

  const Items items;
};

class Bytes : public Object {
 public:
  static constexpr std::string_view kKind = "steep_bytes";
  explicit Bytes(std::string contents) : data(std::move(contents)) {}
  std::string_view kind() const override { return kKind; }

  const std::string data;
};

class Strings : public Object {
 public:
  static constexpr std::string_view kKind = "steep_strings";
  explicit Strings(std::vector<std::string> texts) : items(std::move(texts)) {}
  std::string_view kind() const override { return kKind; }

  const std::vector<std::string> items;
};

/// The arrays that the caller lends for one call. Types, extents, sizes and alignment are checked.
/// Throws ArgumentError and ShapeError that name the array.
class Feed {
 public:
  Feed(const steep_array* arrays, size_t count);

  /// Whether the arrays have no names, so that their order identifies them. Throws ArgumentError if
  /// only some have a name.
  bool in_order() const { return in_order_; }
  const std::vector<Tensor>& tensors() const { return tensors_; }
  /// The arrays by name. Throws ArgumentError for arrays without names, and for a name that occurs
  /// twice.
  std::map<std::string, Tensor> named() const;
  /// The arrays by name. If they have no names, they get those of `infos`, in order. Throws as
  /// named(), and DataError if the number of arrays is wrong.
  std::map<std::string, Tensor> named(const std::vector<TensorInfo>& infos) const;
  /// The arrays in the order of `infos`; unchanged if they have no names. Throws DataError for a
  /// missing array and for an unknown name.
  std::vector<Tensor> ordered(const std::vector<TensorInfo>& infos) const;

  /// Returns the result, as a copy if its bytes are the caller's: a result may be an input or a
  /// view of one.
  Tensor own(const Tensor& result) const;

 private:
  std::vector<std::string> names_;
  std::vector<Tensor> tensors_;
  bool in_order_ = true;
};

/// Gives results to the caller, unless `result` is null. `names` and `outputs` have the same
/// length.
void give_tensors(steep_tensors** result, const std::vector<std::string>& names,
                  const std::vector<Tensor>& outputs, const Feed& feed);
void give_tensors(steep_tensors** result, std::map<std::string, Tensor> tensors);
void give_bytes(steep_bytes** result, std::string bytes);
void give_strings(steep_strings** result, std::vector<std::string> strings);

/// Gives the tensors in `names`, in that order, or all of them if `names` is null. Throws
/// ModelError for an unknown name.
void give_chosen(steep_tensors** result, const char* const* names, size_t count,
                 const std::map<std::string, Tensor>& all);
/// Fills *step from `result`, unless `step` is null.
void put_step(steep_step* step, const StepResult& result);
/// Shows a tensor to C: *array points to the name and to the tensor.
void show(const std::string& name, const Tensor& tensor, steep_array* array);
/// Throws ArgumentError: the index is not below `count`. `what` is "an array" or the like.
[[noreturn]] void throw_index(const char* what, size_t index, size_t count);

/// Names, and the array of pointers to them for C. Both stay at their addresses.
class Names {
 public:
  explicit Names(std::vector<std::string> names);
  const char* const* data() const { return pointers_.data(); }
  size_t size() const { return pointers_.size(); }
  const std::vector<std::string>& strings() const { return names_; }
  /// Throws ArgumentError if a pointer is null.
  void put(const char* const** names, size_t* count) const;

 private:
  std::vector<std::string> names_;
  std::vector<const char*> pointers_;
};

/// Float constants that are not trained, with the reasons.
class Reasons {
 public:
  explicit Reasons(const std::vector<LeftOut>& left_out);
  /// Throws ArgumentError if a pointer is null.
  void put(const char* const** names, const char* const** reasons, size_t* count) const;

 private:
  Names names_;
  Names reasons_;
};

/// The types of a model's values, as structs of C.
class Values {
 public:
  explicit Values(std::vector<TensorInfo> infos);
  const std::vector<TensorInfo>& infos() const { return infos_; }
  std::vector<std::string> names() const;
  /// Throws ArgumentError if a pointer is null.
  void put(const steep_value** values, size_t* count) const;

 private:
  std::vector<TensorInfo> infos_;
  std::vector<std::vector<const char*>> symbols_;
  std::vector<steep_value> values_;
};

}  // namespace steep::c_api
