#include "data/npz.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "data/npy.h"
#include "runtime/budget.h"
#include "runtime/counted.h"
#include "steep/error.h"

namespace steep {
namespace {

constexpr uint32_t kEndOfDirectory = 0x06054b50;
constexpr uint32_t kEndOfDirectory64 = 0x06064b50;
constexpr uint32_t kLocator64 = 0x07064b50;
constexpr uint32_t kCentralEntry = 0x02014b50;
constexpr uint32_t kLocalEntry = 0x04034b50;
constexpr uint64_t kMaxDirectory = uint64_t{256} << 20;
constexpr uint64_t kMaxInflation = 1032;  // greatest ratio of deflate: 258 bytes from 2 bits

[[noreturn]] void refuse(const ByteSource& source, const std::string& why,
                         const std::string& array = "") {
  throw DataError(ErrorParts{
      .what = array.empty()
                  ? fmt::format("{} is not a valid .npz file: {}.", source.name(), why)
                  : fmt::format("Array '{}' of {} is refused: {}.", array, source.name(), why),
      .remedy = "Write it with numpy.savez from plain numeric arrays."});
}

uint64_t little(const uint8_t* p, int bytes) {
  uint64_t value = 0;
  for (int i = bytes - 1; i >= 0; --i) value = (value << 8) | p[i];
  return value;
}

struct Member {
  std::string name;
  uint16_t flags = 0;
  uint16_t method = 0;
  std::optional<uint32_t> crc{};  ///< none for a file that is not in an archive
  uint64_t packed = 0;            ///< bytes in the archive
  uint64_t unpacked = 0;          ///< bytes of the .npy file
  uint64_t offset = 0;            ///< of the local header; after find_data() of the data
  uint64_t header = 0;            ///< of the local header
};

struct Directory {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t entries = 0;
};

Directory find_directory(const ByteSource& source) {
  // The end record is the last, before a comment of at most 65,535 bytes.
  const uint64_t tail = std::min<uint64_t>(source.size(), 22 + 65535);
  if (tail < 22) refuse(source, "it is too short");
  std::vector<uint8_t> bytes(static_cast<size_t>(tail));
  source.read(source.size() - tail, bytes.data(), bytes.size());
  for (size_t at = bytes.size() - 22 + 1; at-- > 0;) {
    const uint8_t* p = bytes.data() + at;
    if (little(p, 4) != kEndOfDirectory || little(p + 20, 2) != bytes.size() - at - 22) continue;
    Directory directory{little(p + 16, 4), little(p + 12, 4), little(p + 10, 2)};
    const uint64_t record = source.size() - tail + at;
    uint8_t locator[20];
    if (record < sizeof locator) return directory;
    source.read(record - sizeof locator, locator, sizeof locator);
    if (little(locator, 4) != kLocator64) return directory;
    uint8_t wide[56];
    source.read(little(locator + 8, 8), wide, sizeof wide);
    if (little(wide, 4) != kEndOfDirectory64) refuse(source, "its zip64 directory is damaged");
    return {little(wide + 48, 8), little(wide + 40, 8), little(wide + 32, 8)};
  }
  refuse(source, "it has no zip directory (truncated?)");
}

/// Replaces sizes that do not fit into 32 bits by those of the zip64 extra field.
void read_zip64(const ByteSource& source, const uint8_t* extra, size_t length, Member* member) {
  while (length >= 4) {
    const size_t id = little(extra, 2);
    size_t field = little(extra + 2, 2);
    if (field > length - 4) refuse(source, "its directory is damaged");
    const uint8_t* p = extra + 4;
    extra += 4 + field;
    length -= 4 + field;
    if (id != 1) continue;
    for (uint64_t* value : {&member->unpacked, &member->packed, &member->offset}) {
      if (*value != 0xffffffff) continue;
      if (field < 8) refuse(source, "its zip64 sizes are damaged");
      *value = little(p, 8);
      p += 8;
      field -= 8;
    }
  }
}

std::vector<Member> read_directory(const ByteSource& source, const Limits& limits) {
  const Directory directory = find_directory(source);
  if (directory.entries > limits.max_arrays) refuse(source, "it has too many members");
  if (directory.bytes > kMaxDirectory || directory.bytes > source.size()) {
    refuse(source, "its directory exceeds the file");
  }
  std::vector<uint8_t> bytes(static_cast<size_t>(directory.bytes));
  source.read(directory.offset, bytes.data(), bytes.size());
  std::vector<Member> members;
  size_t at = 0;
  for (uint64_t i = 0; i < directory.entries; ++i) {
    if (bytes.size() - at < 46 || little(&bytes[at], 4) != kCentralEntry) {
      refuse(source, "its directory is damaged");
    }
    const uint8_t* p = &bytes[at];
    const size_t name = little(p + 28, 2), extra = little(p + 30, 2), comment = little(p + 32, 2);
    if (bytes.size() - at - 46 < name + extra + comment) refuse(source, "its directory is damaged");
    Member member{.name = std::string(reinterpret_cast<const char*>(p) + 46, name),
                  .flags = static_cast<uint16_t>(little(p + 8, 2)),
                  .method = static_cast<uint16_t>(little(p + 10, 2)),
                  .crc = static_cast<uint32_t>(little(p + 16, 4)),
                  .packed = little(p + 20, 4),
                  .unpacked = little(p + 24, 4),
                  .offset = little(p + 42, 4)};
    read_zip64(source, p + 46 + name, extra, &member);
    members.push_back(std::move(member));
    at += 46 + name + extra + comment;
  }
  return members;
}

/// Moves `offset` from the local header to the data, and checks that the data is inside the file.
void find_data(const ByteSource& source, Member* member) {
  uint8_t local[30];
  source.read(member->offset, local, sizeof local);
  if (little(local, 4) != kLocalEntry) refuse(source, "its member is damaged", member->name);
  member->header = member->offset;
  member->offset += sizeof local + little(local + 26, 2) + little(local + 28, 2);
  if (member->offset > source.size() || member->packed > source.size() - member->offset) {
    refuse(source, "it is truncated", member->name);
  }
  if (member->flags & 1) refuse(source, "it is encrypted", member->name);
  if (member->method == 0 && member->packed != member->unpacked) {
    refuse(source, "its sizes disagree", member->name);
  }
  if (member->method == 8 && member->unpacked / kMaxInflation > member->packed) {
    refuse(source, "it claims more bytes than it can hold", member->name);
  }
  if (member->method != 0 && member->method != 8) {
    refuse(source, fmt::format("its compression (method {}) is not supported", member->method),
           member->name);
  }
}

/// Reads the unpacked bytes of one member, in order, and computes their checksum.
class MemberReader {
 public:
  MemberReader(const ByteSource& source, const Member& member) : source_(source), member_(member) {
    if (member.method == 8 && inflateInit2(&zip_, -MAX_WBITS) != Z_OK) {
      throw OutOfMemoryError("zlib could not start.");
    }
  }
  ~MemberReader() {
    if (member_.method == 8) inflateEnd(&zip_);
  }
  MemberReader(const MemberReader&) = delete;
  MemberReader& operator=(const MemberReader&) = delete;

