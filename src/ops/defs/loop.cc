// steep.Loop: ONNX's Loop and Scan in one operator. Its gradient is again a steep.Loop.
//
//   inputs   trips?, condition?, carried…, scanned…, captured…
//   body     iteration, carried…, slices of scanned…, captured… → condition?, carried…, stacked…
//   outputs  carried…, stacked…, saved carried…, iterations
//
// The scanned inputs, `trips` or the condition determine how often the body runs. A scanned input
// is a tensor, sliced along in_axes[i], or a sequence. A stacked output is a tensor, stacked along
// out_axes[i], or a sequence if its type is one. A nonzero direction starts at the end. With
// `backwards` the iteration numbers, and with them the slices, run from last to first. Saved: for
// each carried value the sequence of its values at the start of each iteration. `keeps_shapes`: the
// shapes of carried values are the same in all iterations.
//
// The gradient runs backwards over the saved values and recomputes each iteration. It carries the
// gradients of carried values, and the sums of the gradients of captured values.
#include "ops/defs/loop.h"

#include <fmt/format.h>

#include "ir/part.h"
#include "ops/build.h"
#include "ops/steep_types.h"
#include "steep/error.h"

namespace steep {
namespace {

size_t position(int i) { return static_cast<size_t>(i); }

Type sequence_of(Type item) {
  item.kind = Kind::sequence;
  return item;
}

/// The type of a carried value outside the loop. An extent is known if all iterations keep it, and
/// if it does not depend on symbols of the body.
Type outside(const Type& inner, const Type& initial) {
  Type type = inner;
  for (size_t i = 0; type.shape && i < type.shape->size(); ++i) {
    const bool kept = initial.shape && initial.shape->size() == type.shape->size() &&
                      provably_equal((*type.shape)[i], (*initial.shape)[i]);
    if (!kept) (*type.shape)[i] = Dim();
  }
  return type;
}

std::vector<Type> loop_infer(Node n) {
  const LoopLayout at(n);
  const Graph& body = n.attrs().body("body");
  const Ints axes = n.attrs().ints("out_axes");
  std::vector<Type> types;
  for (int i = 0; i < at.carried; ++i) {
    types.push_back(outside(body.inputs()[position(1 + i)].type(), n.input(2 + i).type()));
  }
  Dim trips;
  if (const Tensor* t = constant(n.input(0)); t != nullptr && t->size() == 1 && !at.conditional)
    trips = Dim(std::max<int64_t>(t->to_ints()[0], 0));
  if (n.input(1)) trips = Dim();
  if (at.scanned > 0 && n.input(2 + at.carried).type().kind == Kind::tensor &&
      n.input(2 + at.carried).type().shape) {
    const Value x = n.input(2 + at.carried);
    trips = x.shape()[static_cast<size_t>(normal_axis(n, n.attrs().ints("in_axes")[0], x.rank()))];
  }
  for (int k = 0; k < at.stacked; ++k) {
    const Value y = body.outputs()[position((at.conditional ? 1 : 0) + at.carried + k)].value;
    Type type = without_symbols(y.type());
    const Value result = n.output(at.carried + k);
    if (result.type().kind == Kind::sequence) {
      types.push_back(result.type());
      continue;
    }
    if (type.shape) {
      const auto rank = static_cast<int64_t>(type.shape->size()) + 1;
      const int64_t axis = normal_axis(n, axes[static_cast<size_t>(k)], rank);
      type.shape->insert(type.shape->begin() + axis, trips);
    }
    types.push_back(std::move(type));
  }
  for (int i = 0; i < at.carried; ++i)
    types.push_back(sequence_of(outside(body.inputs()[position(1 + i)].type(), {})));
  types.push_back({DType::i64, Shape{}});
  return types;
}

bool differentiable(Value v) { return is_float(v.dtype()); }

/// Builds the backward loop, input by input in the order of steep.Loop.
class Backward {
 public:
  Backward(Node n, const Grads& dy, Differentiate differentiate)
      : n_(n),
        dy_(dy),
        differentiate_(differentiate),
        at_(n),
        body_(n.attrs().body("body")),
        part_(body_) {}

