// Guarantees of the planner, checked from outside: a plan is replayed byte by byte and compared
// with its graph.

#include "plan/plan.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <random>
#include <tuple>

#include "device/boundary.h"
#include "ops/build.h"
#include "ops/op_def.h"
#include "plan/assign_devices.h"
#include "plan/choose_kernels.h"
#include "plan/memory_planner.h"

namespace steep {
namespace {

using Pairs = std::vector<std::array<int32_t, 2>>;

SteepError* compute_nothing(void*, const SteepArgs*) { return nullptr; }
void forget(void* pairs) { delete static_cast<Pairs*>(pairs); }

SteepOperand read(void (*get)(const SteepNode*, int, SteepOperand*), const SteepNode* node, int i) {
  SteepOperand operand{};
  operand.size = sizeof(operand);
  get(node, i, &operand);
  return operand;
}

/// A kernel that allows all legal sharing of buffers, and computes nothing.
int accept(const SteepCandidate*, void*, const SteepNode* node, SteepKernel* kernel, char*, size_t,
           SteepError**) {
  const SteepHost& host = host_table();
  auto* pairs = new Pairs;
  kernel->self = pairs;
  kernel->execute = compute_nothing;
  kernel->destroy = forget;
  if (find_op(host.op(node))->elementwise) {
    const SteepOperand y = read(host.output, node, 0);
    for (int i = 0; i < host.input_count(node); ++i) {
      const SteepOperand x = read(host.input, node, i);
      if (Dims(x.dims, x.dims + x.rank) == Dims(y.dims, y.dims + y.rank)) pairs->push_back({i, 0});
    }
  } else {
    kernel->scratch_bytes = 100;
  }
  kernel->may_share = reinterpret_cast<const int32_t(*)[2]>(pairs->data());
  kernel->may_share_count = pairs->size();
  return 1;
}

/// A provider with all operators, or with all except matrix products.
template <bool kProducts>
const SteepCandidate* any_candidate(void*, const char* op, size_t* count) {
  static const SteepCandidate any{sizeof(SteepCandidate), "any", accept};
  *count = kProducts || std::string_view(op) != "MatMul" ? 1 : 0;
  return &any;
}

/// Only the host, with all operators.
Devices any() {
  static const Provider provider = [] {
    Provider p{.table = {}, .name = "any"};
    p.table.flags = STEEP_HOST_MEMORY;
    p.table.candidates = any_candidate<true>;
    return p;
  }();
  return Devices(std::vector{Device::open(provider, 0, {})});
}

/// A second device with all operators except matrix products.
Devices two() {
  static const Provider provider = [] {
    Provider p{.table = {}, .name = "other"};
    p.table.candidates = any_candidate<false>;
    return p;
  }();
  return Devices(std::vector{Device::open(provider, 0, {}), host_device()});
}

const Type kMatrix{DType::f32, Shape{8, 8}};

/// A random graph of elementwise nodes, products, views and reductions, forward and backward.
Graph random_graph(uint32_t seed) {
  std::mt19937 random(seed);
  auto pick = [&](const std::vector<Value>& from) { return from[random() % from.size()]; };
  Graph g;
  std::vector<Value> pool{g.add_input("x", kMatrix), g.add_input("y", kMatrix)};
  Value state = g.add_state("w", kMatrix);
  pool.push_back(state);
  auto grow = [&](int nodes) {
    for (int i = 0; i < nodes; ++i) {
      switch (random() % 6) {
        case 0: pool.push_back(pick(pool) + pick(pool)); break;
        case 1: pool.push_back(tanh(pick(pool))); break;
        case 2: pool.push_back(matmul(pick(pool), pick(pool))); break;
        case 3: pool.push_back(reshape(reshape(pick(pool), Ints{64}), Ints{8, 8})); break;
        case 4: pool.push_back(pick(pool) * sum(pick(pool), {0}, true)); break;
        default: pool.push_back(transpose(pick(pool), {1, 0})); break;
      }
    }
  };
  grow(20);
  g.add_output("first", pick(pool));
  g.add_output("second", pick(pool));
  g.add_output("second, flat", reshape(g.outputs()[1].value, Ints{64}));
  Graph::Scope scope(g, Phase::backward, "back");
  pool.push_back(g.add_gradient_input("d_first", g.outputs()[0].value));
  grow(20);
  g.add_output("third", pool.back(), Phase::backward);
  g.add_update(state, pool.back() + pick(pool));
  return g;
}

struct Range {
  size_t begin, end;
};

/// The lowest limit that was found for the graph.
MemoryLimit least_limit(Graph g, const Devices& devices) {
  const KernelGraph kernel_graph = choose_kernels(g, devices);
  const std::vector<int> device = assign_devices(g, kernel_graph);
  const KernelOf kernels = kernels_of(g, kernel_graph);
  const ViewOf views = views_of(g, kernel_graph);
  MemoryPlanner planner(g, {kernels, views, device, devices});
  return {.bytes = planner.search().back().bytes};
}

/// A seed, whether there is a second device, and whether memory is limited as far as possible.
class PlanTest : public testing::TestWithParam<std::tuple<uint32_t, bool, bool>> {
 protected:
  static Plan plan_one() {
    const auto [seed, crosses, limited] = GetParam();
    const Devices devices = crosses ? two() : any();
    const Graph g = random_graph(seed);
    return plan_within(g, devices, {}, limited ? least_limit(g, devices) : MemoryLimit());
  }
};

bool is_constant(Value x) {
  const Node n = x.producer();
  return x.role() == Role::constant || (n && n.op() == kCopy && is_constant(n.input(0)));
}

TEST_P(PlanTest, LiveBuffersOfTheArenaShareNoByte) {
  const Plan plan = plan_one();
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    const Buffer& a = plan.buffers[i];
    if (a.storage != Storage::arena) continue;
    EXPECT_EQ(a.offset % 64, 0U);
    EXPECT_LE(a.offset + a.bytes, a.device == 0 ? plan.arena_bytes : plan.device_arena_bytes.at(0));
    for (size_t j = 0; j < i; ++j) {
      const Buffer& b = plan.buffers[j];
      if (b.storage != Storage::arena || a.device != b.device) continue;
      const bool alive_together = a.first <= b.last && b.first <= a.last;
      const bool overlap = a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
      EXPECT_FALSE(alive_together && overlap) << "buffers " << i << " and " << j << "\n"
                                              << to_text(plan);
    }
  }
}

// Replays a plan symbolically: each byte of the buffers remembers the value that was last written
// there, and every value that a step reads must still be there. In-place results and views count as
// their root.
class Replay {
 public:
  explicit Replay(const Plan& plan) : plan_(plan) {
    for (Node n : plan.graph->nodes()) {
      const OpDef* def = find_op(n.op());
      if (def == nullptr || !def->view) continue;
      root_[n.output(0).id()] = root_of(n.input(0));
    }
    for (size_t b = 0; b < plan.buffers.size(); ++b) {
      const Buffer& buffer = plan.buffers[b];
      const Place p{static_cast<int>(b), 0};
      if (buffer.storage == Storage::input) write(p, plan.graph->inputs()[buffer.index].id());
      if (buffer.storage == Storage::state) write(p, plan.graph->states()[buffer.index].id());
    }
  }

