#include "model/export/detached.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <climits>
#include <set>

#include "model/export/data_files.h"
#include "model/export/ml_weights.h"
#include "model/read/body_names.h"
#include "model/read/copier.h"
#include "model/read/model_file.h"
#include "model/read/prescan.h"
#include "model/read/quote.h"
#include "model/read/tensor_proto.h"
#include "runtime/counted.h"
#include "runtime/disk.h"
#include "runtime/packing.h"
#include "steep/error.h"

namespace steep {
namespace {

// Field numbers of onnx.proto.
constexpr uint32_t kNodeOpType = 4;
constexpr uint32_t kTensorName = 8;
constexpr uint32_t kTensorRawData = 9;
constexpr uint32_t kTensorExternalData = 13;
constexpr uint32_t kTensorDataLocation = 14;
const std::set<uint32_t> kTensorData = {
    4, 5, 6, 7, 9, 10, 11, kTensorExternalData, kTensorDataLocation};

/// The key of a placeholder's number in its external data. It cannot collide with keys of the file:
/// all external tensors of the file became placeholders.
constexpr const char* kNumber = "steep.number";

struct TensorLook {
  std::string name;
  bool external = false;
  std::span<const std::byte> raw{};
};

TensorLook look_at(std::span<const std::byte> tensor) {
  TensorLook look;
  WireReader reader(tensor);
  for (WireField f; reader.next(f);) {
    if (f.number == kTensorName && f.type == WireType::bytes) look.name = text_of(f.payload);
    if (f.number == kTensorRawData && f.type == WireType::bytes) look.raw = f.payload;
    if (f.number == kTensorDataLocation) look.external = f.value == onnx::TensorProto::EXTERNAL;
  }
  return look;
}

onnx::TensorProto parse_tensor(std::span<const std::byte> bytes, const std::string& name) {
  onnx::TensorProto proto;
  if (bytes.size() > INT_MAX ||
      !proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    throw ModelError({.what = "An initializer cannot be parsed.", .node = quote(name)});
  }
  return proto;
}

void add_entry(onnx::TensorProto* tensor, const char* key, std::string value) {
  auto* entry = tensor->add_external_data();
  entry->set_key(key);
  entry->set_value(std::move(value));
}

void make_placeholder(onnx::TensorProto* tensor, size_t number) {
  tensor->clear_external_data();
  add_entry(tensor, kNumber, std::to_string(number));
  tensor->set_data_location(onnx::TensorProto::EXTERNAL);
}

size_t number_of(const onnx::TensorProto& placeholder) {
  size_t number = 0;
  for (const auto& entry : placeholder.external_data()) {
    const std::string& text = entry.value();
    if (entry.key() == kNumber &&
        std::from_chars(text.data(), text.data() + text.size(), number).ec == std::errc())
      return number;
  }
  throw InternalError({.what = "A tensor has no number.", .node = quote(placeholder.name())});
}

void check_same_type(const std::string& name, const onnx::TensorProto& old, const Tensor& data) {
  const Dims dims(old.dims().begin(), old.dims().end());
  if (old.data_type() == static_cast<int32_t>(data.dtype()) && dims == data.dims()) return;
  const auto dtype = static_cast<DType>(old.data_type());
  throw ModelError({.what = "A weight does not match its initializer.",
                    .node = quote(name),
                    .expected = fmt::format("{}{}", name_of(dtype), to_string(dims)),
                    .received = fmt::format("{}{}", name_of(data.dtype()), to_string(data.dims())),
                    .remedy = "Give the weights of this model."});
}

[[noreturn]] void throw_missing(const std::set<std::string>& missing) {
  std::string list;
  for (const auto& name : missing) list += (list.empty() ? "" : ", ") + quote(name);
  throw ModelError({.what = "Weights are given that the model does not have.",
                    .node = quote(*missing.begin()),
                    .expected = "names of initializers of the model's graph",
                    .received = list.size() > 2000 ? list.substr(0, 2000) + " …" : list,
                    .remedy = "Check the names; give the weights of this model."});
}

/// Whether the node is a Constant. Cheaper than parsing every node.
bool mentions_constant(std::span<const std::byte> node) {
  WireReader reader(node);
  for (WireField f; reader.next(f);) {
    if (f.number == kNodeOpType) return text_of(f.payload) == "Constant";
  }
  return false;
}

bool is_constant(const onnx::NodeProto& node) {
  return node.op_type() == "Constant" && node.domain().empty() && node.output_size() == 1;
}

size_t stored_bytes(const onnx::TensorProto& tensor, const std::string& name) {
  const DType dtype = dtype_from_onnx(tensor.data_type(), name);
  return packed_bytes(dtype, element_count(dims_of(tensor, name, dtype)));
}

std::string serialise(const google::protobuf::MessageLite& message) {
  std::string bytes;
  if (!message.SerializeToString(&bytes)) throw ModelError("A part of the model is too large.");
  return bytes;
}

}  // namespace

struct DetachedModel::Data {
  std::span<const std::byte> message{};  ///< as in the file; empty: replaced
  std::span<const std::byte> raw{};      ///< the raw data within the message
  std::optional<ExternalSlice> slice{};
  Tensor tensor{};  ///< in the form that files use
  std::string name{};
  size_t bytes = 0;
};

// --- detachment ----------------------------------------------------------------------------------

class DetachedModel::Detaching : public Copier {
 public:
  Detaching(DetachedModel& model, const std::map<std::string, Tensor>& weights)
      : model_(model), weights_(weights) {
    if (!weights.empty()) names_ = BodyNames(model.model_);
    for (const auto& [name, tensor] : weights) missing_.insert(name);
  }

