#include "athanor/checkpoint/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "athanor/base/error.h"

namespace athanor {
namespace {

struct TypeRow {
  std::string_view name;
  int64_t bits;
  std::optional<DType> dtype;
};

constexpr std::array<TypeRow, 22> types = {{{"BOOL", 8, {}},
                                            {"U8", 8, DType::u8},
                                            {"I8", 8, {}},
                                            {"U16", 16, {}},
                                            {"I16", 16, {}},
                                            {"F16", 16, DType::fp16},
                                            {"BF16", 16, DType::bf16},
                                            {"U32", 32, {}},
                                            {"I32", 32, DType::int32},
                                            {"F32", 32, DType::fp32},
                                            {"U64", 64, {}},
                                            {"I64", 64, DType::int64},
                                            {"F64", 64, DType::fp64},
                                            {"C64", 64, {}},
                                            {"F8_E4M3", 8, DType::fp8_e4m3},
                                            {"F8_E5M2", 8, DType::fp8_e5m2},
                                            {"F8_E8M0", 8, {}},
                                            {"F8_E4M3FNUZ", 8, {}},
                                            {"F8_E5M2FNUZ", 8, {}},
                                            {"F4", 4, {}},
                                            {"F6_E2M3", 6, {}},
                                            {"F6_E3M2", 6, {}}}};

const TypeRow* find_type(std::string_view name) {
  const auto* found =
      std::find_if(types.begin(), types.end(), [&](const TypeRow& row) { return row.name == name; });
  return found == types.end() ? nullptr : found;
}

std::string json_text(std::string_view text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw_user_error(fmt::format("a text of {} bytes to be stored in a checkpoint is not UTF-8", text.size()),
                     "names and configuration must be UTF-8");
  }
}

std::string list_of(const std::vector<int64_t>& numbers) {
  return fmt::format("[{}]", fmt::join(numbers, ","));
}

// Receives the parser's events one by one: nothing nests deeper than the four levels of the format, nothing
// is built but the entries, and names that come twice are seen.
class HeaderEvents final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderEvents(SafetensorsHeader& header) : header_(header) {}

  const std::string& reason() const { return reason_; }

  bool start_object(size_t) override {
    switch (place_) {
      case Place::before:
        place_ = Place::root;
        return true;
      case Place::root_value:
        place_ = name_ == safetensors_metadata_key ? Place::metadata : Place::tensor;
        if (place_ == Place::tensor) {
          entry_ = {};
          entry_.name = name_;
          has_dtype_ = has_shape_ = has_offsets_ = false;
        }
        return true;
      default:
        return unexpected("an object");
    }
  }

  bool end_object() override {
    switch (place_) {
      case Place::root:
        place_ = Place::after;
        return true;
      case Place::metadata:
        place_ = Place::root;
        return true;
      case Place::tensor:
        if (!has_dtype_ || !has_shape_ || !has_offsets_) {
          return refuse(fmt::format("tensor '{}' lacks its dtype, shape or data_offsets", entry_.name));
        }
        header_.tensors.push_back(std::move(entry_));
        place_ = Place::root;
        return true;
      default:
        return unexpected("the end of an object");
    }
  }

  bool key(string_t& key) override {
    switch (place_) {
      case Place::root:
        if (!names_.insert(key).second) return refuse(fmt::format("'{}' comes twice", key));
        name_ = key;
        place_ = Place::root_value;
        return true;
      case Place::metadata:
        if (header_.metadata.contains(key)) return refuse(fmt::format("metadata '{}' comes twice", key));
        name_ = key;
        place_ = Place::metadata_value;
        return true;
      case Place::tensor: {
        bool* seen = key == "dtype"          ? &has_dtype_
                     : key == "shape"        ? &has_shape_
                     : key == "data_offsets" ? &has_offsets_
                                             : nullptr;
        if (seen == nullptr)
          return refuse(fmt::format("tensor '{}' has an unknown field '{}'", entry_.name, key));
        if (*seen) return refuse(fmt::format("tensor '{}' has two fields '{}'", entry_.name, key));
        *seen = true;
        place_ = key == "dtype" ? Place::dtype_value : Place::list_value;
        list_is_shape_ = key == "shape";
        return true;
      }
      default:
        return unexpected("a name");
    }
  }

  bool string(string_t& value) override {
    if (place_ == Place::metadata_value) {
      header_.metadata.emplace(std::move(name_), std::move(value));
      place_ = Place::metadata;
      return true;
    }
    if (place_ == Place::dtype_value) {
      const TypeRow* type = find_type(value);
      if (type == nullptr)
        return refuse(fmt::format("tensor '{}' has the unknown type '{}'", entry_.name, value));
      entry_.dtype_name = std::move(value);
      entry_.dtype = type->dtype;
      place_ = Place::tensor;
      return true;
    }
    return unexpected("a text");
  }

