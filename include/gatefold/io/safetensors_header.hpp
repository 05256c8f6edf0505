#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gatefold/core/regular_file.hpp"
#include "gatefold/io/json.hpp"

/// Reads and writes the header of a safetensors file, a JSON text. Reading takes one pass. For a header of n bytes, it
/// takes about n bytes of memory in addition to the text.
namespace gatefold::io {

using Metadata = std::map<std::string, std::string>;

namespace safetensors {

static_assert(std::endian::native == std::endian::little, "gatefold: safetensors files are written byte for byte");

/// Limits of Hugging Face's implementation of safetensors: bytes of a header, and levels of nested JSON values.
inline constexpr std::uint64_t kLongestHeader = 100'000'000;
inline constexpr int kDeepest = 127;

/// The elements of a file begin at a multiple of this many bytes if the first tensor is aligned (Entry::aligned).
inline constexpr std::size_t kLine = 64;

/// Bytes [begin, begin + count) of a tensor.
struct Slice {
  std::uint64_t begin, count;
};
/// A tensor that a process saves or loads. The process has all bytes of the tensor, or only some slices.
struct Entry {
  std::string name;
  const char* dtype;
  std::vector<std::uint64_t> shape;  // shape of the whole tensor
  std::uint64_t bytes;               // size of the whole tensor
  std::vector<Slice> here{};         // slices that this process has, in the order of its memory
  bool skipped = false;              // true: no elements in this process (Tensor.skip); a file may have some
  bool aligned = false;              // true: stored first; the elements of its file begin at a multiple of kLine
};

/// Formats a text from a file for an error message: in quotes, cut after 200 bytes, with control characters escaped.
template <class Json = nlohmann::json>
std::string in_quotes(std::string_view text) {
  return Json(text.size() > 200 ? std::string(text.substr(0, 200)) + "..." : std::string(text))
      .dump(-1, ' ', true, Json::error_handler_t::replace);
}

/// An element type of the safetensors format: its name and its size in bits.
struct Dtype {
  std::string_view name;
  std::uint64_t bits;
};
inline constexpr Dtype kDtypes[] = {{"BOOL", 8}, {"F4", 4},          {"F6_E2M3", 6},     {"F6_E3M2", 6}, {"U8", 8},
                                    {"I8", 8},   {"F8_E5M2", 8},     {"F8_E4M3", 8},     {"F8_E8M0", 8}, {"I16", 16},
                                    {"U16", 16}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F16", 16},    {"BF16", 16},
                                    {"I32", 32}, {"U32", 32},        {"F32", 32},        {"C64", 64},    {"F64", 64},
                                    {"I64", 64}, {"U64", 64}};

/// A tensor as the header of its file describes it. Its name and shape are in the members `names` and `extents` of
/// Header. Positions in these members need only 32 bits, because a header has at most 100 MB.
struct Described {
  std::uint32_t name = 0, name_size = 0;  // position in Header::names
  std::uint32_t shape = 0, rank = 0;      // position in Header::extents; number of dimensions
  std::uint64_t begin = 0, end = 0;       // begin and end of its elements, in bytes from the end of the header
  const Dtype* dtype = nullptr;
};

/// The content of a header.
struct Header {
  static constexpr std::uint32_t kExtents = 16;  // largest number of extents that are kept for one tensor

  std::string names{};                  // names of all tensors, concatenated
  std::deque<std::uint64_t> extents{};  // shapes of all tensors, concatenated
  std::deque<Described> tensors{};      // sorted by offset; there are no gaps between their data
  Metadata metadata{};
  std::uint64_t data_begin = 0;

  std::string_view name(const Described& t) const { return std::string_view(names).substr(t.name, t.name_size); }
  std::vector<std::uint64_t> shape(const Described& t) const {
    const auto begin = extents.begin() + static_cast<std::ptrdiff_t>(t.shape);
    return {begin, begin + static_cast<std::ptrdiff_t>(std::min(t.rank, kExtents))};
  }
};

inline std::string shape_text(const std::vector<std::uint64_t>& shape) {
  std::string text = "[";
  for (std::size_t d = 0; d < shape.size(); ++d) text.append(d ? ", " : "").append(std::to_string(shape[d]));
  return text + "]";
}

/// A function that returns whether the caller accepts a tensor with this name in a file. It is a std::function, so that
/// the header reader is compiled only once.
using Known = std::function<bool(const std::string&)>;

/// The event handler that parses the JSON header of a safetensors file. It throws as soon as it meets an error in the
/// header, or a tensor that the caller does not accept.
template <class Json>
class HeaderReader {
 public:
  HeaderReader(const RegularFile& from, Header& header, const Known& known)
      : from_(from), header_(header), known_(known) {}

