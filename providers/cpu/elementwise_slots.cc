#include <algorithm>

#include "providers/cpu/elementwise.h"

namespace steep::cpu {

namespace {

class SlotAssigner {
 public:
  SlotAssigner(Program& program, int values)
      : program_(program),
        end_(static_cast<int>(program.instructions.size())),
        last_use_(static_cast<size_t>(values), kNever),
        placed_(static_cast<size_t>(values), false) {
    program_.slots.assign(static_cast<size_t>(values), 0);
  }

  void run() {
    find_last_uses();
    for (Program::Store& s : program_.stores) take_store(s);
    for (const Program::Load& l : program_.loads) take_load(l);
    for (int i = 0; i < end_; ++i) {
      free_operands(i);
      const uint16_t result = instruction(i).dst;
      if (!placed_[result]) place(result);
    }
  }

 private:
  static constexpr int kNever = -1;

  const Program::Instruction& instruction(int i) const {
    return program_.instructions[static_cast<size_t>(i)];
  }

  bool is_direct(uint16_t v) const {
    const auto& loads = program_.loads;
    return std::any_of(loads.begin(), loads.end(), [&](const Program::Load& l) {
      return l.value == v && l.kind == Program::Load::Kind::direct;
    });
  }

  void find_last_uses() {
    for (int i = 0; i < end_; ++i) {
      const auto& ins = instruction(i);
      for (uint16_t v : {ins.a, ins.b, ins.c}) {
        last_use_[v] = i;
        if (is_direct(v)) last_direct_read_ = i;
      }
    }
  }

  /// An output may be written directly only if no input that may share its memory is read
  /// afterwards.
  void take_store(Program::Store& s) {
    for (int i = 0; i < end_; ++i) {
      if (instruction(i).dst != s.value) continue;
      s.direct = s.dtype == program_.type && i >= last_direct_read_ && !program_.may_fault;
    }
    if (s.direct) {
      keep_outside(s.value);
    } else {
      last_use_[s.value] = end_;
    }
  }

  void take_load(const Program::Load& l) {
    if (l.kind == Program::Load::Kind::direct) return keep_outside(l.value);
    place(l.value);
    if (l.kind == Program::Load::Kind::scalar)
      last_use_[l.value] = end_;  // loaded once, kept for all blocks
  }

  void free_operands(int i) {
    const auto& ins = instruction(i);
    for (uint16_t v : {ins.a, ins.b, ins.c}) {
      if (last_use_[v] != i || program_.slots[v] < 0) continue;
      free_.push_back(program_.slots[v]);
      last_use_[v] = end_;  // frees an operand that occurs twice only once
    }
  }

  /// The value needs no slot: it is read or written in the caller's memory.
  void keep_outside(uint16_t v) {
    placed_[v] = true;
    program_.slots[v] = -1;
  }

  void place(uint16_t v) {
    placed_[v] = true;
    if (free_.empty()) free_.push_back(static_cast<Program::Slot>(program_.slot_count++));
    program_.slots[v] = free_.back();
    free_.pop_back();
  }

  Program& program_;
  int end_;                        // number of instructions
  std::vector<int> last_use_;      // by value
  std::vector<bool> placed_;       // by value
  int last_direct_read_ = kNever;  // of an input that may share memory with an output
  std::vector<Program::Slot> free_;
};

}  // namespace

bool assign_slots(Program& program, int values) {
  SlotAssigner(program, values).run();
  return program.slot_count <= kMaxSlots;
}

}  // namespace steep::cpu
