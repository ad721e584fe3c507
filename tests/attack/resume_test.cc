// A run that is interrupted after step k and resumed in another session ends bit-identical to an
// uninterrupted run: with 1, 2 and 3 threads, and with any change of the number of threads.
#include <omp.h>

#include <map>
#include <string>
#include <string_view>

#include "attack/attack.h"
#include "train/models.h"
#include "train/temp_folder.h"

namespace steep::testing {
namespace {

constexpr int kThreads[] = {1, 2, 3};
constexpr int64_t kRows = 96, kFeatures = 24, kClasses = 10;

std::string weight(const char* name, std::string_view extents, int64_t count) {
  std::string text = fmt::format("float[{}] {} = {{", extents, name);
  for (int64_t i = 0; i < count; ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", static_cast<double>(i * 37 % 41 - 20) / 80.0);
  }
  return text + "}";
}

/// Large enough to use several threads; with dropout.
std::string model() {
  return model_bytes(
      fmt::format(
          R"(g (float[rows, {}] x) => (float[rows, {}] logits)
         <{}, {}, float ratio = {{0.3}}, bool training = {{1}}>
         {{ h = MatMul(x, w0)  g = Gelu(h)  n = LayerNormalization(g, scale)
            d = Dropout(n, ratio, training)  logits = MatMul(d, w1) }})",
          kFeatures, kClasses, weight("w0", "24, 48", 1152) + ", " + weight("scale", "48", 48),
          weight("w1", "48, 10", 480)),
      20);
}

class Resume : public TempFolder {
 protected:
  static TrainingSession start() {
    return session_of(model(),
                      {.loss = "softmax_cross_entropy",
                       .optimizer = {.kind = "adamw", .lr = 0.01, .weight_decay = 0.1},
                       .schedule = {.kind = "cosine", .warmup_steps = 5, .total_steps = 120},
                       .clip_norm = 0.5,
                       .seed = 7});
  }
  static double step(TrainingSession& session) {
    const auto t = static_cast<unsigned>(session.step_count());
    return session.step({random_tensor({kRows, kFeatures}, t), random_labels(kRows, kClasses, t)})
        .loss;
  }
  void TearDown() override {
    omp_set_num_threads(before_);
    TempFolder::TearDown();
  }
  const int before_ = omp_get_max_threads();
};

TEST_F(Resume, AnyStepAnyNumberOfThreads) {
  const int points = attack_size(5, 100);
  const int length = points + 3;
  std::map<int64_t, double> losses;  // of the uninterrupted run, with one thread
  std::map<std::string, Tensor> weights, moments;
  omp_set_num_threads(1);
  {
    TrainingSession whole = start();
    for (int64_t t = 0; t < length; ++t) losses[t] = step(whole);
    weights = whole.weights();
    moments = whole.optimizer_state();
  }
  AttackReport report("resume");
  for (const int threads : kThreads) {
    omp_set_num_threads(threads);
    TrainingSession saver = start();
    for (int k = 1; k <= points; ++k) {
      const int64_t at = saver.step_count();
      report.count(step(saver) == losses[at], fmt::format("{} threads, step {}", threads, at));
      saver.save_checkpoint(folder() / "run");
      // Over all k, each number of threads is combined with each other.
      const int others = kThreads[static_cast<size_t>(k + threads) % std::size(kThreads)];
      for (const int resumed_with : {threads, others}) {
        omp_set_num_threads(resumed_with);
        TrainingSession resumed = start();
        resumed.load_checkpoint(folder() / "run");
        bool same = resumed.step_count() == k;
        while (resumed.step_count() < length) {
          const int64_t t = resumed.step_count();
          same = step(resumed) == losses[t] && same;
        }
        same = same && same_tensors(resumed.weights(), weights) &&
               same_tensors(resumed.optimizer_state(), moments);
        report.count(same, fmt::format("saved after step {} with {} threads, resumed with {}", k,
                                       threads, resumed_with));
      }
      omp_set_num_threads(threads);
    }
  }
}

}  // namespace
}  // namespace steep::testing
