// The `steep` program's commands. Each function adds its options to `app` and returns what to run.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

namespace steep::cli {

/// Exit codes, also named in `steep --help`.
enum ExitCode : int {
  kDone = 0,
  kObstacles = 1,    ///< `steep check` found obstacles; `steep diff` found differences
  kUsage = 2,        ///< an invalid command line
  kUser = 3,         ///< an error of the model or the data
  kEnvironment = 4,  ///< an error of files, memory, device or checkpoint
  kBug = 5,          ///< a bug in Steep
  kInterrupted = 130,
};

/// May throw CLI::Error for an invalid command line.
using Command = std::function<int()>;

Command add_train(CLI::App& app, std::vector<std::string> command_line);
Command add_eval(CLI::App& app);
Command add_predict(CLI::App& app);
Command add_check(CLI::App& app);
Command add_dump(CLI::App& app);
Command add_grad(CLI::App& app);
Command add_info(CLI::App& app);
Command add_diff(CLI::App& app);
Command add_lr_find(CLI::App& app);
Command add_plan(CLI::App& app);
Command add_plot(CLI::App& app);
Command add_bench_kernels(CLI::App& app);
Command add_launch(CLI::App& app, std::vector<std::string> command_line);
Command add_completion(CLI::App& app);

}  // namespace steep::cli