  bool start_object(std::size_t) {
    if (depth_ == 1 && place_ == Place::tensor) {
      seen_dtype_ = seen_shape_ = seen_offsets_ = false;
    } else if (depth_ != 0 && !(depth_ == 1 && place_ == Place::metadata)) {
      wrong_value();
    }
    return deeper();
  }
  bool end_object() {
    --depth_;
    if (depth_ == 1 && place_ == Place::tensor) {
      if (!seen_dtype_) refuse("no dtype");
      if (!seen_shape_) refuse("no shape");
      if (!seen_offsets_) refuse("no data_offsets");
      expect_size();
      header_.tensors.push_back(tensor_);
    }
    return true;
  }
  bool start_array(std::size_t) {
    const bool expected = depth_ == 2 && place_ == Place::tensor && (key_ == Key::shape || key_ == Key::offsets);
    const bool instead_of_tensor = depth_ == 1 && place_ == Place::tensor;  // end_array reports this error
    if (!expected && !instead_of_tensor) wrong_value();
    return deeper();
  }
  bool end_array() {
    --depth_;
    if (depth_ == 1 && place_ == Place::tensor) refuse("expected an object");
    return true;
  }
  bool key(std::string& name) {
    if (depth_ == 1) {
      if (name == "__metadata__") {
        if (std::exchange(seen_metadata_, true)) twice(name);
        place_ = Place::metadata;
      } else {
        tensor_ = {};
        elements_ = 1;
        offsets_ = 0;
        countable_ = true;
        tensor_.name = static_cast<std::uint32_t>(header_.names.size());
        tensor_.name_size = static_cast<std::uint32_t>(name.size());
        header_.names += name;
        place_ = Place::tensor;
        key_ = Key::other;
        if (!known_(name)) refuse("unexpected");
      }
    } else if (place_ == Place::metadata) {
      const auto [at, is_new] = header_.metadata.try_emplace(name);
      if (!is_new) twice(name);
      value_ = &at->second;
      metadata_key_ = name;
    } else if (depth_ == 2) {
      const auto once = [&](bool& seen, Key key) {
        if (std::exchange(seen, true)) twice(name);
        return key;
      };
      key_ = name == "dtype"          ? once(seen_dtype_, Key::dtype)
             : name == "shape"        ? once(seen_shape_, Key::shape)
             : name == "data_offsets" ? once(seen_offsets_, Key::offsets)
                                      : Key::other;
      if (key_ == Key::shape) tensor_.shape = static_cast<std::uint32_t>(header_.extents.size());
    }
    return true;
  }
  bool string(std::string& text) {
    if (depth_ == 2 && place_ == Place::metadata) {
      *value_ = std::move(text);
    } else if (depth_ == 2 && key_ == Key::dtype) {
      const auto known =
          std::find_if(std::begin(kDtypes), std::end(kDtypes), [&](const Dtype& d) { return d.name == text; });
      if (known == std::end(kDtypes)) refuse("dtype: expected a type of the format, got " + in_quotes<Json>(text));
      tensor_.dtype = known;
    } else {
      wrong_value();
    }
    return true;
  }
  bool number_unsigned(std::uint64_t n) {
    if (depth_ != 3) return wrong_value();
    if (key_ == Key::shape) {
      if (tensor_.rank++ < Header::kExtents) header_.extents.push_back(n);
      countable_ = countable_ && (n == 0 || elements_ <= ~std::uint64_t(0) / n);
      elements_ *= n;
    } else if (key_ == Key::offsets) {
      if (offsets_ == 0) tensor_.begin = n;
      if (offsets_ == 1) tensor_.end = n;
      ++offsets_;
    }
    return true;
  }
  bool number_integer(std::int64_t) { return wrong_value(); }
  bool number_float(double, const std::string&) { return wrong_value(); }
  bool boolean(bool) { return wrong_value(); }
  bool null() { return (depth_ == 1 && place_ == Place::metadata) || wrong_value(); }
  bool binary(typename Json::binary_t&) { return wrong_value(); }
  bool parse_error(std::size_t byte, const std::string&, const typename Json::exception& e) {
    const std::string reason = in_quotes<Json>(e.what());
    from_.fail(7 + byte, "header: not JSON: " + reason);  // the JSON text begins at offset 8; `byte` counts from 1
  }

