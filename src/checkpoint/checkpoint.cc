#include "checkpoint/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "checkpoint/manifest.h"
#include "data/files.h"
#include "data/safetensors.h"
#include "runtime/budget.h"
#include "runtime/counted.h"
#include "steep/error.h"

namespace steep {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModel = "model.safetensors";
constexpr const char* kOptimizer = "optimizer.safetensors";
constexpr const char* kManifest = "manifest.json";
constexpr std::array kFiles = {kModel, kOptimizer, kManifest};
constexpr const char* kTemporary = ".steep-tmp.";
constexpr const char* kOld = ".steep-old.";
/// Shards that are open at the same time, far below the limit of most systems (1024 files).
constexpr size_t kOpenFiles = 256;

/// The file of shard number `index` of `count`. One shard is not numbered.
std::string moments_name(size_t index, size_t count) {
  if (count == 1) return kOptimizer;
  return fmt::format("optimizer-{:05}-of-{:05}.safetensors", index + 1, count);
}

/// Whether a checkpoint may have a file of this name.
bool is_file_of_checkpoint(const std::string& name) {
  if (std::find(kFiles.begin(), kFiles.end(), name) != kFiles.end()) return true;
  size_t numbers[2] = {};
  const char *at = name.data(), *const end = at + name.size();
  const auto skip = [&](std::string_view text) {
    if (!std::string_view(at, end).starts_with(text)) return false;
    at += text.size();
    return true;
  };
  const auto number = [&](size_t& value) {
    const auto [next, error] = std::from_chars(at, end, value);
    at = next;
    return error == std::errc{} && value > 0;
  };
  return skip("optimizer-") && number(numbers[0]) && skip("-of-") && number(numbers[1]) &&
         moments_name(numbers[0] - 1, numbers[1]) == name;
}

/// The absolute path, without a trailing slash, and with a symbolic link resolved.
fs::path resolve(const fs::path& path) {
  std::error_code error;
  fs::path clean = fs::absolute(path, error).lexically_normal();
  if (error) {
    throw IoError(ErrorParts{.what = "A checkpoint cannot have this path.",
                             .expected = "the path of a folder",
                             .received = fmt::format("\"{}\": {}", path.string(), error.message()),
                             .remedy = "Check the path."});
  }
  if (!clean.has_filename()) clean = clean.parent_path();
  fs::path target = follow_links(clean).lexically_normal();
  return target.has_filename() ? target : target.parent_path();
}

/// The folders beside `target` whose names start with target + `mark`, sorted.
std::vector<fs::path> siblings(const fs::path& target, const std::string& mark) {
  std::vector<fs::path> folders;
  std::error_code error;
  const std::string prefix = target.filename().string() + mark;
  for (auto it = fs::directory_iterator(target.parent_path(), error);
       !error && it != fs::directory_iterator(); it.increment(error)) {
    std::error_code entry_error;
    if (it->path().filename().string().starts_with(prefix) && !it->is_symlink(entry_error) &&
        it->is_directory(entry_error)) {
      folders.push_back(it->path());
    }
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

/// Removes a checkpoint's files, then the folder if it is empty.
void remove_checkpoint(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (auto it = fs::directory_iterator(folder, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  std::erase_if(names, [](const std::string& name) { return !is_file_of_checkpoint(name); });
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) remove_file(folder / name);
  remove_folder(folder);
}

/// Removes the remains of saves that were killed. Old checkpoints that a save has renamed are
/// removed only if `target` exists.
void remove_stale(const fs::path& target) {
  std::vector<fs::path> stale = siblings(target, kTemporary);
  std::error_code error;
  if (fs::exists(target, error)) {
    for (fs::path& path : siblings(target, kOld)) stale.push_back(std::move(path));
  }
  if (stale.empty()) return;
  // Until the parent is synced, a power loss could bring one of them back as `target`.
  sync_folder(target.parent_path());
  for (const fs::path& path : stale) remove_checkpoint(path);
}

void refuse_foreign_folder(const fs::path& target) {
  const std::string own = target.filename().string();
  for (const char* mark : {kTemporary, kOld}) {
    if (own.find(mark) == std::string::npos) continue;
    throw IoError(ErrorParts{
        .what = fmt::format("{} is no place for a checkpoint: saves remove such folders.",
                            target.string()),
        .expected = fmt::format("a name without \"{}\"", mark),
        .remedy = "Give the checkpoint another name."});
  }
  std::error_code error;
  const auto status = fs::symlink_status(target, error);
  if (status.type() == fs::file_type::not_found) return;
  if (status.type() != fs::file_type::directory) throw_io("write", target, ENOTDIR);
  if (fs::equivalent(target, fs::current_path(error), error)) {
    throw IoError(ErrorParts{
        .what = fmt::format("{} is not replaced by a checkpoint.", target.string()),
        .expected = "another folder than the current one of this process, which would be gone",
        .remedy = "Give the checkpoint a folder of its own."});
  }
  fs::directory_iterator it(target, error);
  if (error == std::errc::no_such_file_or_directory) return;  // another save has renamed it
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!is_file_of_checkpoint(name)) {
      throw IoError(ErrorParts{
          .what = fmt::format("{} is not overwritten: it holds other files.", target.string()),
          .expected = "a checkpoint, an empty folder or nothing",
          .received = name,
          .remedy = "Give the checkpoint a folder of its own."});
    }
  }
  if (error) throw_io("read", target, error.value());
}

/// The folder of a checkpoint that is about to be written, whose parent is made.
fs::path target_for(const fs::path& path) {
  fs::path target = resolve(path);
  std::error_code error;
  if (!fs::exists(target, error)) make_folders(target.parent_path());
  refuse_foreign_folder(target);
  return target;
}

/// Makes a folder beside `target`, with an unused name.
fs::path make_temporary(const fs::path& target) {
  fs::path folder = unused_name(target, kTemporary);
  if (!make_folder(folder)) throw_io("create", folder, EEXIST);
  return folder;
}

FileRecord write_tensors(const fs::path& path, const std::map<std::string, Tensor>& tensors) {
  FileWriter file(path);
  write_safetensors(file, tensors);
  file.sync();
  return {file.bytes(), file.crc()};
}

/// Writes the manifest, without which the folder is no checkpoint.
void seal(const fs::path& folder, const Checkpoint& checkpoint,
          const std::map<std::string, FileRecord>& files) {
  FileWriter manifest(folder / kManifest);
  manifest.write(write_manifest(checkpoint, files));
  manifest.sync();
  sync_folder(folder);
}

std::map<std::string, FileRecord> write_folder(const fs::path& folder,
                                               const Checkpoint& checkpoint) {
  std::map<std::string, Tensor> moments = checkpoint.moments;
  std::erase_if(moments, [](const auto& named) { return named.second.data() == nullptr; });
  std::map<std::string, FileRecord> files;
  files[kModel] = write_tensors(folder / kModel, checkpoint.weights);
  files[kOptimizer] = write_tensors(folder / kOptimizer, moments);
  seal(folder, checkpoint, files);
  return files;
}

/// The folders of this process's PendingCheckpoints: their names say nothing, since a folder that
/// a killed process left has such a name, too.
class PendingFolders {
 public:
  static PendingFolders& all() {
    static PendingFolders folders;
    return folders;
  }
  void add(const fs::path& folder) {
    const std::lock_guard lock(mutex_);
    folders_.insert(folder);
  }
  void remove(const fs::path& folder) {
    const std::lock_guard lock(mutex_);
    folders_.erase(folder);
  }
  bool has(const fs::path& folder) {
    const std::lock_guard lock(mutex_);
    return folders_.count(folder) != 0;
  }

 private:
  std::mutex mutex_;
  std::set<fs::path> folders_;
};

/// Throws if read_checkpoint() would throw, apart from the tensors' bytes: a checkpoint that cannot
/// be loaded must not replace one that can.
void read_back(const fs::path& folder, const Checkpoint& checkpoint,
               const std::map<std::string, FileRecord>& written) {
  Checkpoint copy;
  std::map<std::string, FileRecord> files;
  read_manifest(FileSource(folder / kManifest), &copy, &files);
  bool same = copy.fingerprint == checkpoint.fingerprint && copy.step == checkpoint.step &&
              copy.seed == checkpoint.seed && copy.run_count == checkpoint.run_count &&
              copy.clean_steps == checkpoint.clean_steps && files.size() == written.size();
  std::set<std::string> moments;
  for (const auto& [name, record] : written) {
    const FileSource source(folder / name);
    same = same && source.size() == record.bytes && files[name].bytes == record.bytes;
    if (!same) break;
    for (const SafetensorsEntry& entry : read_safetensors_header(source).entries) {
      same = same && (name == kModel || moments.insert(entry.name).second);
    }
  }
  if (!same) {
    throw IoError(ErrorParts{.what = folder.string() + " was changed while it was written.",
                             .remedy = "Save again; nothing was replaced."});
  }
}

/// Moves `folder` to `target`. Returns the path of the old checkpoint, which the caller removes, or
/// an empty path.
fs::path move_to(const fs::path& folder, const fs::path& target) {
  std::error_code error;
  if (!fs::exists(target, error)) {
    rename_path(folder, target);
    return {};
  }
  if (exchange_paths(folder, target)) return folder;
  // Makes earlier removals durable first: a power loss must not bring back an even older
  // checkpoint.
  sync_folder(target.parent_path());
  fs::path old = target;
  old += kOld + folder.extension().string().substr(1);  // the suffix of the temporary name
  rename_path(target, old);
  try {
    rename_path(folder, target);
  } catch (...) {
    rename_path(old, target);
    throw;
  }
  return old;
}

[[noreturn]] void refuse(const fs::path& file, const std::string& why,
                         const std::string& remedy = "") {
  throw CheckpointError(ErrorParts{
      .what = fmt::format("{} cannot be loaded: {}", file.string(), why),
      .remedy = remedy.empty() ? "Load an older checkpoint; nothing was changed." : remedy});
}

/// Device and inode of a folder, which identify it under any name.
using Identity = std::pair<dev_t, ino_t>;

Identity identity_of(const struct stat& info) { return {info.st_dev, info.st_ino}; }

using Wants = std::function<bool(const std::string&)>;

/// The names of a checkpoint's files: the model's, then those of moments. Throws CheckpointError if
/// a shard is missing in the list, or has another number of shards in its name.
std::vector<std::string> names_of(const std::map<std::string, FileRecord>& files,
                                  const fs::path& manifest) {
  std::vector<std::string> names{kModel};
  const size_t count = files.size() - std::min(files.size(), names.size());
  for (size_t i = 0; i < count; ++i) names.push_back(moments_name(i, count));
  for (const std::string& name : names) {
    if (count > 0 && files.count(name) != 0) continue;
    refuse(manifest, fmt::format("its list of files is damaged: there is no {}.",
                                 count > 0 ? name : kOptimizer));
  }
  return names;
}

/// Adds a file of the model or, with `moments`, one of moments, as far as they are wanted. Takes
/// what was read from *limits.
void read_file(const FileSource& source, const fs::path& file, const FileRecord& record,
               const Wants* moments, Checkpoint* checkpoint, Limits* limits) {
  if (source.size() != record.bytes) {
    refuse(file,
           fmt::format("it has {} instead of {}.", counted(source.size(), "byte"), record.bytes));
  }
  const auto check = [&] {
    if (crc32c_of(source) != record.crc) refuse(file, "its checksum does not match.");
  };
  const Wants wants = moments == nullptr ? Wants() : *moments;
  if (!wants) check();
  std::map<std::string, Tensor> tensors = read_safetensors(source, *limits, wants);
  size_t bytes = 0;
  for (const auto& named : tensors) {
    if (named.second.data() != nullptr) bytes += named.second.nbytes();
  }
  if (wants && bytes > 0) check();
  checkpoint->hash += fmt::format("{:08x}", record.crc);
  limits->max_bytes -= bytes;
  limits->max_arrays -= tensors.size();
  (moments == nullptr ? checkpoint->weights : checkpoint->moments).merge(tensors);
  if (!tensors.empty()) {
    refuse(file, fmt::format("another shard has the tensor '{}', too.", tensors.begin()->first));
  }
}

/// Reads an open folder. Its files are opened first, so that they stay readable if a save replaces
/// and removes the folder; if that comes before, or there are more shards than kOpenFiles, it is
/// found and read again.
Checkpoint read_folder(const Descriptor& descriptor, const fs::path& folder, const Wants& wants) {
  Checkpoint checkpoint;
  fs::path file;
  const auto open = [&](const std::string& name) {
    file = folder / name;
    return std::make_unique<FileSource>(descriptor.get(), name, file);
  };
  try {
    std::map<std::string, FileRecord> files;
    read_manifest(*open(kManifest), &checkpoint, &files);
    const std::vector<std::string> names = names_of(files, file);
    std::vector<std::unique_ptr<FileSource>> sources;
    for (size_t i = 0; i < std::min(names.size(), kOpenFiles); ++i) {
      sources.push_back(open(names[i]));
    }
    Limits of_model = current_limits(), of_moments = of_model;  // of all shards together
    for (size_t i = 0; i < names.size(); ++i) {
      file = folder / names[i];
      const auto source = i < sources.size() ? std::move(sources[i]) : open(names[i]);
      read_file(*source, file, files.at(names[i]), i == 0 ? nullptr : &wants, &checkpoint,
                i == 0 ? &of_model : &of_moments);
    }
  } catch (const CheckpointError&) {
    throw;
  } catch (const OutOfMemoryError&) {
    throw;
  } catch (const Error& error) {
    refuse(file, error.parts().what, error.parts().remedy);
  }
  return checkpoint;
}

/// The checkpoint at `path`; none if nothing is there. If a save replaces it during the read, it is
/// read again.
std::optional<Checkpoint> read_present(const fs::path& path, const Wants& wants) {
  constexpr auto kPatience = std::chrono::minutes(1);
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  for (;;) {
    const Descriptor descriptor(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (descriptor.get() < 0 && errno == ENOENT) return {};
    struct stat before {
    }, now{};
    if (descriptor.get() < 0 || ::fstat(descriptor.get(), &before) != 0) {
      refuse(path, std::generic_category().message(errno) + ".", "Check the path.");
    }
    try {
      return read_folder(descriptor, path, wants);
    } catch (const CheckpointError&) {
      const bool there = ::stat(path.c_str(), &now) == 0;
      if (there && identity_of(now) == identity_of(before)) throw;
      if (std::chrono::steady_clock::now() > deadline) throw;
      if (!there) return {};
    }
  }
}

}  // namespace

void check_checkpoint_destination(const fs::path& path) {
  const fs::path target = resolve(path);
  refuse_foreign_folder(target);
  fs::path parent = target.parent_path();
  std::error_code error;
  while (parent.has_relative_path() && !fs::exists(fs::symlink_status(parent, error))) {
    parent = parent.parent_path();
  }
  if (!fs::is_directory(parent, error)) throw_io("write into", parent, ENOTDIR);
  if (::faccessat(AT_FDCWD, parent.c_str(), W_OK | X_OK, AT_EACCESS) != 0) {
    throw_io("write into", parent, errno);
  }
  struct stat info {};
  if (::lstat(unused_name(target, kTemporary).c_str(), &info) != 0 && errno != ENOENT) {
    throw_io("write", target, errno);
  }
}

FileRecord write_shard(const fs::path& folder, const std::map<std::string, Tensor>& moments,
                       size_t index, size_t count) {
  return write_tensors(folder / moments_name(index, count), moments);
}

fs::path folder_beside(const fs::path& path, const std::string& name) {
  return resolve(path).parent_path() / fs::path(name).filename();
}

PendingCheckpoint::PendingCheckpoint(const fs::path& path)
    : target_(target_for(path)), lock_(target_) {
  if (lock_.exclusive()) remove_stale(target_);
  folder_ = make_temporary(target_);
  PendingFolders::all().add(folder_);
}

PendingCheckpoint::~PendingCheckpoint() {
  if (folder_.empty()) return;
  PendingFolders::all().remove(folder_);
  remove_checkpoint(folder_);
}

void PendingCheckpoint::finish(std::span<const FileRecord> others) {
  Checkpoint checkpoint;
  std::map<std::string, FileRecord> files;
  read_manifest(FileSource(folder_ / kManifest), &checkpoint, &files);
  const size_t count = others.size() + 1;
  if (count > 1) {
    const std::string first = moments_name(0, count);
    rename_path(folder_ / kOptimizer, folder_ / first);
    files[first] = files.at(kOptimizer);
    files.erase(kOptimizer);
    for (size_t i = 1; i < count; ++i) files[moments_name(i, count)] = others[i - 1];
    remove_file(folder_ / kManifest);
    seal(folder_, checkpoint, files);
  }
  put_in_place(checkpoint, files);
}

void PendingCheckpoint::put_in_place(const Checkpoint& checkpoint,
                                     const std::map<std::string, FileRecord>& files) {
  read_back(folder_, checkpoint, files);
  lock_.verify();
  refuse_foreign_folder(target_);  // the folder may have changed meanwhile
  const fs::path old = move_to(folder_, target_);
  PendingFolders::all().remove(folder_);
  folder_.clear();
  sync_parent(target_);
  if (!old.empty()) remove_checkpoint(old);
}

void write_checkpoint(const fs::path& path, const Checkpoint& checkpoint) {
  if (PendingFolders::all().has(path)) {
    write_folder(path, checkpoint);
    return;
  }
  PendingCheckpoint pending(path);
  pending.put_in_place(checkpoint, write_folder(pending.folder(), checkpoint));
}

Checkpoint read_checkpoint(const fs::path& path, const Wants& wants) {
  const fs::path target = resolve(path);
  // On file systems that cannot swap two names, a save renames the old checkpoint for a moment, and
  // may be killed then. One look at the folders takes several system calls, between which other
  // saves may run. So "not found" must be the result of several looks.
  constexpr int kLooks = 10;
  for (int i = 0, nothing = 0; i < 1000 && nothing < kLooks; ++i) {
    if (auto present = read_present(target, wants)) return *std::move(present);
    const std::vector<fs::path> olds = siblings(target, kOld);
    for (const fs::path& old : olds) {
      try {
        if (auto checkpoint = read_present(old, wants)) return *std::move(checkpoint);
      } catch (const CheckpointError&) {
        // It was replaced and is partly removed; another one may be complete.
      }
    }
    std::error_code error;
    if (!olds.empty() || fs::exists(target, error)) continue;
    ++nothing;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  refuse(target, "the folder does not exist.", "Check the path.");
}

}  // namespace steep
