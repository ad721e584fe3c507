#include "cli/data.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <map>

#include "cli/command_line.h"
#include "cli/model_options.h"
#include "data/convert.h"
#include "steep/error.h"
#include "train/names.h"

namespace steep::cli {
namespace {

using Arrays = std::map<std::string, Tensor>;

std::vector<std::string> names_of(const Arrays& arrays) {
  std::vector<std::string> names;
  for (const auto& [name, array] : arrays) names.push_back(name);
  return names;
}

/// Names that people give to labels. One array is left over in files of weights of samples, too.
bool names_labels(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const char* known : {"label", "labels", "target", "targets", "y", "y_true"}) {
    if (name == known) return true;
  }
  return false;
}

/// Which array each input is fed.
struct Assignment {
  std::map<std::string, std::string> array_of{};  // by input
  std::vector<std::string> left_over{};           // arrays that no input is fed
  bool labelled = true;
};

[[noreturn]] void refuse_twice(const std::string& input, const std::string& a,
                               const std::string& b) {
  throw DataError(ErrorParts{.what = fmt::format("two arrays are named for input '{}'", input),
                             .expected = "one",
                             .received = fmt::format("{} and {}", a, b),
                             .remedy = "name one, with --map or --label-array"});
}

/// What the options say. Inputs that they leave out are not in it.
std::map<std::string, std::string> named_arrays(const DataChoice& choice,
                                                std::span<const TensorInfo> inputs,
                                                const std::string& label) {
  std::map<std::string, std::string> named;
  for (const std::string& text : choice.map) {
    const auto [input, array] = split_pair(text, "--map");
    const bool there =
        std::any_of(inputs.begin(), inputs.end(),
                    [&, &wanted = input](const auto& i) { return i.name == wanted; });
    if (!there) {
      throw DataError(ErrorParts{.what = "--map names no input of the model", .received = input});
    }
    const auto [at, fresh] = named.emplace(input, array);
    if (!fresh && at->second != array) refuse_twice(input, at->second, array);
  }
  if (label.empty() || choice.label_array.empty()) return named;
  const auto [at, fresh] = named.emplace(label, choice.label_array);
  if (!fresh && at->second != choice.label_array)
    refuse_twice(label, at->second, choice.label_array);
  return named;
}

Assignment assign(const DataChoice& choice, std::span<const TensorInfo> inputs,
                  const std::string& label, bool needs_label, const Arrays& arrays) {
  Assignment made{.array_of = named_arrays(choice, inputs, label)};
  const bool label_named = made.array_of.count(label) != 0;
  for (const TensorInfo& input : inputs) made.array_of.emplace(input.name, input.name);
  const std::vector<std::string> names = names_of(arrays);
  auto left_over = [&] {
    std::vector<std::string> left = names;
    for (const auto& [input, array] : made.array_of) std::erase(left, array);
    return left;
  };
  made.left_over = left_over();
  if (!label.empty() && !label_named && arrays.count(label) == 0) {
    if (made.left_over.size() == 1 && names_labels(made.left_over[0])) {
      made.array_of[label] = made.left_over[0];
      made.left_over.clear();
    } else if (made.left_over.empty() && !needs_label && inputs.back().name == label) {
      made.array_of.erase(label);
      made.labelled = false;
    }
  }
  for (const TensorInfo& input : inputs) {
    const auto array = made.array_of.find(input.name);
    if (array == made.array_of.end() || arrays.count(array->second) != 0) continue;
    const bool is_label = input.name == label;
    throw DataError(
        ErrorParts{.what = fmt::format("{} has no array for input '{}'", choice.path, input.name),
                   .expected = array->second,
                   .received = list_names(names),
                   .remedy = is_label ? "name it: --label-array ARRAY"
                                      : fmt::format("name it: --map {}=ARRAY", input.name)});
  }
  return made;
}

std::string describe(const Tensor& array) {
  return fmt::format("{}{}", name_of(array.dtype()), to_string(array.dims()));
}

/// The axes behind the first, and how many there are.
void check_extents(const Tensor& array, const std::string& name, const std::string& path,
                   const TensorInfo& input) {
  if (array.dims().empty()) {
    throw ShapeError(ErrorParts{.what = fmt::format("array '{}' of {} has no rows", name, path),
                                .node = input.name,
                                .expected = "rows along a first axis",
                                .received = "a scalar"});
  }
  bool fits = !input.has_rank || array.dims().size() == input.dims.size();
  for (size_t d = 1; fits && input.has_rank && d < input.dims.size(); ++d) {
    fits = input.dims[d] < 0 || input.dims[d] == array.dims()[d];
  }
  if (fits) return;
  throw ShapeError(ErrorParts{
      .what = fmt::format("array '{}' of {} does not suit the model's input", name, path),
      .node = input.name,
      .expected = input.text(),
      .received = describe(array),
      .remedy = "reshape the array, or name another with --map or --label-array"});
}

}  // namespace

void add_data_options(CLI::App& app, DataChoice& choice) {
  app.add_option("--data", choice.path, ".npz or .safetensors file; rows along the first axis")
      ->required();
  app.add_option("--map", choice.map,
                 "input=array, if the array does not have the name of the input");
  app.add_option("--label-array", choice.label_array,
                 "Array with the labels (default: the label's name; or the only one left over, if\n"
                 "it is named label, labels, target, targets, y or y_true)");
  app.add_option("--batch", choice.batch,
                 "Rows per step (if the model fixes their number, that is the default)")
      ->capture_default_str()
      ->each([&choice](const std::string&) { choice.batch_given = true; })
      ->transform(whole(1));
}

