// Single kernels at the shapes of the models in bench/, in warm memory.
//
//   build/bench/kernels_bench --benchmark_filter=MatMul
//
// Counters: FLOP/s of a product, bytes per second of everything else (each array counted once a
// pass).

#include <benchmark/benchmark.h>

#include <cmath>
#include <cstring>
#include <random>

#include "providers/cpu/cpu.h"
#include "runtime/kernel.h"
#include "steep/error.h"

namespace steep {
namespace {

struct Run {
  std::string op;
  std::vector<Tensor> inputs;
  std::vector<Tensor> outputs;
  Attrs attrs{};
};

/// Builds the kernels once and times one execute() of each in turn. The label names the candidates.
void time_kernels(benchmark::State& state, std::vector<Run> runs) {
  struct Ready {
    ChosenKernel chosen;
    std::vector<const void*> in;
    std::vector<void*> out;
    Tensor scratch;
  };
  std::vector<Ready> all;
  std::string label;
  for (Run& run : runs) {
    NodeSpec spec{.name = "bench", .op = run.op, .attrs = run.attrs, .inputs = {}, .outputs = {}};
    Ready ready;
    for (const Tensor& t : run.inputs) {
      spec.inputs.push_back(t.defined() ? Operand{t.dtype(), t.dims()} : Operand{});
      ready.in.push_back(t.defined() ? t.data() : nullptr);
    }
    for (Tensor& t : run.outputs) {
      spec.outputs.push_back({t.dtype(), t.dims()});
      ready.out.push_back(t.data());
    }
    std::string why_not;
    ready.chosen = choose_kernel(cpu::provider(), spec, &why_not);
    if (!ready.chosen.kernel) return state.SkipWithError(why_not.c_str());
    ready.scratch =
        Tensor::zeros(DType::u8, {static_cast<int64_t>(ready.chosen.kernel->scratch_bytes)});
    label += (label.empty() ? "" : ", ") + std::string(ready.chosen.candidate);
    all.push_back(std::move(ready));
  }
  auto execute = [&] {
    for (Ready& r : all) {
      r.chosen.kernel->execute({r.in.data(), r.out.data(), r.scratch.data()});
    }
  };
  execute();
  for (auto _ : state) execute();
  state.SetLabel(label);
}

void time_kernel(benchmark::State& state, Run run) { time_kernels(state, {std::move(run)}); }

Tensor filled(Dims dims) {
  Tensor t = Tensor::empty(DType::f32, std::move(dims));
  std::minstd_rand engine(1);
  for (int64_t i = 0; i < t.size(); ++i) {
    t.data<float>()[i] = static_cast<float>(engine() % 2001) / 1000.0F - 1.0F;
  }
  return t;
}

void count(benchmark::State& state, const char* name, double each) {
  state.counters[name] = benchmark::Counter(each, benchmark::Counter::kIsIterationInvariantRate);
}

/// y[m, n] = a[m, k] b[k, n], and the two gradients of that product: da = dy bᵀ, db = aᵀ dy.
void forward(benchmark::State& state) {
  const int64_t m = state.range(0), n = state.range(1), k = state.range(2);
  time_kernel(state, {"MatMul", {filled({m, k}), filled({k, n})}, {filled({m, n})}});
  count(state, "FLOP", 2.0 * static_cast<double>(m * n * k));
}
void input_gradient(benchmark::State& state) {
  const int64_t m = state.range(0), n = state.range(1), k = state.range(2);
  time_kernel(state, {"steep.MatMul",
                      {filled({m, n}), filled({k, n})},
                      {filled({m, k})},
                      {{"perm_b", Ints{1, 0}}}});
  count(state, "FLOP", 2.0 * static_cast<double>(m * n * k));
}
void weight_gradient(benchmark::State& state) {
  const int64_t m = state.range(0), n = state.range(1), k = state.range(2);
  time_kernel(state, {"steep.MatMul",
                      {filled({m, k}), filled({m, n})},
                      {filled({k, n})},
                      {{"perm_a", Ints{1, 0}}}});
  count(state, "FLOP", 2.0 * static_cast<double>(m * n * k));
}
/// The same three where the weight is stored [n, k], as torch.nn.Linear does.
void forward_linear(benchmark::State& state) {
  const int64_t m = state.range(0), n = state.range(1), k = state.range(2);
  time_kernel(state, {"steep.MatMul",
                      {filled({m, k}), filled({n, k})},
                      {filled({m, n})},
                      {{"perm_b", Ints{1, 0}}}});
  count(state, "FLOP", 2.0 * static_cast<double>(m * n * k));
}
void weight_gradient_linear(benchmark::State& state) {
  const int64_t m = state.range(0), n = state.range(1), k = state.range(2);
  time_kernel(state, {"steep.MatMul",
                      {filled({m, n}), filled({m, k})},
                      {filled({n, k})},
                      {{"perm_a", Ints{1, 0}}}});
  count(state, "FLOP", 2.0 * static_cast<double>(m * n * k));
}

void matmul_shapes(benchmark::internal::Benchmark* b) {
  b->Args({700, 28782, 200});
  for (int64_t n : {512, 1536, 2048, 30522, 50257}) b->Args({1024, n, 512});
  b->Args({1024, 512, 2048});
  b->Unit(benchmark::kMicrosecond)->UseRealTime();
}
BENCHMARK(forward)->Name("MatMul/y")->Apply(matmul_shapes);
BENCHMARK(input_gradient)->Name("MatMul/da")->Apply(matmul_shapes);
BENCHMARK(weight_gradient)->Name("MatMul/db")->Apply(matmul_shapes);
BENCHMARK(forward_linear)->Name("MatMul/y_linear")->Apply(matmul_shapes);
BENCHMARK(weight_gradient_linear)->Name("MatMul/dw_linear")->Apply(matmul_shapes);

void small_product(benchmark::State& state) {
  time_kernel(state, {"MatMul", {filled({32, 10}), filled({10, 1})}, {filled({32, 1})}});
}
BENCHMARK(small_product)->Name("MatMul/small")->UseRealTime();

/// Near the border of what our own loops take; with a transposed right operand the loops pack it.
void small_forward(benchmark::State& state) {
  const int64_t m = state.range(0), n = state.range(1), k = state.range(2);
  time_kernel(state, {"steep.MatMul", {filled({m, k}), filled({k, n})}, {filled({m, n})}});
  count(state, "FLOP", 2.0 * static_cast<double>(m * n * k));
}
void small_input_gradient(benchmark::State& state) {
  const int64_t m = state.range(0), n = state.range(1), k = state.range(2);
  time_kernel(state, {"steep.MatMul",
                      {filled({m, k}), filled({n, k})},
                      {filled({m, n})},
                      {{"perm_b", Ints{1, 0}}}});
  count(state, "FLOP", 2.0 * static_cast<double>(m * n * k));
}
void small_weight_gradient(benchmark::State& state) {
  const int64_t m = state.range(0), n = state.range(1), k = state.range(2);
  time_kernel(state, {"steep.MatMul",
                      {filled({k, m}), filled({k, n})},
                      {filled({m, n})},
                      {{"perm_a", Ints{1, 0}}}});
  count(state, "FLOP", 2.0 * static_cast<double>(m * n * k));
}
void small_shapes(benchmark::internal::Benchmark* b) {
  b->Args({32, 128, 64})->Args({32, 10, 128})->Args({64, 64, 64})->Args({64, 128, 64});
  b->Args({128, 128, 32})->Args({128, 128, 64})->UseRealTime();
}
BENCHMARK(small_forward)->Name("MatMul/small_y")->Apply(small_shapes);
BENCHMARK(small_input_gradient)->Name("MatMul/small_dx")->Apply(small_shapes);
BENCHMARK(small_weight_gradient)->Name("MatMul/small_dw")->Apply(small_shapes);

/// 64 heads of [128, 64], read where a [batch, time, head, width] array has them.
void attention_scores(benchmark::State& state) {
  time_kernel(state,
              {"steep.MatMul",
               {filled({8, 128, 8, 64}), filled({8, 128, 8, 64})},
               {filled({8, 8, 128, 128})},
               {{"perm_a", Ints{0, 2, 1, 3}}, {"perm_b", Ints{0, 2, 3, 1}}, {"alpha", 0.125}}});
  count(state, "FLOP", 2.0 * 64 * 128 * 128 * 64);
}
void attention_values(benchmark::State& state) {
  time_kernel(state, {"steep.MatMul",
                      {filled({8, 8, 128, 128}), filled({8, 128, 8, 64})},
                      {filled({8, 128, 8, 64})},
                      {{"perm_b", Ints{0, 2, 1, 3}}, {"perm_y", Ints{0, 2, 1, 3}}}});
  count(state, "FLOP", 2.0 * 64 * 128 * 128 * 64);
}
void attention_value_gradient(benchmark::State& state) {
  time_kernel(
      state,
      {"steep.MatMul",
       {filled({8, 8, 128, 128}), filled({8, 128, 8, 64})},
       {filled({8, 128, 8, 64})},
       {{"perm_a", Ints{0, 1, 3, 2}}, {"perm_b", Ints{0, 2, 1, 3}}, {"perm_y", Ints{0, 2, 1, 3}}}});
  count(state, "FLOP", 2.0 * 64 * 128 * 128 * 64);
}
BENCHMARK(attention_scores)->Name("MatMul/scores")->Unit(benchmark::kMicrosecond)->UseRealTime();
BENCHMARK(attention_values)->Name("MatMul/values")->Unit(benchmark::kMicrosecond)->UseRealTime();
BENCHMARK(attention_value_gradient)
    ->Name("MatMul/dvalues")
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime();

/// Attention with dropout over [batch, time, head, 64] arrays: forward, and forward with gradient,
/// as one kernel each and as the products, softmax and dropout that they stand for.
struct AttentionShape {
  int64_t batch, heads, length;
  bool causal;

