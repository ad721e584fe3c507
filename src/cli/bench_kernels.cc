// steep bench-kernels: how fast products are here, and which of them computes bfloat16.
#include <fmt/format.h>

#include <memory>
#include <string>

#include "cli/commands.h"
#include "device/device.h"

namespace steep::cli {

Command add_bench_kernels(CLI::App& parent) {
  auto again = std::make_shared<bool>(false);
  CLI::App& app = *parent.add_subcommand(
      "bench-kernels", "Print how fast products are on this processor, and which ones are used");
  app.add_flag("--again", *again, "Measure again, and keep the new measurement for later runs");
  app.footer(
      "The first step in bfloat16 on a processor measures its products, for about a second, and\n"
      "keeps the result in the folder of the cache. This command prints it, or measures.\n"
      "A new measurement may choose other products, whose results differ by rounding.\n"
      "STEEP_PRODUCTS=native or STEEP_PRODUCTS=widened decides without a measurement.\n"
      "Examples:\n"
      "  steep bench-kernels\n"
      "  steep bench-kernels --again");
  return [again] {
    const std::string table = host_device()->measurements(*again);
    fmt::print("{}", table.empty() ? "nothing is measured on this processor\n" : table);
    return kDone;
  };
}

}  // namespace steep::cli
