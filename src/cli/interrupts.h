// Requests to stop, seen between two steps.
#pragma once

namespace steep::cli {

/// From now on a closed pipe, and a file that grows past `ulimit -f`, is an error of the write, not
/// the end of the process.
void outlive_failing_writes();

/// From now on Ctrl-C, SIGTERM and SIGHUP make interrupted() true. A second Ctrl-C or SIGTERM ends
/// the process at once, which checkpoints survive. A step that goes on for two seconds is left with
/// an InterruptedError. Signals that were ignored, as under nohup, stay so.
void catch_interrupts();

bool interrupted();

/// From now on the process ends with a message, and kEnvironment, if a file that is mapped becomes
/// shorter than it was.
void say_when_files_shrink();

}  // namespace steep::cli