  explicit AttentionShape(const benchmark::State& state)
      : batch(state.range(0)),
        heads(state.range(1)),
        length(state.range(2)),
        causal(state.range(3) != 0) {}
  Tensor tokens() const { return filled({batch, length, heads, 64}); }
  Tensor scores() const { return filled({batch, heads, length, length}); }
  Tensor rows() const { return filled({batch, heads, length}); }
  double products(int count) const {
    return count * 2.0 * static_cast<double>(batch * heads * length * length * 64);
  }
};

const Ints kByHead{0, 2, 1, 3};
const Ints kByHeadSwapped{0, 2, 3, 1};
Tensor dropout_seed() { return Tensor::from<int64_t>({1, 2}, {2}); }

void fused_attention(benchmark::State& state) {
  const AttentionShape s(state);
  Attrs attrs{{"scale", 0.125},     {"ratio", 0.1},       {"causal", int64_t{s.causal}},
              {"perm_q", kByHead},  {"perm_k", kByHead},  {"perm_v", kByHead},
              {"perm_y", kByHead},  {"perm_dy", kByHead}, {"perm_dq", kByHead},
              {"perm_dk", kByHead}, {"perm_dv", kByHead}};
  Tensor q = s.tokens(), k = s.tokens(), v = s.tokens(), y = s.tokens(), max = s.rows(),
         sum = s.rows();
  std::vector<Run> runs{
      {"steep.Attention", {q, k, v, Tensor(), Tensor(), dropout_seed()}, {y, max, sum}, attrs}};
  if (state.range(4) != 0) {
    runs.push_back({"steep.AttentionGrad",
                    {s.tokens(), q, k, v, y, max, sum, Tensor(), Tensor(), dropout_seed()},
                    {s.tokens(), s.tokens(), s.tokens()},
                    attrs});
  }
  time_kernels(state, std::move(runs));
  count(state, "FLOP", s.products(state.range(4) != 0 ? 6 : 2));
}

void separate_attention(benchmark::State& state) {
  const AttentionShape s(state);
  Tensor q = s.tokens(), k = s.tokens(), v = s.tokens(), y = s.tokens();
  Tensor p = s.scores(), dropped = s.scores(), mask = filled({s.length, s.length});
  const Attrs random{{"ratio", 0.1}, {"stream", int64_t{0}}};
  std::vector<Run> runs{{"steep.MatMul",
                         {q, k},
                         {p},
                         {{"perm_a", kByHead}, {"perm_b", kByHeadSwapped}, {"alpha", 0.125}}}};
  if (s.causal) runs.push_back({"Add", {p, mask}, {p}});
  runs.push_back({"Softmax", {p}, {p}});
  runs.push_back({"steep.Dropout", {p, dropout_seed()}, {dropped}, random});
  runs.push_back({"steep.MatMul", {dropped, v}, {y}, {{"perm_b", kByHead}, {"perm_y", kByHead}}});
  if (state.range(4) != 0) {
    Tensor dy = s.tokens(), ds = s.scores();
    const Ints swapped{0, 1, 3, 2};
    runs.push_back({"steep.MatMul",
                    {dropped, dy},
                    {s.tokens()},
                    {{"perm_a", swapped}, {"perm_b", kByHead}, {"perm_y", kByHead}}});
    runs.push_back(
        {"steep.MatMul", {dy, v}, {ds}, {{"perm_a", kByHead}, {"perm_b", kByHeadSwapped}}});
    runs.push_back({"steep.Dropout", {ds, dropout_seed()}, {ds}, random});
    runs.push_back({"steep.SoftmaxGrad", {ds, p}, {ds}});
    runs.push_back({"steep.MatMul",
                    {ds, k},
                    {s.tokens()},
                    {{"perm_b", kByHead}, {"perm_y", kByHead}, {"alpha", 0.125}}});
    runs.push_back(
        {"steep.MatMul",
         {ds, q},
         {s.tokens()},
         {{"perm_a", swapped}, {"perm_b", kByHead}, {"perm_y", kByHead}, {"alpha", 0.125}}});
  }
  time_kernels(state, std::move(runs));
  count(state, "FLOP", s.products(state.range(4) != 0 ? 6 : 2));
}

void attention_shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"batch", "heads", "length", "causal", "gradient"});
  for (int64_t gradient : {0, 1}) {
    for (int64_t causal : {0, 1}) {
      b->Args({8, 8, 128, causal, gradient});
      b->Args({2, 8, 512, causal, gradient});
      b->Args({1, 8, 2048, causal, gradient});
    }
  }
  b->Unit(benchmark::kMicrosecond)->UseRealTime();
}
BENCHMARK(fused_attention)->Name("Attention/fused")->Apply(attention_shapes);
BENCHMARK(separate_attention)->Name("Attention/separate")->Apply(attention_shapes);

