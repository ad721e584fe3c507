#include "cli/data.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "cli/column_list.h"
#include "cli/command_line.h"
#include "cli/model_options.h"
#include "data/convert.h"
#include "runtime/counted.h"
#include "steep/error.h"
#include "train/name_suggestions.h"
#include "train/unit_labels.h"

namespace steep::cli {
namespace {

/// "a,b" → a and b, unless an array has that name; then the name alone.
std::vector<std::string> parts_of(const std::string& name, const JoinedArrays& arrays) {
  if (arrays.count(name) != 0) return {name};
  return columns_of(name);
}

/// Columns of shape [n] → [n, number of columns], in the input's dtype. A single column keeps the
/// shape [n] if the input has rank 1, and its dtypes.
Joined columns_as_rows(const std::vector<std::string>& names, const JoinedArrays& arrays,
                       const TensorInfo& input) {
  if (names.size() == 1 && input.has_rank && input.dims.size() == 1) return arrays.at(names[0]);
  std::vector<Tensor> columns;
  for (const std::string& name : names) {
    Joined joined = arrays.at(name);
    for (size_t i = 0; i < joined.parts.size(); ++i)
      joined.parts[i] = convert(joined.parts[i], input.dtype, name + " of " + joined.paths[i]);
    columns.push_back(join_rows(joined.parts, name));
  }
  const int64_t rows = columns[0].size();
  const auto width = static_cast<int64_t>(columns.size());
  Tensor result = Tensor::empty(input.dtype, {rows, width});
  const size_t size = size_of(input.dtype);
  auto* to = static_cast<char*>(result.data());
  for (int64_t i = 0; i < rows; ++i) {
    for (const Tensor& column : columns) {
      std::memcpy(to, static_cast<const char*>(column.data()) + static_cast<size_t>(i) * size,
                  size);
      to += size;
    }
  }
  return {.parts = {std::move(result)}, .paths = {arrays.at(names[0]).paths[0]}};
}

/// The array for each input.
struct Assignment {
  std::map<std::string, std::string> array_of{};  // by input
  std::vector<std::string> left_over{};           // arrays that are used for no input
  bool labelled = true;
};

[[noreturn]] void refuse_twice(const std::string& input, const std::string& a,
                               const std::string& b) {
  throw DataError(ErrorParts{.what = fmt::format("Two arrays are named for input '{}'.", input),
                             .expected = "one",
                             .received = fmt::format("{} and {}", a, b),
                             .remedy = "Name one, with --map or --label-array."});
}

/// The arrays that options name, by input. Other inputs are not in the result.
std::map<std::string, std::string> named_arrays(const DataArguments& choice,
                                                std::span<const TensorInfo> inputs,
                                                const std::string& label) {
  std::map<std::string, std::string> result;
  for (const std::string& text : choice.map) {
    const auto [input, array] = split_pair(text, "--map");
    const bool there =
        std::any_of(inputs.begin(), inputs.end(),
                    [&, &wanted = input](const auto& i) { return i.name == wanted; });
    if (!there) {
      throw DataError(ErrorParts{.what = "--map names no input of the model.", .received = input});
    }
    const auto [at, fresh] = result.emplace(input, array);
    if (!fresh && at->second != array) refuse_twice(input, at->second, array);
  }
  if (label.empty() || choice.label_array.empty()) return result;
  const auto [at, fresh] = result.emplace(label, choice.label_array);
  if (!fresh && at->second != choice.label_array)
    refuse_twice(label, at->second, choice.label_array);
  return result;
}

/// Adds the columns of an earlier feed, which the files must have by the same names.
void add_earlier_columns(std::map<std::string, std::string>* array_of, const DataArguments& choice,
                         const Loaded& data) {
  if (data.columns.empty()) return;
  for (const auto& [input, names] : choice.columns) {
    if (array_of->count(input) != 0 || data.arrays.count(input) != 0) continue;
    for (const std::string& name : columns_of(names)) {
      if (data.is_column(name) || data.is_column(names)) continue;
      if (const auto refused = data.refused.find(name); refused != data.refused.end())
        throw DataError(refused->second);
      throw DataError(ErrorParts{
          .what = fmt::format("{} has no column '{}', which {} for input '{}'.", data.text, name,
                              choice.columns_of, input),
          .node = input,
          .expected = "the columns " + shown_columns(names, columns_of(names)),
          .received = list_names(data.columns),
          .remedy = fmt::format("Give the columns the same names; or name those to read: "
                                "--map {}=COLUMN,COLUMN,…",
                                input)});
    }
    array_of->emplace(input, names);
  }
}

bool is_there(const std::string& array, const Loaded& data) {
  const std::vector<std::string> parts = parts_of(array, data.arrays);
  return std::all_of(parts.begin(), parts.end(), [&](const auto& part) {
    return data.arrays.count(part) != 0 && (parts.size() == 1 || data.is_column(part));
  });
}

/// Gives the images to the only input without an array, if there is exactly one.
void give_images(Assignment* assignment, std::span<const TensorInfo> inputs,
                 const std::string& label, const Loaded& data) {
  if (data.images == nullptr) return;
  const TensorInfo* lacking = nullptr;
  for (const TensorInfo& input : inputs) {
    const std::string& array = assignment->array_of.at(input.name);
    if (array == kImageArray) return;
    if (input.name == label || array != input.name || is_there(array, data)) continue;
    if (lacking != nullptr) return;
    lacking = &input;
  }
  if (lacking != nullptr) assignment->array_of[lacking->name] = kImageArray;
}

/// The number of columns that make an input [rows, n]; -1 if the model does not fix it.
int64_t width_of(const TensorInfo& input) {
  if (!input.has_rank) return -1;
  return input.dims.size() == 1 ? 1 : input.dims.size() == 2 ? input.dims[1] : -1;
}

/// Gives the unused columns to the only input without an array, if there is exactly one.
void give_columns(Assignment* assignment, std::span<const TensorInfo> inputs,
                  const std::string& label, const Loaded& data) {
  const TensorInfo* lacking = nullptr;
  for (const TensorInfo& input : inputs) {
    if (input.name == label || is_there(assignment->array_of.at(input.name), data)) continue;
    if (lacking != nullptr) return;
    lacking = &input;
  }
  if (lacking == nullptr || assignment->array_of.at(lacking->name) != lacking->name) return;
  // Without a column that is not numbers, a column for another use could take its place.
  if (!data.refused.empty()) throw DataError(data.refused.begin()->second);
  std::vector<std::string> rest, features;
  const std::set<std::string> over(assignment->left_over.begin(), assignment->left_over.end());
  for (const std::string& name : data.columns) {
    if (over.count(name) == 0) continue;
    rest.push_back(name);
    if (!names_labels(name)) features.push_back(name);
  }
  const int64_t width = width_of(*lacking);
  if (std::ssize(rest) != width && std::ssize(features) == width) rest = features;
  if (rest.empty()) return;
  assignment->array_of[lacking->name] = column_list(rest);
  const std::set<std::string> used(rest.begin(), rest.end());
  std::erase_if(assignment->left_over,
                [&](const std::string& name) { return used.count(name) != 0; });
}

Assignment assign(const DataArguments& choice, std::span<const TensorInfo> inputs,
                  const std::string& label, bool needs_label, const Loaded& data) {
  const JoinedArrays& arrays = data.arrays;
  Assignment assignment{.array_of = named_arrays(choice, inputs, label)};
  add_earlier_columns(&assignment.array_of, choice, data);
  const bool label_named = assignment.array_of.count(label) != 0;
  for (const TensorInfo& input : inputs) assignment.array_of.emplace(input.name, input.name);
  give_images(&assignment, inputs, label, data);
  const std::vector<std::string> names = names_of(arrays);
  auto left_over = [&] {
    std::set<std::string> used;  // a table may have tens of thousands of columns
    for (const auto& [input, array] : assignment.array_of) {
      for (std::string& part : parts_of(array, arrays)) used.insert(std::move(part));
    }
    std::vector<std::string> rest = names;
    std::erase_if(rest, [&](const std::string& name) { return used.count(name) != 0; });
    return rest;
  };
  assignment.left_over = left_over();
  if (!label.empty() && !label_named && arrays.count(label) == 0) {
    for (const auto& [name, parts] : data.refused) {
      if (name == label || names_labels(name)) throw DataError(parts);
    }
    const auto label_array =
        std::find_if(assignment.left_over.begin(), assignment.left_over.end(), names_labels);
    const bool found = label_array != assignment.left_over.end();
    const bool only =
        found &&
        std::all_of(assignment.left_over.begin(), assignment.left_over.end(), [&](const auto& a) {
          return a == *label_array || (data.is_column(a) && !names_labels(a));
        });
    if (only) {
      assignment.array_of[label] = *label_array;
      assignment.left_over.erase(label_array);
    } else if (assignment.left_over.empty() && !needs_label && inputs.back().name == label) {
      assignment.array_of.erase(label);
      assignment.labelled = false;
    }
  }
  give_columns(&assignment, inputs, label, data);
  for (const TensorInfo& input : inputs) {
    const auto array = assignment.array_of.find(input.name);
    if (array == assignment.array_of.end() || is_there(array->second, data)) continue;
    const bool is_label = input.name == label;
    for (const std::string& part : columns_of(array->second)) {
      const auto refused = data.refused.find(part);
      if (refused != data.refused.end()) throw DataError(refused->second);
      const auto other = data.not_read.find(part);
      if (other == data.not_read.end()) continue;
      throw DataError(
          ErrorParts{.what = fmt::format("Column '{}' of {} is not read.", part, data.text),
                     .node = input.name,
                     .expected = "numbers, bools, or lists of them of one length",
                     .received = other->second,
                     .remedy = "Give its values numbers."});
    }
    throw DataError(
        ErrorParts{.what = fmt::format("{} has no array for input '{}'.", data.text, input.name),
                   .expected = array->second,
                   .received = list_names(names),
                   .remedy = is_label && data.images != nullptr
                                 ? "Put the images into folders, one for each class."
                             : is_label ? "Name it: --label-array ARRAY."
                                        : fmt::format("Name it: --map {}=ARRAY.", input.name)});
  }
  return assignment;
}

/// For columns that do not suit an input: as many of them as it takes.
std::string columns_remedy(const std::vector<std::string>& columns, const TensorInfo& input) {
  const int64_t width = width_of(input);
  std::vector<std::string> names;
  std::copy_if(columns.begin(), columns.end(), std::back_inserter(names),
               [](const std::string& name) { return !names_labels(name); });
  const bool exact = std::ssize(names) == width;
  return fmt::format("Name the {}columns to read: --map {}={}.",
                     width > 0 ? fmt::format("{} ", width) : "", input.name,
                     exact ? column_list(names) : "COLUMN,COLUMN,…");
}

/// Checks the number of axes, and all extents but the first. `columns`: those that make the array.
void check_extents(const Tensor& array, const std::string& name, const std::string& path,
                   const TensorInfo& input, const std::vector<std::string>& columns) {
  if (array.dims().empty()) {
    throw ShapeError(ErrorParts{.what = fmt::format("Array '{}' of {} has no rows.", name, path),
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
      .what = fmt::format("Array '{}' of {} does not suit the model's input.", name, path),
      .node = input.name,
      .expected = input.text(),
      .received = describe(array),
      .remedy = columns.empty() ? "Reshape the array, or name another with --map or --label-array."
                                : columns_remedy(columns, input)});
}

/// Checks the number of rows of the last array.
void check_rows(const Feed& feed, const Joined& array) {
  const int64_t count = feed.arrays.back().dims()[0];
  const std::string& name = feed.names.back();
  if (count != feed.rows()) {
    throw ShapeError(ErrorParts{
        .what = fmt::format("Arrays of {} have different numbers of rows.", feed.path),
        .expected = fmt::format("{}, as '{}' has", counted(feed.rows(), "row"), feed.names[0]),
        .received = fmt::format("{} in '{}'", counted(count, "row"), name)});
  }
  if (count == 0) {
    throw DataError(
        ErrorParts{.what = fmt::format("Array '{}' of {} has no rows.", name, feed.path),
                   .received = array.text()});
  }
}

/// Options of images that have no effect are errors.
void check_image_options(const DataArguments& choice, const Loaded& data) {
  if (data.images != nullptr || !choice.images.given()) return;
  throw DataError(ErrorParts{.what = "The options --image-… are for folders of images.",
                             .node = data.text,
                             .expected = "a folder of images in --data",
                             .received = "arrays",
                             .remedy = "Leave these options out."});
}

/// The images for the next input of `feed`.
void feed_images(Feed* feed, const ImageArguments& choice, const TensorInfo& input,
                 const Loaded& data, const Limits& limits) {
  feed->late.images = {.set = data.images,
                       .input = feed->arrays.size(),
                       .dtype = input.dtype,
                       .form = image_form(choice, input),
                       .limits = limits};
  feed->names.emplace_back(kImageArray);
  feed->arrays.push_back(data.arrays.at(kImageArray).parts[0]);
  check_rows(*feed, data.arrays.at(kImageArray));
}

/// Checks every label.
void check_labels(const Joined& array, const std::string& name, const Loaded& data,
                  const DataArguments& choice, const LabelForm& form) {
  if (data.images != nullptr && name == kImageLabels && form.classes && form.count >= 0 &&
      std::ssize(data.images->classes) > form.count) {
    throw DataError(ErrorParts{
        .what = fmt::format("{} has more folders than the model has classes.", data.text),
        .expected = counted(form.count, "folder"),
        .received = list_names(data.images->classes),
        .remedy = "Move folders that are no classes, or train a model with more outputs."});
  }
  const auto counts = [&](const Tensor& labels) {  // a file may have none that counts
    return !form.classes || labels.dtype() != DType::i64 || count_labels(labels, form) > 0;
  };
  const bool any = std::any_of(array.parts.begin(), array.parts.end(), counts);
  for (size_t i = 0; i < array.parts.size(); ++i) {
    const Tensor& labels = array.parts[i];
    const std::string what =
        fmt::format("array '{}' of {}", name, array.parts.size() > 1 ? array.paths[i] : data.text);
    if (!any || counts(labels)) check_classes(labels, form, what);
    if (choice.loss != nullptr) check_unit_labels(labels, *choice.loss, what);
  }
}

/// The parts of an array in the dtype and form of an input. `later`: sessions convert the rows of a
/// batch.
Joined as_input(Joined array, const std::string& name, const TensorInfo& input,
                const LabelForm* labels, bool later) {
  for (size_t i = 0; i < array.parts.size(); ++i) {
    Tensor& part = array.parts[i];
    if (labels != nullptr) part = as_labels(part, *labels);
    if (part.dtype() == input.dtype || (later && converts(part.dtype(), input.dtype))) continue;
    part =
        convert(part, input.dtype, array.parts.size() > 1 ? name + " of " + array.paths[i] : name);
  }
  return array;
}

/// Adds an array: in memory as one, unless it is read later.
void add_array(Feed* feed, const Joined& array, const std::string& name, DType dtype, bool later) {
  feed->names.push_back(name);
  if (array.parts.size() == 1) {
    feed->arrays.push_back(array.parts[0]);
  } else if (!later) {
    feed->arrays.push_back(join_rows(array.parts, name));
  } else {
    const FarRows far(array, dtype);
    feed->late.far.emplace(feed->arrays.size(), far);
    feed->arrays.push_back(far.numbers());
  }
  check_rows(*feed, array);
}

/// What a feed says after its arrays: classes, and what is left out.
std::string rest_of_text(const Loaded& data, const Assignment& assigned) {
  std::string text;
  if (data.images != nullptr) text += class_text(*data.images);
  if (!data.mapped.empty()) text += "; read as it is used, since it is large";
  size_t more = data.not_read.size();
  for (const auto& [name, type] : data.not_read) {
    if (data.not_read.size() - more == kMostShown) break;
    text += fmt::format("; '{}' not read: {}", name, type);
    --more;
  }
  if (more > 0) text += fmt::format("; nor {} more", more);
  if (!assigned.labelled) text += "; no labels, so no loss";
  if (!assigned.left_over.empty()) {
    std::vector<std::string> quoted;
    for (const std::string& name : assigned.left_over) quoted.push_back("'" + name + "'");
    text += "; not used: " + list_names(quoted);
  }
  return text;
}

}  // namespace

void add_data_options(CLI::App& app, DataArguments& choice, bool labels) {
  app.add_option(
         "--data", choice.paths,
         ".npz, .safetensors, .npy (called as the file), .csv or .parquet files; rows along the\n"
         "first axis. Files of the same arrays are one behind the other; a folder stands for its "
         "files.\n"
         "Or a folder of images, .jpg and .png: its folders are the classes, sorted by name")
      ->required();
  app.add_option("--map", choice.map,
                 "If the array does not have the name of the input: its name;\n"
                 "or INPUT=a,b,c, the columns of a table (default: all that are left over). Give\n"
                 "--map once for each input")
      ->type_name("INPUT=ARRAY")
      ->allow_extra_args(false)
      ->take_all();
  if (labels) {
    app.add_option(
        "--label-array", choice.label_array,
        "Array with the labels (default: the label's name; or the only one left over, if\n"
        "it is named label, labels, target, targets, y or y_true)");
  }
  app.add_option("--batch", choice.batch,
                 "Rows per step (if the model fixes their number, that is the default)")
      ->capture_default_str()
      ->each([&choice](const std::string&) { choice.batch_given = true; })
      ->transform(whole(1));
  add_image_options(app, choice.images, labels);
}

Feed feed_from(const DataArguments& choice, std::span<const TensorInfo> inputs,
               const std::optional<LabelForm>& labels, bool needs_label) {
  const Limits limits = choice.limits != nullptr ? *choice.limits : Limits{};
  Loaded data = load(choice.paths, choice.images.classes, limits);
  check_image_options(choice, data);
  const std::string& path = data.text;
  const std::string label = labels ? labels->input.name : "";
  const Assignment assigned = assign(choice, inputs, label, needs_label, data);
  std::set<std::string> taken;
  for (const auto& [input, array] : assigned.array_of) {
    for (std::string& part : parts_of(array, data.arrays)) taken.insert(std::move(part));
  }
  take(&data, taken, limits);
  Feed feed{.path = path, .labelled = assigned.labelled};
  std::vector<std::string> pairs;
  for (const TensorInfo& input : inputs) {
    const auto found = assigned.array_of.find(input.name);
    if (found == assigned.array_of.end()) continue;
    const std::string& name = found->second;
    const std::vector<std::string> parts = parts_of(name, data.arrays);
    if (data.images != nullptr && name == kImageArray) {
      feed_images(&feed, choice.images, input, data, limits);
      pairs.push_back(fmt::format("{} from {}", input.name, feed.late.images.text()));
      continue;
    }
    const bool columns = data.is_column(parts[0]);
    const std::string shown = shown_columns(name, parts);
    Joined array = columns ? columns_as_rows(parts, data.arrays, input) : data.arrays.at(name);
    if (columns) feed.columns[input.name] = name;
    pairs.push_back(fmt::format("{} from '{}' {}", input.name, shown, array.text()));
    const bool is_label = labels && input.name == label, mapped = data.mapped.count(name) != 0;
    array = as_input(std::move(array), shown, input, is_label ? &*labels : nullptr,
                     mapped && !is_label);
    check_extents(array.parts[0], shown, path, input,
                  columns && !is_label ? parts : std::vector<std::string>());
    add_array(&feed, array, shown, input.dtype, mapped);
    if (is_label) check_labels(array, name, data, choice, *labels);
  }
  feed.text = fmt::format("{}: {}", path, fmt::join(pairs, ", ")) + rest_of_text(data, assigned);
  if (data.images != nullptr) feed.warning = turned_text(*data.images);
  return feed;
}

FeedBatches::FeedBatches(const Feed& feed, BatchOptions options)
    : batches_(feed.arrays,
               [&] {
                 options.rows = feed.row_numbers;
                 return std::move(options);
               }()),
      late_(feed.late) {}

std::vector<Tensor> FeedBatches::get(int64_t epoch, int64_t batch) {
  return late_.read(batches_.get(epoch, batch));
}

std::vector<Tensor> first_rows(const Feed& feed, int64_t count) {
  return FeedBatches(feed, {.batch_size = count, .shuffle = false}).get(0, 0);
}

Feed split_off(Feed* feed, double part, bool shuffle, uint64_t seed) {
  const int64_t all = feed->rows();
  const auto count = static_cast<int64_t>(std::llround(part * static_cast<double>(all)));
  if (count < 1 || count >= all) {
    throw DataError(
        ErrorParts{.what = "--validation-split leaves no rows to train on, or none to validate on.",
                   .node = feed->path,
                   .expected = "a row to train on, and one to validate on",
                   .received = fmt::format("{} of {}", count, counted(all, "row")),
                   .remedy = "Give another part, or --validation FILE."});
  }
  Feed tail = *feed;
  if (shuffle) {
    Tensor numbers = Tensor::empty(DType::i64, {all});
    std::iota(numbers.data<int64_t>(), numbers.data<int64_t>() + all, int64_t{0});
    Batches batches({numbers}, {.batch_size = all, .shuffle = true, .seed = seed});
    const Tensor order = batches.get(0, 0)[0];
    const auto* p = order.data<int64_t>();
    feed->row_numbers.assign(p, p + all - count);
    tail.row_numbers.assign(p + all - count, p + all);
  }
  for (size_t i = 0; !shuffle && i < feed->arrays.size(); ++i) {
    tail.arrays[i] = rows(feed->arrays[i], all - count, all);
    feed->arrays[i] = rows(feed->arrays[i], 0, all - count);
  }
  tail.text = fmt::format("{} of {}, {}", counted(count, "row"), feed->path,
                          shuffle ? "drawn by the seed" : "the last ones");
  return tail;
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

Cut cut_for(const DataArguments& choice, const Feed& feed, std::span<const TensorInfo> inputs,
            bool drop_last, bool whole, const std::string& note) {
  constexpr const char* kRelax = "export the model with a first axis that varies";
  const int64_t fixed = fixed_rows(inputs), rows = feed.rows();
  Cut cut{.batch = fixed > 0 && !choice.batch_given ? fixed : choice.batch, .drop_last = drop_last};
  if (fixed > 0 && cut.batch != fixed && rows >= cut.batch) {
    throw ShapeError(
        ErrorParts{.what = fmt::format("The model takes only batches of {}{}{}.",
                                       counted(fixed, "row"), note.empty() ? "" : ": ", note),
                   .expected = fmt::format("--batch {}", fixed),
                   .received = fmt::format("--batch {}", cut.batch),
                   .remedy = fmt::format("Give --batch {}, or {}.", fixed, kRelax)});
  }
  if (fixed > 0) {
    cut.batch = fixed;
    cut.text = fmt::format("batches of {}, which the model fixes", counted(fixed, "row"));
  }
  const int64_t rest = rows % cut.batch;
  if (fixed > 0 && rest != 0 && whole && !drop_last) {
    throw ShapeError(ErrorParts{
        .what = fmt::format("The last batch of {} is short.", feed.path),
        .expected = fmt::format("{}, which the model fixes", counted(fixed, "row")),
        .received = fmt::format("{}, of {}", rest, counted(rows, "row")),
        .remedy = fmt::format("Give a multiple of {}, or {}.", counted(fixed, "row"), kRelax)});
  }
  if (rows < cut.batch && (drop_last || fixed > 0)) {
    throw DataError(ErrorParts{
        .what = fmt::format("{} has too few rows for one batch.", feed.path),
        .expected = fmt::format("{} or more, since {}", counted(cut.batch, "row"),
                                fixed > 0 ? "the model takes no smaller batch"
                                          : "--drop-last leaves out a smaller batch"),
        .received = counted(rows, "row"),
        .remedy = fixed > 0 ? fmt::format("Give more rows, or {}.", kRelax)
                            : fmt::format("Give --batch {}, or leave --drop-last out.", rows)});
  }
  if (fixed > 0 && rest != 0) {
    cut.drop_last = true;
    cut.left_out = rest;
    cut.text += cut.left_out_text();
  }
  return cut;
}

std::string output_note(const std::string& named, const TrainingSession& session) {
  const std::string& output = session.options().output;
  return !named.empty() || output.empty() || output == "loss"
             ? ""
             : fmt::format("the loss is on output '{}', the only one of floats", output);
}

std::string Cut::left_out_text() const {
  return left_out == 0 ? "" : fmt::format("; {} left out", counted(left_out, "row"));
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
  return counts_labels() && at_ < batch.size() ? of_labels(batch[at_]) : batch[0].dims()[0];
}

bool LossWeight::counts_labels() const { return labels_ && labels_->classes && labels_->ignored; }

int64_t LossWeight::of_labels(const Tensor& labels) const { return count_labels(labels, *labels_); }

}  // namespace steep::cli
