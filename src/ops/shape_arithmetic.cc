#include "ops/shape_arithmetic.h"

#include <algorithm>

#include "steep/error.h"

namespace steep {
namespace {

using elements::Inputs;
using elements::Result;

constexpr int64_t kLargest = 64;  // elements; shapes have fewer

bool is_counting(DType d) { return d == DType::i64 || d == DType::i32 || d == DType::boolean; }

Element number(int64_t n) { return {.number = n}; }
bool same_symbol(const Element& a, const Element& b) {
  return !a.symbol.empty() && a.symbol == b.symbol;
}
bool is(const Element& e, int64_t n) { return e.number == n; }
bool negative(const Element& e) { return e.number && *e.number < 0; }

// --- one element ---------------------------------------------------------------------------------

using Binary = Element (*)(const Element&, const Element&);

template <typename F>
Element both(const Element& a, const Element& b, F f) {
  int64_t result = 0;
  if (!a.number || !b.number || !f(*a.number, *b.number, &result)) return {};
  return number(result);
}

Element add(const Element& a, const Element& b) {
  if (is(a, 0)) return b;
  if (is(b, 0)) return a;
  return both(a, b,
              [](int64_t x, int64_t y, int64_t* r) { return !__builtin_add_overflow(x, y, r); });
}
Element sub(const Element& a, const Element& b) {
  if (is(b, 0)) return a;
  if (same_symbol(a, b)) return number(0);
  return both(a, b,
              [](int64_t x, int64_t y, int64_t* r) { return !__builtin_sub_overflow(x, y, r); });
}
Element mul(const Element& a, const Element& b) {
  if (is(a, 1)) return b;
  if (is(b, 1)) return a;
  if (is(a, 0) || is(b, 0)) return number(0);
  return both(a, b,
              [](int64_t x, int64_t y, int64_t* r) { return !__builtin_mul_overflow(x, y, r); });
}
Element div(const Element& a, const Element& b) {  // towards zero, as ONNX's integer Div
  if (is(b, 1)) return a;
  return both(a, b, [](int64_t x, int64_t y, int64_t* r) {
    if (y == 0 || (y == -1 && x == INT64_MIN)) return false;
    *r = x / y;
    return true;
  });
}
Element mod(const Element& a,
            const Element& b) {  // the sign of the divisor, as ONNX's Mod without fmod
  return both(a, b, [](int64_t x, int64_t y, int64_t* r) {
    if (y == 0 || y == -1) return false;
    *r = x % y;
    if (*r != 0 && (*r < 0) != (y < 0)) *r += y;
    return true;
  });
}
Element min(const Element& a, const Element& b) {
  return both(a, b, [](int64_t x, int64_t y, int64_t* r) { return *r = std::min(x, y), true; });
}
Element max(const Element& a, const Element& b) {
  return both(a, b, [](int64_t x, int64_t y, int64_t* r) { return *r = std::max(x, y), true; });
}
Element equal(const Element& a, const Element& b) {
  if (same_symbol(a, b)) return number(1);
  if ((!a.symbol.empty() && negative(b)) || (!b.symbol.empty() && negative(a))) return number(0);
  return both(a, b, [](int64_t x, int64_t y, int64_t* r) { return *r = x == y, true; });
}
Element less(const Element& a, const Element& b) {
  return both(a, b, [](int64_t x, int64_t y, int64_t* r) { return *r = x < y, true; });
}
Element greater(const Element& a, const Element& b) { return less(b, a); }
Element logical_and(const Element& a, const Element& b) {
  return both(a, b, [](int64_t x, int64_t y, int64_t* r) { return *r = x != 0 && y != 0, true; });
}
Element logical_or(const Element& a, const Element& b) {
  return both(a, b, [](int64_t x, int64_t y, int64_t* r) { return *r = x != 0 || y != 0, true; });
}

// --- whole values --------------------------------------------------------------------------------

/// Element i of a value; a single element is broadcast.
const Element& at(const Elements& e, size_t i) { return e[e.size() == 1 ? 0 : i]; }

std::optional<size_t> broadcast_size(std::initializer_list<const Elements*> all) {
  size_t size = 1;
  for (const Elements* e : all) {
    if (e->size() != 1) size = e->size();
  }
  for (const Elements* e : all) {
    if (e->size() != 1 && e->size() != size) return std::nullopt;
  }
  return size;
}

Result elementwise(const Inputs& in, Binary f) {
  if (in.empty() || !in[0]) return std::nullopt;
  Elements result = *in[0];
  for (size_t i = 1; i < in.size(); ++i) {
    if (!in[i]) return std::nullopt;
    const auto size = broadcast_size({&result, &*in[i]});
    if (!size) return std::nullopt;
    Elements next;
    for (size_t k = 0; k < *size; ++k) next.push_back(f(at(result, k), at(*in[i], k)));
    result = std::move(next);
  }
  return result;
}

template <Binary f>
Result binary(Node, const Inputs& in) {
  return in.size() == 2 ? elementwise(in, f) : std::nullopt;
}
template <Binary f>
Result variadic(Node, const Inputs& in) {
  return elementwise(in, f);
}
template <Binary f>
Result binary_integer_mod(Node n, const Inputs& in) {
  return integer_of(n, "fmod") == 0 ? binary<f>(n, in) : std::nullopt;
}

template <Binary f>
Result reduce(Node n, const Inputs& in) {
  if (in.empty() || !in[0] || in[0]->empty() || n.input(0).rank() != 1) return std::nullopt;
  if (in.size() == 1 && integer_of(n, "noop_with_empty_axes") != 0) return std::nullopt;
  Element result = (*in[0])[0];
  for (size_t i = 1; i < in[0]->size(); ++i) result = f(result, (*in[0])[i]);
  return Elements{result};
}

/// n's result, when all its elements are `value` and it has at most one axis, of known length.
Result filled(Node n, const Element& value) {
  const Value y = n.output(0);
  if (!y.type().concrete() || y.type().dims().size() > 1) return std::nullopt;
  const int64_t size = element_count(y.type().dims());
  return size <= kLargest ? Result(Elements(static_cast<size_t>(size), value)) : std::nullopt;
}

}  // namespace

std::optional<Elements> elements_of(Value v) {
  if (!v || !is_counting(v.dtype()) || !v.type().shape || v.rank() > 1 ||
      v.type().kind != Kind::tensor) {
    return std::nullopt;
  }
  Elements result;
  if (v.role() == Role::constant && v.tensor() != nullptr) {
    if (v.tensor()->size() > kLargest) return std::nullopt;
    for (int64_t n : v.tensor()->to_ints()) result.push_back(number(n));
    return result;
  }
  const Shape* contents = v.graph().contents(v);
  if (contents == nullptr) return std::nullopt;
  for (const Dim& d : *contents)
    result.push_back(d.known() ? number(d.value()) : Element{.symbol = d.symbol()});
  return result;
}

std::optional<Elements> evaluate_elements(Node n) {
  const Value y = n.output(0);
  const OpDef* def = find_op(n.op());
  if (def == nullptr || def->elements == nullptr || n.output_count() != 1 ||
      !is_counting(y.dtype()) || !y.type().shape || y.rank() > 1 || y.type().kind != Kind::tensor) {
    return std::nullopt;
  }
  Inputs inputs;
  for (int i = 0; i < n.input_count(); ++i) inputs.push_back(elements_of(n.input(i)));
  Result result = def->elements(n, inputs);
  if (!result || result->size() > static_cast<size_t>(kLargest)) return std::nullopt;
  const Dim extent = y.rank() == 0 ? Dim(1) : y.shape()[0];
  if (extent.known() && extent.value() != static_cast<int64_t>(result->size())) return std::nullopt;
  for (Element& e : *result) {
    if (!e.number) continue;
    if (y.dtype() == DType::boolean) e.number = *e.number != 0;
    if (y.dtype() == DType::i32 && *e.number != static_cast<int32_t>(*e.number)) e = {};
  }
  return result;
}

void propagate_contents(Node n) {
  const Value y = n.output(0);
  if (!y) return;
  const auto elements = evaluate_elements(n);
  if (!elements) return;
  const Shape* before = n.graph().contents(y);
  const bool merge = before != nullptr && before->size() == elements->size();
  Shape contents;
  for (const Element& e : *elements) {
    if (e.number && *e.number >= 0) {
      contents.emplace_back(*e.number);
    } else if (!e.symbol.empty()) {
      contents.push_back(Dim::symbol(e.symbol));
    } else {
      contents.push_back(merge && !e.number ? (*before)[contents.size()] : Dim());
    }
  }
  n.graph().set_contents(y, std::move(contents));
}

std::optional<Tensor> known_result(Node n) {
  const auto elements = evaluate_elements(n);
  if (!elements) return std::nullopt;
  for (const Element& e : *elements) {
    if (!e.number) return std::nullopt;
  }
  const Value y = n.output(0);
  Tensor tensor = Tensor::empty(
      y.dtype(), y.rank() == 0 ? Dims{} : Dims{static_cast<int64_t>(elements->size())});
  for (size_t i = 0; i < elements->size(); ++i) {
    const int64_t value = *(*elements)[i].number;
    if (y.dtype() == DType::i64) tensor.data<int64_t>()[i] = value;
    if (y.dtype() == DType::i32) tensor.data<int32_t>()[i] = static_cast<int32_t>(value);
    if (y.dtype() == DType::boolean)
      static_cast<uint8_t*>(tensor.data())[i] = static_cast<uint8_t>(value);
  }
  return tensor;
}

namespace elements {

Result add(Node n, const Inputs& in) { return binary<steep::add>(n, in); }
Result sub(Node n, const Inputs& in) { return binary<steep::sub>(n, in); }
Result mul(Node n, const Inputs& in) { return binary<steep::mul>(n, in); }
Result div(Node n, const Inputs& in) { return binary<steep::div>(n, in); }
Result equal(Node n, const Inputs& in) { return binary<steep::equal>(n, in); }
Result greater(Node n, const Inputs& in) { return binary<steep::greater>(n, in); }
Result less(Node n, const Inputs& in) { return binary<steep::less>(n, in); }
Result logical_and(Node n, const Inputs& in) { return binary<steep::logical_and>(n, in); }
Result logical_or(Node n, const Inputs& in) { return binary<steep::logical_or>(n, in); }
Result mod(Node n, const Inputs& in) { return binary_integer_mod<steep::mod>(n, in); }
Result max(Node n, const Inputs& in) { return variadic<steep::max>(n, in); }
Result min(Node n, const Inputs& in) { return variadic<steep::min>(n, in); }
Result reduce_sum(Node n, const Inputs& in) { return reduce<steep::add>(n, in); }
Result reduce_prod(Node n, const Inputs& in) { return reduce<steep::mul>(n, in); }
Result reduce_max(Node n, const Inputs& in) { return reduce<steep::max>(n, in); }
Result reduce_min(Node n, const Inputs& in) { return reduce<steep::min>(n, in); }

Result negate(Node, const Inputs& in) {
  return in.size() == 1 && in[0] ? elementwise({Elements{number(0)}, in[0]}, steep::sub)
                                 : std::nullopt;
}

Result logical_not(Node, const Inputs& in) {
  return in.size() == 1 && in[0] ? elementwise({in[0], Elements{number(0)}}, steep::equal)
                                 : std::nullopt;
}

Result where(Node, const Inputs& in) {
  if (in.size() != 3 || !in[0] || !in[1] || !in[2]) return std::nullopt;
  const auto size = broadcast_size({&*in[0], &*in[1], &*in[2]});
  if (!size) return std::nullopt;
  Elements result;
  for (size_t i = 0; i < *size; ++i) {
    const Element& condition = at(*in[0], i);
    result.push_back(!condition.number ? Element{}
                                       : at(*condition.number != 0 ? *in[1] : *in[2], i));
  }
  return result;
}

/// Reshape, Squeeze, Unsqueeze, Cast between integers: the same elements.
Result same(Node, const Inputs& in) { return in.empty() ? std::nullopt : in[0]; }

Result shape(Node n, const Inputs&) {
  const Value x = n.input(0);
  if (!x || !x.type().shape || x.type().kind != Kind::tensor) return std::nullopt;
  const int64_t rank = x.rank();
  auto bound = [&](int64_t b) { return std::clamp(b < 0 ? b + rank : b, int64_t{0}, rank); };
  Elements result;
  const int64_t end = bound(n.attrs().integer("end", rank));
  for (int64_t i = bound(integer_of(n, "start")); i < end; ++i) {
    const Dim& d = x.shape()[static_cast<size_t>(i)];
    result.push_back(d.known() ? number(d.value()) : Element{.symbol = d.symbol()});
  }
  return result;
}

Result size(Node n, const Inputs&) {
  const Value x = n.input(0);
  if (!x || !x.type().concrete()) return std::nullopt;
  return Elements{number(element_count(x.type().dims()))};
}

Result concat(Node, const Inputs& in) {
  Elements result;
  for (const auto& part : in) {
    if (!part) return std::nullopt;
    result.insert(result.end(), part->begin(), part->end());
  }
  return result;
}

Result gather(Node n, const Inputs& in) {
  if (in.size() != 2 || !in[0] || !in[1] || n.input(0).rank() != 1) return std::nullopt;
  const auto size = static_cast<int64_t>(in[0]->size());
  Elements result;
  for (const Element& index : *in[1]) {
    if (!index.number || *index.number < -size || *index.number >= size) return std::nullopt;
    result.push_back(
        (*in[0])[static_cast<size_t>(*index.number < 0 ? *index.number + size : *index.number)]);
  }
  return result;
}

Result slice(Node, const Inputs& in) {
  auto one = [&](size_t i, int64_t otherwise) -> std::optional<int64_t> {
    if (i >= in.size()) return otherwise;
    if (!in[i] || in[i]->size() != 1) return std::nullopt;
    return (*in[i])[0].number;
  };
  if (in.empty() || !in[0]) return std::nullopt;
  const auto size = static_cast<int64_t>(in[0]->size());
  const auto begin = one(1, 0);
  const auto end = one(2, size);
  if (!begin || !end || one(4, 1) != 1) return std::nullopt;
  auto bound = [&](int64_t b) { return std::clamp(b < 0 ? b + size : b, int64_t{0}, size); };
  Elements result;
  for (int64_t i = bound(*begin); i < bound(*end); ++i)
    result.push_back((*in[0])[static_cast<size_t>(i)]);
  return result;
}

Result constant_of_shape(Node n, const Inputs&) {
  Element value = number(0);
  if (const Attr* a = n.attrs().find("value")) {
    const auto* tensor = std::get_if<Tensor>(a);
    if (tensor == nullptr || tensor->size() != 1 || !is_counting(tensor->dtype()))
      return std::nullopt;
    value = number(tensor->to_ints()[0]);
  }
  return filled(n, value);
}

Result expand(Node n, const Inputs& in) {
  return !in.empty() && in[0] && in[0]->size() == 1 ? filled(n, (*in[0])[0]) : std::nullopt;
}

Result range(Node n, const Inputs& in) {
  const Value y = n.output(0);
  if (in.size() != 3 || !in[0] || !in[2] || in[0]->size() != 1 || in[2]->size() != 1) {
    return std::nullopt;
  }
  Element next = (*in[0])[0];
  std::optional<int64_t> count;
  if (y.type().concrete()) {
    count = element_count(y.type().dims());
  } else if (next.number && in[1] && in[1]->size() == 1 && is((*in[2])[0], 1)) {
    const Element span = steep::sub((*in[1])[0], next);
    if (span.number) count = std::max(*span.number, int64_t{0});
  }
  if (!count) return std::nullopt;
  Elements result;
  for (int64_t rest = std::min(*count, kLargest + 1); rest > 0; --rest) {
    result.push_back(next);
    next = steep::add(next, (*in[2])[0]);
  }
  return result;
}

}  // namespace elements

}  // namespace steep
