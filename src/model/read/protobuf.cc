#include "model/read/protobuf.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <google/protobuf/message_lite.h>

#include <cstring>
#include <string>

#include "steep/error.h"

namespace steep {

void require_own_protobuf() {
#ifdef STEEP_PROTOBUF  // the version in the library's name; none where protobuf is linked in
  const auto function = &google::protobuf::MessageLite::ParseFromArray;
  const void* address = nullptr;  // the first word of a pointer to a member that is not virtual
  std::memcpy(&address, &function, sizeof address);
  Dl_info found{};
  Dl_info own{};
  if (dladdr(address, &found) == 0 || found.dli_fname == nullptr) return;
  if (dladdr(reinterpret_cast<const void*>(&require_own_protobuf), &own) != 0 &&
      own.dli_fbase == found.dli_fbase) {
    return;  // libsteep.a and an archive of protobuf, in one program
  }
  const std::string path = found.dli_fname;
  const std::string name = path.substr(path.rfind('/') + 1) + ".";
  const bool same = name.find(".so." STEEP_PROTOBUF ".") != std::string::npos;
  if (same && name.starts_with("libprotobuf")) return;
  throw ProviderError(
      {.what = "Another protobuf takes the place of the one that Steep was built with.",
       .expected = "libprotobuf-lite.so." STEEP_PROTOBUF " or libprotobuf.so." STEEP_PROTOBUF,
       .received = fmt::format("functions of protobuf in {}", path),
       .remedy = "If that is the program, which contains an archive of protobuf, link it with "
                 "-Wl,--exclude-libs,ALL. If it is a library, do not load it for all: neither by "
                 "linking it into the program beside libsteep, nor by LD_PRELOAD, nor with "
                 "RTLD_GLOBAL."});
#endif
}

}  // namespace steep
