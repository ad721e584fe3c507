// Requests to stop, which take effect between two steps.
#pragma once

namespace steep::cli {

/// From now on, writing to a closed pipe, and to a file beyond `ulimit -f`, is an error of the
/// write instead of the end of the process.
void outlive_failing_writes();

/// From now on Ctrl-C, SIGTERM and SIGHUP make interrupted() true. A second Ctrl-C or SIGTERM ends
/// the process at once; checkpoints stay valid. A step that runs for two more seconds ends with an
/// InterruptedError. Signals that were ignored, as under nohup, stay ignored.
void catch_interrupts();

bool interrupted();

/// From now on, if a mapped file becomes shorter, the process ends with a message and kEnvironment.
void say_when_files_shrink();

}  // namespace steep::cli
