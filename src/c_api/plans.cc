// Functions that look inside a steep_training: plans, reports, dumps, profiles.
#include "c_api/plans.h"

#include <memory>
#include <utility>

#include "c_api/arrays.h"
#include "c_api/call.h"
#include "c_api/training.h"
#include "steep/memory_report.h"

namespace steep::c_api {
namespace {

steep_memory_plan plan_of(const MemoryPlan& plan) { return {.bytes = plan.bytes, .ms = plan.ms}; }

/// The object behind a steep_memory.
class Memory : public Object {
 public:
  static constexpr std::string_view kKind = "steep_memory";
  explicit Memory(MemoryReport memory_report)
      : report_(std::move(memory_report)), text_(report_.text()) {
    for (const MemoryPlan& plan : report_.plans) plans_.push_back(plan_of(plan));
    for (const MemoryChoice& choice : report_.choices) {
      choices_.push_back({.node = choice.node.c_str(),
                          .op = choice.op.c_str(),
                          .bytes = choice.bytes,
                          .ms = choice.ms,
                          .again = choice.again});
    }
  }
  std::string_view kind() const override { return kKind; }

  steep_memory_report report() const {
    return {.limit = report_.limit,
            .planned = plan_of(report_.planned),
            .plain = plan_of(report_.plain),
            .plans = plans_.data(),
            .plan_count = plans_.size(),
            .choices = choices_.data(),
            .choice_count = choices_.size(),
            .text = text_.c_str()};
  }

 private:
  const MemoryReport report_;
  const std::string text_;
  std::vector<steep_memory_plan> plans_;
  std::vector<steep_memory_choice> choices_;
};

}  // namespace

DumpFormat dump_format(int32_t format) {
  switch (format) {
    case STEEP_DUMP_TEXT: return DumpFormat::text;
    case STEEP_DUMP_PASSES: return DumpFormat::passes;
    case STEEP_DUMP_HTML: return DumpFormat::html;
    default: break;
  }
  throw ArgumentError({.what = "There is no such format of a dump.",
                       .expected = "a steep_dump_format",
                       .received = std::to_string(format)});
}

void put_plan(steep_plan* plan, const StepPlan& step_plan) {
  require(plan, "plan");
  *plan = {.arena_bytes = step_plan.arena_bytes,
           .parameter_bytes = step_plan.parameter_bytes,
           .optimizer_bytes = step_plan.optimizer_bytes,
           .output_bytes = step_plan.output_bytes,
           .constant_bytes = step_plan.constant_bytes,
           .peak_bytes = step_plan.peak_bytes,
           .run_bytes = step_plan.run_bytes,
           .memory_limit = step_plan.memory_limit,
           .offloaded_bytes = step_plan.offloaded_bytes,
           .kernels = step_plan.kernels,
           .specialise_ms = step_plan.specialise_ms};
}

}  // namespace steep::c_api

using namespace steep::c_api;  // NOLINT: functions of C are in no namespace

extern "C" {

steep_code steep_training_plan(steep_training* session, const steep_array* inputs, size_t count,
                               steep_plan* plan, steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    require(plan, "plan");
    const Feed feed(inputs, count);
    put_plan(plan, own->session.plan(feed.ordered(own->inputs.infos())));
  });
}

steep_code steep_training_peak_bytes(const steep_training* session, uint64_t* bytes,
                                     steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    require(bytes, "bytes");
    *bytes = own->session.peak_bytes();
  });
}

steep_code steep_training_memory_report(steep_training* session, const steep_array* inputs,
                                        size_t count, steep_memory** memory, steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    require(memory, "memory");
    const Feed feed(inputs, count);
    give(memory,
         std::make_shared<Memory>(own->session.memory_report(feed.ordered(own->inputs.infos()))));
  });
}

steep_code steep_memory_get(const steep_memory* memory, steep_memory_report* report,
                            steep_error** error) {
  return call(error, [&] {
    const auto own = object<Memory>(memory);
    require(report, "report");
    *report = own->report();
  });
}

steep_code steep_memory_free(steep_memory* memory) { return release<Memory>(memory); }

steep_code steep_training_dump(steep_training* session, const steep_array* inputs, size_t count,
                               int32_t format, steep_bytes** text, steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    require(text, "text");
    const steep::DumpFormat shown = dump_format(format);
    if (count == 0 && shown != steep::DumpFormat::text) {
      throw ArgumentError({.what = "Without inputs there is no compiled step to show.",
                           .expected = "inputs, or STEEP_DUMP_TEXT",
                           .received = std::to_string(format)});
    }
    const Feed feed(inputs, count);
    give_bytes(text, count == 0 ? own->session.dump()
                                : own->session.dump(feed.ordered(own->inputs.infos()), shown));
  });
}

steep_code steep_training_start_profile(steep_training* session, steep_error** error) {
  return call(error, [&] { session_of(session)->session.start_profile(); });
}

steep_code steep_training_write_profile(steep_training* session, const char* path,
                                        steep_error** error) {
  return call(error, [&] {
    const auto own = session_of(session);
    own->session.write_profile(text(path, "path"));
  });
}

}  // extern "C"
