// Writes steep.Loop as ONNX's Scan, or as ONNX's Loop where Scan does not fit. The carried values
// that a gradient needs are stacked, or collected in a sequence if their shapes change.
#include <limits>

#include "ir/part.h"
#include "ops/build.h"
#include "ops/defs/loop.h"
#include "ops/positions.h"
#include "ops/steep_types.h"

namespace steep {
namespace {

Type sequence_of(const Type& item) { return {item.dtype, item.shape, Kind::sequence}; }

std::vector<bool> read_outputs(Node n) {
  const auto users = n.graph().users();
  std::vector<bool> read;
  for (int i = 0; i < n.output_count(); ++i) {
    const Value y = n.output(i);
    read.push_back(y && (!users[y.id()].empty() || n.graph().is_output(y)));
  }
  return read;
}

/// x with its slices along `axis` in reverse order.
Value from_the_end(Value x, int64_t axis) {
  Graph& g = x.graph();
  return apply("Slice", {x, ints(g, {-1}), ints(g, {std::numeric_limits<int64_t>::min()}),
                         ints(g, {axis}), ints(g, {-1})});
}

Value first_axis_to(Value x, int64_t axis) {
  if (axis == 0) return x;
  Ints perm;
  for (int64_t i = 1; i < x.rank(); ++i) perm.push_back(i);
  perm.insert(perm.begin() + axis, 0);
  return transpose(x, perm);
}

class LoopInParts {
 public:
  explicit LoopInParts(Node n)
      : n_(n),
        at_(n),
        body_(n.attrs().body("body")),
        part_(body_),
        read_(read_outputs(n)),
        backwards_(integer_of(n, "backwards") != 0),
        in_axes_(n.attrs().ints("in_axes")),
        in_directions_(n.attrs().ints("in_directions")),
        out_axes_(n.attrs().ints("out_axes")),
        out_directions_(n.attrs().ints("out_directions")) {}

  std::vector<Value> run() {
    results_.resize(static_cast<size_t>(n_.output_count()));
    if (fits_scan()) {
      scan();
    } else {
      loop();
    }
    return std::move(results_);
  }

 private:
  Graph& outer() const { return n_.graph(); }
  Graph& inner() { return part_.graph(); }
  Value own(int i) const { return body_.inputs()[size_t{1} + static_cast<size_t>(i)]; }
  Value returned(int i) const {
    return body_.outputs()[static_cast<size_t>(i) + (at_.conditional ? 1 : 0)].value;
  }
  Value carried(int i) const { return n_.input(2 + i); }
  Value scanned(int i) const { return n_.input(2 + at_.carried + i); }
  bool read(int output) const { return read_[static_cast<size_t>(output)]; }

  bool keeps_shape(int i) const {
    const Type &before = own(i).type(), &after = returned(i).type();
    if (before.kind != Kind::tensor || !before.shape) return false;
    if (integer_of(n_, "keeps_shapes") != 0) return true;
    return after.shape && provably_equal(*before.shape, *after.shape);
  }

  /// Scan needs scanned tensors, and carried values of constant shape. ONNX Runtime's Scan needs at
  /// least one slice: a loop that may have zero iterations stays a Loop.
  bool fits_scan() const {
    bool fits =
        at_.scanned > 0 && !at_.conditional && !n_.input(1) && integer_of(n_, "keeps_shapes") != 0;
    for (int i = 0; i < at_.scanned; ++i) fits = fits && scanned(i).type().kind == Kind::tensor;
    for (int i = 0; i < at_.stacked; ++i)
      fits = fits && n_.output(at_.carried + i).type().kind == Kind::tensor;
    for (int i = 0; i < at_.carried; ++i) fits = fits && keeps_shape(i);
    return fits;
  }

  /// The number of iterations, a scalar of the outer graph; null if it is known only at run time.
  Value trips() {
    if (at_.conditional || n_.input(1)) return {};
    if (at_.scanned > 0) {
      const Value x = scanned(0);
      if (x.type().kind != Kind::tensor) return apply("SequenceLength", {x});
      const int64_t axis = normal_axis(n_, in_axes_[0], x.rank());
      return extent_of(x, axis);
    }
    const Value limit = n_.input(0);
    return limit.rank() == 0 ? limit : reshape(limit, Ints{});
  }

  /// Uses `value` for the output of the old loop with that index.
  void set_result(int output, Value value) { results_[static_cast<size_t>(output)] = value; }

  /// Adds an input for a value of the outer graph, to which the body refers by name.
  Value capture(Value from_outside, const Type& type) {
    captured_.push_back(from_outside);
    return inner().add_input(from_outside.name(), type);
  }

  void add_captured_and_nodes() {
    for (int i = 0; i < at_.captured; ++i) {
      const Value v = own(at_.carried + at_.scanned + i);
      part_.put(v, capture(n_.input(2 + at_.carried + at_.scanned + i), v.type()));
    }
    for (Node n : body_.nodes()) part_.add(n, Phase::forward);
  }

