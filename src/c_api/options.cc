#include "c_api/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <limits>
#include <map>
#include <memory>
#include <vector>

#include "c_api/call.h"
#include "train/option_rows.h"

namespace steep::c_api {
namespace {

/// An attribute of a registered optimizer. Setting it adds it to the map.
struct Attribute {
  std::map<std::string, double>* all;
  std::string name;
};

using Field = std::variant<std::string*, double*, std::optional<double>*, bool*, int*, int64_t*,
                           uint64_t*, std::optional<int64_t>*, std::vector<std::string>*, Attribute,
                           std::vector<double>*, std::optional<bool>*>;
using Fields = std::map<std::string, Field>;
static_assert(std::is_same_v<size_t, uint64_t>);

constexpr std::string_view kAttributes = "attributes.";

template <typename Options>
Fields fields_of_rows(Options& o) {
  Fields fields;
  visit_fields(o, [&](const OptionRow& row, auto& field) { fields.emplace(row.key, &field); });
  return fields;
}

Fields fields_of(OptimizerOptions& o) { return fields_of_rows(o); }

Fields fields_of(Limits& l) {
  return {{"max_bytes", &l.max_bytes},           {"max_nodes", &l.max_nodes},
          {"max_inlined", &l.max_inlined},       {"max_depth", &l.max_depth},
          {"max_iterations", &l.max_iterations}, {"max_arrays", &l.max_arrays}};
}

Fields fields_of(TrainingOptions& o) {
  Fields fields = fields_of_rows(o);
  fields.merge(fields_of(o.limits));
  return fields;
}

Fields fields_of(InferenceOptions& o) {
  Fields fields = {{"optimize", &o.optimize},
                   {"disabled_passes", &o.disabled_passes},
                   {"threads", &o.threads},
                   {"seed", &o.seed},
                   {"check_finite", &o.check_finite},
                   {"open_batch", &o.open_batch},
                   {"running_statistics", &o.running_statistics}};
  fields.merge(fields_of(o.limits));
  return fields;
}

Fields fields_of(GradientOptions& o) {
  Fields fields = {
      {"wrt", &o.wrt}, {"outputs", &o.outputs}, {"scalar_gradients", &o.scalar_gradients}};
  fields.merge(fields_of(o.limits));
  return fields;
}

Fields fields_of(GroupOptions& o) {
  Fields fields = {{"lr_multiplier", &o.lr_multiplier}, {"weight_decay", &o.weight_decay}};
  fields.merge(fields_of(o.optimizer));
  return fields;
}

Fields fields_of(ExportOptions& o) {
  return {{"for_inference", &o.for_inference},
          {"external_data", &o.external_data},
          {"max_file_bytes", &o.max_file_bytes},
          {"merge_adapters", &o.merge_adapters}};
}

Fields fields_of(GradientSessionOptions& o) {
  Fields fields = {{"wrt", &o.wrt},
                   {"outputs", &o.outputs},
                   {"precision", &o.precision},
                   {"memory_limit", &o.memory_limit},
                   {"disabled_passes", &o.disabled_passes},
                   {"seed", &o.seed},
                   {"threads", &o.threads}};
  fields.merge(fields_of(o.limits));
  return fields;
}

Fields fields_of(BatchOptions& o) {
  return {{"batch_size", &o.batch_size},
          {"shuffle", &o.shuffle},
          {"drop_last", &o.drop_last},
          {"seed", &o.seed}};
}

Fields fields_of(ParallelOptions& o) {
  return {{"zero", &o.zero}, {"wire_precision", &o.wire_precision}};
}

/// The attributes for a registered optimizer; null if these options have no optimizer.
std::map<std::string, double>* attributes_of(Options::Of& of) {
  if (auto* training = std::get_if<TrainingOptions>(&of)) return &training->optimizer.attributes;
  if (auto* group = std::get_if<GroupOptions>(&of)) return &group->optimizer.attributes;
  return nullptr;
}

[[noreturn]] void refuse_value(const std::string& key, std::string expected, std::string received) {
  throw ArgumentError({.what = "The value of an option is not valid.",
                       .node = key,
                       .expected = std::move(expected),
                       .received = std::move(received)});
}

constexpr std::array kNames{"training", "inference", "gradients",
                            "groups",   "exports",   "sessions of gradients",
                            "batches",  "processes"};

/// The type that a field takes, by the index of its type in Field.
constexpr std::array kTypes{"a string",
                            "a number",
                            "a number",
                            "0 or 1",
                            "an integer",
                            "an integer",
                            "an integer of at least 0",
                            "an integer",
                            "strings, one at a time",
                            "a number",
                            "numbers, one at a time",
                            "0 or 1"};

Field field_of(Options::Of& of, const std::string& key) {
  Fields fields = std::visit([](auto& o) { return fields_of(o); }, of);
  auto* attributes = attributes_of(of);
  if (attributes != nullptr && key.size() > kAttributes.size() && key.starts_with(kAttributes)) {
    return Attribute{attributes, key.substr(kAttributes.size())};
  }
  const auto found = fields.find(key);
  if (found == fields.end()) {
    std::vector<std::string> keys;
    for (const auto& field : fields) keys.push_back(field.first);
    throw ArgumentError({.what = fmt::format("The {} have no such key.", kind_of(of)),
                         .node = key,
                         .expected = fmt::format("{}", fmt::join(keys, ", ")),
                         .received = key});
  }
  return found->second;
}

template <typename... F>
struct Cases : F... {
  using F::operator()...;
};

void set(const std::string& key, const Field& field, int64_t value) {
  const auto refuse = [&] { refuse_value(key, kTypes.at(field.index()), std::to_string(value)); };
  std::visit(
      Cases{[&](bool* to) {
              if (value != 0 && value != 1) refuse();
              *to = value == 1;
            },
            [&](std::optional<bool>* to) {
              if (value != 0 && value != 1) refuse();
              *to = value == 1;
            },
            [&](int* to) {
              if (value < std::numeric_limits<int>::min()) refuse();
              if (value > std::numeric_limits<int>::max()) refuse();
              *to = static_cast<int>(value);
            },
            [&](uint64_t* to) {
              if (value < 0) refuse();
              *to = static_cast<uint64_t>(value);
            },
            [&](int64_t* to) { *to = value; }, [&](std::optional<int64_t>* to) { *to = value; },
            [&](double* to) { *to = static_cast<double>(value); },
            [&](std::optional<double>* to) { *to = static_cast<double>(value); },
            [&](const Attribute& to) { (*to.all)[to.name] = static_cast<double>(value); },
            [&](std::vector<double>* to) { to->push_back(static_cast<double>(value)); },
            [&](const auto&) { refuse(); }},
      field);
}

void set(const std::string& key, const Field& field, double value) {
  std::visit(
      Cases{[&](double* to) { *to = value; }, [&](std::optional<double>* to) { *to = value; },
            [&](const Attribute& to) { (*to.all)[to.name] = value; },
            [&](std::vector<double>* to) { to->push_back(value); },
            [&](const auto&) {
              refuse_value(key, kTypes.at(field.index()), fmt::format("the number {}", value));
            }},
      field);
}

void set(const std::string& key, const Field& field, const std::string& value) {
  std::visit(Cases{[&](std::string* to) { *to = value; },
                   [&](const auto&) {
                     refuse_value(key, kTypes.at(field.index()), fmt::format("\"{}\"", value));
                   }},
             field);
}

void append(const std::string& key, const Field& field, const std::string& value) {
  std::visit(Cases{[&](std::vector<std::string>* to) { to->push_back(value); },
                   [&](const auto&) {
                     refuse_value(
                         key, fmt::format("{}, by steep_options_set_…", kTypes.at(field.index())),
                         fmt::format("\"{}\" for a list", value));
                   }},
             field);
}

/// The common part of the functions that set an option.
template <typename Value, typename Put>
void change(steep_options* handle, const char* key, const Value& value, Put&& put) {
  const auto own = object<Options>(handle);
  const std::string name = text(key, "key");
  put(name, field_of(own->of, name), value);
  if (auto* group = std::get_if<GroupOptions>(&own->of)) group->keys.insert(name);
}

template <typename T>
T& kept(Options& own) {
  if (T* target = std::get_if<T>(&own.of)) return *target;
  throw_wrong_options(own.of, T{});
}

Options::Of defaults(int32_t kind) {
  switch (kind) {
    case STEEP_OPTIONS_TRAINING: return TrainingOptions{};
    case STEEP_OPTIONS_INFERENCE: return InferenceOptions{};
    case STEEP_OPTIONS_GRADIENT: return GradientOptions{};
    case STEEP_OPTIONS_GROUP: return GroupOptions{};
    case STEEP_OPTIONS_EXPORT: return ExportOptions{};
    case STEEP_OPTIONS_GRADIENTS: return GradientSessionOptions{};
    case STEEP_OPTIONS_BATCHES: return BatchOptions{};
    case STEEP_OPTIONS_PARALLEL: return ParallelOptions{};
    default: break;
  }
  throw ArgumentError({.what = "There are no options of this kind.",
                       .expected = "a steep_options_kind",
                       .received = std::to_string(kind)});
}

}  // namespace

ParameterGroup GroupOptions::group() const {
  ParameterGroup result;
  if (optimizer.kind.empty()) {
    for (const std::string& key : keys) {
      if (key == "lr_multiplier" || key == "weight_decay" || key == "optimizer") continue;
      refuse_value(key, "`optimizer` for a group with settings of an optimizer", "none");
    }
    result.lr_multiplier = lr_multiplier.value_or(1);
    result.weight_decay = weight_decay;
    return result;
  }
  if (lr_multiplier) {
    refuse_value("lr_multiplier", "lr, for a group with an optimizer of its own", "lr_multiplier");
  }
  result.optimizer = optimizer;
  result.optimizer->weight_decay = weight_decay.value_or(0);
  return result;
}

std::string kind_of(const Options::Of& of) {
  return fmt::format("steep_options of {}", kNames.at(of.index()));
}

void throw_wrong_options(const Options::Of& of, const Options::Of& target) {
  throw ArgumentError({.what = "The options are of the wrong kind.",
                       .expected = kind_of(target),
                       .received = kind_of(of)});
}

}  // namespace steep::c_api

