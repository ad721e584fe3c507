#include "plan/widen.h"

#include "ops/build.h"

namespace steep {
namespace {

DType wider(DType dtype) {
  switch (dtype) {
    case DType::f16:
    case DType::bf16: return DType::f32;
    case DType::i8:
    case DType::u8:
    case DType::i16:
    case DType::u16: return DType::i32;
    case DType::i32:
    case DType::u32: return DType::i64;
    default: return dtype;
  }
}

/// The size of the narrowest type among the inputs. Only inputs of this size are widened, so that
/// types that must be equal stay equal.
size_t narrowest(Node n) {
  size_t bytes = 0;
  for (int i = 0; i < n.input_count(); ++i) {
    const DType dtype = n.input(i) ? n.input(i).dtype() : DType::undefined;
    if (wider(dtype) != dtype && (bytes == 0 || size_of(dtype) < bytes)) bytes = size_of(dtype);
  }
  return bytes;
}

}  // namespace

std::vector<Value> widened(Node n) {
  const size_t bytes = narrowest(n);
  if (bytes == 0) return {};
  std::vector<Value> inputs;
  for (int i = 0; i < n.input_count(); ++i) {
    Value x = n.input(i);
    const bool widen = x && wider(x.dtype()) != x.dtype() && size_of(x.dtype()) == bytes;
    inputs.push_back(widen ? cast(x, wider(x.dtype())) : x);
  }
  std::vector<Value> results = apply_n(n.op(), inputs, n.output_count(), n.attrs());
  for (int i = 0; i < n.output_count(); ++i) {
    Value& y = results[static_cast<size_t>(i)];
    y = n.output(i) ? cast_like(y, n.output(i)) : Value();
  }
  return results;
}

}  // namespace steep