  void result(Value v) { inner().add_output(v.name(), v); }

  Node add(const char* op, std::vector<Value> inputs, Attrs attrs) {
    inner().prune();
    const auto outputs = static_cast<int>(inner().outputs().size()) - (op[0] == 'L' ? 1 : 0);
    inputs.insert(inputs.end(), captured_.begin(), captured_.end());
    attrs.set("body", Body(std::make_shared<Graph>(std::move(inner()))));
    attrs.set(kCaptured, static_cast<int64_t>(captured_.size()));
    return outer().add_node(op, inputs, outputs, std::move(attrs));
  }

  Value typed(Value v, Type type) {
    outer().set_type(v, std::move(type));
    return v;
  }

  /// The type of all iterations' `item`s, stacked along a new first axis.
  static Type stack_of(const Type& item) {
    Type type = without_symbols({item.dtype, item.shape});
    if (type.shape) type.shape->insert(type.shape->begin(), Dim());
    return type;
  }

  // --- Scan --------------------------------------------------------------------------------------

  void scan() {
    const Value position = body_.inputs()[0];
    const bool counts = !body_.users()[position.id()].empty() || body_.is_output(position);
    std::vector<Value> inputs;
    if (counts) {
      inputs.push_back(backwards_ ? trips() - 1.0 : scalar(outer(), 0, DType::i64));
      part_.take(position);
    }
    for (int i = 0; i < at_.carried; ++i) {
      part_.take(own(i));
      inputs.push_back(carried(i));
    }
    for (int i = 0; i < at_.scanned; ++i) {
      part_.take(own(at_.carried + i));
      inputs.push_back(scanned(i));
    }
    add_captured_and_nodes();

    if (counts) result(part_.take(position) + (backwards_ ? -1.0 : 1.0));
    const Node scan = add("Scan", std::move(inputs), scan_results());
    int next = counts ? 1 : 0;
    if (counts) typed(scan.output(0), {DType::i64, Shape{}});
    for (int i = 0; i < at_.carried + at_.stacked; ++i)
      set_result(i, typed(scan.output(next++), n_.output(i).type()));
    for (int i = 0; i < at_.carried; ++i) {
      if (!read(at_.saved(i))) continue;
      set_result(at_.saved(i), typed(scan.output(next++), stack_of(own(i).type())));
    }
    if (read(at_.iterations())) set_result(at_.iterations(), trips());
  }

  /// Adds the carried, stacked and saved values to the body's outputs. Returns the attributes of
  /// the Scan.
  Attrs scan_results() {
    Ints axes, directions;
    for (int i = 0; i < at_.carried; ++i) result(part_.take(returned(i)));
    for (int i = 0; i < at_.stacked; ++i) {
      result(part_.take(returned(at_.carried + i)));
      axes.push_back(out_axes_[static_cast<size_t>(i)]);
      directions.push_back(other_way(out_directions_[static_cast<size_t>(i)]));
    }
    for (int i = 0; i < at_.carried; ++i) {
      if (!read(at_.saved(i))) continue;
      result(part_.take(own(i)));
      axes.push_back(0);
      directions.push_back(backwards_ ? 1 : 0);
    }
    Ints in_directions;
    for (int64_t d : in_directions_) in_directions.push_back(other_way(d));
    return {{"num_scan_inputs", int64_t{at_.scanned}},
            {"scan_input_axes", in_axes_},
            {"scan_input_directions", in_directions},
            {"scan_output_axes", axes},
            {"scan_output_directions", directions}};
  }

  int64_t other_way(int64_t direction) const { return (direction != 0) != backwards_ ? 1 : 0; }

  // --- Loop --------------------------------------------------------------------------------------

  Value empty_sequence(const Type& item) {
    const Node n =
        outer().add_node("SequenceEmpty", {}, 1, {{"dtype", static_cast<int64_t>(item.dtype)}});
    return typed(n.output(0), sequence_of(item));
  }

  /// A sequence that the loop carries; each iteration inserts one item.
  struct Growing {
    Value now;      // the sequence, in the new body
    Value item;     // in the old body
    bool in_front;  // whether items go to the front
    int output;     // output of the old loop
  };

  /// A tensor that the loop stacks.
  struct Stacked {
    Value item;  // in the old body
    int64_t axis;
    bool reversed;
    int output;  // output of the old loop
  };

