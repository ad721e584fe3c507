// Shows a plan as an HTML page.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "plan/plan.h"

namespace steep {

/// A self-contained HTML page. It has, for each plan, the totals, a picture of each arena (bytes
/// over steps) and a table of the steps in order, with operator, types, bytes, provider and kernel.
/// `note` is the text at the top. Equal plans give equal pages.
std::string to_html(std::span<const Plan* const> plans, std::string_view note = "");

/// The same for one plan.
inline std::string to_html(const Plan& plan) {
  const Plan* const one[] = {&plan};
  return to_html(one);
}

}  // namespace steep
