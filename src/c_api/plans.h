// Plans and dumps of the three kinds of sessions.
#pragma once

#include <cstdint>

#include "c_api/arrays.h"
#include "c_api/call.h"
#include "steep/dump.h"
#include "steep/steep.h"
#include "steep_c.h"

namespace steep::c_api {

/// Throws ArgumentError if `format` is not a steep_dump_format.
DumpFormat dump_format(int32_t format);
/// Throws ArgumentError if `plan` is null.
void put_plan(steep_plan* plan, const StepPlan& step_plan);

/// The plan, and the dump, of an object with a session that takes inputs by name. Throws as above.
template <typename Object>
void plan_by_name(Object& own, const steep_array* inputs, size_t count, steep_plan* plan) {
  require(plan, "plan");
  const Feed feed(inputs, count);
  put_plan(plan, own.session.plan(feed.named(own.inputs.infos())));
}

template <typename Object>
void dump_by_name(Object& own, const steep_array* inputs, size_t count, int32_t format,
                  steep_bytes** text) {
  require(text, "text");
  const DumpFormat shown = dump_format(format);
  const Feed feed(inputs, count);
  give_bytes(text, own.session.dump(feed.named(own.inputs.infos()), shown));
}

}  // namespace steep::c_api
