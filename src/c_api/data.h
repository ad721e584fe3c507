// The object behind a steep_data.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "c_api/handles.h"
#include "steep/datum.h"
#include "steep_c.h"

namespace steep::c_api {

/// Values in the order in which they were added. The caller keeps threads apart
/// (steep_c_models.h).
class Data : public Object {
 public:
  static constexpr std::string_view kKind = "steep_data";
  struct Item {
    std::string name;
    Datum datum;
    std::vector<steep_array> arrays;  ///< that point to `datum`; empty for a sequence of others
  };
  std::string_view kind() const override { return kKind; }

  /// Throws ArgumentError if the name is there already.
  void add(const std::string& name, Datum datum);
  const std::deque<Item>& items() const { return items_; }

 private:
  std::deque<Item> items_;  ///< stay at their addresses
};

}  // namespace steep::c_api
