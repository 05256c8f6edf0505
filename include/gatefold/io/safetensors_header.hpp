#pragma once

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"

/// The header of a safetensors file: read in one pass, in linear time and about as much memory as it is long.
namespace gatefold::io {

using Metadata = std::map<std::string, std::string>;

namespace safetensors {

static_assert(std::endian::native == std::endian::little, "gatefold: safetensors files are written byte for byte");

/// What the reference implementation accepts.
inline constexpr std::uint64_t kLongestHeader = 100'000'000;

/// A tensor of the caller.
struct Entry {
  std::string name;
  const char* dtype;
  std::vector<std::uint64_t> shape;
  std::uint64_t bytes;
};

/// Text of a file inside a message: control characters escaped, of bounded length.
inline std::string in_quotes(std::string_view text) {
  using Json = nlohmann::json;
  return Json(text.size() > 200 ? std::string(text.substr(0, 200)) + "..." : std::string(text))
      .dump(-1, ' ', true, Json::error_handler_t::replace);
}

/// A file open for reading.
class Opened {
 public:
  explicit Opened(const std::filesystem::path& where) : path_(where.string()) {
    std::error_code error;
    const std::filesystem::file_status status = std::filesystem::status(where, error);
    // Opening a pipe would wait for its other end.
    if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) fail("cannot open: not a regular file");
    errno = 0;
    if (!file_.open(where, std::ios::in | std::ios::binary))
      fail("cannot open: " + std::generic_category().message(errno));
    size_ = std::filesystem::file_size(where, error);
    if (error) fail("cannot open: " + error.message());
  }
  const std::string& path() const { return path_; }
  std::uint64_t size() const { return size_; }

  [[noreturn]] void fail(const std::string& reason) const { throw FileError(path_ + ": " + reason); }
  [[noreturn]] void fail(std::uint64_t offset, const std::string& reason) const {
    fail("offset " + std::to_string(offset) + ": " + reason);
  }
  /// The `count` bytes that begin at `offset` of the file.
  void read(void* to, std::uint64_t count, std::uint64_t offset) {
    errno = 0;
    const auto at = static_cast<std::streamoff>(offset);
    std::uint64_t got = 0;
    if (file_.pubseekpos(at, std::ios::in) == std::streampos(at))
      got = static_cast<std::uint64_t>(file_.sgetn(static_cast<char*>(to), static_cast<std::streamsize>(count)));
    if (got == count) return;
    if (errno != 0) fail(offset + got, "cannot read: " + std::generic_category().message(errno));
    fail(offset + got, "truncated: expected " + std::to_string(count - got) + " more bytes");
  }

 private:
  std::string path_;
  std::filebuf file_{};
  std::uint64_t size_ = 0;
};

/// A tensor as a header describes it. Texts and extents lie in the header.
struct Described {
  std::size_t name = 0, name_size = 0, dtype = 0, dtype_size = 0;  // in Header::text
  std::size_t shape = 0;                                           // in Header::extents: the first kExtents at most
  std::uint64_t rank = 0;
  std::uint64_t begin = 0, end = 0, offsets = 0;  // offsets: how many numbers data_offsets has
};

/// All that a header says.
struct Header {
  static constexpr std::uint64_t kExtents = 16;  // of a tensor are kept, in whose message more would not be read

  std::string text{};                   // names and dtypes, one after the other
  std::deque<std::uint64_t> extents{};  // of all shapes
  std::deque<Described> tensors{};      // in the order of the header
  Metadata metadata{};
  std::uint64_t data_begin = 0;

  std::string_view name(const Described& t) const { return std::string_view(text).substr(t.name, t.name_size); }
  std::string_view dtype(const Described& t) const { return std::string_view(text).substr(t.dtype, t.dtype_size); }
  std::vector<std::uint64_t> shape(const Described& t) const {
    const auto begin = extents.begin() + static_cast<std::ptrdiff_t>(t.shape);
    return {begin, begin + static_cast<std::ptrdiff_t>(std::min(t.rank, kExtents))};
  }
};

/// Receives a JSON text piece by piece and refuses what is no header at once.
/// @param Known  whether a tensor of a name is wanted; what is not wanted is refused
template <class Known>
class HeaderReader {
 public:
  using Json = nlohmann::json;

  HeaderReader(const Opened& from, Header& header, const Known& known) : from_(from), header_(header), known_(known) {}

  bool start_object(std::size_t) {
    if (depth_ == 1 && place_ == Place::tensor) {
      header_.tensors.emplace_back(tensor_);
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
    }
    return true;
  }
  bool start_array(std::size_t) {
    const bool expected = depth_ == 2 && place_ == Place::tensor && (key_ == Key::shape || key_ == Key::offsets);
    const bool instead_of_tensor = depth_ == 1 && place_ == Place::tensor;  // refused at its end, if it is not too deep
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
        tensor_.name = header_.text.size();
        tensor_.name_size = name.size();
        header_.text += name;
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
      if (key_ == Key::shape) header_.tensors.back().shape = header_.extents.size();
    }
    return true;
  }
  bool string(std::string& text) {
    if (depth_ == 2 && place_ == Place::metadata) {
      *value_ = std::move(text);
    } else if (depth_ == 2 && key_ == Key::dtype) {
      Described& t = header_.tensors.back();
      t.dtype = header_.text.size();
      t.dtype_size = text.size();
      header_.text += text;
    } else {
      wrong_value();
    }
    return true;
  }
  bool number_unsigned(std::uint64_t n) {
    if (depth_ != 3) return wrong_value();
    Described& t = header_.tensors.back();
    if (key_ == Key::shape) {
      if (t.rank++ < Header::kExtents) header_.extents.push_back(n);
    } else if (key_ == Key::offsets) {
      if (t.offsets == 0) t.begin = n;
      if (t.offsets == 1) t.end = n;
      ++t.offsets;
    }
    return true;
  }
  bool number_integer(std::int64_t) { return wrong_value(); }
  bool number_float(double, const std::string&) { return wrong_value(); }
  bool boolean(bool) { return wrong_value(); }
  bool null() { return wrong_value(); }
  bool binary(Json::binary_t&) { return wrong_value(); }
  bool parse_error(std::size_t byte, const std::string&, const Json::exception& e) {
    from_.fail(7 + byte, "header: not JSON: " + in_quotes(e.what()));  // the byte counts from 1; the text begins at 8
  }

