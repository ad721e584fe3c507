// NonMaxSuppression: per batch and class, selects boxes in the order of their scores, except those
// that overlap a selected box by more than a threshold (intersection over union).
#include <algorithm>
#include <numeric>

#include "providers/cpu/data_shaped.h"

namespace steep::cpu {
namespace {

struct Box {
  float y1, x1, y2, x2;

  float area() const { return (y2 - y1) * (x2 - x1); }
};

/// Corners in any order, or centre and size.
Box box_at(const float* p, bool centred) {
  if (centred) return {p[1] - p[3] / 2, p[0] - p[2] / 2, p[1] + p[3] / 2, p[0] + p[2] / 2};
  return {std::min(p[0], p[2]), std::min(p[1], p[3]), std::max(p[0], p[2]), std::max(p[1], p[3])};
}

float overlap(const Box& a, const Box& b) {
  const float height = std::min(a.y2, b.y2) - std::max(a.y1, b.y1);
  const float width = std::min(a.x2, b.x2) - std::max(a.x1, b.x1);
  if (height <= 0 || width <= 0 || a.area() <= 0 || b.area() <= 0) return 0;
  return height * width / (a.area() + b.area() - height * width);
}

template <typename T>
T scalar_or(const NodeSpec& node, const Tensor& t, T otherwise) {
  if (!t.defined()) return otherwise;
  if (t.size() != 1) {
    throw_misfit(node, "A setting is not a single number.", "one element", to_string(t.dims()));
  }
  return *t.data<T>();
}

}  // namespace

std::vector<Tensor> run_non_max_suppression(const NodeSpec& node, std::span<const Tensor> inputs) {
  const Dims& boxes = inputs[0].dims();
  const Dims& scores = inputs[1].dims();
  if (boxes.size() != 3 || scores.size() != 3 || boxes[2] != 4 || boxes[0] != scores[0] ||
      boxes[1] != scores[2]) {
    throw_misfit(node, "Boxes and scores do not fit.",
                 "[batch, boxes, 4] and [batch, classes, boxes]",
                 to_string(boxes) + " and " + to_string(scores));
  }
  auto input = [&](size_t i) { return i < inputs.size() ? inputs[i] : Tensor(); };
  const auto most = scalar_or<int64_t>(node, input(2), 0);
  const auto iou = scalar_or<float>(node, input(3), 0);
  const bool thresholded = input(4).defined();
  const auto least_score = scalar_or<float>(node, input(4), 0);
  const bool centred = node.attrs.integer("center_point_box") != 0;
  const int64_t classes = scores[1];
  const int64_t count = boxes[1];

  std::vector<int64_t> triples;  // batch, class, box
  std::vector<int64_t> selection;
  for (int64_t b = 0; b < boxes[0] && most > 0; ++b) {
    const float* corners = inputs[0].data<float>() + b * count * 4;
    for (int64_t c = 0; c < classes; ++c) {
      const float* score = inputs[1].data<float>() + (b * classes + c) * count;
      std::vector<int64_t> order;
      for (int64_t i = 0; i < count; ++i) {
        if (!thresholded || score[i] > least_score) order.push_back(i);
      }
      std::stable_sort(order.begin(), order.end(), [&](int64_t i, int64_t j) {
        const bool bad_i = score[i] != score[i];
        const bool bad_j = score[j] != score[j];
        return bad_i || bad_j ? !bad_i && bad_j : score[i] > score[j];  // NaNs last
      });
      selection.clear();
      for (int64_t i : order) {
        if (static_cast<int64_t>(selection.size()) >= most) break;
        const Box box = box_at(corners + i * 4, centred);
        const bool hidden = std::any_of(selection.begin(), selection.end(), [&](int64_t k) {
          return overlap(box, box_at(corners + k * 4, centred)) > iou;
        });
        if (!hidden) selection.push_back(i);
      }
      for (int64_t i : selection) triples.insert(triples.end(), {b, c, i});
    }
  }
  return {Tensor::from(triples, {static_cast<int64_t>(triples.size()) / 3, 3})};
}

}  // namespace steep::cpu
