#include "cli/interrupts.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <optional>
#include <string_view>

#include "cli/commands.h"
#include "steep/limits.h"

namespace steep::cli {
namespace {

constexpr unsigned kPatience = 2;  // seconds
volatile std::sig_atomic_t asked = 0;

void say(std::string_view text) {
  [[maybe_unused]] const ssize_t bytes = ::write(STDERR_FILENO, text.data(), text.size());
}

void ask_for_a_save(int signal) {
  asked = 1;
  if (signal != SIGINT) return;
  say("\nsteep: stopping after this step; Ctrl-C again stops at once and saves nothing\n");
}

/// Work that does not look whether it was asked to stop ends by the alarm.
void ask_for_the_end(int /*signal*/) {
  asked = 1;
  ::alarm(kPatience);
}

[[noreturn]] void end_now(int /*signal*/) {
  say("steep: ");
  say(kNothingKept);
  say("\n");
  ::_exit(kInterrupted);
}

void catch_signal(int number, void (*handler)(int), int flags) {
  struct sigaction action {};
  ::sigaction(number, nullptr, &action);
  if (action.sa_handler == SIG_IGN) return;
  action = {};
  action.sa_handler = handler;
  action.sa_flags = flags | SA_RESTART;
  ::sigaction(number, &action, nullptr);
}

/// A second Ctrl-C or SIGTERM ends the process. Not a second SIGHUP: both the terminal and its
/// shell send one.
void catch_signals(void (*handler)(int)) {
  const int once = static_cast<int>(SA_RESETHAND);
  catch_signal(SIGINT, handler, once);
  catch_signal(SIGTERM, handler, once);
  catch_signal(SIGHUP, handler, 0);
}

/// The interrupt check within steps: a step may go on for two seconds, so that short ones end
/// normally.
bool gives_up() {
  using Clock = std::chrono::steady_clock;
  static std::optional<Clock::time_point> since;
  if (asked == 0) return false;
  if (!since) since = Clock::now();
  return Clock::now() - *since > std::chrono::seconds(kPatience);
}

[[noreturn]] void end_without_pages(int /*signal*/) {
  constexpr std::string_view kText =
      "\nsteep: a file of --data became shorter, or cannot be read any more, while it was used\n"
      "  remedy:   leave it as it is, and resume from the last checkpoint\n";
  say(kText);
  ::_exit(kEnvironment);
}

}  // namespace

void say_when_files_shrink() { ::signal(SIGBUS, end_without_pages); }

void outlive_failing_writes() {
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
}

void catch_interrupts() {
  ::alarm(0);  // of a Ctrl-C that came while the data were read
  catch_signals(ask_for_a_save);
  set_interrupt_check(gives_up);
}

void end_at_interrupts() {
  ::signal(SIGALRM, end_now);
  catch_signals(ask_for_the_end);
  set_interrupt_check(interrupted);
}

bool interrupted() { return asked != 0; }

}  // namespace steep::cli
