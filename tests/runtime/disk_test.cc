// Where files may be written, and concurrent writers.
#include "runtime/disk.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <atomic>
#include <cerrno>
#include <thread>
#include <vector>

#include "steep/error.h"
#include "train/temp_folder.h"

namespace steep {
namespace {

namespace fs = std::filesystem;
using testing::read_bytes;
using testing::write_bytes;

class Disk : public testing::MemoryFolder {
 protected:
  void TearDown() override {
    set_fault_hook(nullptr);
    MemoryFolder::TearDown();
  }
  static void write(const fs::path& path, const std::string& text = "new") {
    write_file(path, [&](FileWriter& file) { file.write(text); });
  }
  /// Expects that check_destination() and write_file() refuse with the same message, and leave no
  /// file.
  void expect_refused(const fs::path& path, const std::string& words) {
    const auto entries = [&] {
      return std::distance(fs::recursive_directory_iterator(folder()), {});
    };
    const auto before = entries();
    for (const auto& call :
         {std::function([&] { check_destination(path); }), std::function([&] { write(path); })}) {
      try {
        call();
        FAIL() << path << " was not refused";
      } catch (const IoError& error) {
        EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
      }
    }
    EXPECT_EQ(entries(), before);
  }
};

TEST_F(Disk, ReplacesRegularFilesAndMakesNewOnes) {
  EXPECT_EQ(check_destination(folder() / "file"), folder() / "file");
  EXPECT_TRUE(fs::is_empty(folder()));
  write(folder() / "file", "old");
  write(folder() / "file");
  EXPECT_EQ(read_bytes(folder() / "file"), "new");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder()), {}), 1);
}

TEST_F(Disk, RefusesWhatIsNoFile) {
  expect_refused("/dev/null", "/dev/null: it is a device");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  expect_refused(folder(), "it is a folder");
  ASSERT_EQ(::mkfifo((folder() / "fifo").c_str(), 0600), 0);
  expect_refused(folder() / "fifo", "it is a FIFO");
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  (folder() / "socket").string().copy(name.sun_path, sizeof name.sun_path - 1);
  ASSERT_EQ(::bind(socket, reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
  expect_refused(folder() / "socket", "it is a socket");
  ::close(socket);
  expect_refused(folder() / "none" / "file", "No such file");
  write(folder() / "file");
  expect_refused(folder() / "file" / "file", "Not a directory");
  expect_refused(folder() / "new" / "", "no name of a file");
  expect_refused("", "no name of a file");
  expect_refused(folder() / std::string(250, 'x'), "too long");  // with a temporary suffix
  expect_refused(folder() / std::string(300, 'x'), "too long");
}

TEST_F(Disk, FollowsLinks) {
  fs::create_directory(folder() / "elsewhere");
  fs::create_symlink("elsewhere/file", folder() / "link");
  fs::create_symlink(folder() / "link", folder() / "second");
  for (const char* text : {"first", "again"}) {  // without a file, then with one
    write(folder() / "second", text);
    EXPECT_TRUE(fs::is_symlink(folder() / "link") && fs::is_symlink(folder() / "second"));
    EXPECT_EQ(read_bytes(folder() / "elsewhere" / "file"), text);
  }
  const std::string said = destination_text(folder() / "second");
  EXPECT_NE(said.find("a link to"), std::string::npos) << said;
  EXPECT_NE(said.find("elsewhere/file"), std::string::npos) << said;

  fs::create_symlink("/dev/null", folder() / "null");
  expect_refused(folder() / "null", "null (a link to /dev/null): it is a device");
  fs::create_symlink("circle", folder() / "circle");
  expect_refused(folder() / "circle", "symbolic links");
  fs::create_symlink("gone/file", folder() / "gone_link");
  expect_refused(folder() / "gone_link", "No such file");
}

TEST_F(Disk, KeepsTheOldFileWhenWritingFails) {
  write(folder() / "file", "old");
  EXPECT_THROW(write_file(folder() / "file",
                          [](FileWriter& file) {
                            file.write("half");
                            throw DataError("enough");
                          }),
               DataError);
  EXPECT_EQ(read_bytes(folder() / "file"), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder()), {}), 1);
}

TEST_F(Disk, RemovesWhatTheDeadLeftAndNothingElse) {
  write_bytes(folder() / "file.steep-tmp.0123456789abcdef", "half");
  write_bytes(folder() / "file.steep-lock", "");
  write_bytes(folder() / "file.steep-tmp.notes", "mine");
  write(folder() / "file");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder()), {}), 2);
  EXPECT_EQ(read_bytes(folder() / "file.steep-tmp.notes"), "mine");
}

TEST_F(Disk, SaysThatTheNewFileIsInPlaceWhenItsFolderCannotBeSynced) {
  write(folder() / "file", "old");
  set_fault_hook([&](const DiskCall& call) {
    return call.name == "fsync" && call.path == folder().native() ? EIO : 0;
  });
  try {
    write(folder() / "file");
    FAIL();
  } catch (const IoError& error) {
    EXPECT_NE(error.parts().what.find("new and in place, but may not survive a power loss"),
              std::string::npos)
        << error.what();
  }
  EXPECT_EQ(read_bytes(folder() / "file"), "new");
}

TEST_F(Disk, LocksAreHeldByOneAtATime) {
  int holders = 0;
  std::atomic<int> turns = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 20; ++k) {
        const DiskLock lock(folder() / "file");
        EXPECT_EQ(++holders, 1);
        EXPECT_TRUE(lock.exclusive());
        lock.verify();
        --holders;
        ++turns;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(turns, 80);
  EXPECT_TRUE(fs::is_empty(folder()));
}

TEST_F(Disk, LocksEndThePatienceAndKnowThatTheyWereLost) {
  const DiskLock lock(folder() / "file");
  EXPECT_THROW(DiskLock(folder() / "file", std::chrono::milliseconds(20)), IoError);
  fs::remove(folder() / "file.steep-lock");
  EXPECT_THROW(lock.verify(), IoError);
  const DiskLock other(folder() / "file");
  EXPECT_THROW(lock.verify(), IoError);
  other.verify();
}

}  // namespace
}  // namespace steep