  Grads run() {
    const std::vector<Value>& own = body_.inputs();
    part_.take(own[0]);
    add_carried(own);
    add_scanned(own);
    std::vector<Value> captured;
    for (int i = 0; i < at_.captured; ++i) {
      captured.push_back(part_.take(own[position(1 + at_.carried + at_.scanned + i)]));
      inputs_.push_back(n_.input(2 + at_.carried + at_.scanned + i));
    }
    for (Node inner : body_.nodes()) part_.add(inner, Phase::forward);
    differentiate(captured);
    return results();
  }

 private:
  Graph& g() { return part_.graph(); }

  /// Adds the gradients of carried values, then those of captured values.
  void add_carried(const std::vector<Value>& own) {
    for (int i = 0; i < at_.carried; ++i) {
      const Value x = own[position(1 + i)];
      if (!differentiable(x)) continue;
      const Value d = dy_[static_cast<size_t>(i)];
      // The type that the iteration returns, which may have another shape than the input.
      const Type& type = body_.outputs()[first() + static_cast<size_t>(i)].value.type();
      d_carried_.push_back(g().add_input("d " + x.name(), type));
      inputs_.push_back(d ? d : zeros_like(n_.output(i)));
    }
    for (int i = 0; i < at_.captured; ++i) {
      const Value x = own[position(1 + at_.carried + at_.scanned + i)];
      if (!differentiable(x)) continue;
      d_captured_.push_back(g().add_input("d " + x.name(), x.type()));
      inputs_.push_back(zeros_like(n_.input(2 + at_.carried + at_.scanned + i)));
    }
  }

  void scan(Value input, int64_t axis, int64_t direction) {
    inputs_.push_back(input);
    in_axes_.push_back(axis);
    in_directions_.push_back(direction);
  }

  /// Adds saved values, slices, and the gradients of stacked outputs and of saved values.
  void add_scanned(const std::vector<Value>& own) {
    const Ints axes = n_.attrs().ints("in_axes");
    const Ints directions = n_.attrs().ints("in_directions");
    const Ints out_axes = n_.attrs().ints("out_axes");
    const Ints out_directions = n_.attrs().ints("out_directions");
    for (int i = 0; i < at_.carried; ++i) {
      carried_.push_back(part_.take(own[position(1 + i)]));
      scan(n_.output(at_.saved(i)), 0, 0);
    }
    for (int i = 0; i < at_.scanned; ++i) {
      const auto k = static_cast<size_t>(i);
      slices_.push_back(part_.take(own[position(1 + at_.carried + i)]));
      scan(n_.input(2 + at_.carried + i), axes[k], directions[k]);
    }
    for (int i = 0; i < at_.stacked; ++i) {
      const auto k = static_cast<size_t>(i);
      const Value d = dy_[position(at_.carried + i)];
      d_stacked_.emplace_back();
      if (!d) continue;
      const Value y = body_.outputs()[first() + position(at_.carried + i)].value;
      d_stacked_.back() = g().add_input("d " + y.name(), y.type());
      scan(d, out_axes[k], out_directions[k]);
    }
    for (int i = 0; i < at_.carried; ++i) {
      const Value d = dy_[static_cast<size_t>(at_.saved(i))];
      d_saved_.emplace_back();
      if (!d) continue;
      const Value x = own[position(1 + i)];
      d_saved_.back() = g().add_input("d saved " + x.name(), x.type());
      scan(d, 0, 0);
    }
  }

  size_t first() const { return at_.conditional ? 1 : 0; }

  void differentiate(const std::vector<Value>& captured) {
    std::vector<Value> outputs, seeds, wrt;
    size_t next = 0;
    for (int i = 0; i < at_.carried; ++i) {
      const Value y = body_.outputs()[first() + static_cast<size_t>(i)].value;
      if (!differentiable(y)) continue;
      outputs.push_back(part_.take(y));
      seeds.push_back(d_carried_[next++]);
    }
    for (int i = 0; i < at_.stacked; ++i) {
      if (!d_stacked_[static_cast<size_t>(i)]) continue;
      outputs.push_back(part_.take(body_.outputs()[first() + position(at_.carried + i)].value));
      seeds.push_back(d_stacked_[static_cast<size_t>(i)]);
    }
    for (const std::vector<Value>* list :
         {&std::as_const(carried_), &std::as_const(slices_), &captured}) {
      for (Value v : *list) {
        if (differentiable(v)) wrt.push_back(v);
      }
    }
    add_results(differentiate_(g(), outputs, seeds, wrt, Phase::forward));
  }

