#include "mirror.h"

namespace mirror {

Stream::~Stream() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Stream::enqueue(Task task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_all();
}

SteepError* Stream::sync() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return tasks_.empty() && !busy_; });
  if (failed_ == 0) return nullptr;
  SteepError* raised = error(failed_, failure_);
  failed_ = static_cast<SteepErrorKind>(0);
  return raised;
}

void Stream::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ends_ || !tasks_.empty(); });
    if (tasks_.empty()) return;  // what was enqueued is done first
    const Task task = std::move(tasks_.front());
    tasks_.pop_front();
    if (failed_ != 0) {
      changed_.notify_all();
      continue;
    }
    busy_ = true;
    lock.unlock();
    SteepErrorKind kind = static_cast<SteepErrorKind>(0);
    std::string text;
    try {
      task();
    } catch (const DataFailure& e) {
      kind = STEEP_DATA, text = e.what();
    } catch (const std::exception& e) {
      kind = STEEP_PROVIDER, text = e.what();
    }
    lock.lock();
    if (kind != 0) failed_ = kind, failure_ = std::move(text);
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace mirror