  bool start_array(size_t) override {
    if (place_ != Place::list_value) return unexpected("a list");
    list_.clear();
    place_ = Place::list;
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != Place::list) return unexpected(fmt::format("the number {}", value));
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return refuse(fmt::format("tensor '{}' has the number {}", entry_.name, value));
    }
    list_.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool end_array() override {
    if (place_ != Place::list) return unexpected("the end of a list");
    place_ = Place::tensor;
    if (list_is_shape_) {
      entry_.shape = std::move(list_);
    } else {
      if (list_.size() != 2)
        return refuse(fmt::format("tensor '{}' has {} data_offsets", entry_.name, list_.size()));
      entry_.begin = list_[0];
      entry_.end = list_[1];
    }
    return true;
  }

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a truth value"); }
  bool number_integer(number_integer_t value) override {
    return unexpected(fmt::format("the number {}", value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    return unexpected(fmt::format("the number {}", text.substr(0, 40)));
  }
  bool binary(binary_t&) override { return unexpected("binary data"); }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return refuse(fmt::format("its header is not JSON at byte {}", position));
  }

 private:
  enum class Place : uint8_t {
    before,
    root,
    root_value,
    metadata,
    metadata_value,
    tensor,
    dtype_value,
    list_value,
    list,
    after,
  };

  bool refuse(std::string reason) {
    if (reason_.empty()) reason_ = std::move(reason);
    return false;
  }
  bool unexpected(std::string_view what) {
    const std::string_view near = place_ == Place::root_value || place_ == Place::metadata_value
                                      ? std::string_view(name_)
                                      : std::string_view(entry_.name);
    return refuse(fmt::format("its header has {} where none belongs (near '{}')", what, near.substr(0, 100)));
  }

  SafetensorsHeader& header_;
  std::string reason_;
  Place place_ = Place::before;
  std::string name_;
  std::set<std::string> names_;
  SafetensorsEntry entry_;
  std::vector<int64_t> list_;
  bool list_is_shape_ = false, has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
};

// Bytes of a tensor of this shape and type; none if they are not whole or do not fit 63 bits.
std::optional<int64_t> bytes_of(const SafetensorsEntry& entry) {
  int64_t bits = find_type(entry.dtype_name)->bits;
  for (const int64_t size : entry.shape) {
    if (__builtin_mul_overflow(bits, size, &bits)) return std::nullopt;
  }
  if (bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

}  // namespace

std::string_view safetensors_name_of(DType dtype) {
  const auto* found =
      std::find_if(types.begin(), types.end(), [&](const TypeRow& row) { return row.dtype == dtype; });
  ATHANOR_ASSERT(found != types.end());
  return found->name;
}

void refuse_safetensors(const std::string& path, const std::string& reason) {
  throw_user_error(fmt::format("safetensors file '{}': {}", path, reason),
                   "the file is damaged, was never finished or is of another kind; use another one");
}

bool in_data_order(const SafetensorsEntry& a, const SafetensorsEntry& b) {
  return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
}

SafetensorsHeader parse_safetensors_header(std::string_view text, int64_t data_bytes,
                                           const std::string& path) {
  if (!text.starts_with('{')) refuse_safetensors(path, "its header does not begin with '{'");
  // The parser would take a NUL for the end of the text.
  if (text.find('\0') != std::string_view::npos) refuse_safetensors(path, "its header has a NUL byte");
  SafetensorsHeader header;
  HeaderEvents events(header);
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &events)) {
    refuse_safetensors(path, events.reason().empty() ? "its header is not JSON" : events.reason());
  }
  std::sort(header.tensors.begin(), header.tensors.end(), in_data_order);
  int64_t expected_begin = 0;
  for (const auto& entry : header.tensors) {
    const auto bytes = bytes_of(entry);
    if (!bytes || entry.end < entry.begin || entry.bytes() != *bytes) {
      refuse_safetensors(
          path, fmt::format("tensor '{}' has the offsets {} to {}, which do not fit {} of shape {}",
                            entry.name, entry.begin, entry.end, entry.dtype_name, list_of(entry.shape)));
    }
    if (entry.begin != expected_begin) {
      refuse_safetensors(path,
                         fmt::format("tensor '{}' begins at byte {} of the data where {} is due: a hole or "
                                     "an overlap",
                                     entry.name, entry.begin, expected_begin));
    }
    expected_begin = entry.end;
  }
  if (expected_begin != data_bytes) {
    refuse_safetensors(
        path, fmt::format("it has {} bytes of data where its header wants {}: it is cut short or has "
                          "something behind",
                          data_bytes, expected_begin));
  }
  return header;
}

std::string format_safetensors_header(const SafetensorsHeader& header) {
  std::string text = "{";
  if (!header.metadata.empty()) {
    text += fmt::format("{}:{{", json_text(safetensors_metadata_key));
    for (const auto& [key, value] : header.metadata) {
      if (text.back() != '{') text += ',';
      text += fmt::format("{}:{}", json_text(key), json_text(value));
    }
    text += '}';
  }
  for (const auto& entry : header.tensors) {
    if (text.size() > 1) text += ',';
    text +=
        fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}", json_text(entry.name),
                    entry.dtype_name, list_of(entry.shape), entry.begin, entry.end);
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

}  // namespace athanor
