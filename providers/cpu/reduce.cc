// ReduceX and steep.SumTo. A reduction over several separate groups of axes is a chain of stages,
// one per group of adjacent axes: [outer, n, inner] → [outer, inner].
#include "providers/cpu/reduce.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "providers/cpu/build_kernel.h"
#include "providers/cpu/convert.h"
#include "providers/cpu/cpu.h"
#include "providers/cpu/parallel.h"
#include "providers/cpu/strided_copy.h"

namespace steep::cpu {
namespace {

/// Applied to the accumulated value. log_sum_exp also changes how elements are accumulated.
enum class Finish : uint8_t { none, mean, sqrt, log, log_sum_exp };

struct OpRow {
  std::string_view op;
  Reduction reduction;
  Finish finish;
};

constexpr OpRow kOps[] = {
    {"ReduceSum", Reduction::sum, Finish::none},
    {"ReduceMean", Reduction::sum, Finish::mean},
    {"ReduceMax", Reduction::max, Finish::none},
    {"ReduceMin", Reduction::min, Finish::none},
    {"ReduceProd", Reduction::prod, Finish::none},
    {"ReduceL1", Reduction::sum_abs, Finish::none},
    {"ReduceL2", Reduction::sum_square, Finish::sqrt},
    {"ReduceSumSquare", Reduction::sum_square, Finish::none},
    {"ReduceLogSum", Reduction::sum, Finish::log},
    {"ReduceLogSumExp", Reduction::sum, Finish::log_sum_exp},
    {"steep.SumTo", Reduction::sum, Finish::none},
};

constexpr int64_t kGrain = int64_t{64} << 10;  // elements; less is not worth a second thread
constexpr int64_t kRowChunk = int64_t{32} << 10;

/// [outer, n, inner] → [outer, inner]. Long reductions with few results are split into `chunks`,
/// which are joined in order. The split depends only on the shape.
struct Stage {
  int64_t outer, n, inner;

  int64_t columns() const { return std::min(inner, kReduceColumns); }
  int64_t blocks() const { return inner == 0 ? 0 : (inner + columns() - 1) / columns(); }
  /// The extent of n per chunk.
  int64_t chunk() const {
    if (inner == 1) return kRowChunk;
    if (outer * blocks() >= 64) return std::max<int64_t>(n, 1);
    return std::max<int64_t>(64, grain_of(kRowChunk, columns()));
  }
  int64_t chunks() const { return std::max<int64_t>(1, (n + chunk() - 1) / chunk()); }
  int64_t results() const { return outer * inner; }
  size_t partial_count() const {
    return chunks() > 1 ? static_cast<size_t>(chunks() * results()) : 0;
  }
};

template <typename T>
void run_stage(const Stage& s, const ReduceLoops<T>& loops, const ReduceLoops<Accumulator<T>>& join,
               const T* x, Accumulator<T>* y, Accumulator<T>* partials) {
  const int64_t chunks = s.chunks();
  const int64_t chunk = s.chunk();
  const int64_t blocks = s.blocks();
  Accumulator<T>* to = chunks > 1 ? partials : y;  // [outer, chunks, inner]
  const int64_t work = std::max<int64_t>(std::min(chunk, s.n) * s.columns(), 1);
  if (s.inner == 1 && chunks == 1) {
    return parallel_for(s.outer, grain_of(kGrain, work), [&](int64_t begin, int64_t end) {
      loops.rows(x + begin * s.n, end - begin, s.n, y + begin);
    });
  }
  parallel_for(s.outer * chunks * blocks, grain_of(kGrain, work), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t column = task % blocks * s.columns();
      const int64_t slab = task / blocks;  // (outer, chunk)
      const int64_t first = slab % chunks * chunk;
      const int64_t rows = std::min(chunk, s.n - first);
      const T* from = x + (slab / chunks * s.n + first) * s.inner + column;
      if (s.inner == 1) {
        loops.rows(from, 1, rows, to + slab);
      } else {
        loops.columns(from, rows, s.inner, std::min(s.columns(), s.inner - column),
                      to + slab * s.inner + column);
      }
    }
  });
  if (chunks == 1) return;
  for (int64_t o = 0; o < s.outer; ++o) {
    for (int64_t c = 0; c < s.inner; c += s.columns()) {
      join.columns(partials + o * chunks * s.inner + c, chunks, s.inner,
                   std::min(s.columns(), s.inner - c), y + o * s.inner + c);
    }
  }
}

