// Loads a plug-in (steep/providers.h) and registers its operators.
#include "custom/offers.h"

#include <fmt/format.h>
#include <onnx/defs/parser.h>

#include <algorithm>
#include <cstring>

#include "custom/registrar.h"
#include "device/boundary.h"
#include "device/provider_call.h"
#include "ops/onnx_proto.h"
#include "runtime/counted.h"

namespace steep {
namespace {

constexpr int kOpset = 18;  // for functions without nodes, where the opset does not matter

/// One operator that a provider offers.
struct Offer {
  SteepOp op;
  const Provider& provider;

  std::string name() const { return fmt::format("{}.{}", op.domain, op.name); }

  [[noreturn]] void refuse(std::string what, std::string expected, std::string received) const {
    throw ProviderError({.what = std::move(what),
                         .node = provider.name,
                         .op = op.domain == nullptr || op.name == nullptr ? "" : quote(name()),
                         .expected = std::move(expected),
                         .received = std::move(received),
                         .remedy = "Ask the plug-in's author."});
  }
};

/// The function in `data`: serialised bytes, or text that begins with '<'.
onnx::FunctionProto function_of(const Offer& offer, const char* data, size_t size,
                                const char* which) {
  if (size == 0 || *data != '<') {
    try {
      return parse_function(std::as_bytes(std::span(data, size)));
    } catch (const ModelError& e) {
      offer.refuse(fmt::format("The {} of an operator is not a function.", which),
                   e.parts().expected, e.parts().received);
    }
  }
  onnx::FunctionProto f;
  onnx::OnnxParser parser(std::string_view(data, size));
  const auto status = parser.Parse(f);
  if (!status.IsOK() || !parser.EndOfInput()) {
    offer.refuse(fmt::format("The {} of an operator cannot be parsed.", which),
                 "a function in the syntax of onnx.parser",
                 status.IsOK() ? "more than one" : quote(status.ErrorMessage()));
  }
  return f;
}

void add_attribute(const Offer& offer, const SteepAttr& a, onnx::FunctionProto& f) {
  if (a.name == nullptr || *a.name == 0)
    offer.refuse("An attribute of an operator has no name.", "a name", "none");
  if (a.kind == STEEP_ATTR_NONE) {
    f.add_attribute(a.name);
    return;
  }
  const void* const values = a.kind == STEEP_ATTR_STRING ? static_cast<const void*>(a.string)
                             : a.kind == STEEP_ATTR_INTS ? static_cast<const void*>(a.ints)
                                                         : static_cast<const void*>(a.reals);
  const bool many =
      a.kind == STEEP_ATTR_STRING || a.kind == STEEP_ATTR_INTS || a.kind == STEEP_ATTR_REALS;
  if (many && values == nullptr && a.count > 0)
    offer.refuse("An attribute of an operator needs a default value.", "values", "NULL");
  Attr value;
  switch (a.kind) {
    case STEEP_ATTR_INT: value = a.integer; break;
    case STEEP_ATTR_REAL: value = a.real; break;
    case STEEP_ATTR_STRING: value = std::string(a.count == 0 ? "" : a.string, a.count); break;
    case STEEP_ATTR_INTS: value = Ints(a.ints, a.ints + a.count); break;
    case STEEP_ATTR_REALS: value = Floats(a.reals, a.reals + a.count); break;
    default:
      offer.refuse("The default value of an operator's attribute has the wrong type.",
                   "an integer, a number, a text, or a list of numbers", quote(a.name));
  }
  *f.add_attribute_proto() = to_proto(a.name, value);
}

/// The signature of an operator without a decomposition, as a function without nodes.
onnx::FunctionProto signature_of(const Offer& offer) {
  onnx::FunctionProto f;
  f.set_domain(offer.op.domain);
  f.set_name(offer.op.name);
  f.add_opset_import()->set_version(kOpset);
  for (int32_t i = 0; i < offer.op.inputs; ++i) f.add_input(fmt::format("x{}", i));
  for (int32_t i = 0; i < offer.op.outputs; ++i) f.add_output(fmt::format("y{}", i));
  const auto* bytes = reinterpret_cast<const std::byte*>(offer.op.attributes);
  if (bytes == nullptr && offer.op.attribute_count > 0)
    offer.refuse("An operator's table of attributes is missing.", "a table", "NULL");
  if (bytes != nullptr && offer.op.attribute_count > 0) {
    table_stride(offer.provider.name, "attributes", offer.op.attributes->size,
                 offsetof(SteepAttr, tensor), offer.op.attribute_count);
  }
  for (size_t i = 0; i < offer.op.attribute_count; ++i) {
    const auto* a = reinterpret_cast<const SteepAttr*>(bytes + i * offer.op.attributes->size);
    SteepAttr attribute{};
    std::memcpy(&attribute, a, std::min(a->size, sizeof(attribute)));
    add_attribute(offer, attribute, f);
  }
  return f;
}

/// Throws ProviderError if `f`, the decomposition, has the domain or name of another operator.
void check_decomposition(const Offer& offer, const onnx::FunctionProto& f) {
  if (f.domain() != offer.op.domain || f.name() != offer.op.name) {
    offer.refuse("The decomposition has the name of another operator.", offer.name(),
                 quote(qualified(f)));
  }
  if (f.input_size() != offer.op.inputs || f.output_size() != offer.op.outputs) {
    offer.refuse("The decomposition of an operator has the wrong number of inputs or outputs.",
                 fmt::format("{}, {}", counted(offer.op.inputs, "input"),
                             counted(offer.op.outputs, "output")),
                 fmt::format("{}, {}", counted(f.input_size(), "input"),
                             counted(f.output_size(), "output")));
  }
  if (f.node_size() == 0)
    offer.refuse("The decomposition of an operator has no nodes.", "at least one", "none");
  if (offer.op.attribute_count > 0) {
    offer.refuse("An operator with a decomposition also declares attributes itself.",
                 "those that the decomposition declares", "others");
  }
}

void add(const Offer& offer, Registrar& registrar) {
  const SteepOp& op = offer.op;
  if (op.domain == nullptr || op.name == nullptr || *op.name == 0)
    offer.refuse("An operator of a provider lacks a name.", "a domain and a name", "none");
  if (op.inputs < 0 || op.outputs < 1 || op.version < 1) {
    offer.refuse("An operator of a provider is declared with invalid numbers.",
                 "inputs, at least one output, and a version of 1 or later",
                 fmt::format("{}, {}, version {}", counted(op.inputs, "input"),
                             counted(op.outputs, "output"), op.version));
  }
  const bool has_decomposition = op.decomposition != nullptr;
  if (!has_decomposition && op.infer == nullptr) {
    offer.refuse("An operator of a provider does not define the types of its outputs.",
                 "a type function, a decomposition, or both", "neither");
  }
  onnx::FunctionProto f = has_decomposition ? function_of(offer, op.decomposition,
                                                          op.decomposition_size, "decomposition")
                                            : signature_of(offer);
  if (has_decomposition) check_decomposition(offer, f);
  for (const std::string& name : attribute_names(f)) {
    if (name != kParts) continue;
    offer.refuse("An operator of a provider has an attribute of a reserved name.",
                 "another name: this one is the decomposition's", name);
  }
  std::optional<onnx::FunctionProto> gradient;
  if (op.gradient != nullptr)
    gradient = function_of(offer, op.gradient, op.gradient_size, "gradient");
  OfferedTypes types;
  if (op.infer != nullptr) {
    types = [infer = op.infer, name = offer.provider.name](Node n) {
      return infer_by(infer, name, n);
    };
  }
  registrar.add_offered(std::move(f), std::move(gradient), offer.provider.name, op.version,
                        std::move(types));
}

}  // namespace

void take_offers(const Provider& provider) {
  if (provider.table.ops == nullptr) return;
  size_t count = 0;
  const SteepOp* first = nullptr;
  const auto refuse = [&](std::string received) {
    throw ProviderError({.what = "A provider threw an exception while it listed its operators.",
                         .node = provider.name,
                         .received = std::move(received),
                         .remedy = "Ask the plug-in's author."});
  };
  try {
    first = provider.table.ops(&count);
  } catch (const std::exception& e) {
    refuse(e.what());
  } catch (...) {
    refuse("an exception");
  }
  if (count > 0) {
    table_stride(provider.name, "operators", first == nullptr ? 0 : first->size,
                 offsetof(SteepOp, infer), count);
  }
  const auto* bytes = reinterpret_cast<const std::byte*>(first);
  with_our_errors(kRefusedFunction, "", [&] {
    try {
      Registrar registrar;
      for (size_t i = 0; i < count; ++i) {
        Offer offer{{}, provider};
        std::memcpy(&offer.op, bytes + i * first->size, std::min(first->size, sizeof(SteepOp)));
        add(offer, registrar);
      }
      registrar.finish({});
    } catch (const ModelError& e) {
      ErrorParts parts = e.parts();
      parts.received = parts.what + (parts.received.empty() ? "" : " " + parts.received);
      parts.what = "A provider offers an operator that is not valid.";
      if (parts.op.empty()) parts.op = std::move(parts.node);
      parts.node = provider.name;
      parts.remedy = "Ask the plug-in's author.";
      throw ProviderError(std::move(parts));
    }
  });
}

std::string register_provider(const std::filesystem::path& library) {
  return load_provider(library, take_offers);
}

}  // namespace steep
