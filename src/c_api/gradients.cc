// steep_gradients_… and steep_run_…: GradientSession.
#include <memory>
#include <utility>

#include "c_api/arrays.h"
#include "c_api/call.h"
#include "c_api/options.h"
#include "c_api/plans.h"
#include "steep/gradient_session.h"

namespace steep::c_api {
namespace {

std::vector<int32_t> flags_of(const std::vector<bool>& all) { return {all.begin(), all.end()}; }

class Gradients : public Object {
 public:
  static constexpr std::string_view kKind = "steep_gradients";
  explicit Gradients(GradientSession gradient_session)
      : session(std::move(gradient_session)),
        inputs(session.input_info()),
        outputs(session.output_info()),
        weights(session.weight_info()),
        differentiable(flags_of(session.differentiable())) {}
  std::string_view kind() const override { return kKind; }

  GradientSession session;
  const Values inputs;
  const Values outputs;
  const Values weights;
  const std::vector<int32_t> differentiable;  ///< one for each output
};

class Run : public Object {
 public:
  static constexpr std::string_view kKind = "steep_run";
  explicit Run(GradientSession::Run session_run) : run(std::move(session_run)) {}
  std::string_view kind() const override { return kKind; }

  /// Without a lock: backward() takes the run for one of two callers, and refuses it to the other.
  /// A lock would be held while the interrupt check runs, which may call backward() itself.
  GradientSession::Run run;
};

std::shared_ptr<Gradients> session_of(const steep_gradients* handle) {
  return object<Gradients>(handle);
}

void give_session(steep_gradients** result, GradientSession session) {
  give(result, std::make_shared<Gradients>(std::move(session)));
}

}  // namespace
}  // namespace steep::c_api

using namespace steep::c_api;  // NOLINT: functions of C are in no namespace

extern "C" {

steep_code steep_gradients_open(const char* path, const steep_options* options,
                                steep_gradients** session, steep_error** error) {
  return call(error, [&] {
    require(session, "session");
    const std::string file = text(path, "path");
    give_session(session, steep::GradientSession(
                              file, options_or_defaults<steep::GradientSessionOptions>(options)));
  });
}

steep_code steep_gradients_open_bytes(const void* model, size_t size, const char* folder,
                                      const steep_options* options, steep_gradients** session,
                                      steep_error** error) {
  return call(error, [&] {
    require(session, "session");
    give_session(session,
                 steep::GradientSession(bytes_of(model, size),
                                        options_or_defaults<steep::GradientSessionOptions>(options),
                                        folder == nullptr ? "" : folder));
  });
}

steep_code steep_gradients_free(steep_gradients* session) { return release<Gradients>(session); }

steep_code steep_gradients_forward(steep_gradients* session, const steep_array* inputs,
                                   size_t count, steep_tensors** outputs, steep_run** run,
                                   steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    require(run, "run");
    const Feed feed(inputs, count);
    auto result = own->session.forward(feed.named(own->inputs.infos()));
    const auto handle = std::make_shared<Run>(std::move(result.run));
    give_tensors(outputs, own->outputs.names(), result.outputs, feed);
    give(run, handle);
  });
}

steep_code steep_gradients_eval(steep_gradients* session, const steep_array* inputs, size_t count,
                                steep_tensors** outputs, steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    require(outputs, "outputs");
    const Feed feed(inputs, count);
    const auto results = own->session.eval(feed.named(own->inputs.infos()));
    give_tensors(outputs, own->outputs.names(), results, feed);
  });
}

steep_code steep_gradients_backward(steep_gradients* session, steep_run* run,
                                    const steep_array* output_gradients, size_t count,
                                    steep_tensors** gradients, steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    const auto waiting = object<Run>(run);
    require(gradients, "gradients");
    const Feed feed(output_gradients, count);
    auto results = own->session.backward(
        waiting->run, count == 0 ? steep::GradientSession::Tensors{} : feed.named());
    for (auto& [name, gradient] : results) gradient = feed.own(gradient);
    give_tensors(gradients, std::move(results));
  });
}

steep_code steep_run_free(steep_run* run) { return release<Run>(run); }

steep_code steep_gradients_inputs(const steep_gradients* session, const steep_value** inputs,
                                  size_t* count, steep_error** error) {
  return call(error, [&] { session_of(session)->inputs.put(inputs, count); });
}

steep_code steep_gradients_outputs(const steep_gradients* session, const steep_value** outputs,
                                   size_t* count, steep_error** error) {
  return call(error, [&] { session_of(session)->outputs.put(outputs, count); });
}

steep_code steep_gradients_weight_values(const steep_gradients* session,
                                         const steep_value** weights, size_t* count,
                                         steep_error** error) {
  return call(error, [&] { session_of(session)->weights.put(weights, count); });
}

steep_code steep_gradients_weights(const steep_gradients* session, steep_tensors** weights,
                                   steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    require(weights, "weights");
    give_tensors(weights, own->session.weights());
  });
}

steep_code steep_gradients_set_weights(steep_gradients* session, const steep_array* weights,
                                       size_t count, steep_error** error) {
  return call(error,
              [&] { session_of(session)->session.set_weights(Feed(weights, count).named()); });
}

steep_code steep_gradients_bind_weights(steep_gradients* session, const steep_array* weights,
                                        size_t count, steep_error** error) {
  return call(error,
              [&] { session_of(session)->session.bind_weights(Feed(weights, count).named()); });
}

steep_code steep_gradients_weight_count(const steep_gradients* session, int64_t* elements,
                                        steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    require(elements, "elements");
    *elements = own->session.weight_count();
  });
}

steep_code steep_gradients_flatten(const steep_gradients* session, const steep_array* arrays,
                                   size_t count, steep_tensors** flat, steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    require(flat, "flat");
    give_tensors(flat, {{"flat", own->session.flatten(Feed(arrays, count).named())}});
  });
}

steep_code steep_gradients_bind_flat(steep_gradients* session, const steep_array* flat,
                                     steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    own->session.bind_weights(own->session.views(Feed(flat, 1).tensors().front()));
  });
}

steep_code steep_gradients_differentiable(const steep_gradients* session, const int32_t** flags,
                                          size_t* count, steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    require(flags, "flags");
    require(count, "count");
    *flags = own->differentiable.data();
    *count = own->differentiable.size();
  });
}

steep_code steep_gradients_plan(steep_gradients* session, const steep_array* inputs, size_t count,
                                steep_plan* plan, steep_error** error) {
  return call(error, [&] { plan_by_name(*session_of(session), inputs, count, plan); });
}

steep_code steep_gradients_dump(steep_gradients* session, const steep_array* inputs, size_t count,
                                int32_t format, steep_bytes** text, steep_error** error) {
  return call(error, [&] { dump_by_name(*session_of(session), inputs, count, format, text); });
}

steep_code steep_gradients_start_profile(steep_gradients* session, steep_error** error) {
  return call(error, [&] { session_of(session)->session.start_profile(); });
}

steep_code steep_gradients_write_profile(steep_gradients* session, const char* path,
                                         steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    own->session.write_profile(text(path, "path"));
  });
}

}  // extern "C"
