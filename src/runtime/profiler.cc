#include "runtime/profiler.h"

#include <map>
#include <new>
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

void Profiler::write(const std::string& path) const {
  write_file(path, [&](FileWriter& file) { file.write(to_json()); });
}

TimedStage::~TimedStage() {
  if (profiler_ == nullptr) return;
  try {
    profiler_->add({.node = std::move(name_),
                    .op = "compile",
                    .start_us = start_us_,
                    .duration_us = profiler_->now_us() - start_us_});
  } catch (const std::bad_alloc&) {
    // The trace lacks an event.
  }
}

}  // namespace steep
