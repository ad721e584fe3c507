// steep launch: starts the processes of a training on this machine.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/launcher.h"
#include "parallel/watch.h"
#include "steep/error.h"

namespace steep::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kMostProcesses = 1024;
/// How long the others may take to end by themselves, and then after SIGTERM.
constexpr std::chrono::seconds kGrace(15), kTerm(10);
/// How long a process may be stopped.
constexpr std::chrono::seconds kSilence =
    std::chrono::duration_cast<std::chrono::seconds>(WatchTimes{}.silence);

volatile std::sig_atomic_t signal_to_pass = 0;
void pass_on(int number) { signal_to_pass = number; }

[[noreturn]] void throw_system(const std::string& what) {
  throw IoError(ErrorParts{.what = what, .received = std::strerror(errno)});
}

/// A private folder in which the processes meet.
class MeetingFolder {
 public:
  MeetingFolder() {
    std::string name = (fs::temp_directory_path() / "steep-launch-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw_system("A temporary folder cannot be made.");
    path_ = name;
  }
  ~MeetingFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  MeetingFolder(const MeetingFolder&) = delete;
  MeetingFolder& operator=(const MeetingFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Prints lines of several processes: one that several of them write appears once.
class Lines {
 public:
  explicit Lines(size_t processes) : counts_(processes), rest_(processes) {}

  void add(size_t process, std::string_view text) {
    std::string& rest = rest_[process];
    rest += text;
    for (size_t end = rest.find('\n'); end != std::string::npos; end = rest.find('\n')) {
      put(process, rest.substr(0, end + 1));
      rest.erase(0, end + 1);
    }
  }
  void finish(size_t process) {
    if (!rest_[process].empty()) put(process, rest_[process] + "\n");
    rest_[process].clear();
  }

 private:
  void put(size_t process, const std::string& line) {
    const int times = ++counts_[process][line];
    int& most = printed_[line];
    if (times <= most) return;
    most = times;
    const char* at = line.data();
    for (size_t left = line.size(); left > 0;) {
      const ssize_t written = ::write(STDERR_FILENO, at, left);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return;
      at += written;
      left -= static_cast<size_t>(written);
    }
  }

  std::vector<std::map<std::string, int>> counts_;
  std::vector<std::string> rest_;
  std::map<std::string, int> printed_;
};

/// Whether a process was stopped (SIGSTOP), so that it cannot end by itself.
bool is_stopped(pid_t id) {
  std::ifstream file(fmt::format("/proc/{}/stat", id));
  std::string text;
  std::getline(file, text);
  const size_t name = text.rfind(')');  // id (name) state …
  return name != std::string::npos && text.size() > name + 2 && text[name + 2] == 'T';
}

struct Process {
  pid_t id = -1;
  int errors = -1;  ///< its standard error
  bool runs = false;
  std::optional<Clock::time_point> stopped{};  ///< since when
  bool noted = false;                          ///< that it does not answer
};

/// What is started: this program, or another after the word `--`.
struct Started {
  bool own = true;
  std::vector<std::string> words{};
};

class Launch {
 public:
  Launch(int processes, Started command)
      : command_(std::move(command)),
        processes_(static_cast<size_t>(processes)),
        lines_(processes_.size()) {}
  ~Launch() {
    send(SIGKILL);
    for (Process& process : processes_) {
      if (process.runs) ::waitpid(process.id, nullptr, 0);
      if (process.errors >= 0) ::close(process.errors);
    }
  }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  int run() {
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
      struct sigaction action {};
      action.sa_handler = pass_on;
      ::sigaction(number, &action, nullptr);
    }
    ::signal(SIGPIPE, SIG_IGN);
    for (size_t rank = 0; rank < processes_.size(); ++rank) start(rank);
    while (running() > 0 || reading()) {
      if (const int number = signal_to_pass; number != 0) {
        signal_to_pass = 0;
        send(number);
      }
      read_errors();
      collect();
      note_stopped();
      end_others();
    }
    return code_;
  }

 private:
  int64_t running() const {
    return std::count_if(processes_.begin(), processes_.end(),
                         [](const Process& process) { return process.runs; });
  }
  bool reading() const {
    return std::any_of(processes_.begin(), processes_.end(),
                       [](const Process& process) { return process.errors >= 0; });
  }

  void start(size_t rank) {
    std::array<int, 2> pipe{};
    if (::pipe2(pipe.data(), O_CLOEXEC) != 0) throw_system("A process cannot be started.");
    std::vector<std::string> variables = environment(rank);
    std::vector<char*> arguments, settings;
    for (std::string& word : command_.words) arguments.push_back(word.data());
    for (std::string& variable : variables) settings.push_back(variable.data());
    arguments.push_back(nullptr);
    settings.push_back(nullptr);
    const pid_t parent = ::getpid();
    const pid_t id = ::fork();
    if (id < 0) throw_system("A process cannot be started.");
    if (id == 0) {
      // A group of its own: Ctrl-C reaches it through this program only, once.
      ::setpgid(0, 0);
      ::prctl(PR_SET_PDEATHSIG, SIGTERM);
      if (::getppid() != parent) ::_exit(kEnvironment);
      for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(number, SIG_DFL);
      ::dup2(pipe[1], STDERR_FILENO);
      if (command_.own) {
        ::execve("/proc/self/exe", arguments.data(), settings.data());
      } else {
        ::execvpe(arguments[0], arguments.data(), settings.data());
      }
      ::dprintf(STDERR_FILENO, "steep: %s cannot be started: %s\n", arguments[0],
                ::strerror(errno));
      ::_exit(kEnvironment);
    }
    ::close(pipe[1]);
    processes_[rank] = {.id = id, .errors = pipe[0], .runs = true};
  }

  std::vector<std::string> environment(size_t rank) const {
    std::map<std::string, std::string> own{{"STEEP_RANK", std::to_string(rank)},
                                           {"STEEP_SIZE", std::to_string(processes_.size())},
                                           {"STEEP_RENDEZVOUS", folder_.path()},
                                           {"STEEP_ADDRESS", "127.0.0.1"}};
    if (std::getenv("OMP_NUM_THREADS") == nullptr) {
      const size_t cores = std::max(1u, std::thread::hardware_concurrency());
      own["OMP_NUM_THREADS"] = std::to_string(std::max<size_t>(1, cores / processes_.size()));
    }
    std::vector<std::string> all;
    for (char** at = environ; *at != nullptr; ++at) {
      const std::string variable = *at;
      if (!own.contains(variable.substr(0, variable.find('=')))) all.push_back(variable);
    }
    for (const auto& [name, value] : own) all.push_back(fmt::format("{}={}", name, value));
    return all;
  }

  void send(int number) const {
    for (const Process& process : processes_) {
      if (process.runs) ::kill(process.id, number);
    }
  }

  /// Waits a moment for lines of the processes, and prints them.
  void read_errors() {
    std::vector<pollfd> files;
    std::vector<size_t> ranks;
    for (size_t rank = 0; rank < processes_.size(); ++rank) {
      if (processes_[rank].errors < 0) continue;
      files.push_back({.fd = processes_[rank].errors, .events = POLLIN, .revents = 0});
      ranks.push_back(rank);
    }
    if (::poll(files.data(), files.size(), 50) <= 0) return;
    for (size_t i = 0; i < files.size(); ++i) {
      if (files[i].revents == 0) continue;
      std::array<char, 4096> text{};
      const ssize_t bytes = ::read(files[i].fd, text.data(), text.size());
      if (bytes > 0) lines_.add(ranks[i], {text.data(), static_cast<size_t>(bytes)});
      if (bytes > 0 || (bytes < 0 && errno == EINTR)) continue;
      lines_.finish(ranks[i]);
      ::close(files[i].fd);
      processes_[ranks[i]].errors = -1;
    }
  }

  void collect() {
    for (size_t rank = 0; rank < processes_.size(); ++rank) {
      Process& process = processes_[rank];
      int status = 0;
      if (!process.runs || ::waitpid(process.id, &status, WNOHANG) != process.id) continue;
      process.runs = false;
      const int number = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
      if (number != 0 && !killed_) {
        lines_.add(rank, fmt::format("steep: rank {} was ended by signal {} ({})\n", rank, number,
                                     ::strsignal(number)));
      }
      const int code = number != 0 ? 128 + number : WEXITSTATUS(status);
      note_loss(folder_.path(), static_cast<int>(rank),
                number != 0 ? "was killed" : fmt::format("ended with exit code {}", code));
      if (code != kDone && code_ == kDone) {
        code_ = code;
        failed_ = Clock::now();
      }
    }
  }

  /// A process that is stopped before it beats: to the others it is one that starts late.
  void note_stopped() {
    const Clock::time_point now = Clock::now();
    for (size_t rank = 0; rank < processes_.size(); ++rank) {
      Process& process = processes_[rank];
      if (!process.runs || !is_stopped(process.id)) {
        process.stopped.reset();
      } else if (!process.stopped) {
        process.stopped = now;
      } else if (!process.noted && now - *process.stopped > kSilence) {
        process.noted = true;
        note_loss(folder_.path(), static_cast<int>(rank),
                  fmt::format("did not answer for {} s", kSilence.count()));
      }
    }
  }

  /// Once a process has failed, ends those that do not end by themselves: they may be stopped.
  void end_others() {
    if (!failed_ || running() == 0) return;
    for (const Process& process : processes_) {
      if (process.runs && is_stopped(process.id)) ::kill(process.id, SIGKILL);
    }
    const auto since = Clock::now() - *failed_;
    if (since > kGrace && !asked_) {
      asked_ = true;
      send(SIGTERM);
    }
    if (since > kGrace + kTerm && !killed_) {
      killed_ = true;
      send(SIGKILL);
    }
  }

  Started command_;
  MeetingFolder folder_;
  std::vector<Process> processes_;
  Lines lines_;
  int code_ = kDone;
  std::optional<Clock::time_point> failed_;
  bool asked_ = false;
  bool killed_ = false;
};

struct LaunchChoice {
  int64_t processes = 0;
  std::vector<std::string> words;
};

/// The command to start: all words after those of `launch`. CLI11 would mix up their order.
Started command_in(const std::vector<std::string>& command_line) {
  size_t at = 2;
  while (at < command_line.size() && command_line[at].rfind("-n", 0) == 0) {
    at += command_line[at] == "-n" ? 2 : 1;
  }
  Started command{.own = at >= command_line.size() || command_line[at] != "--"};
  if (command.own) command.words.emplace_back("steep");
  for (at += command.own ? 0 : 1; at < command_line.size(); ++at) {
    command.words.push_back(command_line[at]);
  }
  return command;
}

}  // namespace

Command add_launch(CLI::App& parent, std::vector<std::string> command_line) {
  auto choice = std::make_shared<LaunchChoice>();
  CLI::App& app = *parent.add_subcommand("launch", "Train on several processes of this machine");
  app.add_option("-n", choice->processes, "Number of processes, as in 4")
      ->required()
      ->transform(whole(1, kMostProcesses));
  app.add_option("COMMAND", choice->words, "train and its options; or -- and a program")
      ->required();
  app.allow_extras();
  app.footer(
      "Each process trains with --parallel gloo: it has its share of each batch's rows, and rank 0 "
      "writes\nthe results. Ctrl-C, SIGTERM and SIGHUP are passed on; if a process fails, all end. "
      "OMP_NUM_THREADS\nis the number of cores divided by that of processes unless it is set. "
      "After --, any "
      "program is\nstarted, such as a script whose sessions have parallel=\"gloo\".\n"
      "Examples:\n"
      "  steep launch -n 2 train model.onnx --data train.npz --loss mse --out trained.onnx\n"
      "  steep launch -n 4 train model.onnx --data train.npz --loss mse --checkpoint run\n"
      "  steep launch -n 2 -- python script.py");
  return [choice, command_line = std::move(command_line)] {
    Started command = command_in(command_line);
    std::vector<std::string>& words = command.words;
    if (words.empty() || (command.own && (words.size() < 2 || words[1] != "train"))) {
      throw CLI::ValidationError("COMMAND",
                                 "launch starts `train`, as in: steep launch -n 2 train …, or the "
                                 "words after --, as in: steep launch -n 2 -- python script.py");
    }
    refuse_several_processes();
    const auto chooses = [](const std::string& word) { return word.rfind("--parallel", 0) == 0; };
    if (command.own && std::none_of(words.begin(), words.end(), chooses)) {
      words.insert(words.end(), {"--parallel", "gloo"});
    }
    return Launch(static_cast<int>(choice->processes), std::move(command)).run();
  };
}

}  // namespace steep::cli
