// steep.TriangularSolve by substitution, a block of columns after the other.
#include "providers/cpu/cpu.h"
#include "providers/cpu/matrices.h"

namespace steep::cpu {
namespace {

std::unique_ptr<Kernel> make(const NodeSpec& node, std::string* why_not) {
  const auto systems = Systems::of(node.in(0).dims, node.in(1).dims, node.out(0).dims, why_not);
  if (!systems) return nullptr;
  const bool upper = node.attrs.integer("upper") != 0, unit = node.attrs.integer("unit") != 0;
  const bool transpose = node.attrs.integer("transpose") != 0;
  auto of_type = [&]<typename T>(T) {
    auto run = [=, s = *systems](const KernelArgs& args) {
      s.for_columns([&](int64_t a, int64_t b, int64_t x, int64_t first, int64_t columns) {
        const int64_t size = s.n * s.k;
        T* to = args.output<T>(0) + x * size + first;
        s.copy_columns(args.input<T>(1) + b * size + first, to, columns);
        const Triangle<T> triangle{.at = args.input<T>(0) + a * s.n * s.n,
                                   .n = s.n,
                                   .down = transpose ? 1 : s.n,
                                   .across = transpose ? s.n : 1,
                                   .lower = upper == transpose,
                                   .unit = unit};
        triangle.substitute(to, columns, s.k);
      });
    };
    std::vector<std::pair<int, int>> may_share;
    if (systems->same) may_share.emplace_back(1, 0);
    auto kernel = kernel_from(run, 0, std::move(may_share));
    kernel->flops = static_cast<double>(systems->count() * systems->k) *
                    static_cast<double>(systems->n * systems->n);
    return kernel;
  };
  const DType dtype = node.in(0).dtype;
  if (dtype == DType::f32) return of_type(float{});
  if (dtype == DType::f64) return of_type(double{});
  return decline(why_not, "dtype is {}", name_of(dtype));
}

}  // namespace

void register_triangular_solve(std::vector<Candidate>& list) {
  list.push_back({"steep.TriangularSolve", "substitution", make});
}

}  // namespace steep::cpu
