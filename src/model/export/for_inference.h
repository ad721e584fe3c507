// Turns a model in training mode into a model for inference: see steep/export.h.
#pragma once

#include "model/export/detached.h"

namespace steep {

/// Rewrites the skeleton. Throws ModelError, IoError.
void rewrite_for_inference(DetachedModel& model);

}  // namespace steep
