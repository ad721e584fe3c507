#include "runtime/profiler.h"

#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/disk.h"

namespace steep {

std::string Profiler::to_json() const {
  using nlohmann::json;
  json trace = json::array();
  std::map<std::string, int> rows;
  for (const Event& e : events_) {
    const int row = rows.try_emplace(e.op, static_cast<int>(rows.size()) + 1).first->second;
    json args{{"op", e.op}};
    if (!e.kernel.empty()) args.update({{"kernel", e.kernel}, {"types", e.shapes}});
    if (e.bytes > 0) args["bytes"] = e.bytes;
    if (e.bucket >= 0) args["bucket"] = e.bucket;
    if (e.flops > 0) {
      args["GFLOP"] = e.flops / 1e9;
      args["GFLOP/s"] = e.flops / e.duration_us / 1e3;
    }
    trace.push_back({{"name", e.node},
                     {"cat", e.op},
                     {"ph", "X"},
                     {"pid", 1},
                     {"tid", row},
                     {"ts", e.start_us},
                     {"dur", e.duration_us},
                     {"args", std::move(args)}});
  }
  for (const auto& [op, row] : rows) {
    trace.push_back(
        {{"name", "thread_name"}, {"ph", "M"}, {"pid", 1}, {"tid", row}, {"args", {{"name", op}}}});
  }
  return json{{"traceEvents", trace}, {"displayTimeUnit", "ms"}}.dump();
}

void Profiler::add(const Exchange& exchange) {
  const std::chrono::duration<double, std::micro> took = exchange.end - exchange.start;
  add({.node = exchange.name,
       .op = "communication",
       .start_us = us_of(exchange.start),
       .duration_us = took.count(),
       .bytes = exchange.bytes,
       .bucket = exchange.bucket});
}

void Profiler::write(const std::string& path) const {
  write_file(path, [&](FileWriter& file) { file.write(to_json()); });
}

void TimedStage::done(size_t nodes) {
  const std::chrono::duration<double, std::milli> took = Profiler::Clock::now() - start_;
  if (stages_ != nullptr) stages_->push_back({name_, took.count(), nodes});
  if (profiler_ == nullptr) return;
  const double duration = took.count() * 1e3;
  profiler_->add({.node = name_,
                  .op = "compile",
                  .start_us = profiler_->now_us() - duration,
                  .duration_us = duration});
}

}  // namespace steep
