// Fits a linear model: linear_regression FOLDER, where make_model.py wrote linear.onnx and linear.npz.
#include <steep/steep.h>

#include <cstdio>
#include <exception>
#include <string>

int main(int argc, char** argv) try {
  const std::string folder = argc > 1 ? argv[1] : ".";
  auto data = steep::load_arrays(folder + "/linear.npz");

  steep::TrainingSession session(folder + "/linear.onnx",
                                 {.loss = "mse", .optimizer = {.kind = "sgd", .lr = 0.1}});
  steep::Batches batches({data.at("x"), data.at("label")}, {.batch_size = 32});
  for (int epoch = 0; epoch < 50; ++epoch) {
    double loss = 0;
    for (int64_t i = 0; i < batches.count(); ++i) loss = session.step(batches.get(epoch, i)).loss;
    if (epoch % 10 == 9) std::printf("epoch %2d  loss %.3g\n", epoch + 1, loss);
  }
  session.export_onnx(folder + "/linear_trained.onnx");

  const double loss = *session.eval({data.at("x"), data.at("label")}).loss;
  std::printf("final loss %.3g\n", loss);
  return loss < 1e-8 ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
