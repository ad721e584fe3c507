#include "checkpoint/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <optional>
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
  for (const char* name : kFiles) remove_file(folder / name);
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
    if (std::find(kFiles.begin(), kFiles.end(), name) == kFiles.end()) {
      throw IoError(ErrorParts{
          .what = fmt::format("{} is not overwritten: it holds other files.", target.string()),
          .expected = "a checkpoint, an empty folder or nothing",
          .received = name,
          .remedy = "Give the checkpoint a folder of its own."});
    }
  }
  if (error) throw_io("read", target, error.value());
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

void write_folder(const fs::path& folder, const Checkpoint& checkpoint) {
  std::map<std::string, FileRecord> files;
  files[kModel] = write_tensors(folder / kModel, checkpoint.weights);
  files[kOptimizer] = write_tensors(folder / kOptimizer, checkpoint.moments);
  FileWriter manifest(folder / kManifest);
  manifest.write(write_manifest(checkpoint, files));
  manifest.sync();
  sync_folder(folder);
}

/// Throws if read_checkpoint() would throw, apart from the tensors' bytes: a checkpoint that cannot
/// be loaded must not replace one that can.
void read_back(const fs::path& folder, const Checkpoint& checkpoint) {
  Checkpoint copy;
  std::map<std::string, FileRecord> files;
  read_manifest(FileSource(folder / kManifest), &copy, &files);
  bool same = copy.fingerprint == checkpoint.fingerprint && copy.step == checkpoint.step &&
              copy.seed == checkpoint.seed && copy.run_count == checkpoint.run_count &&
              copy.clean_steps == checkpoint.clean_steps && files.size() == 2;
  for (const char* name : {kModel, kOptimizer}) {
    const FileSource source(folder / name);
    same = same && source.size() == files[name].bytes;
    if (same) read_safetensors_header(source);
  }
  if (!same) {
    throw IoError(ErrorParts{.what = folder.string() + " was changed while it was written.",
                             .remedy = "Save again; nothing was replaced."});
  }
}

/// Moves `folder` to `target`. Returns the path of the old checkpoint, which the caller removes, or
/// an empty path.
fs::path put_in_place(const fs::path& folder, const fs::path& target) {
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

/// Reads an open folder. All its files are opened first, so that they stay readable if a save
/// replaces and removes the folder.
Checkpoint read_folder(const Descriptor& descriptor, const fs::path& folder) {
  Checkpoint checkpoint;
  fs::path file;
  const auto open = [&](const char* name) {
    file = folder / name;
    return FileSource(descriptor.get(), name, file);
  };
  try {
    const FileSource manifest = open(kManifest), model = open(kModel), optimizer = open(kOptimizer);
    std::map<std::string, FileRecord> files;
    file = folder / kManifest;
    read_manifest(manifest, &checkpoint, &files);
    for (const char* name : {kModel, kOptimizer}) {
      const auto record = files.find(name);
      if (record == files.end() || files.size() != 2) refuse(file, "its list of files is damaged.");
      file = folder / name;
      const FileSource& source = name == kModel ? model : optimizer;
      if (source.size() != record->second.bytes) {
        refuse(file, fmt::format("it has {} instead of {}.", counted(source.size(), "byte"),
                                 record->second.bytes));
      }
      if (crc32c_of(source) != record->second.crc) refuse(file, "its checksum does not match.");
      checkpoint.hash += fmt::format("{:08x}", record->second.crc);
      (name == kModel ? checkpoint.weights : checkpoint.moments) =
          read_safetensors(source, current_limits());
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
std::optional<Checkpoint> read_present(const fs::path& path) {
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
      return read_folder(descriptor, path);
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

void write_checkpoint(const fs::path& path, const Checkpoint& checkpoint) {
  const fs::path target = resolve(path);
  std::error_code error;
  if (!fs::exists(target, error)) make_folders(target.parent_path());
  refuse_foreign_folder(target);
  const DiskLock lock(target);
  if (lock.exclusive()) remove_stale(target);

  const fs::path folder = make_temporary(target);
  fs::path old;
  try {
    write_folder(folder, checkpoint);
    read_back(folder, checkpoint);
    lock.verify();
    refuse_foreign_folder(target);  // the folder may have changed meanwhile
    old = put_in_place(folder, target);
  } catch (...) {
    remove_checkpoint(folder);
    throw;
  }
  sync_parent(target);
  if (!old.empty()) remove_checkpoint(old);
}

Checkpoint read_checkpoint(const fs::path& path) {
  const fs::path target = resolve(path);
  // On file systems that cannot swap two names, a save renames the old checkpoint for a moment, and
  // may be killed then. One look at the folders takes several system calls, between which other
  // saves may run. So "not found" must be the result of several looks.
  constexpr int kLooks = 10;
  for (int i = 0, nothing = 0; i < 1000 && nothing < kLooks; ++i) {
    if (auto present = read_present(target)) return *std::move(present);
    const std::vector<fs::path> olds = siblings(target, kOld);
    for (const fs::path& old : olds) {
      try {
        if (auto checkpoint = read_present(old)) return *std::move(checkpoint);
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
