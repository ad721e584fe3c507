// The functions that run operators without kernels.
#pragma once

#include "flow/dynamic.h"

namespace steep {

// loop.cc
std::vector<Datum> run_if(const DynamicCall& call);
std::vector<Datum> run_loop(const DynamicCall& call);

// sequences.cc
std::vector<Datum> run_concat_from_sequence(const DynamicCall& call);
std::vector<Datum> run_sequence_at(const DynamicCall& call);
std::vector<Datum> run_sequence_construct(const DynamicCall& call);
std::vector<Datum> run_sequence_empty(const DynamicCall& call);
std::vector<Datum> run_sequence_erase(const DynamicCall& call);
std::vector<Datum> run_sequence_extents(const DynamicCall& call);
std::vector<Datum> run_sequence_insert(const DynamicCall& call);
std::vector<Datum> run_sequence_length(const DynamicCall& call);
std::vector<Datum> run_split_to_sequence(const DynamicCall& call);
std::vector<Datum> run_sum_of(const DynamicCall& call);
std::vector<Datum> run_zeros_like(const DynamicCall& call);

// rows.cc
std::vector<Datum> run_counted_rows(const DynamicCall& call);

// optionals.cc
std::vector<Datum> run_optional(const DynamicCall& call);
std::vector<Datum> run_optional_get_element(const DynamicCall& call);
std::vector<Datum> run_optional_has_element(const DynamicCall& call);

}  // namespace steep
