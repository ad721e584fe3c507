// Arrays in files, mini-batches of arrays, and values of any kind.
#include "c_api/data.h"

#include <memory>
#include <mutex>
#include <utility>

#include "c_api/arrays.h"
#include "c_api/call.h"
#include "c_api/options.h"
#include "steep/data.h"

namespace steep::c_api {
namespace {

/// The object behind a steep_batches.
class OpenBatches : public Object {
 public:
  static constexpr std::string_view kKind = "steep_batches";
  OpenBatches(std::vector<std::string> array_names, Batches batches)
      : names_(std::move(array_names)), batches_(std::move(batches)) {}
  std::string_view kind() const override { return kKind; }

  int64_t row_count() const { return batches_.row_count(); }
  int64_t count() const { return batches_.count(); }
  std::map<std::string, Tensor> get(int64_t epoch, int64_t batch) {
    const std::lock_guard guard(lock_);  // the order of an epoch is kept until another is asked for
    const std::vector<Tensor> arrays = batches_.get(epoch, batch);
    std::map<std::string, Tensor> named;
    for (size_t i = 0; i < names_.size(); ++i) named[names_[i]] = arrays[i];
    return named;
  }

 private:
  const std::vector<std::string> names_;
  Batches batches_;
  std::mutex lock_;
};

}  // namespace

void Data::add(const std::string& name, Datum datum) {
  for (const Item& item : items_) {
    if (item.name != name) continue;
    throw ArgumentError({.what = "Two values have one name.", .node = name});
  }
  Item& item = items_.emplace_back(name, std::move(datum));
  if (item.datum.is_tensor()) {
    show(item.name, item.datum.tensor(), &item.arrays.emplace_back());
  } else if (item.datum.is_sequence()) {
    static const std::string none;
    for (const Datum& one : item.datum.items()) {
      if (one.is_tensor()) show(none, one.tensor(), &item.arrays.emplace_back());
    }
  }
}

}  // namespace steep::c_api

using namespace steep::c_api;  // NOLINT: functions of C are in no namespace

extern "C" {

// --- values of any kind --------------------------------------------------------------------------

steep_code steep_data_new(steep_data** data, steep_error** error) {
  return call(error, [&] {
    require(data, "data");
    give(data, std::make_shared<Data>());
  });
}

steep_code steep_data_free(steep_data* data) { return release<Data>(data); }

steep_code steep_data_add_tensor(steep_data* data, const steep_array* tensor, steep_error** error) {
  return call(error, [&] {
    const auto own = object<Data>(data);
    const Feed feed(tensor, 1);
    for (const auto& [name, lent] : feed.named()) own->add(name, lent.clone());
  });
}

steep_code steep_data_add_sequence(steep_data* data, const char* name, const steep_array* items,
                                   size_t count, steep_error** error) {
  return call(error, [&] {
    const auto own = object<Data>(data);
    const std::string key = text(name, "name");
    if (count > 0) require(items, "items");
    std::vector<steep_array> nameless(items, items + count);
    for (steep_array& item : nameless) item.name = nullptr;
    const Feed feed(nameless.data(), count);
    steep::Datum::Items copies;
    for (const steep::Tensor& lent : feed.tensors()) copies.push_back(lent.clone());
    own->add(key, std::move(copies));
  });
}

steep_code steep_data_add_absent(steep_data* data, const char* name, steep_error** error) {
  return call(error, [&] { object<Data>(data)->add(text(name, "name"), {}); });
}

size_t steep_data_count(const steep_data* data) {
  const auto found = find_object<Data>(data);
  return found ? found->items().size() : 0;
}

steep_code steep_data_get(const steep_data* data, size_t i, steep_datum* datum,
                          steep_error** error) {
  return call(error, [&] {
    const auto own = object<Data>(data);
    require(datum, "datum");
    if (i >= own->items().size()) throw_index("a value", i, own->items().size());
    const Data::Item& item = own->items()[i];
    const steep::Datum& value = item.datum;
    if (value.is_sequence() && item.arrays.size() != value.items().size()) {
      throw steep::DataError({.what = "The sequence has values that are not tensors.",
                              .node = item.name,
                              .expected = "a sequence of tensors",
                              .received = value.text()});
    }
    const auto kind = value.is_tensor()     ? STEEP_DATUM_TENSOR
                      : value.is_sequence() ? STEEP_DATUM_SEQUENCE
                                            : STEEP_DATUM_ABSENT;
    *datum = {.name = item.name.c_str(),
              .kind = kind,
              .items = item.arrays.data(),
              .count = item.arrays.size()};
  });
}

// --- arrays in files -----------------------------------------------------------------------------

steep_code steep_load_arrays(const char* path, steep_tensors** arrays, steep_error** error) {
  return call(error, [&] {
    require(arrays, "arrays");
    give_tensors(arrays, steep::load_arrays(text(path, "path")));
  });
}

steep_code steep_map_arrays(const char* path, steep_tensors** arrays, steep_error** error) {
  return call(error, [&] {
    require(arrays, "arrays");
    give_tensors(arrays, steep::map_arrays(text(path, "path")));
  });
}

steep_code steep_save_arrays(const char* path, const steep_array* arrays, size_t count,
                             steep_error** error) {
  return call(error, [&] { steep::save_arrays(text(path, "path"), Feed(arrays, count).named()); });
}

// --- mini-batches --------------------------------------------------------------------------------

steep_code steep_batches_new(const steep_tensors* arrays, const steep_options* options,
                             const int64_t* rows, size_t row_count, steep_batches** batches,
                             steep_error** error) {
  return call(error, [&] {
    const auto own = object<Tensors>(arrays);
    require(batches, "batches");
    auto settings = options_or_defaults<steep::BatchOptions>(options);
    if (row_count > 0) require(rows, "rows");
    if (rows != nullptr && row_count == 0) {
      throw ArgumentError({.what = "No row is chosen.",
                           .expected = "at least one row; or NULL and 0, for all",
                           .received = "0 rows"});
    }
    settings.rows.assign(rows, rows + row_count);
    std::vector<std::string> names;
    std::vector<steep::Tensor> tensors;
    for (const auto& [name, tensor] : own->items) {
      names.push_back(name);
      tensors.push_back(tensor);
    }
    give(batches, std::make_shared<OpenBatches>(
                      std::move(names), steep::Batches(std::move(tensors), std::move(settings))));
  });
}

steep_code steep_batches_free(steep_batches* batches) { return release<OpenBatches>(batches); }

steep_code steep_batches_count(const steep_batches* batches, int64_t* count, steep_error** error) {
  return call(error, [&] {
    const auto own = object<OpenBatches>(batches);
    require(count, "count");
    *count = own->count();
  });
}

steep_code steep_batches_row_count(const steep_batches* batches, int64_t* rows,
                                   steep_error** error) {
  return call(error, [&] {
    const auto own = object<OpenBatches>(batches);
    require(rows, "rows");
    *rows = own->row_count();
  });
}

steep_code steep_batches_get(steep_batches* batches, int64_t epoch, int64_t batch,
                             steep_tensors** arrays, steep_error** error) {
  return call(error, [&] {
    const auto own = object<OpenBatches>(batches);
    require(arrays, "arrays");
    give_tensors(arrays, own->get(epoch, batch));
  });
}

}  // extern "C"
