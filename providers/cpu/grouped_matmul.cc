// steep.GroupedMatMul and steep.GroupedOuterProduct: one product for each group of rows. All
// extents but the number of rows in each group are known when the kernel is built.
#include <fmt/format.h>

#include <algorithm>

#include "providers/cpu/build_kernel.h"
#include "providers/cpu/matmul.h"
#include "providers/cpu/parallel.h"

namespace steep::cpu {
namespace {

/// The ends of the groups, in rows.
struct Offsets {
  NodeId id;
  int64_t groups, rows;

  /// Calls body(g, begin, end) for each group. Throws DataError, before it calls anything, if the
  /// offsets descend or exceed the rows.
  template <typename F>
  void for_groups(const int64_t* offsets, F&& body) const {
    int64_t begin = 0;
    for (int64_t g = 0; g < groups; begin = offsets[g++]) {
      if (offsets[g] >= begin && offsets[g] <= rows) continue;
      id.data_error("The offset of a group is out of range.",
                    fmt::format("a number from {} to {}", begin, rows),
                    fmt::format("{} at position {}", offsets[g], g),
                    "Feed the running sum of the groups' numbers of rows.");
    }
    begin = 0;
    for (int64_t g = 0; g < groups; begin = offsets[g++]) body(g, begin, offsets[g]);
  }
};

/// Writes zeros in parallel.
template <typename T>
void fill_zeros(T* y, int64_t count) {
  parallel_for(count, 65536,
               [&](int64_t begin, int64_t end) { std::fill(y + begin, y + end, T{0}); });
}

template <typename T>
class GroupedMatMul final : public Kernel {
 public:
  explicit GroupedMatMul(const NodeSpec& node)
      : offsets_{NodeId(node), node.in(2).dims[0], node.in(0).dims[0]},
        k_(node.in(0).dims[1]),
        n_(node.out(0).dims[1]),
        transposed_(node.attrs.integer("transposed") != 0) {
    scratch_bytes = blocked_scratch(dtype_of<T>(), n_, k_);
    flops = 2.0 * static_cast<double>(offsets_.rows * k_ * n_);
  }

  void execute(const KernelArgs& args) const override {
    const T *x = args.input<T>(0), *w = args.input<T>(1);
    T* y = args.output<T>(0);
    int64_t next_row = 0;
    offsets_.for_groups(args.input<int64_t>(2), [&](int64_t g, int64_t begin, int64_t end) {
      next_row = end;
      if (begin == end || n_ == 0) return;
      poll();
      if (k_ == 0) return fill_zeros(y + begin * n_, (end - begin) * n_);
      const MatMulProblem p{.dtype = dtype_of<T>(),
                            .y_dtype = dtype_of<T>(),
                            .m = end - begin,
                            .n = n_,
                            .k = k_,
                            .a_m = k_,
                            .a_k = 1,
                            .b_k = transposed_ ? 1 : n_,
                            .b_n = transposed_ ? k_ : 1,
                            .y_m = n_,
                            .y_n = 1};
      multiply_blocked(p, x + begin * k_, w + g * k_ * n_, y + begin * n_, args.scratch);
    });
    fill_zeros(y + next_row * n_, (offsets_.rows - next_row) * n_);
  }

 private:
  Offsets offsets_;
  int64_t k_, n_;
  bool transposed_;
};

template <typename T>
class GroupedOuterProduct final : public Kernel {
 public:
  explicit GroupedOuterProduct(const NodeSpec& node)
      : offsets_{NodeId(node), node.in(2).dims[0], node.in(0).dims[0]},
        m_(node.in(0).dims[1]),
        n_(node.in(1).dims[1]) {
    scratch_bytes = blocked_scratch(dtype_of<T>(), n_, offsets_.rows);
    flops = 2.0 * static_cast<double>(offsets_.rows * m_ * n_);
  }

  void execute(const KernelArgs& args) const override {
    const T *a = args.input<T>(0), *b = args.input<T>(1);
    T* y = args.output<T>(0);
    offsets_.for_groups(args.input<int64_t>(2), [&](int64_t g, int64_t begin, int64_t end) {
      T* to = y + g * m_ * n_;
      if (m_ * n_ == 0) return;
      if (begin == end) return fill_zeros(to, m_ * n_);
      poll();
      const MatMulProblem p{.dtype = dtype_of<T>(),
                            .y_dtype = dtype_of<T>(),
                            .m = m_,
                            .n = n_,
                            .k = end - begin,
                            .a_m = 1,
                            .a_k = m_,
                            .b_k = n_,
                            .b_n = 1,
                            .y_m = n_,
                            .y_n = 1};
      multiply_blocked(p, a + begin * m_, b + begin * n_, to, args.scratch);
    });
  }

 private:
  Offsets offsets_;
  int64_t m_, n_;
};

template <template <typename> typename K>
std::unique_ptr<Kernel> make(const NodeSpec& node, std::string* why_not) {
  if (node.in(2).dtype != DType::i64) return decline(why_not, "the offsets are not int64");
  if (node.in(0).dtype == DType::f32) return std::make_unique<K<float>>(node);
  if (node.in(0).dtype == DType::f64) return std::make_unique<K<double>>(node);
  return decline(why_not, "dtype is neither float32 nor float64");
}

}  // namespace

void register_grouped_matmul(std::vector<Candidate>& list) {
  list.push_back({"steep.GroupedMatMul", "products", make<GroupedMatMul>});
  list.push_back({"steep.GroupedOuterProduct", "products", make<GroupedOuterProduct>});
}

}  // namespace steep::cpu