  void run() {
    size_t graphs = 0;
    WireReader reader(model_.model_);
    for (WireField f; reader.next(f);) {
      if (child(Message::model, f.number) == Message::graph && ++graphs > 1) {
        // protobuf would merge two graphs; no exporter writes this
        throw ModelError(
            {.what = "The model has two graphs.", .remedy = "Export the model again."});
      }
    }
    const auto substitute = copy(Message::model, model_.model_);
    if (!missing_.empty()) throw_missing(missing_);
    Pieces as_it_is;
    as_it_is.add(model_.model_);
    const Pieces& pieces = substitute ? *substitute : as_it_is;
    model_.skeleton_.reserve(pieces.size);
    for (const Piece& piece : pieces.list) model_.skeleton_ += text_of(piece.bytes);
  }

 protected:
  std::optional<Pieces> tensor(std::span<const std::byte> message,
                               const MessagePlace& place) override {
    const TensorLook look = look_at(message);
    if (place.weights && place.parent == Message::graph) {
      if (const Tensor* data = weight(place, look.name)) {
        check_same_type(look.name, parse_tensor(message, look.name), *data);
        return placeholder(message, holding(*data, look.name));
      }
    }
    const std::string& name = look.name.empty() ? place.node : look.name;
    if (look.external) {
      const onnx::TensorProto proto = parse_tensor(message, name);
      const size_t bytes = stored_bytes(proto, name);
      model_.data_.push_back(
          {.message = message, .slice = slice_of(proto, name), .name = name, .bytes = bytes});
      return placeholder(message, model_.data_.size() - 1);
    }
    if (look.raw.size() < kDetachedBytes) return std::nullopt;
    model_.data_.push_back(
        {.message = message, .raw = look.raw, .name = name, .bytes = look.raw.size()});
    return placeholder(message, model_.data_.size() - 1);
  }

  std::optional<Pieces> node(std::span<const std::byte> message,
                             const MessagePlace& place) override {
    if (!place.weights || weights_.empty() || !mentions_constant(message)) return std::nullopt;
    onnx::NodeProto node;
    if (message.size() > INT_MAX ||
        !node.ParseFromArray(message.data(), static_cast<int>(message.size())) ||
        !is_constant(node))
      return std::nullopt;
    const Tensor* data = weight(place, node.output(0));
    if (data == nullptr) return std::nullopt;
    onnx::TensorProto* value = nullptr;
    for (auto& attribute : *node.mutable_attribute()) {
      if (attribute.name() == "value") value = attribute.mutable_t();
    }
    if (value != nullptr) {
      check_same_type(node.output(0), *value, *data);
    } else {  // value_float or value_floats
      node.clear_attribute();
      auto* attribute = node.add_attribute();
      attribute->set_name("value");
      attribute->set_type(onnx::AttributeProto::TENSOR);
      value = attribute->mutable_t();
    }
    value->Clear();
    value->set_data_type(static_cast<int32_t>(data->dtype()));
    for (const int64_t extent : data->dims()) value->add_dims(extent);
    make_placeholder(value, holding(*data, node.output(0)));
    Pieces pieces;
    pieces.add(text_.keep(serialise(node)));
    return pieces;
  }