  void read(void* out, uint64_t size) {
    if (size > member_.unpacked - position_) refuse(source_, "it is truncated", member_.name);
    auto* p = static_cast<uint8_t*>(out);
    while (size > 0) {
      const uint64_t part = std::min<uint64_t>(size, uint64_t{1} << 26);
      poll();
      if (member_.method == 0) {
        source_.read(member_.offset + position_, p, part);
      } else {
        inflate_exactly(p, static_cast<uInt>(part));
      }
      crc_ = static_cast<uint32_t>(::crc32_z(crc_, p, part));
      position_ += part;
      p += part;
      size -= part;
    }
  }
  uint64_t done() const { return position_; }
  void finish() {
    if (position_ != member_.unpacked) refuse(source_, "bytes follow the array", member_.name);
    if (member_.crc && crc_ != member_.crc)
      refuse(source_, "its checksum does not match", member_.name);
  }

 private:
  void inflate_exactly(uint8_t* out, uInt size) {
    zip_.next_out = out;
    zip_.avail_out = size;
    while (zip_.avail_out > 0) {
      if (zip_.avail_in == 0) {
        const auto count = std::min<uint64_t>(input_.size(), member_.packed - input_position_);
        source_.read(member_.offset + input_position_, input_.data(), static_cast<size_t>(count));
        input_position_ += count;
        zip_.next_in = input_.data();
        zip_.avail_in = static_cast<uInt>(count);
      }
      const int result = inflate(&zip_, Z_NO_FLUSH);
      if ((result != Z_OK && result != Z_STREAM_END) ||
          (result == Z_STREAM_END && zip_.avail_out > 0)) {
        refuse(source_, "its compressed bytes are damaged", member_.name);
      }
    }
  }