using namespace steep::c_api;  // NOLINT: functions of C are in no namespace

extern "C" {

steep_code steep_options_new(int32_t kind, steep_options** options, steep_error** error) {
  return call(error, [&] {
    require(options, "options");
    give(options, std::make_shared<Options>(defaults(kind)));
  });
}

steep_code steep_options_free(steep_options* options) { return release<Options>(options); }

steep_code steep_options_set_string(steep_options* options, const char* key, const char* value,
                                    steep_error** error) {
  return call(error, [&] {
    change(options, key, value,
           [](const std::string& name, const Field& field, const char* argument) {
             set(name, field, text(argument, "value"));
           });
  });
}

steep_code steep_options_set_number(steep_options* options, const char* key, double value,
                                    steep_error** error) {
  return call(error, [&] {
    change(options, key, value, [](const std::string& name, const Field& field, double argument) {
      set(name, field, argument);
    });
  });
}

steep_code steep_options_set_integer(steep_options* options, const char* key, int64_t value,
                                     steep_error** error) {
  return call(error, [&] {
    change(options, key, value, [](const std::string& name, const Field& field, int64_t argument) {
      set(name, field, argument);
    });
  });
}

steep_code steep_options_add(steep_options* options, const char* key, const char* value,
                             steep_error** error) {
  return call(error, [&] {
    change(options, key, value,
           [](const std::string& name, const Field& field, const char* argument) {
             append(name, field, text(argument, "value"));
           });
  });
}

steep_code steep_options_add_group(steep_options* options, const char* const* names, size_t count,
                                   const steep_options* group, steep_error** error) {
  return call(error, [&] {
    const auto own = object<Options>(options);
    auto& training = kept<steep::TrainingOptions>(*own);
    steep::ParameterGroup entry = steep::c_api::options<GroupOptions>(group).group();
    entry.names = texts(names, count, "names");
    training.groups.push_back(std::move(entry));
  });
}

steep_code steep_options_add_update(steep_options* options, const char* initializer,
                                    const char* output, steep_error** error) {
  return call(error, [&] {
    const auto own = object<Options>(options);
    auto& training = kept<steep::TrainingOptions>(*own);
    training.updates[text(initializer, "initializer")] = text(output, "output");
  });
}

steep_code steep_options_add_fact(steep_options* options, const char* name, const char* value,
                                  steep_error** error) {
  return call(error, [&] {
    const auto own = object<Options>(options);
    auto& parallel = kept<ParallelOptions>(*own);
    parallel.facts[text(name, "name")] = text(value, "value");
  });
}

steep_code steep_options_set_loss_model(steep_options* options, const void* model, size_t size,
                                        steep_error** error) {
  return call(error, [&] {
    const auto own = object<Options>(options);
    const std::span<const std::byte> bytes = bytes_of(model, size);
    kept<steep::TrainingOptions>(*own).loss_model.assign(
        reinterpret_cast<const char*>(bytes.data()), bytes.size());
  });
}

steep_code steep_options_add_provider(steep_options* options, const char* name,
                                      const char* const* keys, const char* const* values,
                                      size_t count, steep_error** error) {
  return call(error, [&] {
    const auto own = object<Options>(options);
    steep::ProviderChoice choice{.name = text(name, "name")};
    const std::vector<std::string> set = texts(keys, count, "keys");
    const std::vector<std::string> to = texts(values, count, "values");
    for (size_t i = 0; i < count; ++i) choice.options[set[i]] = to[i];
    if (auto* inference = std::get_if<steep::InferenceOptions>(&own->of)) {
      inference->providers.push_back(std::move(choice));
    } else if (auto* session = std::get_if<steep::GradientSessionOptions>(&own->of)) {
      session->providers.push_back(std::move(choice));
    } else {
      kept<steep::TrainingOptions>(*own).providers.push_back(std::move(choice));
    }
  });
}

}  // extern "C"