/// log(sum(exp(x))) of n elements, `stride` apart, without overflow.
template <typename T>
double log_sum_exp(const T* x, int64_t n, int64_t stride) {
  double top = -std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < n; ++i) {
    const auto v = static_cast<double>(x[i * stride]);
    if (v > top || v != v) top = v;
  }
  if (!std::isfinite(top)) return top;
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::exp(static_cast<double>(x[i * stride]) - top);
  return top + std::log(sum);
}

template <typename T, typename Acc>
void log_sum_exp_stage(const Stage& s, const T* x, Acc* y) {
  parallel_for(s.results(), grain_of(4096, s.n), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      y[i] = static_cast<Acc>(
          log_sum_exp(x + i / s.inner * s.n * s.inner + i % s.inner, s.n, s.inner));
    }
  });
}

template <typename T>
class Reduce final : public Kernel {
  using Acc = Accumulator<T>;

 public:
  Reduce(const NodeSpec& node, const OpRow& row, std::vector<Stage> stages, int64_t count)
      : finish_(row.finish),
        stages_(std::move(stages)),
        count_(count),
        results_(node.out(0).size()) {
    DType type = DType::bf16;
    if constexpr (!std::is_same_v<T, Bf16>) type = dtype_of<T>();
    if (node.in(0).dtype != type) {
      load_ = find_convert(node.in(0).dtype, type);
      converted_ = node.in(0).size();
      load_bytes_ = static_cast<int64_t>(size_of(node.in(0).dtype));
    }
    store_ = find_convert(dtype_of<Acc>(), node.out(0).dtype);
    store_bytes_ = static_cast<int64_t>(size_of(node.out(0).dtype));
    first_ = reduce_loops<T>(row.reduction);
    // The first stage squares the elements or takes absolute values; later stages only sum.
    const bool sums = row.reduction == Reduction::sum_abs || row.reduction == Reduction::sum_square;
    join_ = reduce_loops<Acc>(sums ? Reduction::sum : row.reduction);
    size_t values = 0;
    size_t partials = 0;
    for (const Stage& s : stages_) {
      values += whole_lines(static_cast<size_t>(s.results()) * sizeof(Acc));
      partials = std::max(partials, s.partial_count() * sizeof(Acc));
    }
    partials_at_ = whole_lines(static_cast<size_t>(converted_) * sizeof(T));
    values_at_ = partials_at_ + whole_lines(partials);
    scratch_bytes = values_at_ + values;
    set_empty_value(node.in(0).dtype, row.reduction);
  }