 private:
  const Tensor* weight(const MessagePlace& place, const std::string& name) {
    const std::string& label = place.path.empty() ? name : names_.of(place.path, name);
    const auto found = weights_.find(label);
    if (label.empty() || found == weights_.end()) return nullptr;
    missing_.erase(label);
    return &found->second;
  }

  size_t holding(const Tensor& data, const std::string& name) {
    Tensor packed = pack(data);
    const size_t bytes = packed.nbytes();
    model_.data_.push_back({.tensor = std::move(packed), .name = name, .bytes = bytes});
    return model_.data_.size() - 1;
  }

  Pieces placeholder(std::span<const std::byte> message, size_t number) {
    Pieces pieces;
    WireReader reader(message);
    for (WireField f; reader.next(f);) {
      if (kTensorData.count(f.number) == 0) pieces.add(f.whole);
    }
    onnx::TensorProto rest;
    make_placeholder(&rest, number);
    pieces.add(text_.keep(serialise(rest)));
    return pieces;
  }

  DetachedModel& model_;
  const std::map<std::string, Tensor>& weights_;
  BodyNames names_;
  std::set<std::string> missing_;
};

// --- attachment ----------------------------------------------------------------------------------

class DetachedModel::Attaching : public Copier {
 public:
  /// `keeps`: external data that was not replaced stays where it is, under its location. `beside`:
  /// the name of the external data file for tensors of at least kDetachedBytes; "": all data
  /// inside.
  Attaching(DetachedModel& model, bool keeps, std::string beside)
      : model_(model), keeps_(keeps), beside_(std::move(beside)) {
    const auto skeleton = std::as_bytes(std::span(model.skeleton_));
    const auto pieces = copy(Message::model, skeleton);
    if (pieces) {
      pieces_ = *pieces;
    } else {
      pieces_.add(skeleton);
    }
  }

  const Pieces& pieces() const { return pieces_; }
  /// Offset and number of each tensor in the external data file, in order.
  const std::vector<std::pair<size_t, size_t>>& laid_out() const { return laid_out_; }
  const std::set<std::string>& locations() const { return locations_; }

 protected:
  std::optional<Pieces> tensor(std::span<const std::byte> message, const MessagePlace&) override {
    const TensorLook look = look_at(message);
    if (!look.external) return std::nullopt;
    const size_t number = number_of(parse_tensor(message, look.name));
    const Data& data = model_.data_.at(number);
    Pieces pieces;
    if (data.slice && keeps_) {
      if (!model_.folder_.empty())
        model_.external_.check(data.name, *data.slice, static_cast<int64_t>(data.bytes));
      locations_.insert(data.slice->location);
      pieces.add(data.message);
      return pieces;
    }
    const bool outside = !beside_.empty() && data.bytes >= kDetachedBytes;
    if (!outside && !data.slice && !data.message.empty()) {
      pieces.add(data.message);
      return pieces;
    }
    WireReader reader(message);
    for (WireField f; reader.next(f);) {
      if (kTensorData.count(f.number) == 0) pieces.add(f.whole);
    }
    if (outside) {
      onnx::TensorProto rest;
      add_entry(&rest, "location", beside_);
      add_entry(&rest, "offset", std::to_string(place_of(number)));
      add_entry(&rest, "length", std::to_string(data.bytes));
      rest.set_data_location(onnx::TensorProto::EXTERNAL);
      locations_.insert(beside_);
      pieces.add(text_.keep(serialise(rest)));
      return pieces;
    }
    pieces.add(text_.header(kTensorRawData, data.bytes));
    pieces.add_tensor(static_cast<int64_t>(number), data.bytes);
    return pieces;
  }