Feed feed_from(const DataChoice& choice, std::span<const TensorInfo> inputs,
               const std::optional<LabelForm>& labels, bool needs_label) {
  Arrays arrays = load_arrays(choice.path, choice.limits != nullptr ? *choice.limits : Limits{});
  const std::string label = labels ? labels->input.name : "";
  const Assignment assigned = assign(choice, inputs, label, needs_label, arrays);
  Feed feed{.path = choice.path, .labelled = assigned.labelled};
  std::vector<std::string> pairs;
  for (const TensorInfo& input : inputs) {
    const auto found = assigned.array_of.find(input.name);
    if (found == assigned.array_of.end()) continue;
    const std::string& name = found->second;
    const Tensor& array = arrays.at(name);
    pairs.push_back(fmt::format("{} from '{}' {}", input.name, name, describe(array)));
    const bool is_label = labels && input.name == label;
    feed.names.push_back(name);
    feed.arrays.push_back(is_label ? as_labels(array, *labels) : array);
    if (feed.arrays.back().dtype() != input.dtype) {
      feed.arrays.back() = convert(feed.arrays.back(), input.dtype, name);
    }
    check_extents(feed.arrays.back(), name, choice.path, input);
    const int64_t count = feed.arrays.back().dims()[0];
    if (count != feed.rows()) {
      throw ShapeError(ErrorParts{
          .what = fmt::format("arrays of {} have different numbers of rows", choice.path),
          .expected = fmt::format("{} rows, as '{}' has", feed.rows(), feed.names[0]),
          .received = fmt::format("{} rows in '{}'", count, name)});
    }
    if (count == 0) {
      throw DataError(
          ErrorParts{.what = fmt::format("array '{}' of {} has no rows", name, choice.path),
                     .received = describe(array)});
    }
    if (is_label) {
      check_classes(feed.arrays.back(), *labels,
                    fmt::format("array '{}' of {}", name, choice.path));
    }
  }
  feed.text = fmt::format("{}: {}", choice.path, fmt::join(pairs, ", "));
  if (!assigned.labelled) feed.text += "; no labels, so no loss";
  if (!assigned.left_over.empty()) {
    feed.text += "; not used: '" + fmt::format("{}", fmt::join(assigned.left_over, "', '")) + "'";
  }
  return feed;
}

int64_t fixed_rows(std::span<const TensorInfo> inputs) {
  int64_t fixed = 0;
  for (const TensorInfo& input : inputs) {
    if (!input.has_rank || input.dims.empty() || input.dims[0] <= 0) continue;
    if (fixed != 0 && fixed != input.dims[0]) return 0;
    fixed = input.dims[0];
  }
  return fixed;
}

int64_t batch_size_for(const DataChoice& choice, const Feed& feed,
                       std::span<const TensorInfo> inputs, bool drop_last) {
  constexpr const char* kRelax = "export the model with a first axis that varies";
  const int64_t fixed = fixed_rows(inputs), rows = feed.rows();
  const int64_t batch = fixed > 0 && !choice.batch_given ? fixed : choice.batch;
  const int64_t last = rows % batch;
  if (rows < batch && drop_last) {
    throw DataError(ErrorParts{
        .what = fmt::format("{} has too few rows for one batch", feed.path),
        .expected =
            fmt::format("{} rows or more, since --drop-last leaves out a smaller batch", batch),
        .received = fmt::format("{} rows", rows),
        .remedy = fmt::format("give --batch {}, or leave --drop-last out", rows)});
  }
  if (fixed == 0) return batch;
  if (rows >= batch && batch != fixed) {
    throw ShapeError(
        ErrorParts{.what = fmt::format("the model takes only batches of {} rows", fixed),
                   .expected = fmt::format("--batch {}", fixed),
                   .received = fmt::format("--batch {}", batch),
                   .remedy = fmt::format("give --batch {}, or {}", fixed, kRelax)});
  }
  if (last != 0 && last != fixed && !drop_last) {
    throw ShapeError(
        ErrorParts{.what = fmt::format("the last batch of {} is short", feed.path),
                   .expected = fmt::format("{} rows, which the model fixes", fixed),
                   .received = fmt::format("{}, of {} rows with --batch {}", last, rows, batch),
                   .remedy = fmt::format("leave them out with --drop-last, or {}", kRelax)});
  }
  return batch;
}

LossWeight::LossWeight(const TrainingSession& session)
    : labels_(label_form(session.options(), session.input_info(), session.output_info())),
      at_(session.input_info().size()) {
  const std::vector<TensorInfo>& inputs = session.input_info();
  for (size_t i = 0; labels_ && i < inputs.size(); ++i) {
    if (inputs[i].name == labels_->input.name) at_ = i;
  }
}

double weight_of(const EvalResult& result, std::span<const Tensor> batch) {
  return result.weight.value_or(static_cast<double>(batch[0].dims()[0]));
}

int64_t LossWeight::of(std::span<const Tensor> batch) const {
  if (labels_ && labels_->classes && labels_->ignored && at_ < batch.size()) {
    return count_labels(batch[at_], *labels_);
  }
  return batch[0].dims()[0];
}

}  // namespace steep::cli
