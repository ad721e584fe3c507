// The `steep` program.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <new>

#include "cli/commands.h"
#include "steep/error.h"

namespace {

using namespace steep;
using namespace steep::cli;

int report(const std::exception& error, int code) {
  std::cout << std::flush;
  std::cerr << "steep: " << error.what() << "\n";
  return code;
}

int run(const Command& command) {
  try {
    return command();
  } catch (const ModelError& error) {
    return report(error, kUser);
  } catch (const ShapeError& error) {
    return report(error, kUser);
  } catch (const DataError& error) {
    return report(error, kUser);
  } catch (const InternalError& error) {
    return report(error, kBug);
  } catch (const Error& error) {
    return report(error, kEnvironment);
  } catch (const std::bad_alloc&) {
    std::cerr << "steep: there is not enough memory\n";
    return kEnvironment;
  } catch (const std::exception& error) {
    return report(error, kBug);
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Train ONNX models."};
  app.set_version_flag("--version", "steep " STEEP_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 done; 1 `check` found obstacles; 2 command line; 3 model or data; 4 files, "
      "memory,\n"
      "device or checkpoint; 5 a bug in Steep; 130 interrupted.");
  const std::vector<std::string> command_line(argv, argv + argc);
  const std::vector<Command> commands{add_train(app, command_line), add_eval(app), add_check(app),
                                      add_dump(app), add_grad(app)};
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kDone : kUsage;
  }
  const auto subcommands = app.get_subcommands({});
  for (size_t i = 0; i < commands.size(); ++i) {
    if (subcommands[i]->parsed()) return run(commands[i]);
  }
  return kUsage;
}