 private:
  /// The offset of a tensor in the data file. Tensors that shared bytes share them again.
  size_t place_of(size_t number) {
    const Data& data = model_.data_[number];
    std::pair<std::string, std::pair<int64_t, size_t>> source;
    if (data.slice) {
      source = {data.slice->location, {data.slice->offset, data.bytes}};
      if (const auto found = shared_.find(source); found != shared_.end()) return found->second;
    }
    constexpr size_t kAlignment = 64;
    const size_t offset = (end_ + kAlignment - 1) / kAlignment * kAlignment;
    laid_out_.emplace_back(offset, number);
    end_ = offset + data.bytes;
    if (data.slice) shared_.emplace(source, offset);
    return offset;
  }

  DetachedModel& model_;
  bool keeps_;
  std::string beside_;
  Pieces pieces_;
  std::vector<std::pair<size_t, size_t>> laid_out_;  // offset, number of the tensor
  std::set<std::string> locations_;
  std::map<std::pair<std::string, std::pair<int64_t, size_t>>, size_t> shared_;
  size_t end_ = 0;
};

// --- the model -----------------------------------------------------------------------------------

DetachedModel::DetachedModel(std::span<const std::byte> model,
                             const std::map<std::string, Tensor>& weights,
                             const std::filesystem::path& folder, const Limits& limits,
                             const FileMarks& data_files)
    : model_(model), folder_(folder), external_(folder, data_files) {
  scan_model(model, limits);
  std::map<std::string, Tensor> initializers = weights;
  if (auto bytes = with_ml_weights(model, &initializers)) {
    with_attributes_ = std::move(*bytes);
    model_ = std::as_bytes(std::span(with_attributes_));
  }
  Detaching(*this, initializers).run();
}

DetachedModel::~DetachedModel() = default;

std::optional<Tensor> DetachedModel::read(const onnx::TensorProto& tensor) {
  if (tensor.data_location() != onnx::TensorProto::EXTERNAL) {
    return decode(tensor, tensor.name(), external_);
  }
  const Data& data = data_.at(number_of(tensor));
  if (data.slice && folder_.empty()) return std::nullopt;
  if (!data.message.empty())
    return decode(parse_tensor(data.message, data.name), data.name, external_);
  const auto dtype = static_cast<DType>(tensor.data_type());
  return unpack(dtype, Dims(tensor.dims().begin(), tensor.dims().end()), data.tensor.data());
}

size_t DetachedModel::bytes_of(const onnx::TensorProto& tensor) const {
  if (tensor.data_location() != onnx::TensorProto::EXTERNAL)
    return stored_bytes(tensor, tensor.name());
  return data_.at(number_of(tensor)).bytes;
}

void DetachedModel::hold(onnx::TensorProto* tensor, const Tensor& data) {
  Tensor packed = pack(data);
  const size_t bytes = packed.nbytes();
  data_.push_back({.tensor = std::move(packed), .name = tensor->name(), .bytes = bytes});
  tensor->set_data_type(static_cast<int32_t>(data.dtype()));
  tensor->clear_dims();
  for (const int64_t extent : data.dims()) tensor->add_dims(extent);
  make_placeholder(tensor, data_.size() - 1);
}

void DetachedModel::hand_on(size_t number, const Sink& take) {
  const Data& data = data_.at(number);
  if (data.slice) {
    external_.check(data.name, *data.slice, static_cast<int64_t>(data.bytes));
    std::vector<char> block(std::min(data.bytes, size_t{1} << 20));
    for (size_t offset = 0; offset < data.bytes;) {
      const size_t part = std::min(data.bytes - offset, block.size());
      external_.read_part(data.name, *data.slice, static_cast<int64_t>(offset), block.data(),
                          static_cast<int64_t>(part));
      take(block.data(), part);
      offset += part;
    }
  } else if (data.tensor.defined()) {
    take(data.tensor.data(), data.bytes);
  } else {
    take(data.raw.data(), data.bytes);
  }
}

void DetachedModel::hand_on(const Pieces& pieces, const Sink& take) {
  for (const Piece& piece : pieces.list) {
    if (piece.tensor >= 0) {
      hand_on(static_cast<size_t>(piece.tensor), take);
    } else {
      take(piece.bytes.data(), piece.size);
    }
  }
}

std::string DetachedModel::whole() {
  const Attaching attachment(*this, folder_.empty(), "");
  const size_t size = attachment.pieces().size;
  if (size > INT_MAX) {
    throw ModelError({.what = "The model is larger than one ONNX file can be.",
                      .expected = fmt::format("at most {} bytes", INT_MAX),
                      .received = counted(size, "byte"),
                      .remedy = "Write it to a path, with external data beside the file: "
                                "export_onnx(path), or steep train --out."});
  }
  std::string bytes;
  bytes.reserve(size);
  hand_on(attachment.pieces(), [&](const void* data, size_t count) {
    bytes.append(static_cast<const char*>(data), count);
  });
  return bytes;
}

/// Whether external data that was not replaced stays where it is: when `target` is in the same
/// folder.
bool DetachedModel::keeps_data_in(const std::filesystem::path& target) const {
  namespace fs = std::filesystem;
  if (folder_.empty()) return true;
  const fs::path into = target.parent_path().empty() ? fs::path(".") : target.parent_path();
  std::error_code error;
  return fs::equivalent(folder_, into, error) && !error;
}

/// The names of the files with its external data.
std::set<std::string> DetachedModel::locations() const {
  std::set<std::string> names;
  for (const Data& data : data_) {
    if (data.slice) names.insert(data.slice->location);
  }
  return names;
}

void DetachedModel::set_metadata(const std::map<std::string, std::string>& entries) {
  if (entries.empty()) return;
  onnx::ModelProto model = parse_known(skeleton_);
  auto* all = model.mutable_metadata_props();
  all->erase(std::remove_if(all->begin(), all->end(),
                            [&](const auto& entry) { return entries.count(entry.key()) != 0; }),
             all->end());
  for (const auto& [key, value] : entries) {
    if (value.empty()) continue;
    onnx::StringStringEntryProto* entry = all->Add();
    entry->set_key(key);
    entry->set_value(value);
  }
  skeleton_ = model.SerializeAsString();
}

void DetachedModel::write(const std::filesystem::path& path, const ExportOptions& options) {
  namespace fs = std::filesystem;
  set_metadata(options.metadata);
  const fs::path target = check_destination(path);
  const bool keeps = keeps_data_in(target);
  // Files that this model reads, now or when it is written again.
  const std::set<std::string> sources = keeps ? locations() : std::set<std::string>();
  const size_t limit = std::min(options.max_file_bytes, size_t{INT_MAX});
  bool beside = options.external_data;
  if (!beside) beside = Attaching(*this, keeps, "").pieces().size > limit;

  std::optional<Attaching> attachment;
  fs::path data_file;
  std::vector<fs::path> old;
  std::set<std::string> before;
  auto lay_out = [&] {
    if (beside) data_file = unused_data_file(target);
    attachment.emplace(*this, keeps, beside ? data_file.filename().string() : "");
    if (attachment->pieces().size <= INT_MAX) return;
    throw ModelError({.what = "The model without its weights is larger than one ONNX file can be.",
                      .expected = fmt::format("at most {} bytes", INT_MAX),
                      .received = counted(attachment->pieces().size, "byte")});
  };
  lay_out();
  bool written = false;
  Companions companions;
  companions.write = [&](const fs::path&) {
    old = data_files_of(target);
    if (!old.empty()) before = locations_in(target);
    if (attachment->laid_out().empty()) return;
    lay_out();  // another process that held the lock may have taken the name
    write_file(data_file, [&](FileWriter& file) {
      const std::string padding(64, '\0');
      for (const auto& [offset, number] : attachment->laid_out()) {
        file.write(padding.data(), offset - file.bytes());
        hand_on(number, [&](const void* data, size_t size) { file.write(data, size); });
      }
    });
    written = true;
  };
  companions.discard = [&] {
    if (written) remove_file(data_file);
  };
  companions.sweep = [&] {
    for (const fs::path& file : old) {
      const std::string name = file.filename().string();
      if (before.count(name) != 0 && attachment->locations().count(name) == 0 &&
          sources.count(name) == 0)
        remove_file(file);
    }
  };
  write_file(
      target,
      [&](FileWriter& file) {
        hand_on(attachment->pieces(),
                [&](const void* data, size_t size) { file.write(data, size); });
      },
      companions);
}

}  // namespace steep
