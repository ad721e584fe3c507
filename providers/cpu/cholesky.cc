// steep.Cholesky computes the upper factor row by row, because subtracting rows is fast, and
// transposes it at the end. steep.CholeskySolve does two substitutions.
#include <cmath>

#include "providers/cpu/cpu.h"
#include "providers/cpu/matrices.h"

namespace steep::cpu {
namespace {

/// Replaces the lower triangle of `a` by the factor l, with zeros above it. Returns the order of
/// the first leading minor that is not positive, or 0. From that minor on l is a's
/// triangle, except for that one element, as in LAPACK's unblocked form. `l` may be `a`.
template <typename T>
int32_t factorise(const T* a, T* l, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j <= i; ++j) l[j * n + i] = a[i * n + j];
  }
  int64_t columns = 0;
  for (; columns < n; ++columns) {
    const int64_t k = columns;
    T* row = l + k * n;
    // The columns of a large matrix are worth several threads. In a stack each matrix has a thread
    // already.
    parallel_for(n - k, grain_of(65536, k), [&](int64_t begin, int64_t end) {
      subtract_rows(row + k + begin, end - begin, l + k, n, k, l + k + begin, n);
    });
    if (!(row[k] > 0)) {
      for (int64_t j = k + 1; j < n; ++j) row[j] = a[j * n + k];
      break;
    }
    const T root = std::sqrt(row[k]);
    row[k] = root;
    for (int64_t j = k + 1; j < n; ++j) row[j] /= root;
    poll();
  }
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < i; ++j) {
      l[i * n + j] = l[j * n + i];
      l[j * n + i] = 0;
    }
  }
  return columns == n ? 0 : static_cast<int32_t>(columns + 1);
}

std::unique_ptr<Kernel> make(const NodeSpec& node, std::string* why_not) {
  const auto square = square_stack(node, why_not);
  if (!square) return nullptr;
  const int64_t n = node.in(0).dims.back();
  const bool check = node.attrs.integer("check") != 0, tells = node.out(1).present();
  return of_floats(node, why_not, [&]<typename T>(T) {
    auto run = [=, stack = *square, id = NodeId(node)](const KernelArgs& args) {
      const int64_t count = element_count(stack);
      auto* info = static_cast<int32_t*>(args.scratch);
      parallel_for(count, grain_of(32768, n * n * n / 3), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
          info[i] = factorise(args.input<T>(0) + i * n * n, args.output<T>(0) + i * n * n, n);
      });
      if (tells && args.out[1] != nullptr) std::copy(info, info + count, args.output<int32_t>(1));
      const auto* bad = std::find_if(info, info + count, [](int32_t at) { return at != 0; });
      if (!check || bad == info + count) return;
      id.data_error("A matrix is not positive-definite.", "positive leading minors",
                    fmt::format("minor {} of {} is not positive, or NaN", *bad,
                                name_of_matrix(stack, bad - info)),
                    "Add a small multiple of the identity matrix.");
    };
    auto kernel =
        kernel_from(run, static_cast<size_t>(element_count(*square)) * sizeof(int32_t), {{0, 0}});
    kernel->flops = static_cast<double>(element_count(*square)) * static_cast<double>(n * n) *
                    static_cast<double>(n) / 3;
    return kernel;
  });
}

std::unique_ptr<Kernel> make_solve(const NodeSpec& node, std::string* why_not) {
  const auto systems = Systems::of(node.in(0).dims, node.in(1).dims, node.out(0).dims, why_not);
  if (!systems) return nullptr;
  const bool upper = node.attrs.integer("upper") != 0;
  return of_floats(node, why_not, [&]<typename T>(T) {
    auto solve = [upper, s = *systems](const KernelArgs& args, int64_t a, T* x, int64_t columns) {
      for (const bool lower : {true, false}) {
        const bool turned = upper == lower;
        const Triangle<T> triangle{.at = args.input<T>(0) + a * s.n * s.n,
                                   .n = s.n,
                                   .down = turned ? 1 : s.n,
                                   .across = turned ? s.n : 1,
                                   .lower = lower,
                                   .unit = false};
        triangle.substitute(x, columns, s.k);
      }
    };
    return solving<T>(*systems, 1, 2, solve);
  });
}

}  // namespace

void register_cholesky(std::vector<Candidate>& list) {
  list.push_back({"steep.Cholesky", "by rows", make});
  list.push_back({"steep.CholeskySolve", "substitution", make_solve});
}

}  // namespace steep::cpu
