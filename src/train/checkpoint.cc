#include "train/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <random>
#include <vector>

#include "steep/error.h"
#include "train/files.h"
#include "train/manifest.h"
#include "train/safetensors.h"

namespace steep {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModel = "model.safetensors";
constexpr const char* kOptimizer = "optimizer.safetensors";
constexpr const char* kManifest = "manifest.json";
constexpr std::array kFiles = {kModel, kOptimizer, kManifest};
constexpr const char* kTemporary = ".steep-tmp.";
constexpr const char* kOld = ".steep-old.";

/// Absolute, without a trailing slash; of a symbolic link, what it points to.
fs::path resolve(const fs::path& path) {
  fs::path clean = fs::absolute(path).lexically_normal();
  if (!clean.has_filename()) clean = clean.parent_path();
  std::error_code error;
  return fs::is_symlink(clean, error) ? fs::weakly_canonical(clean) : clean;
}

/// Folders beside `target` named target + `mark` + anything, in order of name.
std::vector<fs::path> siblings(const fs::path& target, const std::string& mark) {
  std::vector<fs::path> found;
  std::error_code error;
  const std::string prefix = target.filename().string() + mark;
  for (auto it = fs::directory_iterator(target.parent_path(), error);
       !error && it != fs::directory_iterator(); it.increment(error)) {
    std::error_code ignored;
    if (it->path().filename().string().starts_with(prefix) && !it->is_symlink(ignored) &&
        it->is_directory(ignored)) {
      found.push_back(it->path());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

/// Removes the files that a checkpoint has, then the folder if nothing else is in it.
void remove_checkpoint(const fs::path& folder) {
  if (injected_fault("remove") != 0) return;
  std::error_code ignored;
  for (const char* name : kFiles) fs::remove(folder / name, ignored);
  fs::remove(folder, ignored);
}

/// An exclusive lock on a folder, which ends with the process: what tells a save in progress from
/// one that died.
class FolderLock {
 public:
  explicit FolderLock(const fs::path& folder)
      : fd_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW)) {
    held_ = fd_ >= 0 && ::flock(fd_, LOCK_EX | LOCK_NB) == 0;
  }
  ~FolderLock() {
    if (fd_ >= 0) ::close(fd_);
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  bool held() const { return held_; }

 private:
  int fd_;
  bool held_;
};

/// Removes what saves that died left behind. Old checkpoints that were moved away go only once
/// `target` exists.
void remove_stale(const fs::path& target) {
  std::vector<fs::path> stale = siblings(target, kTemporary);
  std::error_code error;
  if (fs::exists(target, error)) {
    for (fs::path& path : siblings(target, kOld)) stale.push_back(std::move(path));
  }
  for (const fs::path& path : stale) {
    const FolderLock lock(path);
    if (lock.held()) remove_checkpoint(path);
  }
}

void refuse_foreign_folder(const fs::path& target) {
  std::error_code error;
  const auto status = fs::symlink_status(target, error);
  if (status.type() == fs::file_type::not_found) return;
  if (status.type() != fs::file_type::directory) throw_io("write", target, ENOTDIR);
  for (auto it = fs::directory_iterator(target, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (std::find(kFiles.begin(), kFiles.end(), name) == kFiles.end()) {
      throw IoError(ErrorParts{
          .what = fmt::format("{} is not overwritten: it holds other files", target.string()),
          .expected = "a checkpoint, an empty folder or nothing",
          .received = name,
          .remedy = "give the checkpoint a folder of its own"});
    }
  }
  if (error) throw_io("read", target, error.value());
}

/// A folder of a name that nobody has, beside `target`.
fs::path make_temporary(const fs::path& target) {
  std::random_device random;
  for (int attempt = 0; attempt < 100; ++attempt) {
    fs::path folder = target;
    folder += fmt::format("{}{:08x}", kTemporary, random());
    std::error_code error;
    if (const int fault = injected_fault("mkdir")) throw_io("create", folder, fault);
    if (fs::create_directory(folder, error)) return folder;
    if (error && error.value() != EEXIST) throw_io("create", folder, error.value());
  }
  throw_io("create a folder beside", target, EEXIST);
}

FileRecord write_tensors(const fs::path& path, const std::map<std::string, Tensor>& tensors) {
  FileWriter file(path);
  write_safetensors(file, tensors);
  file.sync();
  return {file.bytes(), file.crc()};
}

void write_folder(const fs::path& folder, const Checkpoint& checkpoint) {
  std::map<std::string, FileRecord> files;
  files[kModel] = write_tensors(folder / kModel, checkpoint.weights);
  files[kOptimizer] = write_tensors(folder / kOptimizer, checkpoint.moments);
  FileWriter manifest(folder / kManifest);
  manifest.write(write_manifest(checkpoint, files));
  manifest.sync();
  sync_folder(folder);
}

/// Puts `folder` where `target` is or was. Returns what is to be removed afterwards, or an empty
/// path.
fs::path put_in_place(const fs::path& folder, const fs::path& target) {
  std::error_code error;
  if (!fs::exists(target, error)) {
    rename_path(folder, target);
    return {};
  }
  if (exchange_paths(folder, target)) return folder;
  fs::path old = target;
  old += kOld + folder.extension().string().substr(1);
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
      .remedy = remedy.empty() ? "load an older checkpoint; nothing was changed" : remedy});
}

Checkpoint read_folder(const fs::path& folder) {
  Checkpoint checkpoint;
  fs::path file = folder / kManifest;
  try {
    std::map<std::string, FileRecord> files;
    read_manifest(FileSource(file), &checkpoint, &files);
    for (const char* name : {kModel, kOptimizer}) {
      const auto record = files.find(name);
      if (record == files.end() || files.size() != 2) refuse(file, "its list of files is damaged");
      file = folder / name;
      const FileSource source(file);
      if (source.size() != record->second.bytes) {
        refuse(file,
               fmt::format("it has {} bytes instead of {}", source.size(), record->second.bytes));
      }
      if (crc32c_of(source) != record->second.crc) refuse(file, "its checksum does not match");
      (name == kModel ? checkpoint.weights : checkpoint.moments) = read_safetensors(source);
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

}  // namespace

void write_checkpoint(const fs::path& path, const Checkpoint& checkpoint) {
  const fs::path target = resolve(path);
  std::error_code error;
  fs::create_directories(target.parent_path(), error);
  if (error) throw_io("create", target.parent_path(), error.value());
  refuse_foreign_folder(target);
  remove_stale(target);

  const fs::path folder = make_temporary(target);
  const FolderLock lock(folder);
  fs::path old;
  try {
    write_folder(folder, checkpoint);
    old = put_in_place(folder, target);
  } catch (...) {
    remove_checkpoint(folder);
    throw;
  }
  sync_folder(target.parent_path());
  if (!old.empty()) remove_checkpoint(old);
}

Checkpoint read_checkpoint(const fs::path& path) {
  const fs::path target = resolve(path);
  std::error_code error;
  if (fs::exists(target, error)) return read_folder(target);
  // A save died between its two renames.
  for (const fs::path& old : siblings(target, kOld)) {
    try {
      return read_folder(old);
    } catch (const CheckpointError&) {
      // Half removed, because it had been replaced; another may be whole.
    }
  }
  refuse(target, "there is no such folder", "check the path");
}

}  // namespace steep
