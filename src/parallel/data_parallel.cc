#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "parallel/describe.h"
#include "parallel/divided_gradients.h"
#include "parallel/early_sums.h"
#include "runtime/counted.h"
#include "runtime/digest.h"
#include "steep/parallel.h"

namespace steep {
namespace {

constexpr double kHalf = 4294967296;  // 64 bits are exact in two float64

std::array<double, 2> halves(uint64_t number) {
  return {static_cast<double>(number >> 32), static_cast<double>(number & 0xffffffffu)};
}
uint64_t joined(double high, double low) {
  return static_cast<uint64_t>(high) * static_cast<uint64_t>(kHalf) + static_cast<uint64_t>(low);
}

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

[[noreturn]] void throw_no_rows(int ranks) {
  throw DataError(ErrorParts{.what = "A step has no rows; no weight was changed.",
                             .expected = "rows, or labels that count, on one rank at least",
                             .received = fmt::format("none on {}", counted(ranks, "rank"))});
}

}  // namespace

/// What a process knows once its gradients are accumulated.
struct DataParallel::Summary {
  double skipped = 0;  ///< gradients overflowed at this loss scale
  double weight = 0;   ///< of its gradients: elements, shares, or labels that are not ignored
  double loss = 0;     ///< sum of loss · weight
  double step_count = 0;
  double run_count = 0;
  double loss_scale = 0;
  double settings = 0;  ///< digest of this step's update settings
  double shared = 0;
  double parts = 0;
  double form = 0;  ///< digest
};

DataParallel::DataParallel(TrainingSession& session, std::shared_ptr<Peers> peers,
                           std::map<std::string, std::string> facts, int zero,
                           const std::string& wire_precision)
    : session_(&session), peers_(std::move(peers)), facts_(std::move(facts)) {
  if (peers_ == nullptr) throw InternalError("DataParallel needs peers.");
  forget();
  choose_wire(wire_precision);
  divide(zero);
}

void DataParallel::choose_wire(const std::string& precision) {
  const DType wire = wire_dtype(precision);
  if (wire == DType::f32 || peers_->size() == 1) return;
  if (!peers_->exchanges()) {
    throw ProviderError(
        ErrorParts{.what = "This way to communicate cannot exchange gradients in bfloat16.",
                   .node = "wire_precision",
                   .expected = "Peers with exchange()",
                   .received = "Peers without",
                   .remedy = "Use gloo or mpi, or wire_precision = float32."});
  }
  wire_ = wire;
}

std::string DataParallel::warning() const {
  std::vector<std::string> names = session_->statistic_names();
  std::erase_if(names, [&](const auto& n) { return session_->options().updates.contains(n); });
  if (names.empty() || peers_->size() == 1) return "";
  return "batch normalisation: each process normalises its own rows, and running statistics are "
         "those of rank 0; results differ from those of one process with all rows";
}

// --- the calls -----------------------------------------------------------------------------------

StepResult DataParallel::step(std::span<const Tensor> inputs) {
  if (std::optional<StepResult> result = step_if_any(inputs)) return *std::move(result);
  throw_no_rows(peers_->size());
}

std::optional<StepResult> DataParallel::step_if_any(std::span<const Tensor> inputs) {
  if (peers_->size() == 1) {
    if (elements(inputs) == 0) return {};
    StepResult result = session_->step(inputs);
    if (std::isnan(result.loss) && !result.skipped) return {};
    return result;
  }
  return step_of_all([&] { return std::vector<Tensor>(inputs.begin(), inputs.end()); });
}

StepResult DataParallel::step_reading(const Read& read) {
  if (peers_->size() == 1) return session_->step(read());
  if (std::optional<StepResult> result = step_of_all(read)) return *std::move(result);
  throw_no_rows(peers_->size());
}

/// Nothing if no process has rows that count.
std::optional<StepResult> DataParallel::step_of_all(const Read& read) {
  if (parts_ > 0) {
    throw DataError(
        ErrorParts{.what = "step() was called while accumulated gradients wait to be applied.",
                   .expected = "no accumulated gradients",
                   .received = fmt::format("those of {}", counted(parts_, "part")),
                   .remedy = "Call apply_gradients(), or drop_gradients()."});
  }
  if (!opened_) open();
  whole_ = early_ != nullptr;
  StepResult own = part_of_all(read, 0);
  return finish(std::move(own.outputs));
}

/// A part whose errors are those of all processes.
StepResult DataParallel::part_of_all(const Read& read, int64_t rows) {
  const uint64_t before = peers_->agreements();
  try {
    return part(read(), rows);
  } catch (const std::exception& error) {
    undo();
    if (peers_->agreements() == before || !peers_->failed_together()) peers_->tell(error);
    throw;
  }
}

StepResult DataParallel::accumulate(std::span<const Tensor> inputs, int64_t rows) {
  if (peers_->size() == 1) {
    StepResult result = session_->accumulate(inputs);
    parts_ = session_->accumulated();
    return result;
  }
  if (!opened_) open();
  if (!gradients_) return part(inputs, rows);
  return part_of_all([&] { return std::vector<Tensor>(inputs.begin(), inputs.end()); }, rows);
}

StepResult DataParallel::accumulate_reading(const Read& read, int64_t rows) {
  if (peers_->size() > 1 && !opened_) open();
  return gradients_ ? part_of_all(read, rows) : accumulate(read(), rows);
}

StepResult DataParallel::apply_gradients() {
  const bool none = parts_ == 0;
  if (std::optional<StepResult> result = apply_if_any()) return *std::move(result);
  const DataError error(
      ErrorParts{.what = "There are no gradients to apply; no weight was changed.",
                 .expected = none ? "a part on this rank, with or without rows"
                                  : "rows, or labels that count, on one rank at least",
                 .received = none ? "none since the last update"
                                  : fmt::format("none on {}", counted(peers_->size(), "rank")),
                 .remedy = "Call accumulate() first."});
  // Others may have parts, and wait for this process.
  if (none && opened_) undo();
  if (none) peers_->tell(error);
  throw error;
}

std::optional<StepResult> DataParallel::apply_if_any() {
  if (peers_->size() == 1) {
    if (session_->accumulated() == 0) return {};
    parts_ = 0;
    return session_->apply_gradients();
  }
  if (parts_ == 0) return {};
  return finish({});
}

void DataParallel::drop_gradients() {
  if (opened_) undo();
  session_->drop_gradients();
  forget();
}

void DataParallel::loaded() {
  session_->drop_gradients();
  forget();
  loaded_hash_ = session_->checkpoint_hash();
  loaded_text_.clear();
  opened_ = false;
  refresh();
}

void DataParallel::move_to(TrainingSession& session, std::map<std::string, std::string> facts,
                           std::function<void()> copy) {
  if (!shares_.empty()) hold_share_of(session);
  session_ = &session;
  facts_ = std::move(facts);
  facts_are_all_ = true;
  copy_others_ = std::move(copy);
  digest_ = 0;
  moved_ = true;
}

void DataParallel::count(double elements, std::string form) {
  counted_ = elements;
  form_ = std::move(form);
}

void DataParallel::fail(const std::string& kind, const ErrorParts& parts) {
  undo();
  peers_->tell(kind, parts);
}

// --- the parts of a step -------------------------------------------------------------------------

void DataParallel::open() {
  if (digest_ == 0) describe();
  const auto [seed, seed_low] = halves(session_->options().seed);
  const std::array<double, 9> own{digest_,
                                  fresh_ ? 1.0 : 0.0,
                                  static_cast<double>(session_->step_count()),
                                  static_cast<double>(session_->run_count()),
                                  session_->loss_scale(),
                                  seed,
                                  seed_low,
                                  digest_of(loaded_states()),
                                  needs_order() ? 1.0 : 0.0};
  std::vector<std::vector<double>> every;
  record("the start of a step", 0, [&] { every = peers_->agree("the start of a step", own); });
  const std::vector<double>& first = every[0];
  const auto differs = [&](const std::vector<double>& of) { return of[0] != digest_; };
  if (std::any_of(every.begin(), every.end(), differs)) explain_difference();
  if (std::any_of(every.begin(), every.end(), [](const auto& of) { return of[1] != 0; })) {
    copy_from_first(every);
    fresh_ = false;
  }
  set_order(std::any_of(every.begin(), every.end(), [](const auto& of) { return of[8] != 0; }));
  if (first[4] != session_->loss_scale()) session_->set_loss_scale(first[4]);
  seed_ = joined(first[5], first[6]);
  session_->set_seed(seed_);
  runs_ = session_->run_count();
  loss_scale_ = session_->loss_scale();
  old_statistics_.clear();
  for (const std::string& name : session_->statistic_names()) {
    old_statistics_[name] = session_->state(name).clone();
  }
  opened_ = true;
}

/// Makes all states those of rank 0. `every`: the numbers that open() exchanges.
void DataParallel::copy_from_first(const std::vector<std::vector<double>>& every) {
  const std::vector<double>& first = every[0];
  std::vector<std::string> names = session_->parameter_names();
  for (const std::string& name : session_->statistic_names()) names.push_back(name);
  if (shares_.empty()) {
    for (std::string& name : state_names()) names.push_back(std::move(name));
  } else {
    require_same_checkpoint(every, 7);
  }
  peers_->copy_from(0, states(std::move(names)));
  if (copy_others_) peers_->together("copy of states", copy_others_);
  session_->set_step_count(static_cast<int64_t>(first[2]));
  session_->set_run_count(static_cast<uint64_t>(first[3]));
}

/// The number of elements in the mean loss of these rows.
double DataParallel::elements(std::span<const Tensor> inputs) const {
  if (counted_) return *counted_;
  if (inputs.empty()) return 0;
  const std::vector<TensorInfo>& infos = session_->input_info();
  const TrainingOptions& options = session_->options();
  for (size_t i = 0; i < infos.size() && i < inputs.size() && !options.loss.empty(); ++i) {
    if (infos[i].name == options.label) return static_cast<double>(inputs[i].size());
  }
  for (const Tensor& input : inputs) {
    if (!input.dims().empty()) return static_cast<double>(input.dims()[0]);
  }
  return 1;
}

StepResult DataParallel::part(std::span<const Tensor> inputs, int64_t rows) {
  const double own = elements(inputs);
  if (parts_ > 0 && shared_ != (rows > 0)) {
    throw DataError(ErrorParts{.what = "Parts of one step differ in whether they name the rows of "
                                       "all processes.",
                               .expected = "`rows` in each part, or in none"});
  }
  shared_ = rows > 0;
  if (own == 0) {
    run_part({}, false, 0);
    ++parts_;
    return {.loss = kNone,
            .lr = session_->lr(),
            .step = session_->step_count(),
            .loss_scale = session_->loss_scale()};
  }
  const bool weighs = session_->accumulated_gradients().weighs;
  double share = 1;
  if (shared_ && !inputs[0].dims().empty()) share = static_cast<double>(inputs[0].dims()[0]);
  if (shared_) share /= static_cast<double>(rows);
  const double weight = shared_ ? share : own;
  // Sums of equal weights are multiplied by the weight at the end, unless each gradient is.
  const bool at_end = !weighs && !gradients_;
  if (at_end && share_ != 0 && share_ != weight) scale_sums(share_ / weight);
  if (at_end) share_ = weight;
  StepResult result = run_part(inputs, weighs, weight);
  ++parts_;
  if (result.skipped) {
    skipped_ = true;
    skipped_loss_ = result.loss;
  } else if (!weighs) {
    rows_ += weight;
    loss_ += weight * result.loss;
  }
  return result;
}

/// Forward and backward of these rows, if there are some. Takes part in the exchange of gradients
/// beside backward; `weight`: of these rows, unless the loss weighs them.
StepResult DataParallel::run_part(std::span<const Tensor> inputs, bool weighs, double weight) {
  StepResult result;
  GradientBuckets* const beside = buckets();
  if (beside != nullptr) {
    beside->begin(session_->accumulated_gradients().sums, parts_ == 0, weighs ? 1 : weight);
  }
  if (inputs.empty() && parts_ == 0 && early_ != nullptr) clear_sums();
  if (!inputs.empty()) {
    // In a step each process has its own seed; between steps all have the same.
    session_->set_seed(seed_ + static_cast<uint64_t>(peers_->rank()));
    const int64_t waiting = session_->accumulated();
    try {
      result = session_->accumulate(inputs);
    } catch (...) {
      lost_ = lost_ || session_->accumulated() < waiting;
      session_->set_seed(seed_);
      if (beside != nullptr) beside->drop();
      throw;
    }
    session_->set_seed(seed_);
  }
  if (beside != nullptr) {
    try {
      beside->end();
    } catch (...) {
      beside->drop();
      throw;
    }
    for (const Exchange& exchange : beside->take_ended()) session_->record(exchange);
  }
  return result;
}

void DataParallel::scale_sums(double factor) {
  for (auto& named : session_->accumulated_gradients().sums) {
    Tensor& sum = named.second;
    const auto scale = [&](auto* values) {
      for (int64_t i = 0; i < sum.size(); ++i) {
        values[i] = static_cast<std::remove_pointer_t<decltype(values)>>(values[i] * factor);
      }
    };
    sum.dtype() == DType::f64 ? scale(sum.data<double>()) : scale(sum.data<float>());
  }
}

DataParallel::Summary DataParallel::own_summary() {
  const AccumulatedGradients waiting = session_->accumulated_gradients();
  return {.skipped = skipped_ ? 1.0 : 0.0,
          .weight = waiting.weighs ? waiting.weight : rows_,
          .loss = waiting.weighs ? waiting.loss : loss_,
          .step_count = static_cast<double>(session_->step_count()),
          .run_count = static_cast<double>(session_->run_count()),
          .loss_scale = session_->loss_scale(),
          .settings = digest_of(settings()),
          .shared = shared_ ? 1.0 : 0.0,
          .parts = static_cast<double>(parts_),
          .form = waiting.weighs || rows_ == 0 ? 0 : digest_of(form_)};
}

/// Returns the summary of each process. Throws if a process failed, or if they differ.
std::vector<DataParallel::Summary> DataParallel::close() {
  std::vector<Summary> every;
  try {
    require_parts();
    const Summary o = own_summary();
    const std::array<double, 10> own{o.skipped,    o.weight,   o.loss,   o.step_count, o.run_count,
                                     o.loss_scale, o.settings, o.shared, o.parts,      o.form};
    std::vector<std::vector<double>> numbers;
    record("the end of a step", 0, [&] { numbers = peers_->agree("the end of a step", own); });
    for (const std::vector<double>& n : numbers) {
      every.push_back({n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9]});
    }
    compare(every);
  } catch (...) {
    undo();
    throw;
  }
  return every;
}

