#include "curves/event_file.h"

#include <fmt/format.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <filesystem>
#include <functional>

#include "runtime/crc32c.h"
#include "runtime/disk.h"
#include "steep/error.h"

namespace steep {
namespace {

namespace io = google::protobuf::io;

/// Field numbers of tensorflow/core/util/event.proto and framework/summary.proto.
enum Field : uint32_t {
  kWallTime = 1,     // Event
  kStep = 2,         //
  kFileVersion = 3,  //
  kSummary = 5,      //
  kSessionLog = 7,   //
  kStatus = 1,       // SessionLog
  kValue = 1,        // Summary
  kTag = 1,          // Summary.Value
  kSimpleValue = 2,  //
};
constexpr uint64_t kStart = 1;  // SessionLog.SessionStatus
enum Wire : uint32_t { kVarint = 0, k64 = 1, kBytes = 2, k32 = 5 };

void key(io::CodedOutputStream& out, Field field, Wire wire) { out.WriteTag(field << 3 | wire); }

void put_bytes(io::CodedOutputStream& out, Field field, const std::string& bytes) {
  key(out, field, kBytes);
  out.WriteVarint32(static_cast<uint32_t>(bytes.size()));
  out.WriteString(bytes);
}

std::string message(const std::function<void(io::CodedOutputStream&)>& fill) {
  std::string bytes;
  {
    io::StringOutputStream stream(&bytes);
    io::CodedOutputStream out(&stream);
    fill(out);
  }
  return bytes;
}

std::string event(int64_t step, Field field, const std::string& what) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  return message([&](io::CodedOutputStream& out) {
    key(out, kWallTime, k64);
    out.WriteLittleEndian64(std::bit_cast<uint64_t>(now.count()));
    key(out, kStep, kVarint);
    out.WriteVarint64(static_cast<uint64_t>(step));
    put_bytes(out, field, what);
  });
}

/// The checksum of a record's parts. It is rotated and offset, as TFRecord requires, so that a
/// record of zeros is not valid.
std::string masked_crc(std::string_view bytes) {
  constexpr uint32_t kDelta = 0xa282ead8;
  const uint32_t crc = std::rotr(crc32c(0, bytes.data(), bytes.size()), 15) + kDelta;
  return message([&](io::CodedOutputStream& out) { out.WriteLittleEndian32(crc); });
}

std::string host() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  return name.data();
}

}  // namespace

EventFile::EventFile(const std::string& folder, int64_t step) {
  if (folder.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw_io("make the folder", folder, error.value());
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  for (int i = 0; path_.empty() || std::filesystem::exists(path_, error); ++i) {
    path_ = (std::filesystem::path(folder) /
             fmt::format("events.out.tfevents.{:010}.{}.{}.{}", seconds, host(), ::getpid(), i))
                .string();
  }
  file_.open(path_, std::ios::binary);
  write(event(0, kFileVersion, "brain.Event:2"));
  if (step == 0) return;
  const std::string start = message([&](io::CodedOutputStream& out) {
    key(out, kStatus, kVarint);
    out.WriteVarint64(kStart);
  });
  write(event(step + 1, kSessionLog, start));
}

void EventFile::add(std::string_view tag, int64_t step, double value) {
  if (path_.empty()) return;
  const std::string scalar = message([&](io::CodedOutputStream& out) {
    put_bytes(out, kTag, std::string(tag));
    key(out, kSimpleValue, k32);
    out.WriteLittleEndian32(std::bit_cast<uint32_t>(static_cast<float>(value)));
  });
  const std::string summary =
      message([&](io::CodedOutputStream& out) { put_bytes(out, kValue, scalar); });
  write(event(step, kSummary, summary));
}

void EventFile::write(const std::string& bytes) {
  const std::string length =
      message([&](io::CodedOutputStream& out) { out.WriteLittleEndian64(bytes.size()); });
  file_ << length << masked_crc(length) << bytes << masked_crc(bytes) << std::flush;
  if (!file_) throw IoError(ErrorParts{.what = "Cannot write " + path_ + "."});
}

}  // namespace steep