Tensor labels(int64_t rows, int64_t classes) {
  Tensor t = Tensor::empty(DType::i64, {rows});
  for (int64_t i = 0; i < rows; ++i) t.data<int64_t>()[i] = i * 7919 % classes;
  return t;
}
void cross_entropy(benchmark::State& state) {
  const int64_t n = state.range(0), c = state.range(1);
  time_kernel(
      state,
      {"steep.SoftmaxCrossEntropy", {filled({n, c}), labels(n, c)}, {filled({}), filled({n})}});
  count(state, "bytes", 4.0 * static_cast<double>(n * c));
}
void cross_entropy_grad(benchmark::State& state) {
  const int64_t n = state.range(0), c = state.range(1);
  Tensor lse = filled({n});
  std::fill_n(lse.data<float>(), n, std::log(static_cast<float>(c)));
  time_kernel(state, {"steep.SoftmaxCrossEntropyGrad",
                      {filled({}), filled({n, c}), labels(n, c), lse},
                      {filled({n, c})}});
  count(state, "bytes", 8.0 * static_cast<double>(n * c));
}
void vocabularies(benchmark::internal::Benchmark* b) {
  b->Args({700, 28782})->Args({1024, 30522})->Args({1024, 50257});
  b->Unit(benchmark::kMicrosecond)->UseRealTime();
}
BENCHMARK(cross_entropy)->Name("SoftmaxCrossEntropy")->Apply(vocabularies);
BENCHMARK(cross_entropy_grad)->Name("SoftmaxCrossEntropyGrad")->Apply(vocabularies);