 private:
  enum class Place { tensor, metadata };
  enum class Key { dtype, shape, offsets, other };

  bool deeper() {
    if (depth_ == kDeepest) from_.fail(8, "header: nested too deeply");
    ++depth_;
    return true;
  }
  // Checks that the data_offsets of a tensor span as many bytes as its type and shape require. The reader must have
  // read dtype, shape and data_offsets before.
  void expect_size() const {
    const std::uint64_t bits = tensor_.dtype->bits;
    if (!countable_ || elements_ > ~std::uint64_t(0) / bits) {
      refuse("shape: expected less than 2^64 bits, got " + (tensor_.rank > Header::kExtents
                                                                ? std::to_string(tensor_.rank) + " dimensions"
                                                                : shape_text(header_.shape(tensor_))));
    }
    if (elements_ * bits % 8 != 0)
      refuse("shape: expected a whole number of bytes, got " + std::to_string(elements_ * bits) + " bits");
    const std::uint64_t bytes = elements_ * bits / 8, begin = tensor_.begin, end = tensor_.end;
    if (offsets_ == 2 && begin > end) refuse("data_offsets: expected begin <= end, got " + shape_text({begin, end}));
    if (offsets_ != 2 || end - begin != bytes) {
      refuse("data_offsets: expected " + std::to_string(bytes) + " bytes, got " +
             (offsets_ == 2 ? shape_text({begin, end}) : std::to_string(offsets_) + " numbers"));
    }
  }
  [[noreturn]] void refuse(const std::string& reason) const {
    from_.fail(8, "tensor " + in_quotes<Json>(header_.name(tensor_)) + ": " + reason);
  }
  [[noreturn]] void twice(const std::string& name) const {
    from_.fail(8, "header: " + in_quotes<Json>(name) + " appears twice");
  }
  // Handles a JSON value of an unexpected kind, for example a number in place of a text. Throws FileError if the key
  // requires another kind. If the key is unknown, returns true, so that the parser continues and ignores the value.
  bool wrong_value() const {
    if (depth_ == 1 && place_ == Place::metadata) from_.fail(8, "__metadata__: expected an object");
    if (place_ == Place::metadata)
      from_.fail(8, "__metadata__: " + in_quotes<Json>(metadata_key_) + ": expected a string");
    if (depth_ == 1) refuse("expected an object");
    if (key_ == Key::dtype) refuse("no dtype");
    if (key_ == Key::shape) refuse("shape: expected an array of non-negative integers");
    if (key_ == Key::offsets) refuse("data_offsets: expected an array of non-negative integers");
    return true;
  }