 private:
  enum class Place { tensor, metadata };
  enum class Key { dtype, shape, offsets, other };

  bool deeper() {
    if (depth_ > 2) from_.fail(8, "header: nested too deeply");
    ++depth_;
    return true;
  }
  [[noreturn]] void refuse(const std::string& reason) const {
    from_.fail(8, "tensor " + in_quotes(header_.name(tensor_)) + ": " + reason);
  }
  [[noreturn]] void twice(const std::string& name) const { from_.fail(8, "header: " + in_quotes(name) + " appears twice"); }
  // A value that stands where another kind belongs; harmless where nothing belongs.
  bool wrong_value() const {
    if (depth_ == 1 && place_ == Place::metadata) from_.fail(8, "__metadata__: expected an object");
    if (place_ == Place::metadata) from_.fail(8, "__metadata__: " + in_quotes(metadata_key_) + ": expected a string");
    if (depth_ == 1) refuse("expected an object");
    if (key_ == Key::dtype) refuse("no dtype");
    if (key_ == Key::shape) refuse("shape: expected an array of non-negative integers");
    if (key_ == Key::offsets) refuse("data_offsets: expected an array of non-negative integers");
    return true;
  }

  const Opened& from_;
  Header& header_;
  const Known& known_;
  Described tensor_{};
  Place place_ = Place::tensor;
  Key key_ = Key::other;
  int depth_ = 0;
  bool seen_metadata_ = false, seen_dtype_ = false, seen_shape_ = false, seen_offsets_ = false;
  std::string metadata_key_{};
  std::string* value_ = nullptr;
};

/// Read the header of a file, no more than the file holds.
/// @param known  (name) whether a tensor is wanted; others are refused
/// @throws FileError with path, offset and reason: what the reference implementation refuses, nothing is read past
/// @cost   O(n log n) time, and besides the text of n bytes about 1.5 n of memory
template <class Known>
Header read_header(Opened& from, const Known& known) {
  std::uint64_t length = 0;
  if (from.size() < 8) from.fail(from.size(), "truncated: expected 8 bytes of header length");
  from.read(&length, 8, 0);
  if (length > kLongestHeader) from.fail(0, "header length: expected at most 100 MB, got " + std::to_string(length));
  if (length > from.size() - 8) {
    from.fail(0, "truncated: the header is " + std::to_string(length) + " bytes, the file has " +
                     std::to_string(from.size() - 8) + " after its length");
  }
  std::string text(static_cast<std::size_t>(length), '\0');
  from.read(text.data(), length, 8);
  if (text.empty() || text[0] != '{') from.fail(8, "header: expected '{'");
  // To the parser a zero byte is the end: what follows would go unseen.
  if (const std::size_t zero = text.find('\0'); zero != std::string::npos) from.fail(8 + zero, "header: not JSON: a zero byte");

  Header header;
  header.data_begin = 8 + length;
  HeaderReader reader(from, header, known);
  nlohmann::json::sax_parse(text, &reader);

  std::vector<std::string_view> names;
  names.reserve(header.tensors.size());
  for (const Described& t : header.tensors) names.push_back(header.name(t));
  std::sort(names.begin(), names.end());
  const auto pair = std::adjacent_find(names.begin(), names.end());
  if (pair != names.end()) from.fail(8, "header: " + in_quotes(*pair) + " appears twice");
  return header;
}

/// The length field and the JSON, padded so that the elements begin at a multiple of 8.
/// @param list  in the order of their elements in the file
inline std::string header_bytes(const Metadata& metadata, const std::vector<const Entry*>& list) {
  using Json = nlohmann::json;
  std::string bytes(8, '\0');
  try {
    bytes += '{';
    if (!metadata.empty()) bytes += "\"__metadata__\":" + Json(metadata).dump() + ',';
    std::uint64_t offset = 0;
    for (const Entry* entry : list) {
      bytes += Json(entry->name).dump() + ":{\"dtype\":\"" + entry->dtype + "\",\"shape\":" + Json(entry->shape).dump() +
               ",\"data_offsets\":" + Json({offset, offset + entry->bytes}).dump() + "},";
      offset += entry->bytes;
    }
    if (bytes.back() == ',') bytes.pop_back();
    bytes += '}';
  } catch (const Json::type_error& e) {
    throw ArgumentError(std::string("io::save: names and metadata: expected UTF-8, got ") + e.what());
  }
  bytes.append((8 - bytes.size() % 8) % 8, ' ');
  const std::uint64_t length = bytes.size() - 8;
  expect(length <= kLongestHeader, "io::save", "header", "at most 100 MB", length);
  std::memcpy(bytes.data(), &length, 8);
  return bytes;
}

}  // namespace safetensors
}  // namespace gatefold::io
