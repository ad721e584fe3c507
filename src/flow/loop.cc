// If and steep.Loop at run time (ops/defs/if.cc, ops/defs/loop.cc).

#include <fmt/format.h>

#include <algorithm>

#include "flow/dynamic.h"
#include "flow/rules.h"
#include "flow/slices.h"
#include "ops/op_def.h"
#include "runtime/budget.h"
#include "runtime/counted.h"
#include "steep/error.h"

namespace steep {
namespace {

/// The body in an attribute of the node, shared.
const Body& body(const DynamicCall& c, const char* name) {
  const Attr* attr = c.node.attrs().find(name);
  if (attr == nullptr || !std::holds_alternative<Body>(*attr))
    throw InternalError({.what = "A node lacks its body.", .node = c.node.name()});
  return std::get<Body>(*attr);
}

int64_t axis_from_front(const DynamicCall& c, int64_t axis, size_t rank) {
  const auto n = static_cast<int64_t>(rank);
  if (axis < -n || axis >= n) {
    c.fail("An axis of a loop is out of range.", fmt::format("{} to {}", -n, n - 1),
           fmt::format("{}", axis));
  }
  return axis < 0 ? axis + n : axis;
}

/// One execution of a steep.Loop.
class Loop {
 public:
  explicit Loop(const DynamicCall& c)
      : c_(c),
        body_(body(c, "body")),
        carried_(static_cast<size_t>(integer_of(c.node, "carried"))),
        in_axes_(c.node.attrs().ints("in_axes")),
        in_directions_(c.node.attrs().ints("in_directions")),
        out_axes_(c.node.attrs().ints("out_axes")),
        out_directions_(c.node.attrs().ints("out_directions")),
        conditional_(integer_of(c.node, "condition") != 0),
        backwards_(integer_of(c.node, "backwards") != 0),
        stacks_(out_axes_.size()),
        saved_(carried_) {
    now_.assign(c.inputs.begin() + 2, c.inputs.begin() + 2 + static_cast<int64_t>(carried_));
  }

  std::vector<Datum> run() {
    const int64_t trips = find_trips();
    if (trips > c_.context.limits.max_iterations && !conditional_) too_long(trips);
    bool goes_on = !c_.has(1) || c_.integer(1) != 0;
    int64_t iteration = 0;
    for (; goes_on && (trips < 0 || iteration < trips); ++iteration) {
      if (iteration >= c_.context.limits.max_iterations) too_long(trips);
      poll();
      goes_on = step(backwards_ ? trips - 1 - iteration : iteration, trips);
    }
    return results(iteration);
  }

 private:
  [[noreturn]] void too_long(int64_t trips) const {
    c_.fail("A loop runs too many iterations.",
            fmt::format("at most {} iterations", c_.context.limits.max_iterations),
            trips < 0 ? "more" : fmt::format("{}", trips),
            "If so many iterations are intended, raise Limits::max_iterations.");
  }

  int64_t find_trips() const {
    int64_t trips = c_.has(0) ? std::max<int64_t>(c_.integer(0), 0) : -1;
    for (size_t s = 0; s < in_axes_.size(); ++s) {
      const Datum& x = c_.inputs[2 + carried_ + s];
      const int64_t length = x.is_sequence()
                                 ? static_cast<int64_t>(x.items().size())
                                 : x.tensor().dims()[static_cast<size_t>(
                                       axis_from_front(c_, in_axes_[s], x.tensor().dims().size()))];
      if (trips >= 0 && length != trips) {
        c_.fail("The inputs of a Scan differ in length.", counted(trips, "slice"),
                fmt::format("{}", length));
      }
      trips = length;
    }
    if (trips < 0 && backwards_)
      throw InternalError({.what = "A backward loop has no length.", .node = c_.node.name()});
    return trips;
  }

  Datum piece(size_t s, int64_t iteration, int64_t trips) const {
    const Datum& x = c_.inputs[2 + carried_ + s];
    if (x.is_sequence()) return x.items()[static_cast<size_t>(iteration)];
    const Tensor& t = x.tensor();
    const int64_t axis = axis_from_front(c_, in_axes_[s], t.dims().size());
    const int64_t at = in_directions_[s] != 0 ? trips - 1 - iteration : iteration;
    return without_axis(slice(t, axis, at, 1), axis);
  }

  bool step(int64_t iteration, int64_t trips) {
    std::vector<Datum> inputs{Tensor::scalar(iteration)};
    inputs.insert(inputs.end(), now_.begin(), now_.end());
    for (size_t s = 0; s < in_axes_.size(); ++s) inputs.push_back(piece(s, iteration, trips));
    inputs.insert(inputs.end(),
                  c_.inputs.begin() + static_cast<int64_t>(2 + carried_ + in_axes_.size()),
                  c_.inputs.end());
    for (size_t i = 0; i < carried_; ++i) {
      if (!c_.wants(carried_ + out_axes_.size() + i)) continue;
      keep(now_[i]);
      saved_[i].push_back(now_[i]);
    }
    std::vector<Datum> outputs = c_.context.run_body(body_, inputs, iteration);
    size_t next = 0;
    bool goes_on = true;
    if (conditional_) {
      const Tensor& condition = outputs[next++].tensor();
      if (condition.size() != 1 || is_float(condition.dtype()))
        c_.fail("The condition of a loop is not a single value.", "one element",
                to_string(condition.dims()));
      goes_on = condition.to_ints()[0] != 0;
    }
    for (Datum& d : now_) d = std::move(outputs[next++]);
    for (auto& stack : stacks_) {
      keep(outputs[next]);
      stack.push_back(std::move(outputs[next++]));
    }
    return goes_on;
  }

