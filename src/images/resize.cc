#include "images/resize.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace steep {
namespace {

// Weights are whole numbers of 2^-kBits: 8 bits for pixels, and 2 more so that sums do not
// overflow.
constexpr int kBits = 32 - 8 - 2;
constexpr int32_t kHalf = 1 << (kBits - 1);

/// For each result along an axis: the first pixel that it reads, and the weights from there on.
struct Weights {
  struct Part {
    int64_t first;
    int64_t count;
  };
  std::vector<Part> parts{};
  int64_t stride = 0;
  std::vector<int32_t> values{};  // [parts, stride]
};

int64_t nearest(double x) { return static_cast<int64_t>(std::floor(x + 0.5)); }

Weights weights_for(int64_t from, int64_t to) {
  const double scale = static_cast<double>(from) / static_cast<double>(to);
  const double support = std::max(scale, 1.0);  // a triangle covers that much on either side
  Weights weights;
  weights.stride = static_cast<int64_t>(std::ceil(support)) * 2 + 1;
  weights.values.resize(static_cast<size_t>(to * weights.stride));
  std::vector<double> now(static_cast<size_t>(weights.stride));
  for (int64_t i = 0; i < to; ++i) {
    const double centre = (static_cast<double>(i) + 0.5) * scale;
    const int64_t first = std::max<int64_t>(nearest(centre - support), 0);
    const int64_t end = std::min(nearest(centre + support), from);
    double sum = 0;
    for (int64_t k = first; k < end; ++k) {
      const double distance = std::fabs((static_cast<double>(k) - centre + 0.5) * (1.0 / support));
      const double weight = distance < 1 ? 1 - distance : 0;
      now[static_cast<size_t>(k - first)] = weight;
      sum += weight;
    }
    for (int64_t k = 0; k < end - first; ++k) {
      double weight = now[static_cast<size_t>(k)];
      if (sum != 0) weight /= sum;
      weights.values[static_cast<size_t>(i * weights.stride + k)] =
          static_cast<int32_t>(nearest(weight * (1 << kBits)));
    }
    weights.parts.push_back({.first = first, .count = end - first});
  }
  return weights;
}

uint8_t rounded(int32_t sum) { return static_cast<uint8_t>(std::clamp(sum >> kBits, 0, 255)); }

Image resize_width(const Image& image, int64_t width) {
  const Weights weights = weights_for(image.width, width);
  const int64_t channels = image.channels;
  Image result{.width = width, .height = image.height, .channels = image.channels};
  result.pixels.resize(static_cast<size_t>(width * image.height * channels));
  uint8_t* to = result.pixels.data();
  for (int64_t y = 0; y < image.height; ++y) {
    const uint8_t* row = image.pixels.data() + y * image.width * channels;
    for (int64_t x = 0; x < width; ++x) {
      const Weights::Part part = weights.parts[static_cast<size_t>(x)];
      const int32_t* weight = weights.values.data() + x * weights.stride;
      for (int64_t c = 0; c < channels; ++c) {
        const uint8_t* from = row + part.first * channels + c;
        int32_t sum = kHalf;
        for (int64_t k = 0; k < part.count; ++k) sum += from[k * channels] * weight[k];
        *to++ = rounded(sum);
      }
    }
  }
  return result;
}

Image resize_height(const Image& image, int64_t height) {
  const Weights weights = weights_for(image.height, height);
  const int64_t row = image.width * image.channels;
  Image result{.width = image.width, .height = height, .channels = image.channels};
  result.pixels.resize(static_cast<size_t>(row * height));
  std::vector<int32_t> sums(static_cast<size_t>(row));
  for (int64_t y = 0; y < height; ++y) {
    const Weights::Part part = weights.parts[static_cast<size_t>(y)];
    std::fill(sums.begin(), sums.end(), kHalf);
    for (int64_t k = 0; k < part.count; ++k) {
      const int32_t weight = weights.values[static_cast<size_t>(y * weights.stride + k)];
      const uint8_t* from = image.pixels.data() + (part.first + k) * row;
      for (int64_t i = 0; i < row; ++i) sums[static_cast<size_t>(i)] += from[i] * weight;
    }
    std::transform(sums.begin(), sums.end(), result.pixels.data() + y * row, rounded);
  }
  return result;
}

}  // namespace

Image resize(const Image& image, int64_t width, int64_t height) {
  if (image.width == width && image.height == height) return image;
  if (image.width == width) return resize_height(image, height);
  const Image narrow = resize_width(image, width);
  return image.height == height ? narrow : resize_height(narrow, height);
}

}  // namespace steep