void softmax(benchmark::State& state) {
  time_kernel(state, {"Softmax", {filled({8, 8, 128, 128})}, {filled({8, 8, 128, 128})}});
  count(state, "bytes", 8.0 * 64 * 128 * 128);
}
void softmax_grad(benchmark::State& state) {
  const Dims dims{8, 8, 128, 128};
  time_kernel(state, {"steep.SoftmaxGrad", {filled(dims), filled(dims)}, {filled(dims)}});
  count(state, "bytes", 12.0 * 64 * 128 * 128);
}
BENCHMARK(softmax)->Name("Softmax")->Unit(benchmark::kMicrosecond)->UseRealTime();
BENCHMARK(softmax_grad)->Name("SoftmaxGrad")->Unit(benchmark::kMicrosecond)->UseRealTime();

void layer_norm(benchmark::State& state) {
  time_kernel(state, {"LayerNormalization",
                      {filled({1024, 512}), filled({512}), filled({512})},
                      {filled({1024, 512}), filled({1024, 1}), filled({1024, 1})}});
  count(state, "bytes", 8.0 * 1024 * 512);
}
void layer_norm_grad(benchmark::State& state) {
  time_kernel(state, {"steep.LayerNormalizationGrad",
                      {filled({1024, 512}), filled({1024, 512}), filled({512}), filled({1024, 1}),
                       filled({1024, 1})},
                      {filled({1024, 512}), filled({512}), filled({512})}});
  count(state, "bytes", 12.0 * 1024 * 512);
}
BENCHMARK(layer_norm)->Name("LayerNorm")->Unit(benchmark::kMicrosecond)->UseRealTime();
BENCHMARK(layer_norm_grad)->Name("LayerNormGrad")->Unit(benchmark::kMicrosecond)->UseRealTime();

