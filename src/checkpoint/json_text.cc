#include "checkpoint/json_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace steep {
namespace {

using Json = nlohmann::ordered_json;

/// Writes what it reads, if it is in the chosen part of the text.
class Writer : public nlohmann::json_sax<Json> {
 public:
  /// Without `member`: the whole text.
  explicit Writer(std::optional<std::string_view> member) : member_(member), chosen_(!member) {}

  std::string out;
  bool found() const { return found_ || !member_; }

  bool null() override { return value("null"); }
  bool boolean(bool is) override { return value(is ? "true" : "false"); }
  bool number_integer(number_integer_t number) override { return value(std::to_string(number)); }
  bool number_unsigned(number_unsigned_t number) override { return value(std::to_string(number)); }
  bool number_float(number_float_t /*number*/, const string_t& digits) override {
    std::string own = digits;  // with the decimal point of the locale
    const auto not_json = [](char c) {
      return std::string_view("0123456789+-eE").find(c) == std::string_view::npos;
    };
    std::ranges::replace_if(own, not_json, '.');
    return value(own);
  }
  bool string(string_t& text) override { return value(Json(text).dump()); }
  bool binary(binary_t& /*bytes*/) override { return false; }  // JSON text has none

  bool key(string_t& name) override {
    if (depth_ == 1 && member_) {
      chosen_ = name == *member_;
      if (chosen_) out.clear();  // of two members with one name, the last one counts
      if (chosen_) found_ = true;
      first_ = true;
      return true;
    }
    value(Json(name).dump());
    if (chosen_) out += ':';
    first_ = true;
    return true;
  }

  bool start_object(size_t /*count*/) override { return start('{'); }
  bool end_object() override { return end('}'); }
  bool start_array(size_t /*count*/) override { return start('['); }
  bool end_array() override { return end(']'); }
  bool parse_error(size_t /*at*/, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    return false;
  }

 private:
  bool value(std::string_view text) {
    if (chosen_) {
      if (!first_) out += ',';
      out += text;
    }
    first_ = false;
    return true;
  }

  bool start(char bracket) {
    value({&bracket, 1});
    first_ = true;
    ++depth_;
    return true;
  }

  bool end(char bracket) {
    --depth_;
    if (depth_ == 0 && member_) chosen_ = false;
    if (chosen_) out += bracket;
    first_ = false;
    return true;
  }

  const std::optional<std::string_view> member_;
  bool chosen_;
  bool found_ = false;
  bool first_ = true;  // of an object or array, or behind a key: no comma
  int depth_ = 0;
};

std::optional<std::string> written(std::string_view text, std::optional<std::string_view> member) {
  Writer writer(member);
  if (!Json::sax_parse(text, &writer) || !writer.found()) return {};
  return std::move(writer.out);
}

}  // namespace

std::optional<std::string> compact_json(std::string_view text) { return written(text, {}); }

std::optional<std::string> compact_member(std::string_view object, std::string_view member) {
  return written(object, member);
}

}  // namespace steep