std::string DataParallel::settings() const {
  std::string text = fmt::format("learning rate {}", session_->lr());
  for (const ParameterGroup& group : session_->options().groups) {
    if (group.optimizer) text += "; " + option_text(*group.optimizer);
  }
  if (!other_settings_.empty()) text += "; " + other_settings_;
  return text;
}

void DataParallel::compare(const std::vector<Summary>& every) {
  const Summary& first = every[0];
  for (size_t i = 0; i < every.size(); ++i) {
    const Summary& other = every[i];
    const bool counts = other.step_count == first.step_count;
    // Each part then weighs as its rows, so that processes may have different numbers of them.
    const bool parts = other.shared == 0 || other.parts == first.parts;
    if (counts && parts && other.shared == first.shared) continue;
    throw DataError(ErrorParts{
        .what = fmt::format("The processes have done different numbers of {}; no weight was "
                            "changed.",
                            counts ? "parts" : "steps"),
        .node = fmt::format("rank {}", i),
        .expected = fmt::format("{:.0f}, as rank 0", counts ? first.parts : first.step_count),
        .received = fmt::format("{:.0f}", counts ? other.parts : other.step_count),
        .remedy = counts ? "Call accumulate() equally often on every rank, with no inputs where "
                           "there are no rows, or without `rows` on all."
                         : "Load the same checkpoint on every rank."});
  }
  compare_settings(every);
  compare_forms(every);
}

