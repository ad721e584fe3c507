// Requests to stop: Ctrl-C, SIGTERM and SIGHUP. All end the process with kInterrupted.
#pragma once

#include <string_view>

namespace steep::cli {

/// From now on, writing to a closed pipe, and to a file beyond `ulimit -f`, is an error of the
/// write instead of the end of the process.
void outlive_failing_writes();

/// What is said of a command that was stopped, and that keeps nothing.
inline constexpr std::string_view kNothingKept = "interrupted; nothing was saved";

/// For a command that has nothing to keep: from now on Ctrl-C, SIGTERM and SIGHUP end it with an
/// InterruptedError; and after two seconds, if none came, with kNothingKept and kInterrupted. A
/// second Ctrl-C or SIGTERM ends the process at once. Signals that were ignored stay ignored.
void end_at_interrupts();

/// For training, which saves what it has. From now on Ctrl-C, SIGTERM and SIGHUP make interrupted()
/// true. A second Ctrl-C or SIGTERM ends the process at once; checkpoints stay valid. A step that
/// runs for two more seconds ends with an InterruptedError. Signals that were ignored, as under
/// nohup, stay ignored.
void catch_interrupts();

bool interrupted();

/// From now on, if a mapped file becomes shorter, the process ends with a message and kEnvironment.
void say_when_files_shrink();

}  // namespace steep::cli
