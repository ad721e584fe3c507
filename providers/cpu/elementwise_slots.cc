#include <algorithm>

#include "providers/cpu/elementwise.h"

namespace steep::cpu {

bool assign_slots(Program& program, int values) {
  constexpr int kNever = -1;
  const int end = static_cast<int>(program.instructions.size());
  std::vector<int> last_use(static_cast<size_t>(values), kNever);
  int last_direct_read = kNever;  // an input that may share its memory with an output
  auto is_direct = [&](uint16_t v) {
    return std::any_of(program.loads.begin(), program.loads.end(), [&](const Program::Load& l) {
      return l.value == v && l.kind == Program::Load::Kind::direct;
    });
  };
  for (int i = 0; i < end; ++i) {
    const auto& ins = program.instructions[static_cast<size_t>(i)];
    for (uint16_t v : {ins.a, ins.b, ins.c}) {
      last_use[v] = i;
      if (is_direct(v)) last_direct_read = i;
    }
  }
  program.slots.assign(static_cast<size_t>(values), 0);
  std::vector<bool> placed(static_cast<size_t>(values), false);
  auto outside = [&](uint16_t v) {
    placed[v] = true;
    program.slots[v] = -1;
  };
  // An output may be written early only when no input, whose memory it may have taken, is read
  // afterwards.
  for (Program::Store& s : program.stores) {
    for (int i = 0; i < end; ++i) {
      if (program.instructions[static_cast<size_t>(i)].dst != s.value) continue;
      s.direct = s.dtype == program.type && i >= last_direct_read && !program.may_fault;
    }
    if (s.direct) {
      outside(s.value);
    } else {
      last_use[s.value] = end;
    }
  }
  std::vector<Program::Slot> free;
  auto place = [&](uint16_t v) {
    placed[v] = true;
    if (free.empty()) free.push_back(static_cast<Program::Slot>(program.slot_count++));
    program.slots[v] = free.back();
    free.pop_back();
  };
  for (const Program::Load& l : program.loads) {
    if (l.kind == Program::Load::Kind::direct) {
      outside(l.value);
      continue;
    }
    place(l.value);
    if (l.kind == Program::Load::Kind::scalar)
      last_use[l.value] = end;  // filled once, kept for all blocks
  }
  for (int i = 0; i < end; ++i) {
    const auto& ins = program.instructions[static_cast<size_t>(i)];
    for (uint16_t v : {ins.a, ins.b, ins.c}) {
      if (last_use[v] == i && program.slots[v] >= 0) {
        free.push_back(program.slots[v]);
        last_use[v] = end;  // an operand that occurs twice is freed once
      }
    }
    if (!placed[ins.dst]) place(ins.dst);
  }
  return program.slot_count <= kMaxSlots;
}

}  // namespace steep::cpu
