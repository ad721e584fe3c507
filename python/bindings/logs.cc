// Diagnostics: the logs of STEEP_LOGS, and the names of passes.
#include "runtime/logs.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "passes/pipeline.h"
#include "plan/memory_limit.h"
#include "steep/error.h"

namespace steep::python {
namespace {

/// The log with this name. Throws DataError.
Log log_from(const std::string& name) {
  const auto kinds = log_kinds();
  for (size_t i = 0; i < kinds.size(); ++i) {
    if (kinds[i].name == name) return static_cast<Log>(i);
  }
  throw DataError({.what = "There is no log of this name.", .received = name});
}

}  // namespace

DumpFormat dump_format(const std::string& name) {
  if (name == "text") return DumpFormat::text;
  if (name == "passes") return DumpFormat::passes;
  if (name == "html") return DumpFormat::html;
  throw DataError({.what = "The form of the dump is unknown.",
                   .expected = "text, passes or html",
                   .received = name});
}

void init_logs(nb::module_& m) {
  m.def("set_logs", &set_logs, nb::arg("names"),
        "Tells, on standard error, of the kinds named (\"passes,plan\") and of no others. Raises "
        "DataError, listing the kinds, for another name; \"help\" prints them.");
  m.def(
      "logs", [](const std::string& kind) { return logs(log_from(kind)); }, nb::arg("kind"),
      "Is it asked for?");
  m.def(
      "log", [](const std::string& kind, const std::string& text) { log(log_from(kind), text); },
      nb::arg("kind"), nb::arg("text"), "Writes it to standard error, its kind before each line.");
  m.def(
      "log_kinds",
      [] {
        std::vector<std::pair<std::string, std::string>> kinds;
        for (const LogKind& kind : log_kinds()) kinds.emplace_back(kind.name, kind.help);
        return kinds;
      },
      nb::sig("def log_kinds() -> list[tuple[str, str]]"), "Names, and what each tells.");
  m.def(
      "pass_names", [] { return pass_names(); }, nb::sig("def pass_names() -> list[str]"),
      "In the order in which they run.");
  m.def(
      "check_passes",
      [](const std::vector<std::string>& names) {
        check_passes({names.begin(), names.end()});
      },
      nb::arg("names"), nb::sig("def check_passes(names: collections.abc.Sequence[str]) -> None"),
      "Raises ModelError, listing the passes, when one of these is none.");
  m.def(
      "check_memory_limit", [](const std::string& text) { memory_limit_from(text); },
      nb::arg("text"), "Raises ModelError when a limit of memory cannot be read.");
}

}  // namespace steep::python