  void execute(const KernelArgs& args) const override {
    auto* scratch = static_cast<char*>(args.scratch);
    const T* x = args.input<T>(0);
    if (load_ != nullptr) {
      auto* wide = reinterpret_cast<T*>(scratch);
      parallel_for(converted_, kGrain, [&](int64_t begin, int64_t end) {
        load_(args.input<char>(0) + begin * load_bytes_, wide + begin, end - begin);
      });
      x = wide;
    }
    auto* y = reinterpret_cast<Acc*>(scratch + values_at_);
    if (count_ == 0) {
      std::fill_n(y, results_, empty_);
    } else if (finish_ == Finish::log_sum_exp) {
      log_sum_exp_stage(stages_[0], x, y);
      for (size_t i = 1; i < stages_.size(); ++i) {
        const Acc* from = y;
        y = after(i - 1, y);
        log_sum_exp_stage(stages_[i], from, y);
      }
    } else {
      y = run_stages(x, y, reinterpret_cast<Acc*>(scratch + partials_at_));
    }
    parallel_for(results_, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) y[i] = finish(y[i]);
      store_(y + begin, args.output<char>(0) + begin * store_bytes_, end - begin);
    });
  }

 private:
  /// The address of the results of stage i + 1, given that of stage i.
  Acc* after(size_t i, Acc* y) const {
    return y + whole_lines(static_cast<size_t>(stages_[i].results()) * sizeof(Acc)) / sizeof(Acc);
  }

  Acc* run_stages(const T* x, Acc* y, Acc* partials) const {
    run_stage<T>(stages_[0], first_, join_, x, y, partials);
    for (size_t i = 1; i < stages_.size(); ++i) {
      const Acc* from = y;
      y = after(i - 1, y);
      run_stage<Acc>(stages_[i], join_, join_, from, y, partials);
    }
    return y;
  }

  Acc finish(Acc v) const {
    switch (finish_) {
      case Finish::mean:
        if constexpr (std::is_integral_v<Acc>) return count_ == 0 ? 0 : v / count_;
        return v / static_cast<Acc>(count_);
      case Finish::sqrt: return static_cast<Acc>(std::sqrt(v));
      case Finish::log: return static_cast<Acc>(std::log(v));
      case Finish::none:
      case Finish::log_sum_exp: break;
    }
    return v;
  }

  /// Sets the result over no elements: 0, 1, or the least or greatest number of the dtype.
  void set_empty_value(DType dtype, Reduction reduction) {
    const bool extreme = reduction == Reduction::max || reduction == Reduction::min;
    if (finish_ == Finish::log_sum_exp) {
      empty_ = static_cast<Acc>(-std::numeric_limits<double>::infinity());
    } else if (!extreme) {
      empty_ = reduction == Reduction::prod ? 1 : 0;
    } else if (is_float(dtype)) {
      const double infinity = std::numeric_limits<double>::infinity();
      empty_ = static_cast<Acc>(reduction == Reduction::max ? -infinity : infinity);
    } else if (dtype == DType::boolean) {
      empty_ = reduction == Reduction::max ? 0 : 1;
    } else {
      with_storage_type(dtype, [&]<typename I>(I*) {
        using Limits = std::numeric_limits<I>;
        empty_ = static_cast<Acc>(reduction == Reduction::max ? Limits::lowest() : Limits::max());
      });
    }
  }

  Finish finish_;
  std::vector<Stage> stages_;
  int64_t count_;    // elements per result
  int64_t results_;  // elements of the output
  Convert load_ = nullptr;
  Convert store_ = nullptr;
  int64_t converted_ = 0;
  int64_t load_bytes_ = 0;
  int64_t store_bytes_ = 0;
  ReduceLoops<T> first_{};
  ReduceLoops<Acc> join_{};
  size_t partials_at_ = 0;
  size_t values_at_ = 0;
  Acc empty_ = 0;
};

/// The axes of x that are reduced; nothing when the node does not fit.
std::optional<std::vector<bool>> reduced_axes(const NodeSpec& node, std::string* why_not) {
  const Operand& x = node.in(0);
  const Operand& y = node.out(0);
  std::vector<bool> reduced(x.dims.size(), false);
  if (node.op == "steep.SumTo") {
    if (y.rank() > x.rank()) {
      decline(why_not, "the output's rank is above the input's");
      return std::nullopt;
    }
    const size_t lead = x.dims.size() - y.dims.size();
    for (size_t a = 0; a < x.dims.size(); ++a) {
      reduced[a] = a < lead || (y.dims[a - lead] == 1 && x.dims[a] != 1);
      if (!reduced[a] && y.dims[a - lead] != x.dims[a]) {
        decline(why_not, "{} does not sum to {}", to_string(x.dims), to_string(y.dims));
        return std::nullopt;
      }
    }
    return reduced;
  }
  const auto axes = constant_ints(node.in(1));
  if (node.in(1).present() && !axes) {
    decline(why_not, "axes are not constant");
    return std::nullopt;
  }
  if (!axes || axes->empty()) {
    if (node.attrs.integer("noop_with_empty_axes") == 0) reduced.assign(x.dims.size(), true);
    return reduced;
  }
  for (int64_t number : *axes) {
    const auto axis = axis_from_front(number, x.rank());
    if (!axis) {
      decline(why_not, "axis {} of a tensor of rank {}", number, x.rank());
      return std::nullopt;
    }
    reduced[static_cast<size_t>(*axis)] = true;
  }
  return reduced;
}

