#include "flow/rules.h"

#include <unordered_map>

#include "flow/rows.h"

namespace steep {

DynamicRule find_dynamic_rule(std::string_view op) {
  static const std::unordered_map<std::string_view, DynamicRule> rules = {
      {"ConcatFromSequence", run_concat_from_sequence},
      {"If", run_if},
      {"Optional", run_optional},
      {"OptionalGetElement", run_optional_get_element},
      {"OptionalHasElement", run_optional_has_element},
      {"SequenceAt", run_sequence_at},
      {"SequenceConstruct", run_sequence_construct},
      {"SequenceEmpty", run_sequence_empty},
      {"SequenceErase", run_sequence_erase},
      {"SequenceInsert", run_sequence_insert},
      {"SequenceLength", run_sequence_length},
      {"SplitToSequence", run_split_to_sequence},
      {kCountedRows, run_counted_rows},
      {"steep.Loop", run_loop},
      {"steep.SequenceExtents", run_sequence_extents},
      {"steep.SumOf", run_sum_of},
      {"steep.ZerosLike", run_zeros_like},
  };
  const auto rule = rules.find(op);
  return rule == rules.end() ? nullptr : rule->second;
}

}  // namespace steep
