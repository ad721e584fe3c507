#include "model/read/body_names.h"

#include <set>

#include "model/read/copier.h"

namespace steep {
namespace {

// Field numbers of onnx.proto.
constexpr uint32_t kModelGraph = 7;
constexpr uint32_t kGraphInput = 11;
constexpr uint32_t kInputName = 1;
constexpr uint32_t kNodeOutput = 2;
constexpr uint32_t kNodeOpType = 4;
constexpr uint32_t kTensorName = 8;

class Collector : public Copier {
 public:
  std::set<std::string> names;  // names in the model's own graph
  std::map<std::pair<std::string, std::string>, int> counts;

 protected:
  std::optional<Pieces> tensor(std::span<const std::byte> message,
                               const MessagePlace& place) override {
    if (!place.weights || place.parent != Message::graph) return std::nullopt;
    WireReader reader(message);
    for (WireField f; reader.next(f);) {
      if (f.number == kTensorName && f.type == WireType::bytes)
        note(place, std::string(text_of(f.payload)));
    }
    return std::nullopt;
  }

  std::optional<Pieces> node(std::span<const std::byte> message,
                             const MessagePlace& place) override {
    if (!place.weights) return std::nullopt;
    bool constant = false;
    std::string last;
    WireReader reader(message);
    for (WireField f; reader.next(f);) {
      if (f.type != WireType::bytes) continue;
      if (f.number == kNodeOpType) constant = text_of(f.payload) == "Constant";
      if (f.number != kNodeOutput) continue;
      last = text_of(f.payload);
      if (place.path.empty()) names.insert(last);
    }
    if (constant && !place.path.empty()) note(place, std::move(last));
    return std::nullopt;
  }

 private:
  void note(const MessagePlace& place, std::string name) {
    if (place.path.empty()) {
      names.insert(std::move(name));
    } else {
      ++counts[{place.path, std::move(name)}];
    }
  }
};

}  // namespace

BodyNames::BodyNames(std::span<const std::byte> model) {
  Collector collector;
  collector.copy(Message::model, model);
  if (collector.counts.empty()) return;
  WireReader outer(model);
  for (WireField f; outer.next(f);) {
    if (f.number != kModelGraph || f.type != WireType::bytes) continue;
    WireReader graph(f.payload);
    for (WireField g; graph.next(g);) {
      if (g.number != kGraphInput || g.type != WireType::bytes) continue;
      WireReader input(g.payload);
      for (WireField name; input.next(name);) {
        if (name.number == kInputName && name.type == WireType::bytes)
          collector.names.insert(std::string(text_of(name.payload)));
      }
    }
  }
  std::map<std::string, int> plain, full;
  for (const auto& [at, count] : collector.counts) {
    plain[at.second] += count;
    full[at.first + at.second] += count;
  }
  for (const auto& [at, count] : collector.counts) {
    const std::string whole = at.first + at.second;
    if (plain[at.second] == 1 && collector.names.count(at.second) == 0) {
      shown_[at] = at.second;
    } else if (full[whole] == 1 && collector.names.count(whole) == 0) {
      shown_[at] = whole;
    }
  }
}

const std::string& BodyNames::of(const std::string& path, const std::string& name) const {
  static const std::string none;
  const auto found = shown_.find({path, name});
  return found == shown_.end() ? none : found->second;
}

}  // namespace steep
