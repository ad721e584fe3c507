#include "runtime/receiver.h"

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "steep/error.h"

namespace steep {
namespace {

struct Receivers {
  std::mutex mutex;
  std::map<int64_t, std::shared_ptr<const Receiver::Function>> functions;
  int64_t last = 0;
};

Receivers& receivers() {
  static Receivers all;
  return all;
}

}  // namespace

Receiver::Receiver(Function f) {
  auto function = std::make_shared<const Function>(std::move(f));
  Receivers& all = receivers();
  const std::lock_guard lock(all.mutex);
  number_ = ++all.last;
  all.functions[number_] = std::move(function);
}

Receiver::~Receiver() {
  Receivers& all = receivers();
  const std::lock_guard lock(all.mutex);
  all.functions.erase(number_);
}

bool has_receiver(int64_t number) {
  Receivers& all = receivers();
  const std::lock_guard lock(all.mutex);
  return number == 0 || all.functions.count(number) != 0;
}

void call_receiver(int64_t number, int64_t index, const void* data) {
  if (number == 0) return;
  std::shared_ptr<const Receiver::Function> function;
  {
    Receivers& all = receivers();
    const std::lock_guard lock(all.mutex);
    const auto found = all.functions.find(number);
    if (found != all.functions.end()) function = found->second;
  }
  if (!function) throw InternalError("A node hands its operand to a receiver that has ended.");
  (*function)(index, data);
}

}  // namespace steep
