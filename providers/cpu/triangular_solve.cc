// steep.TriangularSolve by substitution, one block of columns after the other.
#include "providers/cpu/cpu.h"
#include "providers/cpu/matrices.h"

namespace steep::cpu {
namespace {

std::unique_ptr<Kernel> make(const NodeSpec& node, std::string* why_not) {
  const auto systems = Systems::of(node.in(0).dims, node.in(1).dims, node.out(0).dims, why_not);
  if (!systems) return nullptr;
  const bool upper = node.attrs.integer("upper") != 0, unit = node.attrs.integer("unit") != 0;
  const bool transpose = node.attrs.integer("transpose") != 0;
  return of_floats(node, why_not, [&]<typename T>(T) {
    auto solve = [=, s = *systems](const KernelArgs& args, int64_t a, T* x, int64_t columns) {
      const Triangle<T> triangle{.at = args.input<T>(0) + a * s.n * s.n,
                                 .n = s.n,
                                 .down = transpose ? 1 : s.n,
                                 .across = transpose ? s.n : 1,
                                 .lower = upper == transpose,
                                 .unit = unit};
      triangle.substitute(x, columns, s.k);
    };
    return solving<T>(*systems, 1, 1, solve);
  });
}

}  // namespace

void register_triangular_solve(std::vector<Candidate>& list) {
  list.push_back({"steep.TriangularSolve", "substitution", make});
}

}  // namespace steep::cpu