  /// Adds the outputs of the body. `gradients`: the gradients of the differentiable carried values,
  /// slices and captured values, in this order.
  void add_results(const std::vector<Value>& gradients) {
    size_t next = 0;
    for (size_t i = 0; i < carried_.size(); ++i) {
      if (!differentiable(carried_[i])) continue;
      Value d = gradients[next++];
      if (d_saved_[i]) d = d ? d + d_saved_[i] : d_saved_[i];
      output(d ? d : zeros_like(carried_[i]));
    }
    std::vector<Value> of_slices;
    for (Value v : slices_) {
      if (differentiable(v)) of_slices.push_back(gradients[next++]);
    }
    for (size_t i = 0; i < d_captured_.size(); ++i) {
      const Value d = gradients[next++];
      output(d ? d_captured_[i] + d : d_captured_[i]);
    }
    size_t slice = 0;
    for (Value v : slices_) {
      if (!differentiable(v)) continue;
      output(of_slices[slice] ? of_slices[slice] : zeros_like(v));
      ++slice;
    }
  }

  void output(Value v) { g().add_output(v.name(), v); }

  /// Removes saved values that no gradient reads from the scanned inputs, so that forward need not
  /// save them.
  void drop_unread() {
    const auto users = g().users();
    const auto first_saved = static_cast<std::ptrdiff_t>(d_carried_.size() + d_captured_.size());
    for (int i = at_.carried - 1; i >= 0; --i) {
      const Value input = carried_[static_cast<size_t>(i)];
      if (!users[input.id()].empty() || g().is_output(input)) continue;
      g().remove_input(input);
      inputs_.erase(inputs_.begin() + first_saved + i);
      in_axes_.erase(in_axes_.begin() + i);
      in_directions_.erase(in_directions_.begin() + i);
    }
  }

  Grads results() {
    const Ints axes = n_.attrs().ints("in_axes");
    const Ints directions = n_.attrs().ints("in_directions");
    Ints out_axes, out_directions;
    for (size_t i = 0; i < slices_.size(); ++i) {
      if (!differentiable(slices_[i])) continue;
      out_axes.push_back(axes[i]);
      out_directions.push_back(directions[i]);
    }
    g().prune();
    drop_unread();
    const auto carried = static_cast<int>(d_carried_.size() + d_captured_.size());
    const auto stacked = static_cast<int>(out_axes.size());
    const Node back = make(carried, stacked, out_axes, out_directions);
    Grads dx(static_cast<size_t>(n_.input_count()));
    int next = 0;
    for (int i = 0; i < at_.carried; ++i) {
      if (differentiable(n_.input(2 + i))) dx[position(2 + i)] = back.output(next++);
    }
    for (int i = 0; i < at_.captured; ++i) {
      const int k = 2 + at_.carried + at_.scanned + i;
      if (differentiable(n_.input(k))) dx[static_cast<size_t>(k)] = back.output(next++);
    }
    for (size_t k = 0; k < dx.size(); ++k) {
      if (dx[k]) n_.graph().set_type(dx[k], n_.input(static_cast<int>(k)).type());
    }
    for (int i = 0; i < at_.scanned; ++i) {
      const int k = 2 + at_.carried + i;
      if (!differentiable(n_.input(k))) continue;
      const Value d = back.output(next++);
      // Zero iterations leave the extents of a slice unknown.
      dx[static_cast<size_t>(k)] =
          n_.input(k).type().kind == Kind::tensor ? reshape_like(d, n_.input(k)) : d;
    }
    return dx;
  }

