#include "cli/keep.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <system_error>
#include <vector>

#include "runtime/budget.h"
#include "runtime/disk.h"
#include "steep/error.h"

namespace steep::cli {
namespace {

namespace fs = std::filesystem;

fs::path folder_of(const fs::path& path) {
  std::error_code error;
  fs::path whole = fs::absolute(follow_links(path), error).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();
  return whole.parent_path();
}

std::vector<fs::path> other_folders(const fs::path& target) {
  std::error_code error;
  std::vector<fs::path> folders{fs::current_path(error)};
  if (const char* home = std::getenv("HOME"); home != nullptr) folders.emplace_back(home);
  folders.push_back(fs::temp_directory_path(error));
  for (const char* folder : {"/tmp", "/var/tmp", "/dev/shm"}) folders.emplace_back(folder);
  const fs::path here = folder_of(target);
  std::erase_if(folders,
                [&](const fs::path& f) { return f.empty() || !f.is_absolute() || f == here; });
  return folders;
}

/// A path in `folder` that does not exist yet: `name`, or NAME-2.EXTENSION and so on.
fs::path new_name(const fs::path& folder, const fs::path& name) {
  fs::path path = folder / name;
  std::error_code error;
  for (int i = 2; fs::exists(fs::symlink_status(path, error)); ++i) {
    path = folder / fmt::format("{}-{}{}", name.stem().string(), i, name.extension().string());
  }
  return path;
}

}  // namespace

void need_room(const std::string& option, const fs::path& path, uint64_t bytes, uint64_t largest) {
  auto refuse = [&](const char* what, uint64_t size, uint64_t most) {
    throw IoError(ErrorParts{.what = fmt::format("{} {}: {}.", option, path.string(), what),
                             .expected = bytes_text(size),
                             .received = bytes_text(most),
                             .remedy = "Free some space, raise ulimit -f, or write elsewhere."});
  };
  std::error_code error;
  const fs::space_info space = fs::space(folder_of(path), error);
  if (!error && space.available < bytes)
    refuse("there is too little space", bytes, space.available);
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      limit.rlim_cur < largest) {
    refuse("the largest file that may be written is too small", largest, limit.rlim_cur);
  }
}

fs::path keep(const fs::path& target, const std::function<void(const fs::path&)>& write,
              std::string* trouble) {
  trouble->clear();
  std::exception_ptr first;
  try {
    write(target);
    return target;
  } catch (const IoError& error) {
    *trouble = error.parts().what;
    first = std::current_exception();
  }
  fs::path name = target.lexically_normal();
  name = (name.has_filename() ? name : name.parent_path()).filename();
  for (const fs::path& folder : other_folders(target)) {
    const fs::path path = new_name(folder, name);
    try {
      write(path);
      return path;
    } catch (const IoError&) {  // try the next folder
    }
  }
  std::rethrow_exception(first);
}

std::string Keeper::write(const std::string& target, Progress& progress,
                          const std::function<void(const std::filesystem::path&)>& write) {
  if (!team_.leads()) return target;
  std::string why;
  std::string& path = instead_.emplace(target, target).first->second;
  const std::string now = keep(path, write, &why).string();
  if (!why.empty()) {
    note(fmt::format("{}; what was trained is in {}", why, now), progress);
    path = now;
  }
  return now;
}

std::string Keeper::write_together(const std::string& target, Progress& progress,
                                   const std::function<void(const fs::path&)>& write) {
  if (!team_.leads()) {
    follow(write);
    return target;
  }
  try {
    std::string path = this->write(target, progress, [&](const fs::path& next) {
      team_.text_of_lead(next.string());
      write(next);
    });
    team_.text_of_lead("");
    return path;
  } catch (const IoError&) {
    team_.text_of_lead("");
    throw;
  }
}

/// The part of processes that do not lead. Throws the last error if no path succeeds.
void Keeper::follow(const std::function<void(const fs::path&)>& write) const {
  std::exception_ptr last;
  for (std::string path = team_.text_of_lead(""); !path.empty(); path = team_.text_of_lead("")) {
    last = nullptr;
    try {
      write(path);
    } catch (const IoError&) {
      last = std::current_exception();
    }
  }
  if (last) std::rethrow_exception(last);
}

void Keeper::note(const std::string& text, Progress& progress) {
  progress.warning(text);
  trouble_ += trouble_.empty() ? text : "; " + text;
}

}  // namespace steep::cli
