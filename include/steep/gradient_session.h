// Forward and backward apart: the gradients of a model's outputs are the caller's, and so is what
// is done with those of its inputs and weights.
//
//   #include <steep/gradient_session.h>
//
//   steep::GradientSession session("layer.onnx", {.wrt = {"x", "weight"}});
//   auto [outputs, run] = session.forward({{"x", x}});
//   std::map<std::string, steep::Tensor> gradients = session.backward(run, {{"y", dy}});
//
// Everything that fails throws a steep::Error (steep/error.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "steep/error.h"
#include "steep/steep.h"
#include "steep/tensor.h"

namespace steep {

struct GradientSessionOptions {
  /// Inputs and initializers whose gradients backward() gives, by name: float, at least one. The
  /// initializers among them are the session's weights.
  std::vector<std::string> wrt;
  /// Outputs that forward() returns, by name, in this order. Empty: all.
  std::vector<std::string> outputs{};
  /// Nothing is copied: what is fed or bound, and the outputs, are read by backward() where they
  /// lie, so that their bytes must stay as they are until then. Without it backward() reads copies,
  /// whatever the caller writes.
  bool borrow = false;
  uint64_t seed = 0;  ///< of dropout and other random operators
  /// Arithmetic of matrix products: "fp32", "bf16" or "fp16".
  std::string precision = "fp32";
  Limits limits{};
  /// Where to run, as InferenceOptions::providers.
  std::vector<ProviderChoice> providers{};
};

/// A model whose forward and backward are two calls. Each forward() makes a run of its own, and any
/// number of them may wait for their backward(). Compiled for each set of input shapes, and of
/// outputs that have gradients, at the first run. Calls from several threads take turns.
class GradientSession {
 public:
  using Tensors = std::map<std::string, Tensor>;

  /// One forward() that may be asked for its backward, once. Holds the memory that backward reads,
  /// until that or the run's end. May outlive the session, and move between threads.
  class Run {
   public:
    Run();  ///< of no session: backward() refuses it
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

  /// Throws ModelError: unreadable, unknown operators, a name of `wrt` that is no float input or
  /// initializer, an unknown output, none that depends on `wrt`; IoError.
  explicit GradientSession(const std::filesystem::path& model, GradientSessionOptions options);
  /// From a serialised model. External data is refused unless `folder` says where it lies.
  explicit GradientSession(std::span<const std::byte> model, GradientSessionOptions options,
                           const std::filesystem::path& folder = {});
  ~GradientSession();
  GradientSession(GradientSession&&) noexcept;
  GradientSession& operator=(GradientSession&&) noexcept;

  /// Runs the model as in training, dropout on: every input of input_info() by name, and weights
  /// that are to be others in this run. Running statistics stay as the model has them; one that
  /// keeps them up to date lists them as outputs. Throws DataError (an input missing or unknown),
  /// ShapeError (dtype, rank or extent), ProviderError (no kernel for a node).
  Forward forward(const Tensors& inputs);

  /// Runs the model without dropout, and keeps nothing for a backward. Otherwise as forward().
  /// Throws ModelError for a normalisation in training mode, whose running statistics nothing here
  /// keeps up to date.
  std::vector<Tensor> eval(const Tensors& inputs);

  /// The gradient of Σ <output_gradients[y], y> with respect to each name of `wrt`, of its type;
  /// zeros where it does not matter. An output that is not named has no part in it. None at all: 1,
  /// where there is one output, of one element. Throws DataError (a run of another session, or
  /// whose backward was done; an unknown output; one that does not depend on `wrt`; none) and
  /// ShapeError (a gradient has not its output's type); the run may then be asked again. ModelError
  /// for an operator on the way that has no gradient, all of them listed.
  Tensors backward(Run& run, const Tensors& output_gradients);

  std::vector<TensorInfo> input_info() const;   ///< what forward() must be fed
  std::vector<TensorInfo> output_info() const;  ///< what it returns
  std::vector<TensorInfo> weight_info() const;  ///< the initializers in `wrt`, in its order
  /// By output: may it have a gradient?
  std::vector<bool> differentiable() const;
  const GradientSessionOptions& options() const;

  // --- weights ----------------------------------------------------------------------------------

  /// Runs that wait for their backward keep the weights that they ran with, whatever follows.

  Tensors weights() const;  ///< copies
  /// Copies values in. Every tensor is checked (ModelError for an unknown name, ShapeError for
  /// another type) before the first is taken. Names left out keep their values.
  void set_weights(const Tensors& weights);
  /// From now on forward() reads a weight where the tensor given lies. Checks as set_weights().
  void bind_weights(const Tensors& weights);

  /// Number of elements of all weights.
  int64_t weight_count() const;
  /// One tensor for each weight, of its type (gradients, for example) → a new one of shape
  /// [weight_count()]: their elements, in the order of weight_info(). Throws DataError for a
  /// missing one, ShapeError for another type, or where the weights' dtypes differ.
  Tensor flatten(const Tensors& tensors) const;
  /// The way back: views into `flat`, of shape [weight_count()] and the weights' dtype. With
  /// bind_weights() all weights lie in one buffer. Throws ShapeError.
  Tensors views(const Tensor& flat) const;

  struct Impl;  ///< private

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace steep
