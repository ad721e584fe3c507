#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>

namespace steep::cli {
namespace {

/// Not fmt::print, which throws: a reader that has closed the pipe must only make lost() true. Any
/// other reason is said.
void put(const std::string& text, std::FILE* file) {
  errno = 0;
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if ((written && std::fflush(file) == 0) || file != stdout || errno == EPIPE) return;
  const std::string why = "steep: cannot write to standard output: ";
  put(why + std::generic_category().message(errno) + "\n", stderr);
}

}  // namespace

std::string to_line(const Fields& fields) {
  return fields.dump(-1, ' ', false, Fields::error_handler_t::replace);
}

Progress::Progress(double total, double start, bool json, bool quiet)
    : total_(total),
      before_(start),
      json_(json),
      quiet_(quiet),
      terminal_(!json && ::isatty(STDOUT_FILENO) != 0),
      last_print_(start_) {}

void Progress::put_report(const char* kind, const Fields& fields) {
  Fields report{{"report", kind}};
  report.update(fields);
  put(to_line(report) + "\n", lost() ? stderr : stdout);
}

double Progress::samples_per_second() const {
  const std::chrono::duration<double> took = Clock::now() - start_;
  return took.count() > 0 ? static_cast<double>(samples_) / took.count() : 0;
}

std::string Progress::rate_and_time_left() const {
  const double rate = samples_per_second();
  const double seconds = rate > 0 ? (total_ - before_ - static_cast<double>(samples_)) / rate : 0;
  constexpr double kLongest = 1e9;  // 30 years
  const auto remainder = static_cast<int64_t>(std::clamp(seconds, 0.0, kLongest));
  return fmt::format("{:.0f} samples/s  {}:{:02}:{:02} left", rate, remainder / 3600,
                     remainder / 60 % 60, remainder % 60);
}

void Progress::step(int64_t samples, const std::string& text, const Fields& fields) {
  samples_ += samples;
  if (quiet_) return;
  const auto now = Clock::now();
  if (now - last_print_ < (terminal_ ? std::chrono::milliseconds(100) : std::chrono::seconds(10)))
    return;
  last_print_ = now;
  if (json_) {
    if (!fields.is_null()) put_report("step", fields);
  } else if (terminal_) {
    put(fmt::format("\r\x1b[K{}  {}", text, rate_and_time_left()), stdout);
    drawn_ = true;
  } else {
    put(fmt::format("{}  {}\n", text, rate_and_time_left()), stdout);
  }
}

void Progress::line(const std::string& text) {
  if (quiet_) return;
  if (json_) return put_report("note", {{"text", text}});
  if (drawn_) put("\r\x1b[K", stdout);
  drawn_ = false;
  put(text + "\n", lost() ? stderr : stdout);
}

void Progress::warning(const std::string& text) {
  if (!text.empty()) line("warning: " + text);
}

void Progress::begin_epoch() {
  epoch_start_ = Clock::now();
  epoch_samples_ = samples_;
  if (samples_ == 0) start_ = epoch_start_;  // what was compiled before has no samples
}

void Progress::end_steps() {
  const std::chrono::duration<double> took = Clock::now() - epoch_start_;
  epoch_rate_ =
      took.count() > 0 ? static_cast<double>(samples_ - epoch_samples_) / took.count() : 0;
}

void Progress::epoch(const std::string& text, Fields fields) {
  if (quiet_) return;
  if (!json_) return line(text + fmt::format("  {:.0f} samples/s", epoch_rate_));
  fields["samples_per_second"] = epoch_rate_;
  put_report("epoch", fields);
}

bool Progress::lost() const { return std::ferror(stdout) != 0; }

}  // namespace steep::cli
