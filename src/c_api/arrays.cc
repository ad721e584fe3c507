#include "c_api/arrays.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "c_api/call.h"
#include "runtime/counted.h"
#include "train/name_suggestions.h"

namespace steep::c_api {
namespace {

constexpr int32_t kMaxRank = 64;

std::string name_of(const steep_array& array, size_t i) {
  return array.name != nullptr ? array.name : fmt::format("array {}", i);
}

[[noreturn]] void refuse(const steep_array& array, size_t i, std::string expected,
                         std::string received) {
  throw ArgumentError({.what = "An array cannot be used.",
                       .node = name_of(array, i),
                       .expected = std::move(expected),
                       .received = std::move(received)});
}

/// Throws ShapeError that names the array.
int64_t elements_of(const Dims& dims, const steep_array& array, size_t i) {
  try {
    return element_count(dims);
  } catch (const ShapeError& error) {
    ErrorParts parts = error.parts();
    parts.node = name_of(array, i);
    throw ShapeError(std::move(parts));
  }
}

/// Kernels compute with the bytes, so that another one would be a number of its own.
void require_bools(const steep_array& array, size_t i) {
  const auto* const bytes = static_cast<const uint8_t*>(array.data);
  const auto* const end = bytes + array.bytes;
  const auto* const wrong = std::find_if(bytes, end, [](uint8_t byte) { return byte > 1; });
  if (wrong == end) return;
  refuse(array, i, "bools, each a byte 0 or 1",
         fmt::format("{} at element {}", *wrong, wrong - bytes));
}

/// A tensor that borrows the bytes of the array.
Tensor borrowed(const steep_array& a, size_t i) {
  const auto dtype = static_cast<DType>(a.dtype);
  const size_t item = size_of(dtype);
  if (item == 0) refuse(a, i, "a steep_dtype", fmt::format("dtype {}", a.dtype));
  if (a.rank < 0 || a.rank > kMaxRank) {
    refuse(a, i, fmt::format("a rank of 0 to {}", kMaxRank), std::to_string(a.rank));
  }
  if (a.rank > 0 && a.dims == nullptr) refuse(a, i, "extents", "NULL for dims");
  Dims dims(a.dims, a.dims + a.rank);
  const auto elements = static_cast<uint64_t>(elements_of(dims, a, i));
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(elements, item, &bytes) || bytes != a.bytes) {
    refuse(a, i,
           fmt::format("{} for {}{}", counted(elements * item, "byte"), steep::name_of(dtype),
                       to_string(dims)),
           counted(a.bytes, "byte"));
  }
  if (bytes > 0 && a.data == nullptr) refuse(a, i, "data", "NULL");
  if (reinterpret_cast<uintptr_t>(a.data) % item != 0) {
    refuse(a, i, fmt::format("data at a multiple of {}", item), fmt::format("{}", a.data));
  }
  if (dtype == DType::boolean) require_bools(a, i);
  return Tensor::wrap(dtype, std::move(dims), const_cast<void*>(a.data), nullptr);
}

}  // namespace

Feed::Feed(const steep_array* arrays, size_t count) {
  if (count > 0) require(arrays, "the arrays");
  for (size_t i = 0; i < count; ++i) {
    const steep_array& array = arrays[i];
    const bool nameless = array.name == nullptr;
    if (i == 0) in_order_ = nameless;
    if (nameless != in_order_) {
      throw ArgumentError({.what = "Some arrays have a name and others have none.",
                           .node = name_of(array, i),
                           .expected = "names for all, or for none, in the order of the inputs",
                           .received = in_order_ ? "a name" : "NULL for a name"});
    }
    names_.push_back(nameless ? "" : array.name);
    tensors_.push_back(borrowed(array, i));
  }
}

std::map<std::string, Tensor> Feed::named() const {
  if (in_order_ && !tensors_.empty()) {
    throw ArgumentError({.what = "Arrays need names here.", .received = "NULL for a name"});
  }
  std::map<std::string, Tensor> result;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (result.emplace(names_[i], tensors_[i]).second) continue;
    throw ArgumentError({.what = "Two arrays have one name.", .node = names_[i]});
  }
  return result;
}