  Node make(int carried, int stacked, const Ints& out_axes, const Ints& out_directions) {
    std::vector<Value> inputs{n_.output(at_.iterations()), Value()};
    inputs.insert(inputs.end(), inputs_.begin(), inputs_.end());
    const bool backwards = integer_of(n_, "backwards") == 0;
    const Node back = n_.graph().add_node("steep.Loop", inputs, 2 * carried + stacked + 1,
                                          {{"body", Body(std::make_shared<Graph>(std::move(g())))},
                                           {"condition", int64_t{0}},
                                           {"keeps_shapes", integer_of(n_, "keeps_shapes")},
                                           {"carried", int64_t{carried}},
                                           {"in_axes", in_axes_},
                                           {"in_directions", in_directions_},
                                           {"out_axes", out_axes},
                                           {"out_directions", out_directions},
                                           {"backwards", int64_t{backwards}}});
    int next = carried;
    for (int i = 0; i < at_.scanned; ++i) {  // the gradient of a scanned sequence is a sequence
      const Value x = n_.input(2 + at_.carried + i);
      if (!differentiable(x)) continue;
      n_.graph().set_type(back.output(next++), x.type());
    }
    infer_types(back);
    return back;
  }

  Node n_;
  const Grads& dy_;
  Differentiate differentiate_;
  LoopLayout at_;
  const Graph& body_;
  Part part_;                                                        // the new body
  std::vector<Value> d_carried_, d_captured_, d_stacked_, d_saved_;  // of the new body
  std::vector<Value> carried_, slices_;                              // of the new body
  std::vector<Value> inputs_;                                        // of the new node
  Ints in_axes_, in_directions_;
};

Grads loop_vjp(Node n, const Grads& dy, Differentiate differentiate) {
  return Backward(n, dy, differentiate).run();
}

}  // namespace

LoopLayout::LoopLayout(Node n)
    : carried(static_cast<int>(integer_of(n, "carried"))),
      scanned(static_cast<int>(n.attrs().ints("in_axes").size())),
      stacked(static_cast<int>(n.attrs().ints("out_axes").size())),
      captured(n.input_count() - 2 - carried - scanned),
      conditional(integer_of(n, "condition") != 0) {}

std::vector<Value> add_loop(Graph& g, const NewLoop& loop) {
  std::vector<Value> inputs{Value(), Value()};
  for (const auto* list : {&loop.carried, &loop.scanned, &loop.captured})
    inputs.insert(inputs.end(), list->begin(), list->end());
  const int64_t direction = loop.from_the_end ? 1 : 0;
  const size_t results = loop.carried.size() + loop.out_axes.size();
  const Node n =
      g.add_node("steep.Loop", inputs, static_cast<int>(results + loop.carried.size() + 1),
                 {{"body", loop.body},
                  {"condition", int64_t{0}},
                  {"keeps_shapes", int64_t{1}},
                  {"carried", static_cast<int64_t>(loop.carried.size())},
                  {"in_axes", loop.in_axes},
                  {"in_directions", Ints(loop.in_axes.size(), direction)},
                  {"out_axes", loop.out_axes},
                  {"out_directions", Ints(loop.out_axes.size(), direction)}});
  for (size_t i = loop.carried.size(); loop.sequences && i < results; ++i)
    g.set_type(n.output(static_cast<int>(i)), sequence_of(loop.body->outputs()[i].value.type()));
  infer_types(n);
  std::vector<Value> values;
  for (size_t i = 0; i < results; ++i) values.push_back(n.output(static_cast<int>(i)));
  return values;
}

Type slice_in_body(Value x, int64_t axis, const std::string& what) {
  Type type{x.dtype(), x.shape()};
  type.shape->erase(type.shape->begin() + axis);
  for (size_t i = 0; i < type.shape->size(); ++i) {
    Dim& d = (*type.shape)[i];
    if (!d.known() && d.symbol().empty()) d = Dim::symbol(fmt::format("{}.dim{}", what, i));
  }
  return type;
}

extern const OpDef kSteepLoop = {
    .name = "steep.Loop",
    .attributes = {{"backwards", 0}, {"carried", 0}, {"condition", 0}, {"keeps_shapes", 0}},
    .dynamic = true,
    .vjp = loop_vjp,
    .infer = loop_infer,
    .export_decomposition = loop_in_parts};

}  // namespace steep
