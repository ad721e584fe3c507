// steep_artifact_…: ArtifactSession. Part of the runtime.
#include "steep/artifact.h"

#include <algorithm>
#include <memory>

#include "c_api/arrays.h"
#include "c_api/call.h"
#include "steep_artifact.h"

namespace steep::c_api {
namespace {

class OpenArtifact : public Object {
 public:
  static constexpr std::string_view kKind = "steep_artifact";
  explicit OpenArtifact(ArtifactSession artifact)
      : session(std::move(artifact)),
        inputs(session.input_info()),
        predicted(session.prediction_info()),
        outputs(session.output_info()),
        parameters(session.parameter_names()) {}
  std::string_view kind() const override { return kKind; }

  ArtifactSession session;
  const Values inputs;
  const Values predicted;
  const Values outputs;
  const Names parameters;
};

std::shared_ptr<OpenArtifact> session_of(const steep_artifact* handle) {
  return object<OpenArtifact>(handle);
}

Limits limits_of(uint64_t max_bytes) {
  Limits limits;
  if (max_bytes != 0)
    limits.max_bytes = static_cast<size_t>(std::min<uint64_t>(max_bytes, SIZE_MAX));
  return limits;
}

void give_session(steep_artifact** result, ArtifactSession session) {
  give(result, std::make_shared<OpenArtifact>(std::move(session)));
}

}  // namespace
}  // namespace steep::c_api

using namespace steep::c_api;  // NOLINT: functions of C are in no namespace

extern "C" {

steep_code steep_artifact_open(const char* path, uint64_t max_bytes, steep_artifact** session,
                               steep_error** error) {
  return call(error, [&] {
    require(session, "session");
    const std::string file = text(path, "path");
    give_session(session, steep::ArtifactSession(file, limits_of(max_bytes)));
  });
}

steep_code steep_artifact_open_bytes(const void* artifact, size_t size, uint64_t max_bytes,
                                     steep_artifact** session, steep_error** error) {
  return call(error, [&] {
    require(session, "session");
    require(artifact, "artifact");
    const std::span bytes(static_cast<const std::byte*>(artifact), size);
    give_session(session, steep::ArtifactSession(bytes, limits_of(max_bytes)));
  });
}

steep_code steep_artifact_free(steep_artifact* session) { return release<OpenArtifact>(session); }

steep_code steep_artifact_step(steep_artifact* session, const steep_array* inputs, size_t count,
                               steep_step* step, steep_tensors** outputs, steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    const Feed feed(inputs, count);
    const steep::StepResult result = own->session.step(feed.ordered(own->inputs.infos()));
    std::vector<std::string> names(result.outputs.size());
    give_tensors(outputs, names, result.outputs, feed);
    put_step(step, result);
  });
}

steep_code steep_artifact_predict(steep_artifact* session, const steep_array* inputs, size_t count,
                                  steep_tensors** outputs, steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    require(outputs, "outputs");
    const Feed feed(inputs, count);
    const auto results = own->session.predict(feed.ordered(own->predicted.infos()));
    give_tensors(outputs, own->outputs.names(), results, feed);
  });
}

steep_code steep_artifact_inputs(const steep_artifact* session, const steep_value** inputs,
                                 size_t* count, steep_error** error) {
  return call(error, [&] { session_of(session)->inputs.put(inputs, count); });
}

steep_code steep_artifact_prediction_inputs(const steep_artifact* session,
                                            const steep_value** inputs, size_t* count,
                                            steep_error** error) {
  return call(error, [&] { session_of(session)->predicted.put(inputs, count); });
}

steep_code steep_artifact_outputs(const steep_artifact* session, const steep_value** outputs,
                                  size_t* count, steep_error** error) {
  return call(error, [&] { session_of(session)->outputs.put(outputs, count); });
}

steep_code steep_artifact_parameters(const steep_artifact* session, const char* const** names,
                                     size_t* count, steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    require(names, "names");
    require(count, "count");
    *names = own->parameters.data();
    *count = own->parameters.size();
  });
}

steep_code steep_artifact_weights(const steep_artifact* session, const char* const* names,
                                  size_t count, steep_tensors** weights, steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    require(weights, "weights");
    give_chosen(weights, names, count, own->session.weights());
  });
}

steep_code steep_artifact_set_weights(steep_artifact* session, const steep_array* weights,
                                      size_t count, steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    own->session.set_weights(Feed(weights, count).named());
  });
}

steep_code steep_artifact_step_count(const steep_artifact* session, int64_t* count,
                                     steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    require(count, "count");
    *count = own->session.step_count();
  });
}

steep_code steep_artifact_lr(const steep_artifact* session, double* lr, steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    require(lr, "lr");
    *lr = own->session.lr();
  });
}

steep_code steep_artifact_set_lr(steep_artifact* session, double lr, steep_error** error) {
  return call(error, [&] { session_of(session)->session.set_lr(lr); });
}

steep_code steep_artifact_save(const steep_artifact* session, const char* path,
                               steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    own->session.save(text(path, "path"));
  });
}

}  // extern "C"
