// Discrete Fourier transforms as products with matrices of cosines and sines, which are constants
// once shapes are known.
#include <numbers>

#include "ops/positions.h"
#include "steep/error.h"

namespace steep {
namespace {

/// x with `size` indices along `axis`: cropped, or padded with zeros.
Value resized(Value x, int64_t axis, Value size) {
  Graph& g = x.graph();
  Value zero = scalar(g, 0, DType::i64);
  Value overlap = apply("Min", {extent_of(x, axis), size});
  Value pads = concat({as_vector(zero), as_vector(size - overlap)}, 0);
  return apply("Pad", {slice(x, axis, zero, overlap), pads, Value(), ints(g, {axis})});
}

/// Cosines and sines of 2π t k / length for t < rows and k < columns.
struct Waves {
  Value cosines, sines;
};

Waves waves(Value rows, Value columns, Value length, DType dtype) {
  Value steps =
      apply("Mod", {unsqueeze(positions(rows), {1}) * unsqueeze(positions(columns), {0}), length});
  Value angle = cast(steps, DType::f64) / cast(length, DType::f64) * (2 * std::numbers::pi);
  return {cast(apply("Cos", {angle}), dtype), cast(apply("Sin", {angle}), dtype)};
}

int64_t axis_of(Node n) {
  if (!n.input(2)) return normal_axis(n, -2, n.input(0).rank());
  const Tensor* axis = constant(n.input(2));
  if (axis == nullptr || axis->size() != 1) {
    throw ModelError({.what = "A Fourier transform needs a constant axis.",
                      .node = n.name(),
                      .op = n.op(),
                      .expected = "a constant axis",
                      .received = to_string(n.input(2).type()),
                      .remedy = "Make the axis a constant of the model."});
  }
  return normal_axis(n, axis->to_ints()[0], n.input(0).rank());
}

/// Real (which = 0) or imaginary (1) part, with the transformed axis last.
Value part(Value x, int64_t which, const Ints& axis_last) {
  Graph& g = x.graph();
  Value one = slice(x, x.rank() - 1, scalar(g, static_cast<double>(which), DType::i64),
                    scalar(g, static_cast<double>(which + 1), DType::i64));
  return transpose(squeeze(one, {-1}), axis_last);
}

std::vector<Value> dft_decompose(Node n) {
  const DType dtype = n.input(0).dtype();
  const DType wide = dtype == DType::f64 ? DType::f64 : DType::f32;
  Value x = cast(n.input(0), wide);
  const int64_t axis = axis_of(n);
  const bool inverse = integer_of(n, "inverse") != 0;
  const bool onesided = integer_of(n, "onesided") != 0;
  const bool to_real = inverse && onesided;
  const Dim& parts = x.shape().back();
  if (axis == x.rank() - 1 || !parts.known() || parts.value() < 1 || parts.value() > 2 ||
      (onesided && !inverse && parts.value() == 2) || (to_real && parts.value() == 1)) {
    throw ShapeError({.what = "The input of a Fourier transform has the wrong form.",
                      .node = n.name(),
                      .op = n.op(),
                      .expected = "a last axis of 1 (real) or 2 (complex) that is not transformed; "
                                  "onesided: real forward, complex backward",
                      .received = to_string(x.type())});
  }
  Value length = n.input(1) ? as_index(n.input(1)) : extent_of(x, axis);
  if (!n.input(1) && to_real) length = (length - 1) * 2;
  Value half = length / 2 + 1;
  Value rows = to_real ? half : length;
  if (n.input(1)) x = resized(x, axis, rows);

  Ints axis_last, back;
  for (int64_t i = 0; i < x.rank() - 1; ++i) {
    if (i != axis) axis_last.push_back(i);
    back.push_back(i < axis ? i : i == axis ? x.rank() - 2 : i - 1);
  }
  axis_last.push_back(axis);
  const bool complex = parts.value() == 2;
  Value re = part(x, 0, axis_last);
  Value im = complex ? part(x, 1, axis_last) : Value();
  const Waves w = waves(rows, onesided && !inverse ? half : length, length, wide);
  Value sines = inverse ? w.sines : -w.sines;

  Value y;
  if (to_real) {  // all frequencies but the first and, for even lengths, the last count twice
    Value k = positions(rows);
    Value ends = apply("Or", {equal(k, 0), equal(k * 2, length)});
    Value weight = where(ends, scalar(x.graph(), 1, wide), scalar(x.graph(), 2, wide));
    y = matmul(re * weight, w.cosines) - matmul(im * weight, sines);
    y = unsqueeze(transpose(y, back), {-1});
  } else {
    Value real = matmul(re, w.cosines), imaginary = matmul(re, sines);
    if (complex) {
      real = real - matmul(im, sines);
      imaginary = imaginary + matmul(im, w.cosines);
    }
    y = concat(
        {unsqueeze(transpose(real, back), {-1}), unsqueeze(transpose(imaginary, back), {-1})}, -1);
  }
  if (inverse) y = y / cast(length, wide);
  return {cast(y, dtype)};
}

/// Frames of the signal, multiplied with the window; each is transformed.
std::vector<Value> stft_decompose(Node n) {
  Value signal = n.input(0), window = n.input(2);
  Graph& g = signal.graph();
  Value length = n.input(3) ? as_index(n.input(3))
                 : window   ? extent_of(window, 0)
                            : extent_of(signal, 1);
  Value step = as_index(n.input(1));
  // Integer division truncates, so that a signal shorter than a frame has no frames.
  Value frames = (extent_of(signal, 1) - length + step) / step;
  Value index = unsqueeze(positions(frames) * step, {1}) + unsqueeze(positions(length), {0});
  Value y = apply("Gather", {signal, index}, {{"axis", int64_t{1}}});
  if (window) y = y * unsqueeze(window, {1});
  const int64_t onesided = integer_of(n, "onesided");
  return {apply("DFT", {y, Value(), g.add_constant(Tensor::scalar(int64_t{2}))},
                {{"onesided", onesided}})};
}

/// ONNX's function assumes two-sided spectra when the attribute is absent, and one frame for a
/// signal that is shorter than a frame.
void stft_refine(Node n) {
  const Value signal = n.input(0), window = n.input(2), y = n.output(0);
  if (!y.type().shape || !signal.type().shape) return;
  const Tensor* number = constant(n.input(3));
  Dim length;
  if (number != nullptr && number->size() == 1) length = Dim(number->to_ints()[0]);
  if (!n.input(3) && window && window.type().shape) length = window.shape().at(0);
  const Dim& extent = signal.shape().at(1);
  if (!n.input(3) && !window) length = extent;
  Shape shape = y.shape();
  const bool onesided = integer_of(n, "onesided") != 0;
  shape.at(2) = !length.known() ? Dim() : Dim(onesided ? length.value() / 2 + 1 : length.value());
  if (length.known() && extent.known() && extent.value() < length.value()) shape.at(1) = Dim(0);
  n.graph().set_type(y, {y.dtype(), shape});
}

}  // namespace

extern const OpDef kDFT = {.name = "DFT",
                           .attributes = {{"inverse", 0}, {"onesided", 0}},
                           .ranks = "2+ e e",
                           .sizes = {{1, 1}},
                           .reads_from = 1,
                           .decompose = dft_decompose};
extern const OpDef kSTFT = {.name = "STFT",
                            .attributes = {{"onesided", 1}},
                            .ranks = "2+ e 1 e",
                            .sizes = {{1, 1}, {3, 1}},
                            .refine = stft_refine,
                            .decompose = stft_decompose};

}  // namespace steep