  const ByteSource& source_;
  const Member& member_;
  z_stream zip_{};
  std::vector<uint8_t> input_ = std::vector<uint8_t>(size_t{1} << 16);
  uint64_t input_position_ = 0;
  uint64_t position_ = 0;
  uint32_t crc_ = 0;
};

/// Reads the header, up to the first element. Checks that the number of remaining bytes fits the
/// shape.
NpyHeader read_header(const ByteSource& source, const Member& member, MemberReader& reader) {
  uint8_t magic[8];
  reader.read(magic, sizeof magic);
  if (std::memcmp(magic, "\x93NUMPY", 6) != 0) refuse(source, "it is not a .npy file", member.name);
  if (magic[6] < 1 || magic[6] > 3) refuse(source, "its .npy version is unknown", member.name);
  const int width = magic[6] == 1 ? 2 : 4;
  uint8_t length_bytes[4];
  reader.read(length_bytes, static_cast<uint64_t>(width));
  const uint64_t length = little(length_bytes, width);
  if (length > (uint64_t{1} << 20)) refuse(source, "its header is too long", member.name);
  std::string text(static_cast<size_t>(length), '\0');
  reader.read(text.data(), length);

  NpyHeader header;
  if (const std::string why = parse_npy_header(text, &header); !why.empty()) {
    refuse(source, why, member.name);
  }
  uint64_t bytes = size_of(header.dtype);
  for (int64_t dim : header.dims) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(dim), &bytes)) {
      refuse(source, "its shape's product overflows", member.name);
    }
  }
  const uint64_t present = member.unpacked - reader.done();
  if (bytes != present) {
    refuse(source,
           fmt::format("its shape {} of {} needs {}, {} are there", to_string(header.dims),
                       name_of(header.dtype), counted(bytes, "byte"), present),
           member.name);
  }
  return header;
}

Tensor read_member(const ByteSource& source, const Member& member) {
  MemberReader reader(source, member);
  const NpyHeader header = read_header(source, member, reader);
  Tensor tensor = Tensor::empty(header.dtype, header.dims);
  reader.read(tensor.data(), tensor.nbytes());
  reader.finish();
  if (header.swapped) {
    swap_bytes(tensor.data(), static_cast<size_t>(tensor.size()), size_of(header.dtype));
  }
  if (header.dtype == DType::boolean) {
    auto* p = static_cast<uint8_t*>(tensor.data());
    std::for_each(p, p + tensor.nbytes(), [](uint8_t& b) { b = b != 0; });
  }
  return header.fortran_order && header.dims.size() > 1 ? from_fortran_order(tensor) : tensor;
}

