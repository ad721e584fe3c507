// InferenceSession: checks arguments, and keeps a Program for each of the latest selections of
// outputs.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <functional>
#include <mutex>
#include <new>
#include <set>
#include <unordered_map>
#include <utility>

#include "data/convert.h"
#include "ir/seed.h"
#include "model/import/import.h"
#include "passes/pipeline.h"
#include "program/program_set.h"
#include "runtime/counted.h"
#include "runtime/memory.h"
#include "sessions/step_plan.h"
#include "steep/error.h"
#include "steep/inference.h"
#include "train/step.h"

namespace steep {
namespace {

/// The number of selections of outputs whose programs are kept.
constexpr size_t kMaxPrograms = 8;

ImportOptions import_options(const InferenceOptions& options) {
  return {.limits = options.limits,
          .training = false,
          .leave_out = true,
          .open_batch = options.open_batch};
}

ProgramOptions program_options(const InferenceOptions& options) {
  ProgramOptions settings{.check_finite = options.check_finite,
                          .seed = options.seed,
                          .threads = options.threads,
                          .limits = options.limits,
                          .devices = Devices::of(options.providers)};
  settings.disabled_passes = {options.disabled_passes.begin(), options.disabled_passes.end()};
  check_passes(settings.disabled_passes);
  if (!options.optimize) {
    for (const Pass& pass : passes()) settings.disabled_passes.emplace(pass.name);
  }
  return settings;
}

/// `declaration` is the type in the file; it supplies the extents that inference could not find.
TensorInfo info_of(const std::string& name, const Type& type, const Type& declaration) {
  const std::optional<Shape>& shape = type.shape ? type.shape : declaration.shape;
  TensorInfo info{.name = name, .dtype = type.dtype, .has_rank = shape.has_value()};
  info.sequence = type.kind == Kind::sequence || type.kind == Kind::optional_sequence;
  info.optional = type.kind == Kind::optional || type.kind == Kind::optional_sequence;
  if (!shape) return info;
  const bool fits = declaration.shape && declaration.shape->size() == shape->size();
  for (size_t i = 0; i < shape->size(); ++i) {
    const Dim& extent = (*shape)[i];
    const Dim dim = extent.known() || !fits ? extent : (*declaration.shape)[i];
    info.dims.push_back(dim.value());
    // The importer names unnamed extents "input.dimN"; such names are not the model's.
    info.symbols.push_back(dim.symbol() == fmt::format("{}.dim{}", name, i) ? "" : dim.symbol());
  }
  return info;
}

std::string names_of(const std::vector<TensorInfo>& infos) {
  std::vector<std::string> names;
  for (const TensorInfo& info : infos) names.push_back(info.name);
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

/// Index by name; the first index if a name occurs twice.
using Places = std::unordered_map<std::string, size_t>;

Places places_of(const std::vector<TensorInfo>& infos) {
  Places places;
  for (size_t i = 0; i < infos.size(); ++i) places.emplace(infos[i].name, i);
  return places;
}

std::string text_of(const Tensor& tensor) {
  return fmt::format("{}{}", name_of(tensor.dtype()), to_string(tensor.dims()));
}

/// The datum as the input's dtype, if convert() supports that.
Datum with_dtype_of(const TensorInfo& info, const Datum& datum) {
  if (info.sequence || info.optional || !datum.is_tensor()) return datum;
  const DType dtype = datum.tensor().dtype();
  if (dtype == info.dtype || !converts(dtype, info.dtype)) return datum;
  return Datum(convert(datum.tensor(), info.dtype, info.name));
}

void check_input(const TensorInfo& info, const Datum& datum) {
  if (info.sequence || info.optional) return;  // the program checks those
  if (!datum.is_tensor()) {
    throw DataError({.what = "An input is of the wrong kind.",
                     .node = info.name,
                     .expected = info.text(),
                     .received = datum.text(),
                     .remedy = "Feed an array."});
  }
  const Tensor& tensor = datum.tensor();
  auto refuse = [&](std::string what, std::string remedy) {
    throw ShapeError({.what = std::move(what),
                      .node = info.name,
                      .expected = info.text(),
                      .received = text_of(tensor),
                      .remedy = std::move(remedy)});
  };
  if (tensor.dtype() != info.dtype) {
    refuse("An input has the wrong element type.",
           fmt::format("Convert the array to {}.", name_of(info.dtype)));
  }
  if (!info.has_rank) return;
  if (tensor.dims().size() != info.dims.size()) {
    refuse("An input has the wrong rank.",
           fmt::format("Give it {}.", counted(info.dims.size(), "dimension")));
  }
  for (size_t i = 0; i < info.dims.size(); ++i) {
    if (info.dims[i] < 0 || info.dims[i] == tensor.dims()[i]) continue;
    refuse(fmt::format("An input has the wrong extent on axis {}.", i),
           fmt::format("Give it {} there, or export the model with a dynamic dimension.",
                       info.dims[i]));
  }
}

}  // namespace

struct InferenceSession::Impl {
  using Chosen = std::vector<size_t>;  // indices of outputs
  using Import = std::function<ImportedModel(const ImportOptions&)>;