/// One stage per group of adjacent reduced axes, the longest first, because it leaves least work to
/// the others.
std::vector<Stage> make_stages(const Dims& dims, const std::vector<bool>& reduced) {
  struct Group {
    bool reduced;
    int64_t extent;
  };
  std::vector<Group> groups;
  for (size_t a = 0; a < dims.size(); ++a) {
    if (dims[a] == 1) continue;
    if (!groups.empty() && groups.back().reduced == reduced[a]) {
      groups.back().extent *= dims[a];
    } else {
      groups.push_back({reduced[a], dims[a]});
    }
  }
  std::vector<Stage> stages;
  for (;;) {
    size_t longest = groups.size();
    for (size_t i = 0; i < groups.size(); ++i) {
      if (groups[i].reduced &&
          (longest == groups.size() || groups[i].extent > groups[longest].extent))
        longest = i;
    }
    if (longest == groups.size()) break;
    Stage s{1, groups[longest].extent, 1};
    for (size_t i = 0; i < longest; ++i) s.outer *= groups[i].extent;
    for (size_t i = longest + 1; i < groups.size(); ++i) s.inner *= groups[i].extent;
    stages.push_back(s);
    groups.erase(groups.begin() + static_cast<ptrdiff_t>(longest));
  }
  if (stages.empty()) stages.push_back({element_count(dims), 1, 1});
  return stages;
}

std::unique_ptr<Kernel> make_reduce(const NodeSpec& node, std::string* why_not) {
  const OpRow* row = std::find_if(std::begin(kOps), std::end(kOps),
                                  [&](const OpRow& r) { return r.op == node.op; });
  const Operand& x = node.in(0);
  const Operand& y = node.out(0);
  if (x.dtype == DType::u64) return decline(why_not, "dtype is uint64");
  const auto reduced = reduced_axes(node, why_not);
  if (!reduced) return nullptr;
  int64_t count = 1;
  int64_t results = 1;
  for (size_t a = 0; a < x.dims.size(); ++a) ((*reduced)[a] ? count : results) *= x.dims[a];
  if (results != y.size()) return decline(why_not, "the output is {}", to_string(y.dims));
  if (count == 1 && row->finish == Finish::none && row->reduction != Reduction::sum_abs &&
      row->reduction != Reduction::sum_square && x.dtype == y.dtype) {
    const auto bytes = static_cast<int64_t>(size_of(x.dtype)) * x.size();
    auto copy = [bytes](const KernelArgs& args) {
      if (args.in[0] != args.out[0]) copy_bytes(args.in[0], args.out[0], bytes);
    };
    return kernel_from(copy, 0, {{0, 0}});
  }
  std::vector<Stage> stages = make_stages(x.dims, *reduced);
  const bool integral = !is_float(x.dtype);
  if (integral && row->finish != Finish::none && row->finish != Finish::mean &&
      row->finish != Finish::sqrt) {
    return decline(why_not, "dtype is {}", name_of(x.dtype));
  }
  if (integral) return std::make_unique<Reduce<int64_t>>(node, *row, std::move(stages), count);
  if (x.dtype == DType::f64)
    return std::make_unique<Reduce<double>>(node, *row, std::move(stages), count);
  if (x.dtype == DType::bf16)
    return std::make_unique<Reduce<Bf16>>(node, *row, std::move(stages), count);
  return std::make_unique<Reduce<float>>(node, *row, std::move(stages), count);
}

}  // namespace

void register_reduce(std::vector<Candidate>& list) {
  for (const OpRow& row : kOps) list.push_back({row.op, "staged", make_reduce});
}

}  // namespace steep::cpu
