// A model in training mode becomes one that runs: steep/export.h says how.
#pragma once

#include "model/export/detached.h"

namespace steep {

/// Rewrites the skeleton. Throws ModelError, IoError.
void rewrite_for_inference(DetachedModel& model);

}  // namespace steep
