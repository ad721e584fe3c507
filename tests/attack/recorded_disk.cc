#include "attack/recorded_disk.h"

#include <algorithm>
#include <fstream>
#include <stdexcept>

#include "train/temp_folder.h"

namespace steep::testing {

namespace fs = std::filesystem;

RecordedDisk::RecordedDisk(const fs::path& root) : root_(root) {
  import(root);
  durable_ = now_;
}

int RecordedDisk::import(const fs::path& path) {
  const auto node = now_.size();
  now_.push_back({.folder = fs::is_directory(path)});
  if (!now_[node].folder) {
    now_[node].bytes = read_bytes(path);
  } else {
    for (const auto& entry : fs::directory_iterator(path)) {
      const int child = import(entry.path());
      now_[node].names[entry.path().filename()] = child;
    }
  }
  return static_cast<int>(node);
}

int RecordedDisk::find(std::string_view path) const {
  const fs::path relative = fs::path(path).lexically_relative(root_);
  int node = 0;
  for (const fs::path& part : relative) {
    if (part == "..") return -1;
    if (part == ".") continue;
    const auto& names = now_[static_cast<size_t>(node)].names;
    const auto found = names.find(part);
    if (found == names.end()) return -1;
    node = found->second;
  }
  return node;
}

void RecordedDisk::record(const DiskCall& call) {
  const fs::path path(call.path), to(call.to);
  const int node = find(call.path), parent = find(path.parent_path().native());
  Change change{.kind = Change::sync, .node = parent, .name = path.filename(), .child = node};
  if (parent < 0 && node < 0) return;  // outside the recorded folder
  if (call.name == "open" || call.name == "mkdir") {
    if (node >= 0) return;  // a lock that was left
    change.kind = Change::add;
    change.child = static_cast<int>(now_.size());
    now_.push_back({.folder = call.name == "mkdir"});
    durable_.push_back(now_.back());
  } else if (call.name == "unlink" || call.name == "rmdir") {
    if (node < 0 || !now_[static_cast<size_t>(node)].names.empty()) return;
    change.kind = Change::remove;
  } else if (call.name == "rename" || call.name == "exchange") {
    if (to.parent_path() != path.parent_path()) throw std::logic_error("between two folders");
    change.kind = call.name == "rename" ? Change::rename : Change::exchange;
    change.to = to.filename();
  } else if (call.name == "write") {
    change = {.kind = Change::write, .node = node, .bytes = std::string(call.bytes)};
  } else if (call.name == "fsync") {
    change = {.kind = Change::sync, .node = node};
  } else {
    return;
  }
  apply(now_, change);
  log_.push_back(std::move(change));
}

void RecordedDisk::forget_syncs() {
  std::erase_if(log_, [](const Change& change) { return change.kind == Change::sync; });
}

void RecordedDisk::apply(std::vector<Node>& nodes, const Change& change) {
  Node& node = nodes[static_cast<size_t>(change.node)];
  auto& names = node.names;
  // Earlier changes in this folder may be missing. A change that depends on one of them is then
  // missing, too.
  const auto means = [&](const std::string& name) {
    const auto found = names.find(name);
    return found == names.end() ? -1 : found->second;
  };
  switch (change.kind) {
    case Change::sync: break;
    case Change::write: node.bytes += change.bytes; break;
    case Change::add: names.try_emplace(change.name, change.child); break;
    case Change::remove:
      if (means(change.name) == change.child) names.erase(change.name);
      break;
    case Change::rename: {
      const int there = means(change.to);
      if (means(change.name) != change.child) break;
      if (there >= 0 && !nodes[static_cast<size_t>(there)].names.empty()) break;
      names.erase(change.name);
      names[change.to] = change.child;
      break;
    }
    case Change::exchange:
      if (means(change.name) != change.child || means(change.to) < 0) break;
      std::swap(names[change.name], names[change.to]);
      break;
  }
}

void RecordedDisk::write_image(size_t count, std::mt19937_64& random, const fs::path& where) const {
  // The probability that a change without fsync is on the disk; sometimes 0 or 1.
  const double likely = static_cast<double>(random() % 5) / 4;
  const auto kept = [&] { return std::uniform_real_distribution<>()(random) < likely; };
  // On file systems with a journal, only the last changes can be missing.
  const bool journal = random() % 2 == 0;
  const size_t journalled = random() % (count + 1);

  std::vector<Node> nodes = durable_;
  for (size_t i = 0; i < count; ++i) {
    Change change = log_[i];
    const bool synced = std::any_of(
        log_.begin() + static_cast<ptrdiff_t>(i), log_.begin() + static_cast<ptrdiff_t>(count),
        [&](const Change& c) { return c.kind == Change::sync && c.node == change.node; });
    if (change.kind == Change::write && !synced && !kept()) {
      const size_t part = change.bytes.empty() ? 0 : random() % change.bytes.size();
      switch (random() % 3) {
        case 0: continue;
        case 1: change.bytes.assign(change.bytes.size(), '\0'); break;
        default: change.bytes.resize(part);
      }
    } else if (change.kind != Change::write && !synced && !(journal ? i < journalled : kept())) {
      continue;
    }
    apply(nodes, change);
  }
  write_node(nodes, 0, where);
}

void RecordedDisk::write_node(const std::vector<Node>& nodes, int node,
                              const fs::path& where) const {
  const Node& n = nodes[static_cast<size_t>(node)];
  if (!n.folder) return write_bytes(where, n.bytes);
  fs::create_directory(where);
  for (const auto& [name, child] : n.names) write_node(nodes, child, where / name);
}

}  // namespace steep::testing
