// An artifact trains like the session that wrote it; damaged or hostile artifacts are refused.
#include "artifact/artifact.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "artifact/graph_json.h"
#include "artifact/rules.h"
#include "steep/artifact.h"
#include "steep/error.h"
#include "train/models.h"
#include "train/temp_folder.h"

namespace steep {
namespace {

using testing::mlp_bytes;
using testing::random_labels;
using testing::random_tensor;
using testing::same_tensors;
using testing::session_of;

TrainingOptions classifier(const std::string& optimizer = "adamw") {
  TrainingOptions options{.loss = "softmax_cross_entropy"};
  options.optimizer.kind = optimizer;
  options.optimizer.lr = 0.05;
  return options;
}

std::vector<Tensor> batch(int64_t rows, unsigned seed) {
  return {random_tensor({rows, 3}, seed), random_labels(rows, 4, seed)};
}

class ArtifactFile : public testing::TempFolder {
 protected:
  std::string bytes_of(const TrainingSession& session,
                       std::initializer_list<std::vector<Tensor>> batches) {
    session.save_artifact(folder() / "model.steep", batches);
    return testing::read_bytes(folder() / "model.steep");
  }
};

ArtifactSession open_bytes(const std::string& bytes) {
  return ArtifactSession(std::as_bytes(std::span(bytes)));
}

struct Trained {
  const char* name;
  TrainingOptions options;
};

std::vector<Trained> trained() {
  std::vector<Trained> all;
  for (const char* kind : {"sgd", "adam", "adamw", "rmsprop", "adagrad", "adamax", "adafactor"})
    all.push_back({kind, classifier(kind)});
  TrainingOptions momentum = classifier("sgd");
  momentum.optimizer.momentum = 0.9;
  all.push_back({"momentum", momentum});
  TrainingOptions amsgrad = classifier("adam");
  amsgrad.optimizer.amsgrad = true;
  all.push_back({"amsgrad", amsgrad});
  TrainingOptions clipped = classifier();
  clipped.clip_norm = 0.5;
  clipped.schedule = {.kind = "cosine", .warmup_steps = 2, .total_steps = 6, .min_lr_ratio = 0.1};
  all.push_back({"clipped, with a schedule", clipped});
  TrainingOptions watched = classifier();
  watched.check_finite = true;
  all.push_back({"check_finite", watched});
  TrainingOptions shown = classifier();
  shown.step_outputs = {"logits"};
  all.push_back({"step_outputs", shown});
  TrainingOptions ignoring = classifier();
  ignoring.ignore_index = 2;
  ignoring.disabled_passes = {"compute_read_rows"};  // artifacts are compiled without this pass
  all.push_back({"ignore_index", ignoring});
  TrainingOptions grouped = classifier();
  OptimizerOptions own{.kind = "sgd", .lr = 0.1};
  grouped.groups.push_back({.names = {"w1"}, .optimizer = own});
  all.push_back({"a group with its own optimizer", grouped});
  TrainingOptions matrices = classifier("muon");
  matrices.frozen = {"b0", "b1"};
  all.push_back({"muon for the matrices", matrices});
  return all;
}

TEST_F(ArtifactFile, TrainsBitForBitAsTheSessionThatWroteIt) {
  for (const bool dropout : {false, true}) {
    for (const Trained& t : trained()) {
      SCOPED_TRACE(std::string(t.name) + (dropout ? ", dropout" : ""));
      TrainingSession session = session_of(mlp_bytes(dropout), t.options);
      session.step(batch(8, 1));  // moments and counters must differ from their initial values
      session.save_artifact(folder() / "model.steep", {batch(8, 1), batch(5, 1)});
      ArtifactSession device(folder() / "model.steep");
      for (unsigned i = 2; i < 6; ++i) {
        const int64_t rows = i % 2 == 0 ? 8 : 5;
        const StepResult wanted = session.step(batch(rows, i));
        const StepResult found = device.step(batch(rows, i));
        EXPECT_EQ(found.loss, wanted.loss);
        EXPECT_EQ(found.lr, wanted.lr);
        EXPECT_EQ(found.step, wanted.step);
        EXPECT_EQ(found.grad_norm, wanted.grad_norm);
        ASSERT_EQ(found.outputs.size(), wanted.outputs.size());
      }
      EXPECT_TRUE(same_tensors(device.weights(), session.weights()));
      const std::vector<Tensor> fed{batch(5, 9)[0]};
      const std::vector<Tensor> wanted = session.eval(fed).outputs, found = device.predict(fed);
      EXPECT_TRUE(same_tensors({{"y", found.at(0)}}, {{"y", wanted.at(0)}}));
    }
  }
}

TEST_F(ArtifactFile, GoesOnFromWhatItSaved) {
  const std::string written = bytes_of(session_of(mlp_bytes(true), classifier()), {batch(8, 1)});
  ArtifactSession whole = open_bytes(written), device = open_bytes(written);
  for (unsigned i = 0; i < 6; ++i) {
    whole.step(batch(8, i));
    device.step(batch(8, i));
    device.save(folder() / "again.steep");
    device = ArtifactSession(folder() / "again.steep");
  }
  EXPECT_EQ(device.step_count(), 6);
  EXPECT_TRUE(same_tensors(device.weights(), whole.weights()));
}

TEST_F(ArtifactFile, OnlyPredictsWhereTheLabelIsLeftOut) {
  const TrainingSession session = session_of(mlp_bytes(false), classifier());
  ArtifactSession device = open_bytes(bytes_of(session, {{batch(1, 1)[0]}}));
  EXPECT_TRUE(device.input_info().empty());
  EXPECT_EQ(device.output_info().at(0).text(), "float32[1, 4]");
  EXPECT_EQ(device.predict({batch(1, 2)[0]}).at(0).dims(), (Dims{1, 4}));
  EXPECT_THROW(device.step(batch(1, 2)), ShapeError);
}

TEST_F(ArtifactFile, RefusesWhatDoesNotFitAndChangesNothing) {
  const TrainingSession session = session_of(mlp_bytes(false), classifier());
  ArtifactSession device = open_bytes(bytes_of(session, {batch(8, 1), batch(2, 1)}));
  EXPECT_EQ(device.input_info().at(0).text(), "float32[?, 3]");
  EXPECT_THROW(device.step(batch(7, 1)), ShapeError);
  EXPECT_THROW(device.step({batch(8, 1)[0]}), ShapeError);
  Tensor labels = random_labels(8, 4, 1);
  labels.data<int64_t>()[3] = 4;
  EXPECT_THROW(device.step({batch(8, 1)[0], labels}), DataError);
  Tensor bad = batch(8, 1)[0];
  bad.data<float>()[5] = NAN;
  EXPECT_THROW(device.step({bad, batch(8, 1)[1]}), DataError);
  EXPECT_THROW(device.set_weights({{"w9", random_tensor({5}, 1)}}), ModelError);
  EXPECT_THROW(device.set_weights({{"b0", random_tensor({4}, 1)}}), ShapeError);
  for (const double rate : {-1.0, 1e39, double{INFINITY}, double{NAN}})
    EXPECT_THROW(device.set_lr(rate), DataError) << rate;
  EXPECT_EQ(device.step_count(), 0);
  EXPECT_TRUE(same_tensors(device.weights(), session.weights()));
  device.set_weights({{"b0", random_tensor({5}, 1)}});
  EXPECT_TRUE(same_tensors({{"b0", device.weights().at("b0")}}, {{"b0", random_tensor({5}, 1)}}));
}

TEST_F(ArtifactFile, RefusesSessionsThatItCannotHold) {
  const auto refuses = [&](TrainingOptions options) {
    const TrainingSession session = session_of(mlp_bytes(false), std::move(options));
    EXPECT_THROW(session.save_artifact(folder() / "no.steep", {batch(8, 1)}), ModelError);
    EXPECT_FALSE(std::filesystem::exists(folder() / "no.steep"));
  };
  TrainingOptions half = classifier(), averaged = classifier(), brain = classifier();
  half.precision = "fp16";
  averaged.ema_decay = 0.9;
  brain.precision = "bf16";
  refuses(half);
  refuses(averaged);
  refuses(brain);
  const TrainingSession session = session_of(mlp_bytes(false), classifier());
  EXPECT_THROW(
      session.save_artifact(folder() / "no.steep", std::initializer_list<std::vector<Tensor>>{}),
      DataError);
}

TEST_F(ArtifactFile, RefusesAFileThatIsCutOff) {
  const std::string bytes = bytes_of(session_of(mlp_bytes(false), classifier()), {batch(8, 1)});
  for (size_t size = 0; size < bytes.size(); size += 1 + size / 16) {
    SCOPED_TRACE(size);
    EXPECT_THROW(open_bytes(bytes.substr(0, size)), CheckpointError);
  }
  EXPECT_THROW(open_bytes(bytes + '\0'), CheckpointError);
}

TEST_F(ArtifactFile, RefusesEveryBitThatFlips) {
  std::string bytes = bytes_of(session_of(mlp_bytes(false), classifier()), {batch(8, 1)});
  for (size_t i = 0; i < bytes.size(); i += i < 64 ? 1 : 61) {
    SCOPED_TRACE(i);
    bytes[i] = static_cast<char>(bytes[i] ^ (1 << i % 8));
    EXPECT_THROW(open_bytes(bytes), CheckpointError);
    bytes[i] = static_cast<char>(bytes[i] ^ (1 << i % 8));
  }
}

TEST_F(ArtifactFile, NamesAnotherVersion) {
  std::string bytes = bytes_of(session_of(mlp_bytes(false), classifier()), {batch(8, 1)});
  bytes[8] = 2;
  try {
    open_bytes(bytes);
    FAIL() << "it was read";
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.parts().what, "The artifact is of another version.");
    EXPECT_EQ(error.parts().received, "2");
  }
}

TEST_F(ArtifactFile, KeepsTheBoundOfMemory) {
  session_of(mlp_bytes(false), classifier()).save_artifact(folder() / "model.steep", {batch(8, 1)});
  EXPECT_THROW(ArtifactSession(folder() / "model.steep", Limits{.max_bytes = 100}),
               OutOfMemoryError);
}

// --- forged artifacts with valid checksums -------------------------------------------------------

/// An artifact whose header `change` has edited, with matching checksums.
std::string forged(const std::string& bytes, const std::function<void(Json&)>& change) {
  uint64_t header = 0;
  std::memcpy(&header, bytes.data() + 16, sizeof(header));
  Json json = Json::parse(bytes.substr(64, header));
  change(json);
  return seal_artifact(json.dump(), std::string_view(bytes).substr(64 + header));
}

/// The first node of an operator in the first program.
Json& node_of(Json& json, const std::string& op) {
  for (Json& node : json["programs"][0]["graph"]["nodes"]) {
    if (node["op"] == op) return node;
  }
  throw std::runtime_error("no " + op);
}

/// The extents of the i-th input or output of that node.
Json& extents(Json& json, const std::string& op, const char* side, size_t i) {
  const auto v = node_of(json, op)[side][i].get<size_t>();
  return json["programs"][0]["graph"]["values"][v][2];
}

TEST_F(ArtifactFile, RefusesForgedHeaders) {
  const std::string bytes = bytes_of(session_of(mlp_bytes(false), classifier()), {batch(8, 1)});
  open_bytes(forged(bytes, [](Json&) {}));  // an unchanged forgery is accepted
  const struct {
    const char* name;
    std::function<void(Json&)> change;
  } rows[] = {
      {"an unknown operator", [](Json& j) { node_of(j, "steep.Adam")["op"] = "Gather"; }},
      {"a gradient of another shape",
       [](Json& j) {
         extents(j, "steep.Adam", "in", 1) = {1000, 1000};
       }},
      {"labels of more rows",
       [](Json& j) { extents(j, "steep.SoftmaxCrossEntropy", "in", 1) = {1000}; }},
      {"sums of more rows",
       [](Json& j) { extents(j, "steep.SoftmaxCrossEntropyGrad", "in", 3) = {1}; }},
      {"a loss that is large",
       [](Json& j) { extents(j, "steep.SoftmaxCrossEntropy", "out", 0) = {1 << 20}; }},
      {"a moment of another type",
       [](Json& j) {
         const auto v = node_of(j, "steep.Adam")["in"][5].get<size_t>();
         j["programs"][0]["graph"]["values"][v][1] = 1 + 10;
       }},
      {"a negative extent",
       [](Json& j) {
         j["programs"][0]["graph"]["values"][0][2] = {-1, 3};
       }},
      {"extents that overflow",
       [](Json& j) {
         j["programs"][0]["graph"]["values"][0][2] = {INT64_MAX, INT64_MAX};
       }},
      {"a value that is made twice",
       [](Json& j) { node_of(j, "steep.SoftmaxCrossEntropyGrad")["out"][0] = 0; }},
      {"a value that is not there", [](Json& j) { node_of(j, "steep.Adam")["in"][1] = 1 << 30; }},
      {"a value that comes later",
       [](Json& j) {
         Json& nodes = j["programs"][0]["graph"]["nodes"];
         std::swap(nodes[0], nodes[nodes.size() - 1]);
       }},
      {"a view outside",
       [](Json& j) {
         node_of(j, "steep.Adam")["view"] = {1 << 20, 0, 0};
       }},
      {"a tensor outside", [](Json& j) { j["tensors"][0][2] = 1 << 30; }},
      {"a tensor on another", [](Json& j) { j["tensors"][1][2] = j["tensors"][0][2]; }},
      {"two states in one place", [](Json& j) { j["states"][1][2] = j["states"][0][2]; }},
      {"a state that is not there", [](Json& j) { j["states"].erase(0); }},
      {"a role", [](Json& j) { j["states"][0][1] = "king"; }},
      {"an update of another state",
       [](Json& j) {
         Json& updates = j["programs"][0]["graph"]["updates"];
         updates[0][0] = updates[1][0];
       }},
      {"a learning rate", [](Json& j) { j["lr"] = -1; }},
      {"a schedule", [](Json& j) { j["schedule"][0] = "steep"; }},
      {"a count of steps", [](Json& j) { j["steps"] = -1; }},
      {"no programs", [](Json& j) { j["programs"] = Json::array(); }},
      {"no list", [](Json& j) { j["programs"] = 3; }},
      {"an input that nobody feeds",
       [](Json& j) {
         Json& graph = j["programs"][0]["graph"];
         for (const Json& input : graph["inputs"]) {
           if (input[1] == 1) graph["values"][input[0].get<size_t>()][0] = "steep.secret";
         }
       }},
      {"an attribute of another kind",
       [](Json& j) {
         node_of(j, "steep.MatMul")["attrs"]["alpha"] = {{"text", "1"}};
       }},
      {"nesting",
       [](Json& j) {
         Json deep = Json::array();
         for (int i = 0; i < 1000; ++i) deep = Json::array({deep});
         j["deep"] = deep;
       }},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    EXPECT_THROW(
        {
          ArtifactSession session = open_bytes(forged(bytes, row.change));
          session.step(batch(8, 1));  // kernels read attributes when they are made
        },
        Error);
  }
}

/// Random forgeries: replaces any number of the header by another number, and any list by another
/// list.
TEST_F(ArtifactFile, SurvivesForgersAtRandom) {
  const std::string bytes = bytes_of(session_of(mlp_bytes(true), classifier()), {batch(8, 1)});
  constexpr int64_t kNumbers[] = {-1, 0, 1, 2, 3, 7, 8, 64, 1 << 20, INT64_MAX};
  std::mt19937 random(1);
  int refused = 0, ran = 0;
  for (int round = 0; round < 400; ++round) {
    const auto change = [&](Json& j) {
      std::vector<Json*> numbers, lists;
      const std::function<void(Json&)> walk = [&](Json& at) {
        if (at.is_number_integer()) numbers.push_back(&at);
        if (at.is_array()) lists.push_back(&at);
        if (at.is_structured()) {
          for (Json& item : at) walk(item);
        }
      };
      walk(j);
      if (random() % 4 != 0) {
        *numbers[random() % numbers.size()] = kNumbers[random() % std::size(kNumbers)];
      } else {
        const Json other = *lists[random() % lists.size()];
        *lists[random() % lists.size()] = other;
      }
    };
    try {
      const std::string file = forged(bytes, change);
      ArtifactSession session(std::as_bytes(std::span(file)),
                              Limits{.max_bytes = size_t{64} << 20});
      session.step(batch(8, 1));
      session.predict({batch(8, 1)[0]});
      ++ran;
    } catch (const InternalError& error) {
      FAIL() << error.what();
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(ran, 10);
}

TEST(ArtifactOps, AreSorted) {
  const auto ops = artifact_ops();
  EXPECT_TRUE(std::is_sorted(ops.begin(), ops.end()));
  EXPECT_EQ(std::adjacent_find(ops.begin(), ops.end()), ops.end());
}

}  // namespace
}  // namespace steep