  const RegularFile& from_;
  Header& header_;
  const Known& known_;
  Described tensor_{};                        // the tensor that is being read
  std::uint64_t elements_ = 1, offsets_ = 0;  // product of the tensor's extents; number of its data_offsets
  bool countable_ = true;                     // false if elements_ has overflowed
  Place place_ = Place::tensor;
  Key key_ = Key::other;
  int depth_ = 0;
  bool seen_metadata_ = false, seen_dtype_ = false, seen_shape_ = false, seen_offsets_ = false;
  std::string metadata_key_{};
  std::string* value_ = nullptr;
};

/// Checks that no two tensors in a header have the same name, and throws FileError otherwise.
template <class Json = nlohmann::json>
void expect_names(const RegularFile& from, const Header& header) {
  std::vector<std::string_view> names;
  names.reserve(header.tensors.size());
  for (const Described& t : header.tensors) names.push_back(header.name(t));
  std::sort(names.begin(), names.end());
  const auto pair = std::adjacent_find(names.begin(), names.end());
  if (pair != names.end()) from.fail(8, "header: " + in_quotes<Json>(*pair) + " appears twice");
}

/// Sorts the tensors of a header by offset. Throws FileError unless they fill the file after the header, without gap or
/// overlap.
template <class Json = nlohmann::json>
void expect_layout(const RegularFile& from, Header& header) {
  std::sort(header.tensors.begin(), header.tensors.end(), [](const Described& a, const Described& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  const std::uint64_t available = from.size() - header.data_begin;
  std::uint64_t at = 0;
  for (const Described& t : header.tensors) {
    const auto tensor = [&] { return "tensor " + in_quotes<Json>(header.name(t)) + ": "; };
    if (t.begin != at) {
      from.fail(8, tensor() + "data_offsets: expected to begin at " + std::to_string(at) + ", got " +
                       std::to_string(t.begin) + (t.begin < at ? " (overlap)" : " (gap)"));
    }
    at = t.end;
    if (at > available)
      from.fail(from.size(), "truncated: " + tensor() + "ends at " + std::to_string(header.data_begin + at));
  }
  if (at != available) from.fail(header.data_begin + at, "expected the end of the file, found more bytes");
}

/// Reads the header of a safetensors file, and checks the header and the size of the file against the format.
///
/// The header must begin with '{', because the format requires it: "The header data MUST begin with a { character
/// (0x7B). The header data MAY be trailing padded with whitespace (0x20)." (README of huggingface/safetensors, section
/// "Format"). A leading blank is refused, although the reference implementation accepts it. Trailing white space is
/// accepted.
/// @param known  known(name) returns whether the caller accepts a tensor; any other tensor is an error
/// @throws FileError with path, offset and reason if the reference implementation refuses the file, if a name appears
///         twice, if the header does not begin with '{', or if a tensor is not an object
/// @cost   O(n log n) time for a header of n bytes, and about n bytes of memory in addition to its text
template <class Json = nlohmann::json>
Header read_header(RegularFile& from, const Known& known) {
  std::uint64_t length = 0;
  if (from.size() < 8) from.fail(from.size(), "truncated: expected 8 bytes of header length");
  from.read(&length, 8, 0);
  if (length > kLongestHeader)
    from.fail(0, "header length: expected at most 100000000 bytes, got " + std::to_string(length));
  if (length > from.size() - 8) {
    from.fail(0, "truncated: the header is " + std::to_string(length) + " bytes, the file has " +
                     std::to_string(from.size() - 8) + " after its length");
  }
  Header header;
  header.data_begin = 8 + length;
  {
    std::string text(length, '\0');
    from.read(text.data(), length, 8);
    if (text.empty() || text[0] != '{') from.fail(8, "header: expected '{'");
    // Refuse a zero byte, because the JSON parser stops there and would not check the bytes after it.
    if (const std::size_t zero = text.find('\0'); zero != std::string::npos)
      from.fail(8 + zero, "header: not JSON: a zero byte");
    HeaderReader<Json> reader(from, header, known);
    Json::sax_parse(text, &reader);
  }
  expect_names<Json>(from, header);
  expect_layout<Json>(from, header);
  return header;
}

/// Returns the beginning of a safetensors file, before the elements: the length of the header and the JSON header,
/// padded so that the elements begin at a multiple of 8, or of kLine if the first tensor is aligned.
/// @param list  the tensors, in the order of their elements in the file
/// @throws ArgumentError if names or metadata are not UTF-8, or if the header is longer than 100 MB
template <class Json = nlohmann::json>
std::string header_bytes(const Metadata& metadata, const std::vector<const Entry*>& list) {
  std::string bytes(8, '\0');
  try {
    bytes += '{';
    if (!metadata.empty()) bytes += "\"__metadata__\":" + Json(metadata).dump() + ',';
    std::uint64_t offset = 0;
    for (const Entry* entry : list) {
      bytes += Json(entry->name).dump() + ":{\"dtype\":\"" + entry->dtype +
               "\",\"shape\":" + Json(entry->shape).dump() +
               ",\"data_offsets\":" + Json({offset, offset + entry->bytes}).dump() + "},";
      offset += entry->bytes;
    }
    if (bytes.back() == ',') bytes.pop_back();
    bytes += '}';
  } catch (const typename Json::type_error& e) {
    throw ArgumentError(std::string("io::save: names and metadata: expected UTF-8, got ") + e.what());
  }
  const std::size_t unit = !list.empty() && list.front()->aligned ? kLine : 8;
  bytes.append((unit - bytes.size() % unit) % unit, ' ');
  const std::uint64_t length = bytes.size() - 8;
  expect(length <= kLongestHeader, "io::save", "header (tensor names, shapes and metadata)", "at most 100000000 bytes",
         length);
  std::memcpy(bytes.data(), &length, 8);
  return bytes;
}

#if defined(GATEFOLD_IO_KERNEL)
GATEFOLD_IO_KERNEL std::string in_quotes<nlohmann::json>(std::string_view);
GATEFOLD_IO_KERNEL Header read_header<nlohmann::json>(RegularFile&, const Known&);
GATEFOLD_IO_KERNEL std::string header_bytes<nlohmann::json>(const Metadata&, const std::vector<const Entry*>&);
#endif

}  // namespace safetensors
}  // namespace gatefold::io