  void step(size_t s) {
    const Step& step = plan_.steps[s];
    if (!step.node) {
      const uint32_t value = written_[key(step.inputs[0]).begin];
      expect(step.inputs[0], value, s);
      write(step.outputs[0], value);
      return;
    }
    for (int i = 0; i < step.node.input_count(); ++i) {
      Value x = step.node.input(i);
      if (!x || is_constant(x)) continue;
      expect(step.inputs[static_cast<size_t>(i)], root_of(x), s);
    }
    if (step.scratch.buffer >= 0) write(step.scratch, UINT32_MAX);
    for (int o = 0; o < step.node.output_count(); ++o) {
      write(step.outputs[static_cast<size_t>(o)], root_of(step.node.output(o)));
    }
  }

  void results() {
    for (const PlannedOutput& o : plan_.outputs) {
      for (const Output& wanted : plan_.graph->outputs()) {
        if (wanted.name == o.name) expect(o.place, root_of(wanted.value), plan_.steps.size());
      }
    }
    for (const Update& u : plan_.graph->updates()) {
      for (size_t b = 0; b < plan_.buffers.size(); ++b) {
        if (plan_.buffers[b].storage == Storage::state) {
          expect({static_cast<int>(b), 0}, root_of(u.value), plan_.steps.size());
        }
      }
    }
  }

