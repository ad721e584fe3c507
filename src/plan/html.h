// A plan as a page to look at.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "plan/plan.h"

namespace steep {

/// One HTML page, whole in itself: for each plan its totals, every arena as a picture (bytes over
/// steps), and a table of its steps in order, with operator, types, bytes, provider and kernel.
/// `note` stands above. Stable.
std::string to_html(std::span<const Plan* const> plans, std::string_view note = "");

/// The same of one plan.
inline std::string to_html(const Plan& plan) {
  const Plan* const one[] = {&plan};
  return to_html(one);
}

}  // namespace steep
