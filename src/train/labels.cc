#include "train/labels.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "data/convert.h"
#include "runtime/counted.h"
#include "steep/data.h"
#include "steep/error.h"
#include "train/loss.h"
#include "train/loss_output.h"

namespace steep {
namespace {

constexpr int64_t kAtOnce = 1 << 16;  // in elements

/// Calls f(values, begin, count) on parts of `labels`, converted to double, which is exact for
/// every class number.
template <typename F>
void each_part(const Tensor& labels, int64_t row_size, const std::string& name, F&& f) {
  const int64_t count = labels.size() / row_size;
  const int64_t step = std::max<int64_t>(kAtOnce / row_size, 1);
  const Tensor table = labels.reshaped({count, row_size});
  for (int64_t begin = 0; begin < count; begin += step) {
    const int64_t end = std::min(begin + step, count);
    const Tensor part = convert(rows(table, begin, end), DType::f64, name);
    f(part.data<double>(), begin, end - begin);
  }
}

/// One-hot rows [.., C] → the index of the 1 in each row.
Tensor places_of_ones(const Tensor& labels, const LabelForm& form) {
  const int64_t classes = labels.dims().back();
  Tensor places = Tensor::empty(DType::i64, {labels.dims().begin(), labels.dims().end() - 1});
  each_part(labels, classes, form.input.name, [&](const double* p, int64_t begin, int64_t count) {
    for (int64_t i = 0; i < count; ++i, p += classes) {
      const auto ones = std::count(p, p + classes, 1.0);
      const auto zeros = std::count(p, p + classes, 0.0);
      if (ones != 1 || zeros != classes - 1) {
        throw DataError(ErrorParts{
            .what = "A row of labels is not one-hot.",
            .node = form.input.name,
            .expected = fmt::format("a 1 and {}; or the numbers of the classes, {}",
                                    counted(classes - 1, "zero"), form.input.text()),
            .received = fmt::format("{} times 1 and {} times 0 in row {}", ones, zeros, begin + i),
            .remedy = "Give each row one class. Probabilities as labels need a loss inside of the "
                      "model."});
      }
      places.data<int64_t>()[begin + i] = std::find(p, p + classes, 1.0) - p;
    }
  });
  return places;
}

/// Whole floats → int64.
Tensor whole_numbers(const Tensor& labels, const LabelForm& form) {
  constexpr double kMost = 0x1p53;  // every larger float is whole, so such a label is an error
  Tensor numbers = Tensor::empty(DType::i64, labels.dims());
  each_part(labels, 1, form.input.name, [&](const double* p, int64_t begin, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      if (std::trunc(p[i]) != p[i] || !(std::fabs(p[i]) <= kMost)) {
        throw DataError(ErrorParts{.what = "A label is not a class number.",
                                   .node = form.input.name,
                                   .expected = "integers, or floats that are whole",
                                   .received = fmt::format("{} at element {}", p[i], begin + i),
                                   .remedy = "Give class numbers, or choose the loss mse."});
      }
      numbers.data<int64_t>()[begin + i] = static_cast<int64_t>(p[i]);
    }
  });
  return numbers;
}

/// Whether labels of these extents have one axis more than the loss takes.
bool has_axis_more(const Dims& dims, const LabelForm& form) {
  return form.input.has_rank && dims.size() == form.input.dims.size() + 1;
}

}  // namespace

std::optional<LabelForm> label_form(const TrainingOptions& options,
                                    std::span<const TensorInfo> inputs,
                                    std::span<const TensorInfo> outputs) {
  if (options.loss.empty()) return {};
  const auto label = std::find_if(inputs.begin(), inputs.end(), [&](const TensorInfo& info) {
    return info.name == options.label;
  });
  if (label == inputs.end()) return {};
  LabelForm form{.input = *label, .ignored = options.ignore_index};
  form.classes = takes_classes(options.loss);
  form.broadcasts = compares_elements(options.loss);
  const size_t at = output_of_loss(options, outputs);
  if (form.classes && at < outputs.size() && outputs[at].has_rank && !outputs[at].dims.empty()) {
    form.count = outputs[at].dims.back();
  }
  return form;
}

bool suits(const Tensor& labels, const LabelForm& form) {
  return labels.dtype() == form.input.dtype &&
         (!form.input.has_rank || labels.dims().size() == form.input.dims.size());
}

Tensor as_labels(const Tensor& labels, const LabelForm& form) {
  if (suits(labels, form)) return labels;
  Tensor values = labels;
  const Dims& target = form.input.dims;
  Dims dims = labels.dims();
  const bool more = has_axis_more(dims, form);
  const bool less = form.input.has_rank && dims.size() + 1 == target.size() && target.back() == 1;
  const bool known = converts(labels.dtype(), DType::f64);
  if (form.broadcasts && (less || (more && dims.back() == 1))) {
    throw ShapeError(ErrorParts{
        .what = "The rank of the labels differs from the rank of the output that they are compared "
                "with.",
        .node = form.input.name,
        .expected = form.input.text(),
        .received = fmt::format("{}[{}]", name_of(labels.dtype()), fmt::join(labels.dims(), ", ")),
        .remedy = less ? "Give the labels a last axis of one element: labels[:, None]."
                       : "Take the last axis off: labels[:, 0]."});
  }
  if (more && dims.back() == 1) {
    dims.pop_back();
    values = labels.reshaped(std::move(dims));
  } else if (less) {
    dims.push_back(1);
    values = labels.reshaped(std::move(dims));
  } else if (more && form.classes && known && dims.back() > 1 &&
             (form.count < 0 || form.count == dims.back())) {
    return places_of_ones(labels, form);
  }
  if (form.classes && known && is_float(values.dtype())) return whole_numbers(values, form);
  return converts(values.dtype(), form.input.dtype)
             ? convert(values, form.input.dtype, form.input.name)
             : values;
}

int64_t count_labels(const Tensor& labels, const LabelForm& form) {
  if (!form.classes || !form.ignored) return labels.size();
  const auto* label = labels.data<int64_t>();
  return labels.size() - std::count(label, label + labels.size(), *form.ignored);
}

void check_classes(const Tensor& labels, const LabelForm& form, const std::string& name) {
  if (!form.classes || labels.dtype() != DType::i64 || labels.size() == 0) return;
  const auto* label = labels.data<int64_t>();
  const int64_t in_row = labels.size() / labels.dims()[0];
  for (int64_t i = 0; i < labels.size(); ++i) {
    if (label[i] == form.ignored) continue;
    if (label[i] >= 0 && (form.count < 0 || label[i] < form.count)) continue;
    throw DataError(ErrorParts{
        .what = "A label is not one of the classes.",
        .node = name,
        .expected =
            form.count < 0 ? "labels from 0" : fmt::format("labels from 0 to {}", form.count - 1),
        .received = fmt::format("{} in row {}, where rows count from 0", label[i], i / in_row),
        .remedy =
            form.count == 1
                ? "For an output of one score or probability, choose the loss "
                  "binary_cross_entropy_with_logits or binary_cross_entropy."
                : "Correct the labels, or set --ignore-index (ignore_index) to the value that "
                  "marks rows to leave out."});
  }
  if (count_labels(labels, form) == 0) {
    throw DataError(ErrorParts{
        .what = "All labels have the ignored value.",
        .node = name,
        .received =
            fmt::format("{}, all {}", counted(labels.size(), "label"), form.ignored.value_or(0)),
        .remedy = "Give other data, or another --ignore-index."});
  }
}

}  // namespace steep