void DataParallel::compare_settings(const std::vector<Summary>& every) {
  const auto differs = [&](const Summary& other) { return other.settings != every[0].settings; };
  if (std::none_of(every.begin(), every.end(), differs)) return;
  const std::vector<std::string> texts = peers_->gather_texts(settings());
  for (size_t i = 0; i < texts.size(); ++i) {
    if (texts[i] == texts[0]) continue;
    throw DataError(
        ErrorParts{.what = "The processes would update differently; no weight was changed.",
                   .node = fmt::format("rank {}", i),
                   .expected = "as rank 0: " + texts[0],
                   .received = texts[i],
                   .remedy = "Set rates and the optimizer's numbers alike on every rank."});
  }
}

void DataParallel::compare_forms(const std::vector<Summary>& every) {
  double found = 0;
  for (const Summary& of : every) {
    if (of.form == 0) continue;
    if (found == 0) found = of.form;
    if (found == of.form) continue;
    throw DataError(
        ErrorParts{.what = "The labels of the processes differ in more than their first extent, so "
                           "the number of elements in the mean loss is unknown; no weight was "
                           "changed.",
                   .node = fmt::format("rank {}", peers_->rank()),
                   .expected = "labels of equal extents but for the first",
                   .received = fmt::format("extents {} after the first", form_),
                   .remedy = "Pad the labels of all ranks to one length, or use a loss of "
                             "torch.nn."});
  }
}

