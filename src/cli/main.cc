// The `steep` program.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>
#include <new>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <tuple>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/completion.h"
#include "cli/interrupts.h"
#include "runtime/logs.h"
#include "steep/error.h"
#include "steep/limits.h"

namespace {

using namespace steep;
using namespace steep::cli;

/// Reports a lack of memory where no catch clause can: in constructors of libraries before main(),
/// and in threads of OpenMP.
[[noreturn]] void end_without_memory() {
  try {
    if (std::current_exception()) throw;
  } catch (const std::bad_alloc&) {
    constexpr std::string_view kText =
        "steep: There is not enough memory.\n  remedy:   Give the process more memory (ulimit "
        "-v).\n";
    std::ignore = write(STDERR_FILENO, kText.data(), kText.size());
    _exit(kEnvironment);
  } catch (...) {
    // Another exception: abort, as without this handler.
  }
  std::abort();
}

void expect_no_memory(int /*argc*/, char** /*argv*/, char** /*environment*/) {
  std::set_terminate(end_without_memory);
}
/// Runs before the constructors of all libraries.
[[gnu::section(".preinit_array"), gnu::used]] void (*const before_all)(int, char**,
                                                                       char**) = expect_no_memory;

int report(const std::string& text, int code) {
  std::fflush(stdout);
  std::cerr << "steep: " << text << "\n";
  return code;
}

int report(const Error& error, int code) { return report(std::string(error.what()), code); }

int run(const Command& command) {
  try {
    end_at_interrupts();
    return command();
  } catch (const ModelError& error) {
    return report(error, kUser);
  } catch (const ShapeError& error) {
    return report(error, kUser);
  } catch (const DataError& error) {
    return report(error, kUser);
  } catch (const InterruptedError&) {
    return report(std::string(kNothingKept), kInterrupted);
  } catch (const InternalError& error) {
    return report(error, kBug);
  } catch (const Error& error) {
    return report(error, kEnvironment);
  } catch (const CLI::Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    return report("there is not enough memory", kEnvironment);
  } catch (const std::length_error&) {  // more elements than any memory can hold
    return report("there is not enough memory", kEnvironment);
  } catch (const std::system_error& error) {
    if (std::ferror(stdout) != 0) return kDone;  // of fmt; finish() reports it
    return report(fmt::format("the system refused: {}", error.what()), kEnvironment);
  } catch (const std::exception& error) {
    return report(fmt::format("a bug in Steep; please report it: {}", error.what()), kBug);
  }
}

int parse_and_run(int argc, char** argv) {
  CLI::App app{"Train ONNX models.", "steep"};  // not the path that was called
  app.set_version_flag("--version", "steep " STEEP_VERSION);
  app.require_subcommand(1);
  app.failure_message(explain);
  app.footer(
      "Exit codes: 0 done; 1 `check` found obstacles, or `diff` differences; 2 command line; 3 "
      "model "
      "or\n"
      "data; 4 files, memory, device or checkpoint; 5 a bug in Steep; 130 interrupted.");
  const std::vector<std::string> command_line(argv, argv + argc);
  const std::vector<Command> commands{add_train(app, command_line),
                                      add_eval(app),
                                      add_predict(app),
                                      add_check(app),
                                      add_dump(app),
                                      add_grad(app),
                                      add_info(app),
                                      add_diff(app),
                                      add_lr_find(app),
                                      add_plan(app),
                                      add_plot(app),
                                      add_bench_kernels(app),
                                      add_launch(app, command_line),
                                      add_completion(app)};
  if (complete(app, command_line)) return kDone;
  const auto subcommands = app.get_subcommands({});
  for (CLI::App* subcommand : subcommands) refuse_empty_words(*subcommand);
  try {
    app.parse(argc, argv);
    for (size_t i = 0; i < commands.size(); ++i) {
      if (subcommands[i]->parsed()) return run(commands[i]);
    }
    return kUsage;
  } catch (const CLI::Error& error) {
    return app.exit(error) == 0 ? kDone : kUsage;
  }
}

/// Makes sure that all output was written: a full disk shows only when the buffer is flushed.
int finish(int code) {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  if ((flushed && std::ferror(stdout) == 0) || code != kDone) return code;
  const std::string why = errno == 0 ? "" : fmt::format(": {}", std::strerror(errno));
  return report("cannot write to standard output" + why, kEnvironment);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    default_max_bytes();  // used as default of options; throws if STEEP_MAX_BYTES is invalid
    if (const char* names = std::getenv("STEEP_LOGS"); names && std::string_view(names) == "help") {
      fmt::print("{}", logs_help());
      return finish(kDone);
    }
    logs(Log::graphs);  // throws if STEEP_LOGS is invalid
  } catch (const Error& error) {
    return report(error, kUsage);
  }
  return finish(parse_and_run(argc, argv));
}
