#include "calls.h"

#include <fmt/format.h>
#include <onnx/onnx_pb.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

namespace steep::fuzz {

std::filesystem::path folder() {
  static const std::filesystem::path made = [] {
    const std::filesystem::path memory = "/dev/shm";
    return (std::filesystem::exists(memory) ? memory : std::filesystem::temp_directory_path()) /
           fmt::format("steep-calls-fuzz-{}", getpid());
  }();
  return made;
}

namespace {

void add_value(onnx::ValueInfoProto& info, const char* name, int64_t columns) {
  info.set_name(name);
  auto& type = *info.mutable_type()->mutable_tensor_type();
  type.set_elem_type(onnx::TensorProto::FLOAT);
  type.mutable_shape()->add_dim()->set_dim_param("rows");
  type.mutable_shape()->add_dim()->set_dim_value(columns);
}

/// A model x [rows, 4] · w → y [rows, 3], with a second output `same`, a copy of x.
std::string make_model() {
  onnx::ModelProto model;
  model.set_ir_version(9);
  model.add_opset_import()->set_version(18);
  onnx::GraphProto& graph = *model.mutable_graph();
  graph.set_name("called");
  add_value(*graph.add_input(), "x", 4);
  add_value(*graph.add_output(), "y", 3);
  add_value(*graph.add_output(), "same", 4);
  onnx::TensorProto& weight = *graph.add_initializer();
  weight.set_name("w");
  weight.set_data_type(onnx::TensorProto::FLOAT);
  weight.add_dims(4);
  weight.add_dims(3);
  for (int i = 0; i < 12; ++i) weight.add_float_data(static_cast<float>(i) / 12 - 0.5F);
  onnx::NodeProto& product = *graph.add_node();
  product.set_op_type("MatMul");
  product.add_input("x");
  product.add_input("w");
  product.add_output("y");
  onnx::NodeProto& same = *graph.add_node();
  same.set_op_type("Identity");
  same.add_input("x");
  same.add_output("same");
  return model.SerializeAsString();
}

}  // namespace

const std::string& model_of_all() {
  static const std::string model = make_model();
  return model;
}

const char* Caller::text() {
  static const std::string place = folder().string();
  static const std::string file = (folder() / "arrays.npz").string();
  static const std::string missing = (folder() / "none" / "no.onnx").string();
  static const std::vector<const char*> all = {"mse",
                                               "softmax_cross_entropy",
                                               "adamw",
                                               "sgd",
                                               "x",
                                               "w",
                                               "y",
                                               "label",
                                               "same",
                                               "none",
                                               "",
                                               "fp16",
                                               "bf16",
                                               "fp32",
                                               "exp_avg/w",
                                               "{\"a\":1}",
                                               "linear",
                                               "\xff\xfe",
                                               place.c_str(),
                                               file.c_str(),
                                               missing.c_str(),
                                               nullptr};
  return of(all);
}

std::vector<steep_array> Caller::arrays(const std::vector<const char*>& names) {
  std::vector<steep_array> made;
  const size_t count = one_in(6) ? pick(4) : names.size();
  for (size_t i = 0; i < count; ++i) {
    const char* name = i < names.size() ? names[i] : text();
    const bool narrow = name != nullptr && (*name == 'y' || *name == 'l');
    const bool weight = name != nullptr && (*name == 'w' || *name == 'e');
    auto& dims =
        dims_.emplace_back(std::array<int64_t, 2>{weight ? 4 : 2, narrow || weight ? 3 : 4});
    steep_array array{.name = name,
                      .dtype = STEEP_DTYPE_FLOAT32,
                      .rank = 2,
                      .dims = dims.data(),
                      .data = data_of_arrays_.data(),
                      .bytes = static_cast<size_t>(dims[0] * dims[1]) * sizeof(float)};
    switch (pick(24)) {
      case 1: array.name = nullptr; break;
      case 2: array.name = text(); break;
      case 3: array.dtype = of(std::vector<int32_t>{0, 7, 8, 9, 16, 29, 99, -5}); break;
      case 4: array.rank = of(std::vector<int32_t>{-1, 0, 1, 65, 1 << 30}); break;
      case 5: array.dims = nullptr; break;
      case 6: array.data = nullptr; break;
      case 7: array.data = reinterpret_cast<const char*>(array.data) + 1; break;
      case 8: array.bytes = of(std::vector<size_t>{0, 1, array.bytes + 1, SIZE_MAX}); break;
      case 9: dims[pick(2)] = of(std::vector<int64_t>{0, -1, 1, 3, INT64_MAX, INT64_MIN}); break;
      default: break;
    }
    // A non-null pointer must have as many bytes as the array claims.
    if (array.bytes > data_of_arrays_.size() * sizeof(float) - 1) array.data = nullptr;
    made.push_back(array);
  }
  return made;
}

void Caller::look(const char* function, steep_code code) {
  ++calls_;
  bool agrees = code >= STEEP_OK && code <= STEEP_ERROR_PEER_LOST && code != STEEP_ERROR_INTERNAL;
  if (with_error_) {
    agrees = agrees && (error_ == nullptr) == (code == STEEP_OK) &&
             steep_error_code(error_) == code &&
             (code == STEEP_OK || *steep_error_message(error_) != 0);
  }
  if (!agrees) {
    fmt::print(stderr, "{}: code {}, error {} ({}): {}\n", function, static_cast<int>(code),
               static_cast<int>(steep_error_code(error_)), steep_error_what(error_),
               steep_error_message(error_));
    std::abort();
  }
  if (with_error_ && code != STEEP_OK) {
    steep_error_node(error_);
    keep(kError, STEEP_OK, error_);
  }
  with_error_ = false;
}

void Caller::free_last(Kind kind) {
  if (free_handle(kind, live_[kind].back()) != STEEP_OK) std::abort();
  gone_.push_back(live_[kind].back());
  live_[kind].pop_back();
}

void Caller::free_first(Kind kind) {
  std::swap(live_[kind].front(), live_[kind].back());
  free_last(kind);
}

steep_code free_handle(Kind kind, void* handle) {
  switch (kind) {
    case kError: return steep_error_free(static_cast<steep_error*>(handle));
    case kOptions: return steep_options_free(static_cast<steep_options*>(handle));
    case kTraining: return steep_training_free(static_cast<steep_training*>(handle));
    case kInference: return steep_inference_free(static_cast<steep_inference*>(handle));
    case kGradients: return steep_gradients_free(static_cast<steep_gradients*>(handle));
    case kRun: return steep_run_free(static_cast<steep_run*>(handle));
    case kTensors: return steep_tensors_free(static_cast<steep_tensors*>(handle));
    case kBytes: return steep_bytes_free(static_cast<steep_bytes*>(handle));
    case kStrings: return steep_strings_free(static_cast<steep_strings*>(handle));
    case kReport: return steep_report_free(static_cast<steep_report*>(handle));
    case kMemory: return steep_memory_free(static_cast<steep_memory*>(handle));
    case kData: return steep_data_free(static_cast<steep_data*>(handle));
    case kBatches: return steep_batches_free(static_cast<steep_batches*>(handle));
    case kPeers: return steep_peers_free(static_cast<steep_peers*>(handle));
    case kParallel: return steep_parallel_free(static_cast<steep_parallel*>(handle));
    case kKinds: break;
  }
  std::abort();
}

steep_options* Caller::fitting(int32_t kind) {
  steep_options* options = nullptr;
  if (steep_options_new(kind, &options, nullptr) != STEEP_OK) std::abort();
  steep_options_set_integer(options, "max_bytes", kMaxBlock, nullptr);
  if (kind == STEEP_OPTIONS_TRAINING) {
    steep_options_set_string(options, "loss", "mse", nullptr);
    steep_options_set_string(options, "output", "y", nullptr);
  }
  if (kind == STEEP_OPTIONS_GRADIENTS) {
    steep_options_add(options, "wrt", one_in(2) ? "x" : "w", nullptr);
  }
  keep(kOptions, STEEP_OK, options);
  return options;
}

void Caller::set_up() {
  if (one_in(8)) return;
  const std::string& model = model_of_all();
  steep_training* training = nullptr;
  steep_gradients* gradients = nullptr;
  keep(kTraining,
       steep_training_open_bytes(model.data(), model.size(), nullptr,
                                 fitting(STEEP_OPTIONS_TRAINING), &training, nullptr),
       training);
  keep(kGradients,
       steep_gradients_open_bytes(model.data(), model.size(), nullptr,
                                  fitting(STEEP_OPTIONS_GRADIENTS), &gradients, nullptr),
       gradients);
}

void Caller::open() {
  const std::string& model = model_of_all();
  const auto kind = of(std::vector<int32_t>{STEEP_OPTIONS_TRAINING, STEEP_OPTIONS_INFERENCE,
                                            STEEP_OPTIONS_GRADIENTS});
  // otherwise any existing options
  steep_options* options = one_in(3) ? handle<steep_options>(kOptions) : fitting(kind);
  const size_t size = one_in(6) ? pick(model.size()) : model.size();
  const bool from_file = one_in(3);
  const char* file = path();
  steep_code code = STEEP_OK;
  if (kind == STEEP_OPTIONS_TRAINING) {
    steep_training* made = nullptr;
    steep_training** place = result(made);
    code = from_file
               ? steep_training_open(file, options, place, error())
               : steep_training_open_bytes(model.data(), size, nullptr, options, place, error());
    look("training_open", code);
    keep(kTraining, code, made);
  } else if (kind == STEEP_OPTIONS_INFERENCE) {
    steep_inference* made = nullptr;
    steep_inference** place = result(made);
    code = from_file
               ? steep_inference_open(file, options, place, error())
               : steep_inference_open_bytes(model.data(), size, nullptr, options, place, error());
    look("inference_open", code);
    keep(kInference, code, made);
  } else {
    steep_gradients* made = nullptr;
    steep_gradients** place = result(made);
    code = from_file
               ? steep_gradients_open(file, options, place, error())
               : steep_gradients_open_bytes(model.data(), size, nullptr, options, place, error());
    look("gradients_open", code);
    keep(kGradients, code, made);
  }
}

}  // namespace steep::fuzz
