// Functions that belong to no session: models, registration of plug-ins and operators.
#include <fmt/format.h>

#include <memory>

#include "c_api/arrays.h"
#include "c_api/call.h"
#include "c_api/options.h"
#include "steep/check.h"
#include "steep/export.h"
#include "steep/gradient.h"
#include "steep/ops.h"
#include "steep/providers.h"

namespace steep::c_api {
namespace {

class Report : public Object {
 public:
  static constexpr std::string_view kKind = "steep_report";
  explicit Report(const CheckReport& report)
      : obstacles(report.obstacles),
        unread(report.unread),
        parameters(report.parameters),
        left_out(report.left_out),
        warnings(report.warnings) {}
  std::string_view kind() const override { return kKind; }

  const std::vector<Obstacle> obstacles;
  const std::vector<Obstacle> unread;
  const Values parameters;
  const Reasons left_out;
  const Names warnings;
};

/// Fills *obstacle from the i-th one. Throws ArgumentError.
void put_obstacle(const std::vector<Obstacle>& all, size_t i, steep_obstacle* obstacle) {
  require(obstacle, "obstacle");
  if (i >= all.size()) throw_index("an obstacle", i, all.size());
  *obstacle = {.op = all[i].op.c_str(),
               .node = all[i].node.c_str(),
               .path = all[i].path.c_str(),
               .remedy = all[i].remedy.c_str(),
               .what = all[i].what.c_str()};
}

}  // namespace
}  // namespace steep::c_api

using namespace steep::c_api;  // NOLINT: functions of C are in no namespace

extern "C" {

// --- models -------------------------------------------------------------------------------------

steep_code steep_check_model(const char* path, const steep_options* options, steep_report** report,
                             steep_error** error) {
  return call(error, [&] {
    require(report, "report");
    const std::string file = text(path, "path");
    give(report, std::make_shared<Report>(steep::check_model(
                     file, options_or_defaults<steep::TrainingOptions>(options))));
  });
}

steep_code steep_check_model_bytes(const void* model, size_t size, const char* folder,
                                   const steep_options* options, steep_report** report,
                                   steep_error** error) {
  return call(error, [&] {
    require(report, "report");
    give(report, std::make_shared<Report>(steep::check_model(
                     bytes_of(model, size), options_or_defaults<steep::TrainingOptions>(options),
                     folder == nullptr ? "" : folder)));
  });
}

size_t steep_report_obstacle_count(const steep_report* report) {
  const auto found = find_object<Report>(report);
  return found ? found->obstacles.size() : 0;
}

steep_code steep_report_obstacle(const steep_report* report, size_t i, steep_obstacle* obstacle,
                                 steep_error** error) {
  return call(error, [&] { put_obstacle(object<Report>(report)->obstacles, i, obstacle); });
}

size_t steep_report_unread_count(const steep_report* report) {
  const auto found = find_object<Report>(report);
  return found ? found->unread.size() : 0;
}

steep_code steep_report_unread(const steep_report* report, size_t i, steep_obstacle* obstacle,
                               steep_error** error) {
  return call(error, [&] { put_obstacle(object<Report>(report)->unread, i, obstacle); });
}

steep_code steep_report_parameters(const steep_report* report, const steep_value** parameters,
                                   size_t* count, steep_error** error) {
  return call(error, [&] { object<Report>(report)->parameters.put(parameters, count); });
}

steep_code steep_report_left_out(const steep_report* report, const char* const** names,
                                 const char* const** reasons, size_t* count, steep_error** error) {
  return call(error, [&] { object<Report>(report)->left_out.put(names, reasons, count); });
}

steep_code steep_report_warnings(const steep_report* report, const char* const** texts,
                                 size_t* count, steep_error** error) {
  return call(error, [&] { object<Report>(report)->warnings.put(texts, count); });
}

steep_code steep_report_free(steep_report* report) { return release<Report>(report); }

steep_code steep_gradient_model(const char* path, const steep_options* options, steep_bytes** model,
                                steep_error** error) {
  return call(error, [&] {
    require(model, "model");
    const std::string file = text(path, "path");
    give_bytes(model,
               steep::gradient_model(file, steep::c_api::options<steep::GradientOptions>(options)));
  });
}

steep_code steep_gradient_model_bytes(const void* model, size_t size, const char* folder,
                                      const steep_options* options, steep_bytes** gradients,
                                      steep_error** error) {
  return call(error, [&] {
    require(gradients, "gradients");
    give_bytes(gradients,
               steep::gradient_model(bytes_of(model, size),
                                     steep::c_api::options<steep::GradientOptions>(options),
                                     folder == nullptr ? "" : folder));
  });
}

steep_code steep_write_for_inference(const char* model, const char* path,
                                     const steep_options* options, steep_error** error) {
  return call(error, [&] {
    const std::string from = text(model, "model");
    steep::write_for_inference(from, text(path, "path"),
                               options_or_defaults<steep::ExportOptions>(options));
  });
}

steep_code steep_model_for_inference(const void* model, size_t size, const char* folder,
                                     steep_bytes** copy, steep_error** error) {
  return call(error, [&] {
    require(copy, "copy");
    give_bytes(copy,
               steep::model_for_inference(bytes_of(model, size), folder == nullptr ? "" : folder));
  });
}

// --- plug-ins, operators and optimizers ----------------------------------------------------------

steep_code steep_register_provider(const char* library, steep_bytes** name, steep_error** error) {
  return call(error, [&] { give_bytes(name, steep::register_provider(text(library, "library"))); });
}

steep_code steep_available_providers(steep_strings** names, steep_error** error) {
  return call(error, [&] {
    require(names, "names");
    give_strings(names, steep::available_providers());
  });
}

steep_code steep_register_ops(const char* path, steep_strings** names, steep_error** error) {
  return call(error, [&] { give_strings(names, steep::register_ops(text(path, "path"))); });
}

steep_code steep_unregister_op(const char* name, steep_error** error) {
  return call(error, [&] {
    const std::string op_name = text(name, "name");
    if (steep::unregister_op(op_name)) return;
    throw steep::DataError({.what = "Nothing is registered under this name.", .node = op_name});
  });
}

steep_code steep_registered_ops(steep_strings** names, steep_error** error) {
  return call(error, [&] {
    require(names, "names");
    give_strings(names, steep::registered_ops());
  });
}

}  // extern "C"
