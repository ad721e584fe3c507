// steep.Deliver: hands its operand to a function of the host.
#include "providers/cpu/build_kernel.h"
#include "providers/cpu/cpu.h"
#include "runtime/receiver.h"

namespace steep::cpu {
namespace {

std::unique_ptr<Kernel> make_deliver(const NodeSpec& node, std::string* why_not) {
  const int64_t number = node.attrs.integer("receiver"), index = node.attrs.integer("index");
  if (!has_receiver(number)) return decline(why_not, "there is no receiver {} here", number);
  return kernel_from([number, index](const KernelArgs& args) {
    call_receiver(number, index, args.in[0]);
    *args.output<float>(0) = 1;
  });
}

}  // namespace

void register_deliver(std::vector<Candidate>& list) {
  list.push_back({"steep.Deliver", "call", make_deliver});
}

}  // namespace steep::cpu
