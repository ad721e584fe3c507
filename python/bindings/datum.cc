// Conversion of values of any kind: arrays, lists of arrays, None.
#include "bindings.h"

namespace steep::python {

Datum to_datum(nb::handle value, const char* name) {
  if (value.is_none()) return {};
  if (!nb::isinstance<nb::list>(value) && !nb::isinstance<nb::tuple>(value))
    return to_tensor(value, name);
  Datum::Items items;
  for (nb::handle item : nb::cast<nb::sequence>(value)) items.push_back(to_datum(item, name));
  return {std::move(items)};
}

nb::object to_object(const Datum& datum) {
  if (datum.empty()) return nb::none();
  if (datum.is_tensor()) return nb::cast(datum.tensor()).attr("numpy")();
  nb::list items;
  for (const Datum& d : datum.items()) items.append(to_object(d));
  return items;
}

}  // namespace steep::python
