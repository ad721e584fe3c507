// A small model's step from C++: what TrainingSession::step costs without Python.
//
//   session_step MODEL.onnx LOSS OPTIMIZER ROWS
//
// Extents that vary are ROWS; inputs are noise, labels of softmax_cross_entropy the row's number
// modulo the classes. Speaks the protocol of bench/worker.py: one JSON line at the start, then
// `step N` answers with N times in seconds.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "steep/steep.h"

namespace {

using Clock = std::chrono::steady_clock;

steep::Tensor batch_of(const steep::TensorInfo& info, int64_t rows, int64_t classes) {
  steep::Dims dims = info.dims;
  for (int64_t& d : dims) d = d < 0 ? rows : d;
  steep::Tensor t = steep::Tensor::empty(info.dtype, dims);
  std::minstd_rand engine(1);
  for (int64_t i = 0; i < t.size(); ++i) {
    if (info.dtype == steep::DType::i64) {
      t.data<int64_t>()[i] = i % classes;
    } else {
      t.data<float>()[i] = static_cast<float>(engine() % 2001) / 1000.0F - 1.0F;
    }
  }
  return t;
}

int run(char** argv) {
  const auto begin = Clock::now();
  steep::TrainingOptions options;
  options.loss = argv[2];
  options.optimizer.kind = argv[3];
  steep::TrainingSession session(std::filesystem::path(argv[1]), options);
  const int64_t classes = session.output_info().at(0).dims.back();
  std::vector<steep::Tensor> batch;
  for (const steep::TensorInfo& info : session.input_info()) {
    batch.push_back(batch_of(info, std::atoll(argv[4]), classes));
  }
  auto seconds_since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  session.step(batch);
  std::cout << "{\"first_step_s\": " << seconds_since(begin) << "}" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string command;
    int count = 0;
    words >> command >> count;
    if (command != "step") break;
    std::vector<double> times;
    for (int i = 0; i < count; ++i) {
      const auto start = Clock::now();
      session.step(batch);
      times.push_back(seconds_since(start));
    }
    std::cout << "[";
    for (size_t i = 0; i < times.size(); ++i) std::cout << (i == 0 ? "" : ", ") << times[i];
    std::cout << "]" << std::endl;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: session_step MODEL.onnx LOSS OPTIMIZER ROWS\n");
    return 2;
  }
  try {
    return run(argv);
  } catch (const steep::Error& error) {
    std::fprintf(stderr, "session_step: %s\n", error.what());
    return 1;
  }
}