/// The member's array as a view into `pages`, the mapped file. Nothing if the array has to be
/// converted.
std::optional<Tensor> map_member(const ByteSource& source, const Member& member,
                                 const std::shared_ptr<void>& pages) {
  if (member.method != 0) return {};
  MemberReader reader(source, member);
  const NpyHeader header = read_header(source, member, reader);
  const bool as_it_is = !header.swapped && header.dtype != DType::boolean &&
                        (!header.fortran_order || header.dims.size() < 2);
  if (!as_it_is || element_count(header.dims) == 0) return {};
  auto* first = static_cast<char*>(pages.get()) + member.offset + reader.done();
  return Tensor::wrap(header.dtype, header.dims, first, pages);
}

void put(std::string* out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out->push_back(static_cast<char>(value >> (8 * i)));
}

}  // namespace

namespace {

/// Refuses members that share bytes: with these a small archive could claim a huge content.
void refuse_overlaps(const ByteSource& source, const std::vector<Member>& members) {
  std::vector<const Member*> in_order;
  for (const Member& m : members) in_order.push_back(&m);
  std::sort(in_order.begin(), in_order.end(),
            [](const Member* a, const Member* b) { return a->header < b->header; });
  for (size_t i = 1; i < in_order.size(); ++i) {
    const Member& before = *in_order[i - 1];
    if (in_order[i]->header < before.offset + before.packed) {
      refuse(source, fmt::format("its bytes overlap those of '{}'", before.name),
             in_order[i]->name);
    }
  }
}

}  // namespace

namespace {

[[noreturn]] void refuse_size(const std::string& what, const Limits& limits,
                              const std::string& received) {
  throw DataError(ErrorParts{
      .what = what,
      .expected = fmt::format("at most {} of arrays, unpacked", bytes_text(limits.max_bytes)),
      .received = received,
      .remedy = "If this size is intended, raise Limits::max_bytes (max_bytes= in "
                "Python, --max-bytes, STEEP_MAX_BYTES)."});
}

/// The members in order. The data of each is inside the file.
std::vector<Member> members_of(const ByteSource& source, const Limits& limits) {
  std::vector<Member> members = read_directory(source, limits);
  for (Member& member : members) find_data(source, &member);
  return members;
}

void add_to(std::map<std::string, Tensor>* arrays, const ByteSource& source, const Member& member,
            Tensor tensor) {
  std::string name = member.name;
  if (name.ends_with(".npy")) name.resize(name.size() - 4);
  if (!arrays->emplace(name, std::move(tensor)).second) {
    refuse(source, "its name appears twice", member.name);
  }
}

/// Adds up the bytes that are going to be read.
class Room {
 public:
  Room(const ByteSource& source, const Limits& limits) : source_(source), limits_(limits) {}
  void take(const Member& member) {
    if (__builtin_add_overflow(total_, member.unpacked, &total_) || total_ > limits_.max_bytes) {
      refuse_size(source_.name() + " is larger than the limit of this process.", limits_, "more");
    }
  }

 private:
  const ByteSource& source_;
  const Limits& limits_;
  uint64_t total_ = 0;
};

Member whole_file(const ByteSource& source, const std::string& name) {
  return {.name = name, .packed = source.size(), .unpacked = source.size()};
}

}  // namespace

Tensor read_npy(const ByteSource& source, const std::string& name, const Limits& limits) {
  const Budget budget(limits);
  if (source.size() > limits.max_bytes) {
    throw DataError(ErrorParts{.what = source.name() + " exceeds the memory limit of this process.",
                               .expected = fmt::format("at most {}", bytes_text(limits.max_bytes)),
                               .received = counted(source.size(), "byte"),
                               .remedy = "Raise --max-bytes (Limits::max_bytes)."});
  }
  return read_member(source, whole_file(source, name));
}

Tensor map_npy(const FileSource& source, const std::string& name, const Limits& limits) {
  const Budget budget(limits);
  if (source.size() > 0) {
    if (auto mapped = map_member(source, whole_file(source, name), source.map())) return *mapped;
  }
  return read_npy(source, name, limits);
}

