// The kernels of this plug-in, and their view of the node that they compute.
#pragma once

#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mirror.h"

namespace mirror {

using Dims = std::vector<int64_t>;

enum Type : int32_t { kAbsent = 0, kFloat = 1, kInt32 = 6, kInt64 = 7, kBool = 9, kDouble = 11 };

struct Operand {
  int32_t type = kAbsent;
  Dims dims{};
  const void* constant = nullptr;  // valid only while the kernel is made
  int64_t value = -1;

  bool present() const { return type != kAbsent; }
  int64_t size() const { return product(0, rank()); }
  int64_t rank() const { return static_cast<int64_t>(dims.size()); }
  int64_t product(int64_t begin, int64_t end) const {
    int64_t n = 1;
    for (int64_t i = begin; i < end; ++i) n *= dims[static_cast<size_t>(i)];
    return n;
  }
};

/// A node of the engine.
class Node {
 public:
  explicit Node(const SteepNode* raw) : raw_(raw) {}

  std::string op() const { return host->op(raw_); }
  int inputs() const { return host->input_count(raw_); }
  int outputs() const { return host->output_count(raw_); }
  Operand in(int i) const;
  Operand out(int i) const;
  /// A declared attribute. If the model leaves it out, the engine fills in the default. Throws
  /// std::runtime_error when there is no attribute of this kind.
  int64_t integer(const char* name) const;
  double real(const char* name) const;
  std::string string(const char* name) const;
  /// Empty when there is no such attribute.
  Dims ints(const char* name) const;
  const SteepGraph* body() const;
  const SteepNode* raw() const { return raw_; }

 private:
  SteepAttr find(const char* name) const;
  SteepAttr attr(const char* name, int32_t kind) const;
  const SteepNode* raw_;
};

Operand operand_of(const SteepOperand& raw);

/// The pointers of one execution. Device pointers belong to the device's thread: only tasks may
/// follow them. Inputs on the host belong to the engine: read them before bind() returns.
struct Pointers {
  std::vector<const void*> in;
  std::vector<void*> out;

  const float* f(int i) const { return static_cast<const float*>(in[static_cast<size_t>(i)]); }
  float* y(int i) const { return static_cast<float*>(out[static_cast<size_t>(i)]); }
};

/// A kernel for the exact types of a node. bind() returns the task of its next execution.
struct Kernel {
  std::function<Task(const Pointers&)> bind;
  std::vector<std::pair<int32_t, int32_t>> may_share{};
  uint64_t host_inputs = 0;
};

/// Makes the kernel, or gives the reason in `why`.
using Make = std::optional<Kernel> (*)(const Node& node, std::string& why);

/// `return decline(why, "…")`
inline std::nullopt_t decline(std::string& why, std::string reason) {
  why = std::move(reason);
  return std::nullopt;
}

/// Whether all present operands are float32, except those whose bit is set in `others`.
bool all_floats(const Node& node, std::string& why, uint64_t others = 0);

/// The strides of a row-major operand that is broadcast to the row-major output.
Dims broadcast_strides(const Dims& out, const Dims& in);

/// Calls f(i) with the operand's offset for each element of `dims`, in order.
template <typename F>
void for_each_offset(const Dims& dims, const Dims& strides, F&& f) {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  Dims at(dims.size(), 0);
  int64_t offset = 0;
  for (int64_t i = 0; i < n; ++i) {
    f(i, offset);
    for (size_t a = dims.size(); a-- > 0;) {
      offset += strides[a];
      if (++at[a] < dims[a]) break;
      offset -= strides[a] * dims[a];
      at[a] = 0;
    }
  }
}

// elementwise.cc
std::optional<Kernel> make_elementwise(const Node& node, std::string& why);
std::optional<Kernel> make_fused(const Node& node, std::string& why);
bool is_elementwise(const std::string& op);
std::vector<std::string> elementwise_ops();
// matmul.cc
std::optional<Kernel> make_matmul(const Node& node, std::string& why);
// move.cc
std::optional<Kernel> make_gather(const Node& node, std::string& why);
std::optional<Kernel> make_gather_grad(const Node& node, std::string& why);
std::optional<Kernel> make_transpose(const Node& node, std::string& why);
// optimizer.cc
std::optional<Kernel> make_adam(const Node& node, std::string& why);
std::optional<Kernel> make_sgd(const Node& node, std::string& why);
// reduce.cc
std::optional<Kernel> make_sum_to(const Node& node, std::string& why);
std::optional<Kernel> make_reduce_sum(const Node& node, std::string& why);
// fuse.cc
std::optional<Kernel> make_add_norm(const Node& node, std::string& why);
SteepError* fuse(void* device, SteepGraph* graph);
// rows.cc
std::optional<Kernel> make_softmax(const Node& node, std::string& why);
std::optional<Kernel> make_layer_norm(const Node& node, std::string& why);
std::optional<Kernel> make_layer_norm_grad(const Node& node, std::string& why);
// swish.cc
std::optional<Kernel> make_swish(const Node& node, std::string& why);
const SteepOp* ops(size_t* count);

}  // namespace mirror
