#include "model/export/strip_loss.h"

#include <onnx/onnx_pb.h>

#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "model/read/model_file.h"
#include "model/read/quote.h"
#include "steep/error.h"

namespace steep {
namespace {

using NameSet = std::unordered_set<std::string>;

/// The names that a node reads, its bodies included. Names that a body defines itself do no harm.
void add_reads(const onnx::NodeProto& node, std::vector<std::string>& names) {
  names.insert(names.end(), node.input().begin(), node.input().end());
  auto add_body = [&](const onnx::GraphProto& body) {
    for (const auto& inner : body.node()) add_reads(inner, names);
    for (const auto& output : body.output()) names.push_back(output.name());
  };
  for (const auto& attribute : node.attribute()) {
    if (attribute.has_g()) add_body(attribute.g());
    for (const auto& body : attribute.graphs()) add_body(body);
  }
}

class Reader {
 public:
  explicit Reader(const onnx::GraphProto& graph) : reads_(graph.node_size()) {
    for (int i = 0; i < graph.node_size(); ++i) {
      add_reads(graph.node(i), reads_[static_cast<size_t>(i)]);
      for (const auto& name : graph.node(i).output()) makers_.emplace(name, i);
    }
  }

  /// The names of all values on which a value depends, including its own name.
  NameSet needed_by(const std::string& output) const {
    NameSet names;
    std::vector<std::string> open{output};
    while (!open.empty()) {
      const std::string name = std::move(open.back());
      open.pop_back();
      if (!names.insert(name).second) continue;
      const auto maker = makers_.find(name);
      if (maker == makers_.end()) continue;
      const auto& reads = reads_[static_cast<size_t>(maker->second)];
      open.insert(open.end(), reads.begin(), reads.end());
    }
    return names;
  }

 private:
  std::vector<std::vector<std::string>> reads_;  // by node
  std::unordered_map<std::string, int> makers_;
};

template <typename List, typename F>
void erase_if(List* list, F&& gone) {
  int end = 0;
  for (int i = 0; i < list->size(); ++i) {
    if (!gone(list->Get(i))) list->SwapElements(end++, i);
  }
  list->DeleteSubrange(end, list->size() - end);
}

}  // namespace

std::string strip_loss(std::span<const std::byte> model, const std::string& loss,
                       const std::string& label) {
  onnx::ModelProto proto = parse_known({reinterpret_cast<const char*>(model.data()), model.size()});
  onnx::GraphProto& graph = *proto.mutable_graph();
  const Reader reader(graph);
  NameSet rest, loss_part;
  erase_if(graph.mutable_output(), [&](const onnx::ValueInfoProto& output) {
    const NameSet sources = reader.needed_by(output.name());
    const bool goes = output.name() == loss || sources.count(label) != 0;
    (goes ? loss_part : rest).insert(sources.begin(), sources.end());
    return goes;
  });
  if (graph.output_size() == 0) {
    throw ModelError(
        {.what = "Without its loss the model has no output.",
         .node = quote(loss),
         .expected = "an output that is neither the loss nor depends on the labels ('" +
                     quote(label) + "')",
         .remedy = "Export the model with its scores as an output beside the loss, or write it "
                   "with the loss: for_inference=False."});
  }
  auto unwanted = [&](const auto& item) {
    return rest.count(item.name()) == 0 && loss_part.count(item.name()) != 0;
  };
  erase_if(graph.mutable_node(), [&](const onnx::NodeProto& node) {
    bool wanted = false, known = false;
    for (const auto& name : node.output()) {
      wanted = wanted || rest.count(name) != 0;
      known = known || loss_part.count(name) != 0;
    }
    return known && !wanted;
  });
  erase_if(graph.mutable_input(), unwanted);
  erase_if(graph.mutable_initializer(), unwanted);
  erase_if(graph.mutable_value_info(), unwanted);
  std::string out;
  if (!proto.SerializeToString(&out)) throw ModelError("The model cannot be written.");
  return out;
}

}  // namespace steep