std::map<std::string, Tensor> read_npz(const ByteSource& source, const Limits& limits) {
  const Budget budget(limits);
  const std::vector<Member> members = members_of(source, limits);
  Room room(source, limits);
  for (const Member& member : members) room.take(member);
  refuse_overlaps(source, members);
  std::map<std::string, Tensor> arrays;
  for (const Member& member : members) {
    add_to(&arrays, source, member, read_member(source, member));
  }
  return arrays;
}

std::map<std::string, Tensor> map_npz(const FileSource& source, const Limits& limits) {
  const Budget budget(limits);
  const std::vector<Member> members = members_of(source, limits);
  refuse_overlaps(source, members);
  const std::shared_ptr<void> pages = source.map();
  Room room(source, limits);
  std::map<std::string, Tensor> arrays;
  for (const Member& member : members) {
    std::optional<Tensor> mapped = map_member(source, member, pages);
    if (!mapped) room.take(member);
    add_to(&arrays, source, member, mapped ? std::move(*mapped) : read_member(source, member));
  }
  return arrays;
}

void write_npz(FileWriter& file, const std::map<std::string, Tensor>& arrays) {
  constexpr uint64_t kDate = 0x0021;  // 1 January 1980, midnight
  constexpr uint64_t kUtf8 = 0x0800;
  std::string directory;
  for (const auto& [name, array] : arrays) {
    const std::string preamble = npy_preamble(array.dtype(), array.dims());
    const uint64_t bytes = preamble.size() + array.nbytes();
    const uint64_t offset = file.bytes();
    const std::string member = name + ".npy";
    if (bytes >= UINT32_MAX || offset >= UINT32_MAX || member.size() > 65535 ||
        arrays.size() > 65534) {
      throw DataError(ErrorParts{.what = fmt::format("'{}' does not fit into an .npz file.", name),
                                 .remedy = "Write .safetensors instead."});
    }
    uLong crc = ::crc32_z(0, reinterpret_cast<const Bytef*>(preamble.data()), preamble.size());
    // Without elements the address may be null, for which zlib starts anew.
    if (array.nbytes() > 0) {
      crc = ::crc32_z(crc, static_cast<const Bytef*>(array.data()), array.nbytes());
    }

    std::string common;  // fields that the local header and the directory entry share
    put(&common, 20, 2);
    put(&common, kUtf8, 2);
    put(&common, 0, 2);
    put(&common, 0, 2);
    put(&common, kDate, 2);
    put(&common, crc, 4);
    put(&common, bytes, 4);
    put(&common, bytes, 4);
    put(&common, member.size(), 2);
    put(&common, 0, 2);

    std::string local;
    put(&local, kLocalEntry, 4);
    local.append(common).append(member).append(preamble);
    file.write(local);
    file.write(array.data(), array.nbytes());

    put(&directory, kCentralEntry, 4);
    put(&directory, 20, 2);
    directory += common;
    put(&directory, 0, 2);  // comment
    put(&directory, 0, 2);  // disk
    put(&directory, 0, 2);  // internal attributes
    put(&directory, 0, 4);  // external attributes
    put(&directory, offset, 4);
    directory += member;
  }
  const uint64_t start = file.bytes();
  std::string end;
  put(&end, kEndOfDirectory, 4);
  put(&end, 0, 4);
  put(&end, arrays.size(), 2);
  put(&end, arrays.size(), 2);
  put(&end, directory.size(), 4);
  put(&end, start, 4);
  put(&end, 0, 2);
  if (start >= UINT32_MAX || directory.size() >= UINT32_MAX) {
    throw DataError(ErrorParts{.what = "The arrays do not fit into an .npz file.",
                               .remedy = "Write .safetensors instead."});
  }
  file.write(directory + end);
}

}  // namespace steep