std::map<std::string, Tensor> Feed::named(const std::vector<TensorInfo>& infos) const {
  if (!in_order_) return named();
  if (tensors_.size() != infos.size()) {
    throw DataError({.what = "The number of inputs is wrong.",
                     .expected = counted(infos.size(), "input"),
                     .received = counted(tensors_.size(), "input")});
  }
  std::map<std::string, Tensor> result;
  for (size_t i = 0; i < infos.size(); ++i) result[infos[i].name] = tensors_[i];
  return result;
}

std::vector<Tensor> Feed::ordered(const std::vector<TensorInfo>& infos) const {
  if (in_order_) return tensors_;
  std::map<std::string, Tensor> rest = named();
  std::vector<Tensor> result;
  for (const TensorInfo& info : infos) {
    const auto found = rest.find(info.name);
    if (found == rest.end()) {
      throw DataError({.what = "An input is missing.",
                       .node = info.name,
                       .expected = info.text(),
                       .received = "no value of this name"});
    }
    result.push_back(found->second);
    rest.erase(found);
  }
  if (!rest.empty()) {
    throw DataError({.what = "The model has no such input.", .node = rest.begin()->first});
  }
  return result;
}

Tensor Feed::own(const Tensor& result) const {
  const auto* const at = static_cast<const char*>(result.data());
  for (const Tensor& tensor : tensors_) {
    const auto* const begin = static_cast<const char*>(tensor.data());
    const bool within =
        std::greater_equal<>()(at, begin) && std::less<>()(at, begin + tensor.nbytes());
    if (within && result.nbytes() > 0) return result.clone();
  }
  return result;
}

namespace {

template <typename Named>
std::vector<std::string> names_of(const Named& tensors) {
  std::vector<std::string> names;
  for (const auto& item : tensors) names.push_back(item.first);
  return names;
}

}  // namespace

void give_tensors(steep_tensors** result, const std::vector<std::string>& names,
                  const std::vector<Tensor>& outputs, const Feed& feed) {
  if (result == nullptr) return;
  if (names.size() != outputs.size())
    throw InternalError("The number of outputs differs from the number of names.");
  Tensors::Items items;
  for (size_t i = 0; i < names.size(); ++i) items.emplace_back(names[i], feed.own(outputs[i]));
  give(result, std::make_shared<Tensors>(std::move(items)));
}

void give_tensors(steep_tensors** result, std::map<std::string, Tensor> tensors) {
  if (result == nullptr) return;
  Tensors::Items items(tensors.begin(), tensors.end());
  give(result, std::make_shared<Tensors>(std::move(items)));
}

void give_bytes(steep_bytes** result, std::string bytes) {
  if (result != nullptr) give(result, std::make_shared<Bytes>(std::move(bytes)));
}

void give_strings(steep_strings** result, std::vector<std::string> strings) {
  if (result != nullptr) give(result, std::make_shared<Strings>(std::move(strings)));
}

void give_chosen(steep_tensors** result, const char* const* names, size_t count,
                 const std::map<std::string, Tensor>& all) {
  if (names == nullptr) return give_tensors(result, all);
  Tensors::Items items;
  for (const std::string& name : texts(names, count, "names")) {
    const auto found = all.find(name);
    if (found == all.end()) {
      throw ModelError({.what = "There is no such parameter or moment.",
                        .node = name,
                        .expected = nearest_names(name, names_of(all)),
                        .received = name});
    }
    items.emplace_back(name, found->second);
  }
  give(result, std::make_shared<Tensors>(std::move(items)));
}

void put_step(steep_step* step, const StepResult& result) {
  if (step == nullptr) return;
  *step = {.loss = result.loss,
           .lr = result.lr,
           .grad_norm = result.grad_norm,
           .loss_scale = result.loss_scale,
           .step = result.step,
           .skipped = result.skipped};
}

void show(const std::string& name, const Tensor& tensor, steep_array* array) {
  *array = {.name = name.c_str(),
            .dtype = static_cast<int32_t>(tensor.dtype()),
            .rank = static_cast<int32_t>(tensor.dims().size()),
            .dims = tensor.dims().data(),
            .data = tensor.data(),
            .bytes = tensor.nbytes()};
}

void throw_index(const char* what, size_t index, size_t count) {
  throw ArgumentError({.what = fmt::format("The index of {} is out of range.", what),
                       .expected = fmt::format("an index below {}", count),
                       .received = std::to_string(index)});
}

