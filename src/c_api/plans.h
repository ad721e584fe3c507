// Plans and dumps of the three kinds of sessions.
#pragma once

#include <cstdint>

#include "steep/dump.h"
#include "steep/steep.h"
#include "steep_c.h"

namespace steep::c_api {

/// Throws ArgumentError if `format` is not a steep_dump_format.
DumpFormat dump_format(int32_t format);
/// Throws ArgumentError if `plan` is null.
void put_plan(steep_plan* plan, const StepPlan& step_plan);

}  // namespace steep::c_api