/// Nothing if no process has rows that count.
std::optional<StepResult> DataParallel::finish(std::vector<Tensor> outputs) {
  const std::vector<Summary> every = close();
  double total = 0, loss = 0, runs = 0;
  bool skips = false;
  for (const Summary& of : every) {
    runs = std::max(runs, of.run_count);
    skips = skips || of.skipped != 0;
    if (of.weight > 0) total += of.weight, loss += of.loss;
  }
  session_->set_run_count(static_cast<uint64_t>(runs));
  if (skips) return skip(every, std::move(outputs));
  if (!(total > 0)) {
    undo();
    return {};
  }
  double norm = 0;
  try {
    const AccumulatedGradients waiting = session_->accumulated_gradients();
    // The sums of a loss that weighs are multiplied by the weights already.
    double factor = 1;
    if (!waiting.weighs) factor = share_;
    const bool summed = buckets() != nullptr;
    if (!summed) sum_gradients(waiting.sums, factor / total);
    if (!old_statistics_.empty()) {
      const auto has_rows = [](const Summary& of) { return of.weight > 0; };
      const auto source = std::find_if(every.begin(), every.end(), has_rows) - every.begin();
      peers_->copy_from(static_cast<int>(source), states(session_->statistic_names()));
    }
    const double weight = summed ? total : 1;  // of the sums
    session_->set_accumulated(weight, loss / total * weight);
    norm = norm_of_all(waiting.sums, weight);
  } catch (...) {
    undo();
    throw;
  }
  forget();
  opened_ = false;
  try {
    StepResult result = apply(norm);
    result.outputs = std::move(outputs);
    return result;
  } catch (...) {
    session_->drop_gradients();
    throw;
  }
}

