// Forward and backward as two calls: the caller gives the gradients of a model's outputs, and gets
// the gradients of its inputs and weights.
//
//   #include <steep/gradient_session.h>
//
//   steep::GradientSession session("layer.onnx", {.wrt = {"x", "weight"}});
//   auto [outputs, run] = session.forward({{"x", x}});
//   std::map<std::string, steep::Tensor> gradients = session.backward(run, {{"y", dy}});
//
// A call that fails throws a steep::Error (steep/error.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "steep/dump.h"
#include "steep/error.h"
#include "steep/steep.h"
#include "steep/tensor.h"

namespace steep {

struct GradientSessionOptions {
  /// Names of the inputs and initializers whose gradients backward() returns: float, at least one.
  /// The initializers among them are the session's weights.
  std::vector<std::string> wrt;
  /// Outputs that forward() returns, by name, in this order. Empty: all.
  std::vector<std::string> outputs{};
  /// Copy nothing: backward() reads inputs, bound weights and outputs in place, so that they must
  /// not change until then. Without this option backward() reads copies, and the caller may write
  /// to them.
  bool borrow = false;
  uint64_t seed = 0;  ///< seed of dropout and other random operators
  /// As TrainingOptions::threads.
  int64_t threads = 0;
  /// Arithmetic of matrix products: "fp32", "bf16" or "fp16".
  std::string precision = "fp32";
  /// As TrainingOptions::memory_limit, of one forward and its backward: inputs, weights, constants,
  /// outputs, gradients and intermediate values.
  std::string memory_limit{};
  /// As InferenceOptions::disabled_passes: passes that do not run, by name, to find a fault.
  std::vector<std::string> disabled_passes{};
  Limits limits{};
  /// Where to run, as InferenceOptions::providers.
  std::vector<ProviderChoice> providers{};
};

/// A model whose forward and backward are two calls. Each forward() makes a run, and any number of
/// runs may wait for their backward(). The model is compiled at the first run for each combination
/// of input shapes and of outputs that have gradients. Calls from several threads run one after the
/// other.
class GradientSession {
 public:
  using Tensors = std::map<std::string, Tensor>;

  /// The result of one forward(), for one backward(). Owns the memory that backward reads, until
  /// backward() has run or the object is destroyed. May outlive the session, and move between
  /// threads.
  class Run {
   public:
    Run();  ///< belongs to no session: backward() refuses it
    ~Run();
    Run(Run&&) noexcept;
    Run& operator=(Run&&) noexcept;

   private:
    friend class GradientSession;
    struct State;
    std::unique_ptr<State> state_;
  };

  struct Forward {
    std::vector<Tensor> outputs;  ///< in the order of output_info()
    Run run;
  };

  /// Throws ModelError: the model cannot be read or has unknown operators, a name in `wrt` is not a
  /// float input or initializer, an output is unknown, or no output depends on `wrt`; IoError.
  explicit GradientSession(const std::filesystem::path& model, GradientSessionOptions options);
  /// From a serialised model. External data is refused unless `folder` says where it lies.
  explicit GradientSession(std::span<const std::byte> model, GradientSessionOptions options,
                           const std::filesystem::path& folder = {});
  ~GradientSession();
  GradientSession(GradientSession&&) noexcept;
  GradientSession& operator=(GradientSession&&) noexcept;

  /// Runs the model in training mode, with dropout. `inputs` has every input of input_info() by
  /// name, and may have weights that replace the session's in this run. Running statistics do not
  /// change; a model that updates them returns them as outputs. Inputs of another dtype are
  /// converted as docs/training.md says (What is fed); weights are not. Throws DataError (an input
  /// is missing or unknown, or a value does not fit the dtype), ShapeError (rank or extent, or a
  /// dtype that is not converted), ProviderError (no kernel for a node).
  Forward forward(const Tensors& inputs);

  /// Runs the model without dropout, and keeps nothing for backward. Otherwise as forward(). Throws
  /// ModelError for a normalisation in training mode, since the session does not update its running
  /// statistics.
  std::vector<Tensor> eval(const Tensors& inputs);

  /// The gradient of Σ <output_gradients[y], y> with respect to each name of `wrt`, of its type; it
  /// is zeros if no y depends on that name. Outputs that are not named do not contribute. Gradients
  /// of another dtype than the output's are converted, as inputs of forward() are. If
  /// `output_gradients` is empty and the model has a single output of one element, its gradient is
  /// 1. Throws DataError (the run is of another session, or its backward was done; an output is
  /// unknown or does not depend on `wrt`; no gradients) and ShapeError (a gradient does not have
  /// the type of its output); you may then call again with the run. Throws ModelError for operators
  /// without a gradient, all listed.
  Tensors backward(Run& run, const Tensors& output_gradients);

  std::vector<TensorInfo> input_info() const;   ///< the inputs that forward() requires
  std::vector<TensorInfo> output_info() const;  ///< the outputs that it returns
  std::vector<TensorInfo> weight_info() const;  ///< the initializers in `wrt`, in its order
  /// For each output, whether it may have a gradient.
  std::vector<bool> differentiable() const;
  const GradientSessionOptions& options() const;

  // --- look inside ------------------------------------------------------------------------------

  /// The memory and the kernels of a forward and its backward, for the dtypes and shapes of these
  /// inputs. All zero if shapes depend on data: such a graph is planned as it runs. Throws as
  /// forward().
  StepPlan plan(const Tensors& inputs);
  /// The graph of forward and backward, compiled for these inputs. Throws as forward().
  std::string dump(const Tensors& inputs, DumpFormat format = DumpFormat::text);
  /// Records one event per kernel of forward() and backward() from now on, until write_profile().
  void start_profile();
  /// Writes a Chrome/Perfetto trace (ui.perfetto.dev) and stops recording. Throws IoError.
  void write_profile(const std::filesystem::path& path);

  // --- weights ----------------------------------------------------------------------------------

  /// Runs that wait for their backward keep the weights that they ran with.

  Tensors weights() const;  ///< copies
  /// Copies values in. Every tensor is checked (ModelError for an unknown name, ShapeError for
  /// another type) before the first is taken. Names left out keep their values.
  void set_weights(const Tensors& weights);
  /// From now on forward() reads the given tensors themselves as weights. Checks as set_weights().
  void bind_weights(const Tensors& weights);

  /// Number of elements of all weights.
  int64_t weight_count() const;
  /// Joins one tensor for each weight, of its type (gradients, for example), to a new tensor of
  /// shape [weight_count()], in the order of weight_info(). Throws DataError if a tensor is
  /// missing, ShapeError if a type is wrong, or if the weights differ in dtype.
  Tensor flatten(const Tensors& tensors) const;
  /// The reverse: views into `flat`, of shape [weight_count()] and the weights' dtype. Pass them to
  /// bind_weights() to have all weights in one buffer. Throws ShapeError.
  Tensors views(const Tensor& flat) const;

  struct Impl;  ///< private

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace steep
