// steep_inference_…: InferenceSession.
#include "steep/inference.h"

#include <memory>

#include "c_api/arrays.h"
#include "c_api/call.h"
#include "c_api/data.h"
#include "c_api/options.h"
#include "c_api/plans.h"

namespace steep::c_api {
namespace {

std::vector<std::string> keys_of(const std::map<std::string, std::string>& items) {
  std::vector<std::string> keys;
  for (const auto& item : items) keys.push_back(item.first);
  return keys;
}

std::vector<std::string> values_of(const std::map<std::string, std::string>& items) {
  std::vector<std::string> values;
  for (const auto& item : items) values.push_back(item.second);
  return values;
}

class Inference : public Object {
 public:
  static constexpr std::string_view kKind = "steep_inference";
  explicit Inference(InferenceSession inference_session)
      : session(std::move(inference_session)),
        inputs(session.input_info()),
        defaults(session.default_info()),
        outputs(session.output_info()),
        keys(keys_of(session.metadata().custom)),
        values(values_of(session.metadata().custom)) {}
  std::string_view kind() const override { return kKind; }

  InferenceSession session;
  const Values inputs;
  const Values defaults;
  const Values outputs;
  const Names keys;
  const Names values;
};

std::shared_ptr<Inference> session_of(const steep_inference* handle) {
  return object<Inference>(handle);
}

}  // namespace
}  // namespace steep::c_api

using namespace steep::c_api;  // NOLINT: functions of C are in no namespace

extern "C" {

steep_code steep_inference_open(const char* path, const steep_options* options,
                                steep_inference** session, steep_error** error) {
  return call(error, [&] {
    require(session, "session");
    const std::string file = text(path, "path");
    give(session, std::make_shared<Inference>(steep::InferenceSession(
                      file, options_or_defaults<steep::InferenceOptions>(options))));
  });
}

steep_code steep_inference_open_bytes(const void* model, size_t size, const char* folder,
                                      const steep_options* options, steep_inference** session,
                                      steep_error** error) {
  return call(error, [&] {
    require(session, "session");
    give(session, std::make_shared<Inference>(steep::InferenceSession(
                      bytes_of(model, size), options_or_defaults<steep::InferenceOptions>(options),
                      folder == nullptr ? "" : folder)));
  });
}

steep_code steep_inference_free(steep_inference* session) { return release<Inference>(session); }

steep_code steep_inference_run(steep_inference* session, const steep_array* inputs, size_t count,
                               const char* const* names, size_t name_count, steep_tensors** outputs,
                               steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    require(outputs, "outputs");
    const Feed feed(inputs, count);
    const std::vector<std::string> choice = texts(names, name_count, "names");
    const auto results = own->session.run(feed.named(own->inputs.infos()), choice);
    give_tensors(outputs, choice.empty() ? own->outputs.names() : choice, results, feed);
  });
}

steep_code steep_inference_run_data(steep_inference* session, const steep_data* inputs,
                                    const char* const* names, size_t name_count,
                                    steep_data** outputs, steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    const auto fed = object<Data>(inputs);
    require(outputs, "outputs");
    const std::vector<std::string> choice = texts(names, name_count, "names");
    std::map<std::string, steep::Datum> values;
    for (const Data::Item& item : fed->items()) values.emplace(item.name, item.datum);
    auto results = own->session.run_data(values, choice);
    const std::vector<std::string> given = choice.empty() ? own->outputs.names() : choice;
    const auto data = std::make_shared<Data>();
    for (size_t i = 0; i < given.size(); ++i) data->add(given[i], std::move(results.at(i)));
    give(outputs, data);
  });
}

steep_code steep_inference_inputs(const steep_inference* session, const steep_value** inputs,
                                  size_t* count, steep_error** error) {
  return call(error, [&] { session_of(session)->inputs.put(inputs, count); });
}

steep_code steep_inference_defaults(const steep_inference* session, const steep_value** inputs,
                                    size_t* count, steep_error** error) {
  return call(error, [&] { session_of(session)->defaults.put(inputs, count); });
}

steep_code steep_inference_outputs(const steep_inference* session, const steep_value** outputs,
                                   size_t* count, steep_error** error) {
  return call(error, [&] { session_of(session)->outputs.put(outputs, count); });
}

steep_code steep_inference_metadata(const steep_inference* session, steep_metadata* metadata,
                                    steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    require(metadata, "metadata");
    const steep::ModelMetadata& m = own->session.metadata();
    *metadata = {.producer = m.producer.c_str(),
                 .graph_name = m.graph_name.c_str(),
                 .graph_description = m.graph_description.c_str(),
                 .domain = m.domain.c_str(),
                 .description = m.description.c_str(),
                 .version = m.version,
                 .custom_count = own->keys.size(),
                 .custom_keys = own->keys.data(),
                 .custom_values = own->values.data()};
  });
}

steep_code steep_inference_plan(steep_inference* session, const steep_array* inputs, size_t count,
                                steep_plan* plan, steep_error** error) {
  return call(error, [&] { plan_by_name(*session_of(session), inputs, count, plan); });
}

steep_code steep_inference_dump(steep_inference* session, const steep_array* inputs, size_t count,
                                int32_t format, steep_bytes** text, steep_error** error) {
  return call(error, [&] { dump_by_name(*session_of(session), inputs, count, format, text); });
}

steep_code steep_inference_start_profile(steep_inference* session, steep_error** error) {
  return call(error, [&] { session_of(session)->session.start_profile(); });
}

steep_code steep_inference_write_profile(steep_inference* session, const char* path,
                                         steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    own->session.write_profile(text(path, "path"));
  });
}

}  // extern "C"