  void keep(const Datum& d) {
    kept_bytes_ += d.nbytes();
    if (kept_bytes_ <= c_.context.limits.max_bytes) return;
    c_.fail("The results that a loop collects are too large.",
            fmt::format("at most {}", bytes_text(c_.context.limits.max_bytes)), "more",
            "If this is intended, raise Limits::max_bytes.");
  }

  Datum stacked(size_t k) {
    Datum::Items& items = stacks_[k];
    const bool reversed = (out_directions_[k] != 0) != backwards_;
    if (reversed) std::reverse(items.begin(), items.end());
    const size_t at = (conditional_ ? 1 : 0) + carried_ + k;
    const Type& type = body_->outputs()[at].value.type();
    if (type.kind != Kind::tensor ||
        c_.node.output(static_cast<int>(carried_ + k)).type().kind != Kind::tensor) {
      return {std::move(items)};
    }
    if (items.empty()) {
      Dims dims;
      for (size_t i = 0; type.shape && i < type.shape->size(); ++i)
        dims.push_back(extent_without_turn((*type.shape)[i]));
      const int64_t axis = axis_from_front(c_, out_axes_[k], dims.size() + 1);
      dims.insert(dims.begin() + axis, 0);
      return Tensor::empty(type.dtype, dims);
    }
    std::vector<Tensor> parts;
    const int64_t axis = axis_from_front(c_, out_axes_[k], items[0].tensor().dims().size() + 1);
    const auto rank = static_cast<int64_t>(items[0].tensor().dims().size());
    for (const Datum& d : items) {
      if (static_cast<int64_t>(d.tensor().dims().size()) != rank) {
        c_.fail("A result that a loop collects changes its rank between iterations.",
                items[0].text(), d.text());
      }
      parts.push_back(with_axis(d.tensor(), axis));
    }
    items.clear();
    return concat(parts, axis);
  }

  /// An extent of a result if there are no iterations: that of an input dimension with the same
  /// symbol, else zero.
  int64_t extent_without_turn(const Dim& d) const {
    if (d.known()) return d.value();
    for (size_t i = 0; !d.symbol().empty() && i < body_->inputs().size() - 1; ++i) {
      const auto& shape = body_->inputs()[i + 1].type().shape;
      const Datum& x = c_.inputs[i + 2];
      if (!shape || !x.is_tensor()) continue;
      Dims dims = x.tensor().dims();
      if (i >= carried_ && i < carried_ + in_axes_.size())
        dims.erase(dims.begin() + axis_from_front(c_, in_axes_[i - carried_], dims.size()));
      for (size_t k = 0; k < std::min(dims.size(), shape->size()); ++k) {
        if ((*shape)[k].symbol() == d.symbol()) return dims[k];
      }
    }
    return 0;
  }

  std::vector<Datum> results(int64_t turns) {
    std::vector<Datum> results = std::move(now_);
    for (size_t k = 0; k < stacks_.size(); ++k) results.push_back(stacked(k));
    for (auto& states : saved_) {
      if (backwards_) std::reverse(states.begin(), states.end());
      results.emplace_back(std::move(states));
    }
    results.emplace_back(Tensor::scalar(turns));
    return results;
  }

  const DynamicCall& c_;
  const Body& body_;
  size_t carried_;
  Ints in_axes_, in_directions_, out_axes_, out_directions_;
  bool conditional_, backwards_;
  std::vector<Datum> now_;            // carried values
  std::vector<Datum::Items> stacks_;  // by stacked output: one item per iteration
  std::vector<Datum::Items> saved_;   // by carried value: its value at the start of each iteration
  size_t kept_bytes_ = 0;             // bytes in stacks_ and saved_
};

}  // namespace

std::vector<Datum> run_loop(const DynamicCall& c) { return Loop(c).run(); }

std::vector<Datum> run_if(const DynamicCall& c) {
  const Body& then_branch = body(c, "then_branch");
  const auto captured = static_cast<int64_t>(then_branch->inputs().size());
  const bool holds = c.integer(0) != 0;
  const auto middle = c.inputs.begin() + 1 + captured;
  return holds ? c.context.run_body(then_branch, {c.inputs.begin() + 1, middle}, 0)
               : c.context.run_body(body(c, "else_branch"), {middle, c.inputs.end()}, 0);
}

}  // namespace steep
