// Functions of the host that nodes of a running graph call. A graph holds their numbers only.
#pragma once

#include <cstdint>
#include <functional>

namespace steep {

/// A function with a number, for the life of this object.
class Receiver {
 public:
  /// `index`: an attribute of the node; `data`: its operand's bytes, valid during the call.
  using Function = std::function<void(int64_t index, const void* data)>;
  explicit Receiver(Function f);
  ~Receiver();
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;
  int64_t number() const { return number_; }  ///< from 1

 private:
  int64_t number_;
};

/// Whether call_receiver() knows the number. A provider that was loaded from a file has a list of
/// its own, which is empty: it leaves nodes that call the host to the host. Thread-safe.
bool has_receiver(int64_t number);

/// Calls the function of that number, and throws what it throws; nothing for 0. Throws
/// InternalError if there is none. Thread-safe.
void call_receiver(int64_t number, int64_t index, const void* data);

}  // namespace steep