  void loop() {
    const Value count = trips();
    std::vector<Value> inputs{count ? count : n_.input(0), n_.input(1)};
    const Value iteration = inner().add_input("iteration", {DType::i64, Shape{}});
    const Value goes_on = inner().add_input("condition", {DType::boolean, Shape{}});
    for (int i = 0; i < at_.carried; ++i) {
      part_.take(own(i));
      inputs.push_back(carried(i));
    }
    Value turns;
    if (!count && read(at_.iterations())) {
      turns = inner().add_input("turns", {DType::i64, Shape{}});
      inputs.push_back(scalar(outer(), 0, DType::i64));
    }
    choose_how_to_gather(&inputs);
    const Value length =
        count && (backwards_ || scans_from_the_end()) ? capture(count, count.type()) : Value();
    const Value position = backwards_ ? length - 1.0 - iteration : iteration;
    part_.put(body_.inputs()[0], position);
    for (int i = 0; i < at_.scanned; ++i) add_slice(i, position, length);
    add_captured_and_nodes();

    result(at_.conditional ? part_.take(body_.outputs()[0].value) : goes_on);
    for (int i = 0; i < at_.carried; ++i) result(part_.take(returned(i)));
    if (turns) result(turns + 1.0);
    add_gathered();

    take_results(add("Loop", std::move(inputs), {}), bool(turns));
    if (count && read(at_.iterations())) set_result(at_.iterations(), count);
  }

  /// Adds the growing sequences and the stacked items to the body's outputs.
  void add_gathered() {
    for (const Growing& s : growing_) {
      const Value item = part_.take(s.item);
      result(s.in_front ? apply("SequenceInsert", {s.now, item, scalar(inner(), 0, DType::i64)})
                        : apply("SequenceInsert", {s.now, item}));
    }
    for (const Stacked& s : stacked_) result(part_.take(s.item));
  }

  /// `counted`: whether the loop counts its iterations.
  void take_results(Node loop, bool counted) {
    int next = 0;
    for (int i = 0; i < at_.carried; ++i)
      set_result(i, typed(loop.output(next++), n_.output(i).type()));
    if (counted) set_result(at_.iterations(), typed(loop.output(next++), {DType::i64, Shape{}}));
    for (const Growing& s : growing_)
      set_result(s.output, typed(loop.output(next++), n_.output(s.output).type()));
    for (const Stacked& s : stacked_) {
      Value y = first_axis_to(typed(loop.output(next++), stack_of(s.item.type())), s.axis);
      if (s.reversed) y = from_the_end(y, s.axis);
      // Saved values are a tensor here, but a sequence in the old loop: do not set their old type.
      if (s.output < at_.carried + at_.stacked) typed(y, n_.output(s.output).type());
      set_result(s.output, y);
    }
  }

  void choose_how_to_gather(std::vector<Value>* inputs) {
    auto grow = [&](Value item, bool in_front, int output) {
      inputs->push_back(empty_sequence(item.type()));
      const Value now = inner().add_input("gathered", sequence_of(item.type()));
      growing_.push_back({now, item, in_front, output});
    };
    for (int i = 0; i < at_.stacked; ++i) {
      const auto k = static_cast<size_t>(i);
      const int output = at_.carried + i;
      const bool reversed = other_way(out_directions_[k]) != 0;
      const Value item = returned(output);
      if (n_.output(output).type().kind != Kind::tensor) {
        grow(item, reversed, output);
      } else {
        const int64_t axis = out_axes_[k] == 0 ? 0 : normal_axis(n_, out_axes_[k], item.rank() + 1);
        stacked_.push_back({item, axis, reversed, output});
      }
    }
    for (int i = 0; i < at_.carried; ++i) {
      if (!read(at_.saved(i))) continue;
      if (keeps_shape(i)) {
        stacked_.push_back({own(i), 0, backwards_, at_.saved(i)});
      } else {
        grow(own(i), backwards_, at_.saved(i));
      }
    }
  }

  bool scans_from_the_end() const {
    for (int64_t d : in_directions_) {
      if (d != 0) return true;
    }
    return false;
  }

  void add_slice(int i, Value position, Value length) {
    const auto k = static_cast<size_t>(i);
    const Value x = scanned(i);
    const Value all = capture(x, x.type());
    const Value place = in_directions_[k] != 0 ? length - 1.0 - position : position;
    const Value slice =
        x.type().kind == Kind::tensor
            ? apply("Gather", {all, place}, {{"axis", normal_axis(n_, in_axes_[k], x.rank())}})
            : apply("SequenceAt", {all, place});
    inner().set_type(slice, own(at_.carried + i).type());
    part_.put(own(at_.carried + i), slice);
  }

  Node n_;
  LoopLayout at_;
  const Graph& body_;
  Part part_;  // the new body
  std::vector<bool> read_;
  bool backwards_;
  Ints in_axes_, in_directions_, out_axes_, out_directions_;
  std::vector<Value> captured_;  // values of the outer graph
  std::vector<Growing> growing_;
  std::vector<Stacked> stacked_;
  std::vector<Value> results_;
};

}  // namespace

std::vector<Value> loop_in_parts(Node n) { return LoopInParts(n).run(); }

}  // namespace steep
