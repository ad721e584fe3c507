#include "mirror.h"

namespace mirror {

void Event::happen() {
  {
    const std::lock_guard lock(mutex_);
    happened_ = true;
  }
  changed_.notify_all();
}

void Event::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return happened_; });
}

Stream::~Stream() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Stream::enqueue(Task task) { enqueue(Entry{std::move(task), false}); }

void Stream::enqueue(Entry entry) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(entry));
  }
  changed_.notify_all();
}

void Stream::wait(Stream& other) {
  const auto reached = std::make_shared<Event>();
  other.enqueue(Entry{[reached] { reached->happen(); }, true});
  enqueue(Entry{[reached] { reached->wait(); }, true});
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
    if (tasks_.empty()) return;  // finishes all enqueued tasks first
    const Entry entry = std::move(tasks_.front());
    tasks_.pop_front();
    if (failed_ != 0 && !entry.always) {
      changed_.notify_all();
      continue;
    }
    busy_ = true;
    lock.unlock();
    SteepErrorKind kind = static_cast<SteepErrorKind>(0);
    std::string text;
    try {
      entry.task();
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
