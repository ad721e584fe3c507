// Peers that are threads of this process.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "steep/parallel.h"
#include "train/models.h"

namespace steep::testing {

/// Of sessions that the tests divide among threads: scores of 4 classes from rows of 3 numbers.
inline TrainingOptions options_of(const std::string& optimizer = "adamw", double lr = 0.05) {
  OptimizerOptions with{.kind = optimizer, .lr = lr};
  if (optimizer == "sgd") with.momentum = 0.9;
  return {.loss = "softmax_cross_entropy", .optimizer = with, .clip_norm = 0.5};
}

inline std::vector<Tensor> batch(int64_t rows, int seed) {
  return {random_tensor({rows, 3}, static_cast<unsigned>(seed)),
          random_labels(rows, 4, static_cast<unsigned>(seed) + 1)};
}

/// What the threads share: each exchange is a round to which each of them brings bytes.
class Room {
 public:
  explicit Room(int size) : size_(size), bytes_(static_cast<size_t>(size)) {}
  int size() const { return size_; }

  /// The bytes of each thread. Throws if a thread has left.
  std::vector<std::string> meet(int rank, std::string bytes) {
    std::unique_lock lock(mutex_);
    bytes_[static_cast<size_t>(rank)] = std::move(bytes);
    const int64_t round = round_;
    if (++here_ == size_) {
      result_ = bytes_;
      here_ = 0;
      ++round_;
      all_.notify_all();
    }
    const bool met = all_.wait_for(lock, std::chrono::seconds(60),
                                   [&] { return round_ != round || left_ >= 0; });
    if (round_ == round) throw std::runtime_error(met ? "connection closed" : "timed out");
    return result_;
  }
  void leave(int rank) {
    const std::lock_guard lock(mutex_);
    left_ = rank;
    all_.notify_all();
  }
  int left() const { return left_; }

  /// Leaves a message for another thread, and counts its bytes.
  void send(int from, int to, std::string bytes) {
    const std::lock_guard lock(mutex_);
    sent_ += bytes.size();
    mail_[{from, to}].push_back(std::move(bytes));
    all_.notify_all();
  }
  /// Throws if a thread has left.
  std::string receive(int from, int to) {
    std::unique_lock lock(mutex_);
    std::deque<std::string>& box = mail_[{from, to}];
    all_.wait_for(lock, std::chrono::seconds(60), [&] { return !box.empty() || left_ >= 0; });
    if (box.empty()) throw std::runtime_error("connection closed");
    std::string bytes = std::move(box.front());
    box.pop_front();
    return bytes;
  }
  size_t sent() const { return sent_; }  ///< by all threads

 private:
  int size_;
  std::mutex mutex_;
  std::condition_variable all_;
  std::vector<std::string> bytes_, result_;
  std::map<std::pair<int, int>, std::deque<std::string>> mail_;
  size_t sent_ = 0;
  int here_ = 0;
  int64_t round_ = 0;
  int left_ = -1;
};

class ThreadPeers : public Peers {
 public:
  ThreadPeers(Room& room, int rank) : room_(room), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return room_.size(); }
  bool exchanges() const override { return true; }
  bool any_thread() const override { return true; }

 protected:
  void gather_bytes(const void* own, void* every, size_t bytes) override {
    auto* at = static_cast<char*>(every);
    for (const std::string& of : room_.meet(rank_, {static_cast<const char*>(own), bytes})) {
      if (of.size() != bytes) throw std::runtime_error("another exchange");
      std::memcpy(at, of.data(), bytes);
      at += bytes;
    }
  }
  void sum(float* values, size_t count) override { sum_of(values, count); }
  void sum(double* values, size_t count) override { sum_of(values, count); }
  void broadcast(void* bytes, size_t count, int from) override {
    const auto all = room_.meet(rank_, {static_cast<const char*>(bytes), count});
    std::memcpy(bytes, all[static_cast<size_t>(from)].data(), count);
  }
  void exchange(const void* out, size_t out_bytes, int to, void* in, size_t in_bytes,
                int from) override {
    if (out_bytes > 0) room_.send(rank_, to, {static_cast<const char*>(out), out_bytes});
    if (in_bytes == 0) return;
    const std::string bytes = room_.receive(from, rank_);
    if (bytes.size() != in_bytes) throw std::runtime_error("another message");
    std::memcpy(in, bytes.data(), in_bytes);
  }
  Loss find_lost() override { return {room_.left(), "was killed"}; }

 private:
  template <typename T>
  void sum_of(T* values, size_t count) {
    std::vector<T> total(count, T(0)), part(count);
    const std::string own(reinterpret_cast<const char*>(values), count * sizeof(T));
    for (const std::string& of : room_.meet(rank_, own)) {
      std::memcpy(part.data(), of.data(), of.size());
      for (size_t i = 0; i < count; ++i) total[i] += part[i];
    }
    std::memcpy(values, total.data(), count * sizeof(T));
  }

  Room& room_;
  int rank_;
};

/// Whose exchanges fail after `good` of them, as those of a process that is killed.
class FailingPeers : public ThreadPeers {
 public:
  FailingPeers(Room& room, int rank, int good) : ThreadPeers(room, rank), good_(good) {}

 protected:
  void exchange(const void* out, size_t out_bytes, int to, void* in, size_t in_bytes,
                int from) override {
    if (good_-- == 0) throw std::runtime_error("killed");
    ThreadPeers::exchange(out, out_bytes, to, in, in_bytes, from);
  }

 private:
  int good_;
};

/// Runs `work` in so many threads, and throws the error of the first that has one. Returns the
/// bytes that they have exchanged by Peers::exchange().
inline size_t in_threads(int size, const std::function<void(std::shared_ptr<Peers>)>& work) {
  Room room(size);
  std::vector<std::exception_ptr> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        work(std::make_shared<ThreadPeers>(room, rank));
      } catch (...) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
        room.leave(rank);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return room.sent();
}

}  // namespace steep::testing