  Impl(Import import, InferenceOptions with, const std::set<std::string>& input_names = {},
       ModelFiles before = {})
      : options(std::move(with)),
        again(std::move(import)),
        programs(program_options(options), kMaxPrograms) {
    ImportOptions how = import_options(options);
    how.fed = input_names;
    how.before = std::move(before);
    ImportedModel model = again(how);
    files = std::move(model.files);
    graph = std::move(model.graph);
    if (options.running_statistics) use_statistics(graph);
    metadata = std::move(model.metadata);
    left_out = std::move(model.left_out);
    for (const auto& [name, type] : model.with_default) {
      if (input_names.count(name) == 0) with_default.push_back(info_of(name, type, type));
    }
    for (Value v : graph.inputs()) {
      if (!is_seed(v)) inputs.push_back(info_of(v.name(), v.type(), v.type()));
    }
    // What the file says of its outputs has the number of rows that it fixed.
    const bool opened = model.fixed_rows != 0 && model.rows_stay.empty();
    for (size_t i = 0; i < graph.outputs().size(); ++i) {
      const Output& output = graph.outputs()[i];
      const Type& type = output.value.type();
      outputs.push_back(info_of(output.name, type, opened ? type : model.declared_outputs[i]));
    }
    input_places = places_of(inputs);
    output_places = places_of(outputs);
  }

  /// This session, or the variant whose inputs include the given inputs that have a default.
  Impl& fed_with(const std::map<std::string, Datum>& data) {
    std::set<std::string> replaced;
    for (const auto& item : data) {
      for (const TensorInfo& info : with_default) {
        if (info.name == item.first) replaced.insert(item.first);
      }
    }
    if (replaced.empty()) return *this;
    std::unique_ptr<Impl>& other = variants[replaced];
    if (!other) other = std::make_unique<Impl>(again, options, replaced, files);
    return *other;
  }

  std::vector<Datum> in_order(const std::map<std::string, Datum>& data) const {
    for (const auto& item : data) {
      if (input_places.count(item.first) != 0) continue;
      throw DataError({.what = "The model has no such input.",
                       .node = item.first,
                       .expected = names_of(inputs),
                       .received = item.first,
                       .remedy = "Feed the model's inputs and nothing else."});
    }
    std::vector<Datum> result;
    for (const TensorInfo& info : inputs) {
      const auto found = data.find(info.name);
      if (found == data.end()) {
        throw DataError({.what = "An input is missing.",
                         .node = info.name,
                         .expected = info.text(),
                         .received = "no value of this name",
                         .remedy = fmt::format("Feed an array for '{}'.", info.name)});
      }
      result.push_back(with_dtype_of(info, found->second));
      check_input(info, result.back());
    }
    return result;
  }

  Chosen choose(std::span<const std::string> names) const {
    Chosen choice;
    for (const std::string& name : names) {
      const auto found = output_places.find(name);
      if (found == output_places.end()) {
        if (left_out.count(name) != 0) throw ModelError(left_out.at(name));
        throw DataError({.what = "The model has no such output.",
                         .node = name,
                         .expected = names_of(outputs),
                         .received = name});
      }
      choice.push_back(found->second);
    }
    if (names.empty() && !left_out.empty()) {
      ErrorParts parts = left_out.begin()->second;
      parts.remedy = fmt::format("Name the outputs to compute: {}.", names_of(outputs));
      throw ModelError(std::move(parts));
    }
    for (size_t i = 0; names.empty() && i < outputs.size(); ++i) choice.push_back(i);
    return choice;
  }