Names::Names(std::vector<std::string> names) : names_(std::move(names)) {
  for (const std::string& name : names_) pointers_.push_back(name.c_str());
}

void Names::put(const char* const** names, size_t* count) const {
  require(names, "names");
  require(count, "count");
  *names = data();
  *count = size();
}

namespace {

std::vector<std::string> texts_of(const std::vector<LeftOut>& all, std::string LeftOut::*field) {
  std::vector<std::string> texts;
  for (const LeftOut& one : all) texts.push_back(one.*field);
  return texts;
}

}  // namespace

Reasons::Reasons(const std::vector<LeftOut>& left_out)
    : names_(texts_of(left_out, &LeftOut::name)), reasons_(texts_of(left_out, &LeftOut::reason)) {}

void Reasons::put(const char* const** names, const char* const** reasons, size_t* count) const {
  require(reasons, "reasons");
  names_.put(names, count);
  *reasons = reasons_.data();
}

Values::Values(std::vector<TensorInfo> infos) : infos_(std::move(infos)) {
  for (TensorInfo& info : infos_) {
    info.symbols.resize(info.dims.size());
    std::vector<const char*> symbols;
    for (const std::string& symbol : info.symbols) symbols.push_back(symbol.c_str());
    symbols_.push_back(std::move(symbols));
    values_.push_back({.name = info.name.c_str(),
                       .dtype = static_cast<int32_t>(info.dtype),
                       .rank = info.has_rank ? static_cast<int32_t>(info.dims.size()) : -1,
                       .dims = info.dims.data(),
                       .symbols = symbols_.back().data(),
                       .is_sequence = info.sequence,
                       .is_optional = info.optional});
  }
}

std::vector<std::string> Values::names() const {
  std::vector<std::string> names;
  for (const TensorInfo& info : infos_) names.push_back(info.name);
  return names;
}

void Values::put(const steep_value** values, size_t* count) const {
  require(values, "the values");
  require(count, "count");
  *values = values_.data();
  *count = values_.size();
}

}  // namespace steep::c_api

using namespace steep::c_api;  // NOLINT: functions of C are in no namespace

extern "C" {

size_t steep_tensors_count(const steep_tensors* tensors) {
  const auto found = find_object<Tensors>(tensors);
  return found ? found->items.size() : 0;
}

steep_code steep_tensors_get(const steep_tensors* tensors, size_t i, steep_array* array,
                             steep_error** error) {
  return call(error, [&] {
    const auto own = object<Tensors>(tensors);
    require(array, "array");
    if (i >= own->items.size()) throw_index("an array", i, own->items.size());
    const auto& [name, tensor] = own->items[i];
    show(name, tensor, array);
  });
}

steep_code steep_tensors_find(const steep_tensors* tensors, const char* name, steep_array* array,
                              steep_error** error) {
  return call(error, [&] {
    const auto own = object<Tensors>(tensors);
    const std::string key = text(name, "name");
    require(array, "array");
    for (const auto& [item, tensor] : own->items) {
      if (item == key) return show(item, tensor, array);
    }
    throw steep::DataError({.what = "There is no array of this name.",
                            .node = key,
                            .expected = steep::nearest_names(key, names_of(own->items)),
                            .received = key});
  });
}

steep_code steep_tensors_free(steep_tensors* tensors) { return release<Tensors>(tensors); }

const char* steep_bytes_data(const steep_bytes* bytes) {
  const auto found = find_object<Bytes>(bytes);
  return found ? found->data.c_str() : "";
}

size_t steep_bytes_size(const steep_bytes* bytes) {
  const auto found = find_object<Bytes>(bytes);
  return found ? found->data.size() : 0;
}

steep_code steep_bytes_free(steep_bytes* bytes) { return release<Bytes>(bytes); }

size_t steep_strings_count(const steep_strings* strings) {
  const auto found = find_object<Strings>(strings);
  return found ? found->items.size() : 0;
}

const char* steep_strings_get(const steep_strings* strings, size_t i) {
  const auto found = find_object<Strings>(strings);
  return found && i < found->items.size() ? found->items[i].c_str() : "";
}

steep_code steep_strings_free(steep_strings* strings) { return release<Strings>(strings); }

}  // extern "C"
