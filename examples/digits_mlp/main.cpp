// Learns to read digits: digits_mlp FOLDER, where make_model.py wrote the model and the data.
#include <steep/steep.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>

int main(int argc, char** argv) try {
  const std::string folder = argc > 1 ? argv[1] : ".";
  auto train = steep::load_arrays(folder + "/digits_train.npz");
  auto test = steep::load_arrays(folder + "/digits_test.npz");

  steep::TrainingSession session(folder + "/digits.onnx",
                                 {.loss = "softmax_cross_entropy",
                                  .optimizer = {.kind = "adam", .lr = 3e-3}});
  steep::Batches batches({train.at("x"), train.at("label")}, {.batch_size = 64});
  for (int epoch = 0; epoch < 20; ++epoch) {
    double loss = 0;
    for (int64_t i = 0; i < batches.count(); ++i) loss += session.step(batches.get(epoch, i)).loss;
    std::printf("epoch %2d  loss %.4f\n", epoch + 1, loss / static_cast<double>(batches.count()));
  }
  session.export_onnx(folder + "/digits_trained.onnx");

  const steep::Tensor logits = session.eval({test.at("x")}).outputs[0];
  const int64_t* label = test.at("label").data<int64_t>();
  int64_t right = 0;
  for (int64_t i = 0; i < logits.dims()[0]; ++i) {
    const float* row = logits.data<float>() + 10 * i;
    right += std::max_element(row, row + 10) - row == label[i];
  }
  const double accuracy = static_cast<double>(right) / static_cast<double>(logits.dims()[0]);
  std::printf("test accuracy %.3f\n", accuracy);
  return accuracy >= 0.95 ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