  /// Calls use(program, types) with the program of all outputs and the types of these inputs.
  template <typename Use>
  auto compiled_for(const Inputs& arrays, const Use& use) {
    const std::map<std::string, Datum> data(arrays.begin(), arrays.end());
    const Impl& own = fed_with(data);
    std::vector<Type> types;
    for (const Datum& d : own.in_order(data)) {
      types.push_back({d.tensor().dtype(), to_shape(d.tensor().dims())});
    }
    const Chosen choice = own.choose({});
    return use(programs.get({&own, choice}, [&] { return own.part(choice); }), types);
  }

  Graph part(const Chosen& choice) const {
    Graph part = graph;
    std::vector<Output> selection;
    for (size_t i : choice) selection.push_back(part.outputs()[i]);
    part.set_outputs(std::move(selection));
    return part;
  }

  Graph graph;
  InferenceOptions options;
  ModelMetadata metadata;
  std::vector<TensorInfo> inputs;
  std::vector<TensorInfo> outputs;
  Places input_places;
  Places output_places;
  std::map<std::string, ErrorParts> left_out;
  std::vector<TensorInfo> with_default;
  Import again;
  ModelFiles files;
  std::map<std::set<std::string>, std::unique_ptr<Impl>> variants;  // by replaced defaults
  uint64_t runs = 0;
  /// Used by the session itself, not by its variants. The key is the variant and the outputs.
  ProgramSet<std::pair<const Impl*, Chosen>> programs;
};

InferenceSession::InferenceSession(const std::filesystem::path& model, InferenceOptions options) try
    : impl_(std::make_unique<Impl>(
          [model](const ImportOptions& limits) { return import_model(model, limits); },
          std::move(options))) {
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

InferenceSession::InferenceSession(std::span<const std::byte> model, InferenceOptions options,
                                   const std::filesystem::path& folder) try
    : impl_(std::make_unique<Impl>(
          [model, folder](const ImportOptions& limits) {
            return import_model(model, limits, folder);
          },
          std::move(options))) {
  impl_->again = nullptr;  // it would read the caller's bytes later
  if (impl_->with_default.empty()) return;
  const std::vector<std::byte> bytes(model.begin(), model.end());
  impl_->again = [bytes, folder](const ImportOptions& limits) {
    return import_model(bytes, limits, folder);
  };
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

InferenceSession::~InferenceSession() = default;
InferenceSession::InferenceSession(InferenceSession&&) noexcept = default;
InferenceSession& InferenceSession::operator=(InferenceSession&&) noexcept = default;

std::vector<Datum> InferenceSession::run_data(const std::map<std::string, Datum>& inputs,
                                              std::span<const std::string> outputs) try {
  Impl& s = *impl_;
  const std::lock_guard lock(s.programs.call_lock);
  const Impl& own = s.fed_with(inputs);
  const std::vector<Datum> data = own.in_order(inputs);
  const Impl::Chosen choice = own.choose(outputs);
  Program& program = s.programs.get({&own, choice}, [&] { return own.part(choice); });
  program.set_run_count(s.runs++);
  return program.forward_data(data).outputs;
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

std::vector<Tensor> InferenceSession::run(const Inputs& inputs,
                                          std::span<const std::string> outputs) {
  return to_tensors(run_data({inputs.begin(), inputs.end()}, outputs));
}

std::vector<TensorInfo> InferenceSession::input_info() const { return impl_->inputs; }
std::vector<TensorInfo> InferenceSession::default_info() const { return impl_->with_default; }
std::vector<TensorInfo> InferenceSession::output_info() const { return impl_->outputs; }
const ModelMetadata& InferenceSession::metadata() const { return impl_->metadata; }

StepPlan InferenceSession::plan(const Inputs& inputs) try {
  const std::lock_guard lock(impl_->programs.call_lock);
  return impl_->compiled_for(inputs, [](Program& program, const std::vector<Type>& types) {
    return step_plan(program.plan(types));
  });
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

std::string InferenceSession::dump(const Inputs& inputs, DumpFormat format) try {
  const std::lock_guard lock(impl_->programs.call_lock);
  return impl_->compiled_for(inputs, [&](Program& program, const std::vector<Type>& types) {
    return program.dump(types, format);
  });
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

void InferenceSession::start_profile() {
  const std::lock_guard lock(impl_->programs.call_lock);
  impl_->programs.start_profile();
}

void InferenceSession::write_profile(const std::filesystem::path& path) {
  const std::lock_guard lock(impl_->programs.call_lock);
  impl_->programs.write_profile(path);
}

}  // namespace steep