/// Skips the update, since gradients of a process overflowed, and uses the smallest loss scale.
StepResult DataParallel::skip(const std::vector<Summary>& every, std::vector<Tensor> outputs) {
  const uint64_t runs = session_->run_count();
  const double loss = skipped_ ? skipped_loss_ : kNone;
  undo();
  session_->set_run_count(runs);
  double scale = every[0].loss_scale;
  for (const Summary& of : every) scale = std::min(scale, of.loss_scale);
  session_->set_loss_scale(scale);
  return {.loss = loss,
          .lr = session_->lr(),
          .step = session_->step_count(),
          .skipped = true,
          .loss_scale = loss_scale_,
          .outputs = std::move(outputs)};
}

/// Restores the state before the step.
void DataParallel::undo() {
  session_->set_run_count(runs_);
  session_->drop_gradients();
  for (const std::string& name : session_->statistic_names()) {
    const auto old = old_statistics_.find(name);
    if (old == old_statistics_.end()) continue;  // of a session in the place of that one
    Tensor state = session_->state(name);
    if (state.nbytes() == old->second.nbytes()) {
      std::memcpy(state.data(), old->second.data(), state.nbytes());
    }
  }
  opened_ = false;
  forget();
}

void DataParallel::forget() {
  parts_ = 0;
  rows_ = loss_ = share_ = 0;
  shared_ = skipped_ = whole_ = lost_ = false;
}

std::vector<Tensor> DataParallel::states(std::vector<std::string> names) const {
  std::sort(names.begin(), names.end());
  std::vector<Tensor> tensors;
  for (const std::string& name : names) tensors.push_back(session_->state(name));
  return tensors;
}

// --- what must be the same -----------------------------------------------------------------------

void DataParallel::describe() {
  for (auto& [name, text] : facts_of(*session_)) {
    if (!facts_are_all_ || is_of_states(name)) facts_.emplace(name, std::move(text));
  }
  facts_["option wire_precision"] = name_of(wire_);
  if (zero_ == 0) return set_digest();
  facts_["option zero"] = std::to_string(zero_);
  if (zero_ == 2 && !gradients_) {  // of their buckets, which stay
    facts_[kOrder] = fmt::format("{}", session_->parameter_names());
  }
  set_digest();
}

void DataParallel::set_digest() { digest_ = digest_of(to_text(facts_)); }

void DataParallel::explain_difference() {
  std::vector<Facts> every;
  for (const std::string& text : peers_->gather_texts(to_text(facts_))) {
    every.push_back(facts_from(text));
  }
  for (size_t i = 0; i < every.size(); ++i) {
    const std::optional<Difference> found = first_difference(every[0], every[i]);
    if (!found) continue;
    throw ModelError(
        ErrorParts{.what = "The processes do not train the same model; no weight was changed.",
                   .node = fmt::format("rank {}: {}", i, found->name),
                   .expected = found->expected + ", as rank 0",
                   .received = found->received,
                   .remedy = "Give all ranks the same model, options, data and versions."});
  }
  throw InternalError("No fact of the processes differs.");
}

}  // namespace steep