void adamw(benchmark::State& state) {
  const int64_t n = state.range(0);
  Tensor v = Tensor::zeros(DType::f32, {n});
  time_kernel(state, {"steep.Adam",
                      {filled({n}), filled({n}), filled({n}), v, Tensor::scalar(1e-3F),
                       Tensor::scalar(int64_t{1})},
                      {filled({n}), filled({n}), filled({n})},
                      {{"decoupled", int64_t{1}}, {"weight_decay", 0.01}}});
  count(state, "bytes", 28.0 * static_cast<double>(n));
}
BENCHMARK(adamw)
    ->Name("AdamW")
    ->Arg(1 << 20)
    ->Arg(int64_t{50257} * 512)
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime();

void gather_grad(benchmark::State& state) {
  Tensor shape = Tensor::from<int64_t>({50257, 512}, {2});
  time_kernel(state, {"steep.GatherGrad",
                      {filled({1024, 512}), labels(1024, 50257), shape},
                      {filled({50257, 512})}});
  count(state, "bytes", 4.0 * 512 * (50257 + 3 * 1024));
}
BENCHMARK(gather_grad)->Name("GatherGrad")->Unit(benchmark::kMicrosecond)->UseRealTime();

}  // namespace
}  // namespace steep

BENCHMARK_MAIN();
