// Exchanges that run one after the other beside the thread that starts them.

#include "parallel/communication_thread.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>

#include "parallel/in_threads.h"
#include "steep/error.h"

namespace steep {
namespace {

TEST(CommunicationThread, RunsExchangesInOrderAndSaysWhenTheyRan) {
  for (const bool beside : {false, true}) {
    CommunicationThread thread(beside);
    std::string order;
    for (int i = 0; i < 5; ++i) {
      thread.start({.name = std::to_string(i), .bytes = 8, .bucket = i},
                   [&order, i] { order += std::to_string(i); });
    }
    thread.wait();
    EXPECT_EQ(order, "01234");
    const std::vector<Exchange> ended = thread.take_ended();
    ASSERT_EQ(ended.size(), 5U);
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_EQ(ended[i].name, std::to_string(i));
      EXPECT_LE(ended[i].start, ended[i].end);
      EXPECT_TRUE(i == 0 || ended[i - 1].end <= ended[i].start);
    }
    EXPECT_TRUE(thread.take_ended().empty());
  }
}

TEST(CommunicationThread, StopsAtAnErrorUntilSomebodyHasSeenIt) {
  for (const bool beside : {false, true}) {
    CommunicationThread thread(beside);
    std::atomic<int> ran{0};
    thread.start({}, [&] { ++ran; });
    thread.start({}, [] { throw std::runtime_error("lost"); });
    for (int i = 0; i < 3; ++i) thread.start({}, [&] { ran += 10; });
    EXPECT_THROW(thread.wait(), std::runtime_error);
    EXPECT_EQ(ran, 1);
    thread.start({}, [&] { ++ran; });
    thread.wait();
    EXPECT_EQ(ran, 2);
    EXPECT_EQ(thread.take_ended().size(), 2U);  // those that were done
  }
}

TEST(CommunicationThread, LetsNoMoreWaitThanItMay) {
  CommunicationThread thread(true, 2);
  std::promise<void> go;
  const std::shared_future<void> gone = go.get_future().share();
  std::atomic<int> started{0};
  std::thread other([&] {
    for (int i = 0; i < 4; ++i) {
      thread.start({}, [gone] { gone.wait(); });
      ++started;
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_LE(started, 2);
  go.set_value();
  other.join();
  thread.wait();
  EXPECT_EQ(started, 4);
}

TEST(CommunicationThread, EndsWhatWasStarted) {
  bool ran = false;
  {
    CommunicationThread thread(true);
    thread.start({}, [&] { ran = true; });
  }
  EXPECT_TRUE(ran);
}

/// The exit code of a child that runs `work`; -1: it was killed, since it hung.
int code_of_child(const std::function<int()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    ::_exit(work());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(CommunicationThread, StaysInTheProcessThatStartedIt) {
  auto thread = std::make_unique<CommunicationThread>(true);
  thread->start({}, [] {});
  thread->wait();
  EXPECT_EQ(code_of_child([&] {
              try {
                thread->start({}, [] {});
                return 1;
              } catch (const ProviderError&) {
                thread.reset();
                return 0;
              }
            }),
            0);
  thread->start({}, [] {});
  thread->wait();
}

TEST(CommunicationThread, OfOneProcessIsNotUsedByAChildOfAFork) {
  testing::in_threads(2, [](const std::shared_ptr<Peers>& peers) {
    peers->agree("a call", {});
    EXPECT_EQ(code_of_child([&] {
                try {
                  peers->agree("another call", {});
                  return 1;
                } catch (const PeerLostError&) {
                  return 2;
                } catch (const ProviderError&) {
                  return 0;
                }
              }),
              0);
    peers->agree("another call", {});
  });
}

}  // namespace
}  // namespace steep
