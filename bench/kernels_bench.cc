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

#include "device/kernel.h"
#include "providers/cpu/cpu.h"
#include "steep/error.h"

namespace steep {
namespace {

struct Run {
  std::string op;
  std::vector<Tensor> inputs;
  std::vector<Tensor> outputs;
  Attrs attrs{};
  std::string only{};  ///< the candidate to time, where not the first that accepts
};

/// Builds the kernels once and times one execute() of each in turn. The label names the candidates.
void time_kernels(benchmark::State& state, std::vector<Run> runs) {
  struct Ready {
    cpu::MadeKernel made;
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
    ready.made = cpu::make_kernel(spec, run.only, &why_not);
    if (!ready.made.kernel) return state.SkipWithError(why_not.c_str());
    ready.scratch =
        Tensor::zeros(DType::u8, {static_cast<int64_t>(ready.made.kernel->scratch_bytes)});
    label += (label.empty() ? "" : ", ") + std::string(ready.made.candidate);
    all.push_back(std::move(ready));
  }
  auto execute = [&] {
    for (Ready& r : all) {
      r.made.kernel->execute({r.in.data(), r.out.data(), r.scratch.data()});
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

void in_microseconds(benchmark::internal::Benchmark* b) {
  b->Unit(benchmark::kMicrosecond)->UseRealTime();
}

enum class Stored : uint8_t { as_read, transposed };

/// y[m, n] = a[m, k] b[k, n], where either operand may be stored transposed.
void product(benchmark::State& state, int64_t m, int64_t n, int64_t k, Stored a = Stored::as_read,
             Stored b = Stored::as_read) {
  const bool turn_a = a == Stored::transposed, turn_b = b == Stored::transposed;
  Attrs attrs;
  if (turn_a) attrs.set("perm_a", Ints{1, 0});
  if (turn_b) attrs.set("perm_b", Ints{1, 0});
  time_kernel(state,
              {"steep.MatMul",
               {filled(turn_a ? Dims{k, m} : Dims{m, k}), filled(turn_b ? Dims{n, k} : Dims{k, n})},
               {filled({m, n})},
               std::move(attrs)});
  count(state, "FLOP", 2.0 * static_cast<double>(m * n * k));
}

/// The product of shape (m, n, k), and its two gradients: da = dy bᵀ, db = aᵀ dy.
void forward(benchmark::State& s) { product(s, s.range(0), s.range(1), s.range(2)); }
void input_gradient(benchmark::State& s) {
  product(s, s.range(0), s.range(2), s.range(1), Stored::as_read, Stored::transposed);
}
void weight_gradient(benchmark::State& s) {
  product(s, s.range(2), s.range(1), s.range(0), Stored::transposed);
}
/// The same where the weight is stored [n, k], as torch.nn.Linear does.
void forward_linear(benchmark::State& s) {
  product(s, s.range(0), s.range(1), s.range(2), Stored::as_read, Stored::transposed);
}
void weight_gradient_linear(benchmark::State& s) {
  product(s, s.range(1), s.range(2), s.range(0), Stored::transposed);
}

void matmul_shapes(benchmark::internal::Benchmark* b) {
  b->Args({700, 28782, 200});
  for (int64_t n : {512, 1536, 2048, 30522, 50257}) b->Args({1024, n, 512});
  in_microseconds(b->Args({1024, 512, 2048}));
}
BENCHMARK(forward)->Name("MatMul/y")->Apply(matmul_shapes);
BENCHMARK(input_gradient)->Name("MatMul/da")->Apply(matmul_shapes);
BENCHMARK(weight_gradient)->Name("MatMul/db")->Apply(matmul_shapes);
BENCHMARK(forward_linear)->Name("MatMul/y_linear")->Apply(matmul_shapes);
BENCHMARK(weight_gradient_linear)->Name("MatMul/dw_linear")->Apply(matmul_shapes);

/// Near the border of what our own loops take; with a transposed right operand the loops pack it.
void small_weight_gradient(benchmark::State& s) {
  product(s, s.range(0), s.range(1), s.range(2), Stored::transposed);
}
void small_shapes(benchmark::internal::Benchmark* b) {
  b->Args({32, 128, 64})->Args({32, 10, 128})->Args({64, 64, 64})->Args({64, 128, 64});
  b->Args({128, 128, 32})->Args({128, 128, 64})->UseRealTime();
}
BENCHMARK(forward)->Name("MatMul/small")->Args({32, 1, 10})->UseRealTime();
BENCHMARK(forward)->Name("MatMul/small_y")->Apply(small_shapes);
BENCHMARK(forward_linear)->Name("MatMul/small_dx")->Apply(small_shapes);
BENCHMARK(small_weight_gradient)->Name("MatMul/small_dw")->Apply(small_shapes);

/// A product of 64 heads, read where [batch, time, head, width] arrays have them.
void head_product(benchmark::State& state, Dims a, Dims b, Dims y, Attrs attrs) {
  time_kernel(state, {"steep.MatMul",
                      {filled(std::move(a)), filled(std::move(b))},
                      {filled(std::move(y))},
                      std::move(attrs)});
  count(state, "FLOP", 2.0 * 64 * 128 * 128 * 64);
}
const Dims kTokens{8, 128, 8, 64};
const Dims kScores{8, 8, 128, 128};
const Ints kByHead{0, 2, 1, 3};
const Ints kByHeadSwapped{0, 2, 3, 1};
const Ints kSwapped{0, 1, 3, 2};

void attention_scores(benchmark::State& s) {
  head_product(s, kTokens, kTokens, kScores,
               {{"perm_a", kByHead}, {"perm_b", kByHeadSwapped}, {"alpha", 0.125}});
}
void attention_values(benchmark::State& s) {
  head_product(s, kScores, kTokens, kTokens, {{"perm_b", kByHead}, {"perm_y", kByHead}});
}
void attention_value_gradient(benchmark::State& s) {
  head_product(s, kScores, kTokens, kTokens,
               {{"perm_a", kSwapped}, {"perm_b", kByHead}, {"perm_y", kByHead}});
}
BENCHMARK(attention_scores)->Name("MatMul/scores")->Apply(in_microseconds);
BENCHMARK(attention_values)->Name("MatMul/values")->Apply(in_microseconds);
BENCHMARK(attention_value_gradient)->Name("MatMul/dvalues")->Apply(in_microseconds);

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
    runs.push_back({"steep.MatMul",
                    {dropped, dy},
                    {s.tokens()},
                    {{"perm_a", kSwapped}, {"perm_b", kByHead}, {"perm_y", kByHead}}});
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
         {{"perm_a", kSwapped}, {"perm_b", kByHead}, {"perm_y", kByHead}, {"alpha", 0.125}}});
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
  in_microseconds(b);
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
  time_kernel(state, {"steep.SoftmaxCrossEntropy",
                      {filled({n, c}), labels(n, c)},
                      {filled({}), filled({n}), filled({n})}});
  count(state, "bytes", 4.0 * static_cast<double>(n * c));
}
void cross_entropy_grad(benchmark::State& state) {
  const int64_t n = state.range(0), c = state.range(1);
  Tensor lse = filled({n});
  std::fill_n(lse.data<float>(), n, std::log(static_cast<float>(c)));
  time_kernel(state,
              {"steep.SoftmaxCrossEntropyGrad",
               {filled({}), filled({n, c}), labels(n, c), lse, Tensor::zeros(DType::f32, {n})},
               {filled({n, c})}});
  count(state, "bytes", 8.0 * static_cast<double>(n * c));
}
void vocabularies(benchmark::internal::Benchmark* b) {
  in_microseconds(b->Args({700, 28782})->Args({1024, 30522})->Args({1024, 50257}));
}
BENCHMARK(cross_entropy)->Name("SoftmaxCrossEntropy")->Apply(vocabularies);
BENCHMARK(cross_entropy_grad)->Name("SoftmaxCrossEntropyGrad")->Apply(vocabularies);

void softmax(benchmark::State& state) {
  time_kernel(state, {"Softmax", {filled(kScores)}, {filled(kScores)}});
  count(state, "bytes", 8.0 * 64 * 128 * 128);
}
void softmax_grad(benchmark::State& state) {
  time_kernel(state, {"steep.SoftmaxGrad", {filled(kScores), filled(kScores)}, {filled(kScores)}});
  count(state, "bytes", 12.0 * 64 * 128 * 128);
}
BENCHMARK(softmax)->Name("Softmax")->Apply(in_microseconds);
BENCHMARK(softmax_grad)->Name("SoftmaxGrad")->Apply(in_microseconds);

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
BENCHMARK(layer_norm)->Name("LayerNorm")->Apply(in_microseconds);
BENCHMARK(layer_norm_grad)->Name("LayerNormGrad")->Apply(in_microseconds);

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
BENCHMARK(adamw)->Name("AdamW")->Arg(1 << 20)->Arg(int64_t{50257} * 512)->Apply(in_microseconds);

void gather_grad(benchmark::State& state) {
  Tensor shape = Tensor::from<int64_t>({50257, 512}, {2});
  time_kernel(state, {"steep.GatherGrad",
                      {filled({1024, 512}), labels(1024, 50257), shape},
                      {filled({50257, 512})}});
  count(state, "bytes", 4.0 * 512 * (50257 + 3 * 1024));
}
BENCHMARK(gather_grad)->Name("GatherGrad")->Apply(in_microseconds);

/// Layers that oneDNN and a kernel of ours both have, forward and backward, by the candidate named.
void recurrent(benchmark::State& state, const std::string& cell, const std::string& candidate) {
  const int64_t steps = state.range(0), batch = state.range(1), h = state.range(2);
  const int64_t width = (cell == "LSTM" ? 4 : 3) * h;
  Tensor x = filled({steps, batch, h}), w = filled({1, width, h}), r = filled({1, width, h}),
         b = filled({1, 2 * width}), y = filled({steps, 1, batch, h}), none;
  Attrs attrs{{"hidden_size", h}};
  std::vector<Run> runs{{cell, {x, w, r, b}, {y}, attrs, candidate}};
  attrs.set("cell", cell);
  Tensor absent = filled({0});
  runs.push_back({"steep.RecurrentGrad",
                  {filled(y.dims()), none, none, x, w, r, b},
                  {filled(x.dims()), filled(w.dims()), filled(r.dims()), filled(b.dims()), absent,
                   absent, absent},
                  attrs,
                  candidate});
  time_kernels(state, std::move(runs));
  count(state, "FLOP", 6.0 * static_cast<double>(steps * batch * width * 2 * h));
}
void lstm_shape(benchmark::internal::Benchmark* b) { in_microseconds(b->Args({35, 20, 200})); }
void gru_shape(benchmark::internal::Benchmark* b) { in_microseconds(b->Args({64, 8, 256})); }
BENCHMARK_CAPTURE(recurrent, lstm_onednn, "LSTM", "onednn")->Apply(lstm_shape);
BENCHMARK_CAPTURE(recurrent, lstm_gemm, "LSTM", "gemm")->Apply(lstm_shape);
BENCHMARK_CAPTURE(recurrent, gru_onednn, "GRU", "onednn")->Apply(gru_shape);
BENCHMARK_CAPTURE(recurrent, gru_gemm, "GRU", "gemm")->Apply(gru_shape);

/// Of ResNet: a window of 3 at every second place.
void pool(benchmark::State& state, const std::string& op, const std::string& candidate) {
  const int64_t n = state.range(0), c = state.range(1), in = state.range(2), out = (in + 1) / 2;
  const Attrs attrs{
      {"kernel_shape", Ints{3, 3}}, {"strides", Ints{2, 2}}, {"pads", Ints{1, 1, 1, 1}}};
  Tensor x = filled({n, c, in, in}), y = filled({n, c, out, out});
  Tensor second = op == "MaxPool" ? x : Tensor::from<int64_t>({n, c, in, in}, {4});
  time_kernels(state,
               {{op, {x}, {y}, attrs, candidate},
                {"steep." + op + "Grad", {y, second}, {filled(x.dims())}, attrs, candidate}});
  count(state, "bytes", 4.0 * static_cast<double>(2 * x.size() + 2 * y.size()));
}
void images(benchmark::internal::Benchmark* b) {
  in_microseconds(b->Args({32, 64, 112})->Args({8, 20, 57}));
}
BENCHMARK_CAPTURE(pool, max_onednn, "MaxPool", "onednn")->Apply(images);
BENCHMARK_CAPTURE(pool, max_loops, "MaxPool", "loops")->Apply(images);
BENCHMARK_CAPTURE(pool, average_onednn, "AveragePool", "onednn")->Apply(images);
BENCHMARK_CAPTURE(pool, average_loops, "AveragePool", "loops")->Apply(images);

}  // namespace
}  // namespace steep

BENCHMARK_MAIN();