 private:
  uint32_t root_of(Value v) const {
    const auto found = root_.find(v.id());
    return found != root_.end() ? found->second : v.id();
  }

  Range key(const Place& p) const {
    const Buffer& b = plan_.buffers[static_cast<size_t>(p.buffer)];
    const size_t base = b.storage == Storage::arena
                            ? b.offset + (static_cast<size_t>(b.device) << 36)
                            : (static_cast<size_t>(p.buffer) + 1) << 40;
    return Range{base + p.offset, base + b.bytes};
  }

  void write(const Place& p, uint32_t value) {
    const Range r = key(p);
    for (size_t byte = r.begin; byte < r.end; byte += 4) written_[byte] = value;
  }

  void expect(const Place& p, uint32_t value, size_t step) {
    const Range r = key(p);
    for (size_t byte = r.begin; byte < r.end; byte += 4) {
      ASSERT_EQ(written_.count(byte) != 0 ? written_[byte] : UINT32_MAX, value)
          << "step " << step << "\n"
          << to_text(plan_);
    }
  }

  const Plan& plan_;
  std::map<uint32_t, uint32_t> root_;   // view → its root
  std::map<size_t, uint32_t> written_;  // byte → root value id
};

TEST_P(PlanTest, EveryStepReadsWhatItsGraphSays) {
  const Plan plan = plan_one();
  Replay replay(plan);
  for (size_t s = 0; s < plan.steps.size(); ++s) replay.step(s);
  replay.results();
}

TEST_P(PlanTest, NoTwoResultsShareAByte) {
  const Plan plan = plan_one();
  for (size_t i = 0; i < plan.outputs.size(); ++i) {
    EXPECT_EQ(plan.buffers[static_cast<size_t>(plan.outputs[i].place.buffer)].storage,
              Storage::output);
    for (size_t j = 0; j < i; ++j) {
      EXPECT_NE(plan.outputs[i].place.buffer, plan.outputs[j].place.buffer) << to_text(plan);
    }
  }
}

TEST_P(PlanTest, EqualGraphsGiveEqualPlans) { EXPECT_EQ(to_text(plan_one()), to_text(plan_one())); }

// Every operand is on the device of its kernel, and every transfer is a step.
TEST_P(PlanTest, KernelsReadAndWriteOnTheirDevice) {
  const Plan plan = plan_one();
  bool elsewhere = false;
  for (const Step& step : plan.steps) {
    elsewhere = elsewhere || step.device != 0;
    for (const auto* places : {&step.inputs, &step.outputs}) {
      for (const Place& p : *places) {
        if (p.buffer < 0 || !step.kernel) continue;
        EXPECT_EQ(plan.buffers[static_cast<size_t>(p.buffer)].device, step.device) << to_text(plan);
      }
    }
  }
  EXPECT_EQ(elsewhere, std::get<1>(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(RandomGraphs, PlanTest,
                         testing::Combine(testing::Range(0U, 60U), testing::Bool(),
                                          testing::Bool()));

TEST(Plan, AChainRunsInPlace) {
  Graph g;
  Value x = g.add_input("x", kMatrix);
  Value y = matmul(x, x);
  for (int i = 0; i < 5; ++i) y = tanh(y);
  g.add_output("y", matmul(y, y));
  EXPECT_EQ(make_plan(std::move(g), any()).arena_bytes,
            256U + 128U);  // one matrix, and scratch
}

TEST(Plan, AChainThatLeavesIsMadeWhereItLeaves) {
  Graph g;
  Value x = g.add_input("x", kMatrix);
  g.add_output("y", tanh(tanh(matmul(x, x))));
  const Plan plan = make_plan(std::move(g), any());
  ASSERT_EQ(plan.steps.size(), 3U);
  EXPECT_EQ(plan.steps[0].outputs[0].buffer, plan.outputs[0].place.buffer);
  EXPECT_EQ(plan.arena_bytes, 128U);  // scratch
}

TEST(Plan, AStateIsUpdatedInPlaceAfterItsReaders) {
  Graph g;
  Value x = g.add_input("x", kMatrix);
  Value w = g.add_state("w", kMatrix);
  g.add_update(w, w - x);
  g.add_output("y", matmul(x, w));
  const Plan plan = make_plan(std::move(g), any());
  ASSERT_EQ(plan.steps.size(), 2U);
  EXPECT_EQ(plan.steps[0].node.op(), "MatMul");
  EXPECT_EQ(plan.steps[1].outputs[0].buffer, plan.steps[1].inputs[0].buffer);
}

TEST(Plan, AnUpdateDoesNotWaitForTheNextGradient) {
  Graph g;
  Value x = g.add_input("x", kMatrix);
  Value w1 = g.add_state("w1", kMatrix);
  Value w2 = g.add_state("w2", kMatrix);
  Value first = tanh(x), second = tanh(first);
  g.add_update(w1, w1 - first);
  g.add_update(w2, w2 - second);
  const Plan plan = make_plan(std::move(g), any());
  std::string order;
  for (const Step& step : plan.steps) order += step.node.op() + " ";
  EXPECT_EQ(order, "Tanh Sub Tanh Sub ");
}

TEST(Plan, AnOutputThatLiesInAnotherIsCopied) {
  Graph g;
  Value x = g.add_input("x", kMatrix);
  const Value y = tanh(x);
  g.add_output("y", y);
  g.add_output("again", y);
  g.add_output("flat", reshape(y, Ints{64}));
  const Plan plan = make_plan(std::move(g), any());
  ASSERT_EQ(plan.outputs.size(), 3U);
  EXPECT_NE(plan.outputs[0].place.buffer, plan.outputs[1].place.buffer);
  EXPECT_NE(plan.outputs[0].place.buffer, plan.outputs[2].place.buffer);
  EXPECT_NE(plan.outputs[1].place.buffer, plan.outputs[2].place.buffer);
}

TEST(Plan, OutputsThatAreRowsOfOneValueAreNotCopied) {
  Graph g;
  Value x = g.add_input("x", kMatrix);
  const Value y = tanh(x);
  const std::vector<Value> rows =
      apply_n("Split", std::vector{y, ints(g, {4, 4})}, 2, {{"axis", int64_t{0}}});
  g.add_output("upper", rows[0]);
  g.add_output("lower", rows[1]);
  const Plan plan = make_plan(std::move(g), any());
  EXPECT_EQ(plan.steps.size(), 1U) << to_text(plan);
}

TEST(Plan, AnOutputThatIsAnInputIsCopied) {
  Graph g;
  Value x = g.add_input("x", kMatrix);
  g.add_output("same", reshape(x, Ints{64}));
  const Plan plan = make_plan(std::move(g), any());
  ASSERT_EQ(plan.steps.size(), 1U);
  EXPECT_EQ(plan.steps[0].candidate, "copy");
}

}  // namespace
}  // namespace steep
