#pragma once

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/tensor/pack.hpp"
#include "gatefold/tensor/tensor.hpp"

/// Packs of tensors in safetensors files, the format of Hugging Face: the length of a header (64 bits, little-endian),
/// the header (JSON: name → dtype, shape, data_offsets; `__metadata__` → strings), the elements, little-endian, without
/// gaps.
namespace gatefold::io {

using Metadata = std::map<std::string, std::string>;

/// A pack and the prefix of its tensors' names: `Part{"params", params}` gives `params.layers.0.…`.
template <class P>
struct Part {
  std::string prefix;
  P& pack;
};
template <class P>
Part(const char*, P&) -> Part<P>;
template <class P>
Part(std::string, P&) -> Part<P>;

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Close>;

/// A file that is written beside its target and takes its place at the end, at once. Without `commit`, and after an
/// exception, a file that was there is untouched and no other is left.
///
/// @throws FileError with path and reason
class Replacement {
 public:
  explicit Replacement(const std::filesystem::path& path) : path_(path.string()) {
    // A rename would replace a device or a pipe by a file.
    std::error_code error;
    const std::filesystem::file_status target = std::filesystem::status(path, error);
    if (std::filesystem::exists(target) && !std::filesystem::is_regular_file(target)) {
      throw FileError(path_ + ": cannot write: not a regular file");
    }
    std::random_device random;
    temporary_ = path_ + '.' + std::to_string(random()) + ".tmp";
    errno = 0;
    file_.reset(std::fopen(temporary_.c_str(), "wbx"));
    if (!file_) fail("cannot create " + temporary_);
  }
  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;
  ~Replacement() {
    if (committed_) return;
    file_.reset();
    std::error_code ignored;
    std::filesystem::remove(temporary_, ignored);
  }

  void write(const void* bytes, std::size_t count) {
    errno = 0;
    if (count > 0 && std::fwrite(bytes, 1, count, file_.get()) != count) fail("cannot write");
  }
  void commit() {
    errno = 0;
    // The last bytes reach the disk, or find it full, here.
    if (std::fclose(file_.release()) != 0) fail("cannot write");
    std::error_code error;
    std::filesystem::rename(temporary_, path_, error);
    if (error) throw FileError(path_ + ": cannot replace: " + error.message());
    committed_ = true;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw FileError(path_ + ": " + what + ": " + std::generic_category().message(errno));
  }

  std::string path_, temporary_;
  File file_{};
  bool committed_ = false;
};

namespace safetensors {

static_assert(std::endian::native == std::endian::little, "gatefold: safetensors files are written byte for byte");

/// What the reference implementation accepts.
inline constexpr std::uint64_t kLongestHeader = 100'000'000;
/// Where a tensor's elements lie in memory.
inline constexpr std::uint64_t kAlignment = 8;

template <class T>
constexpr const char* dtype() {
  if constexpr (std::is_same_v<T, float>) {
    return "F32";
  } else if constexpr (std::is_same_v<T, double>) {
    return "F64";
  } else {
    constexpr bool supported = std::is_same_v<T, Index>;
    static_assert(supported, "gatefold: io stores tensors of float, double and Index");
    return "I64";
  }
}

/// A tensor of the caller.
struct Entry {
  std::string name;
  const char* dtype;
  std::vector<std::uint64_t> shape;
  std::uint64_t bytes;
};

/// Call f(name, tensor) for every tensor of every part.
template <class F, class... P>
void visit(F&& f, const Part<P>&... parts) {
  (pack::visit<false>(f, Name{nullptr, parts.prefix}, parts.pack), ...);
}

/// @throws ArgumentError when two tensors have one name
template <class... P>
std::vector<Entry> entries(const char* where, const Part<P>&... parts) {
  std::vector<Entry> list;
  std::set<std::string> names;
  visit(
      [&]<class T, int Rank, class B>(const Name& at, const Tensor<T, Rank, B>& tensor) {
        std::string name = at.str();
        expect(name != "__metadata__", where, "tensor name", "any other", name);
        expect(names.insert(name).second, where, "tensor names", "different ones", "two of \"" + name + "\"");
        Entry entry{std::move(name), dtype<T>(), {}, static_cast<std::uint64_t>(tensor.size()) * sizeof(T)};
        for (int d = 0; d < Rank; ++d) entry.shape.push_back(static_cast<std::uint64_t>(tensor.extent(d)));
        list.push_back(std::move(entry));
      },
      parts...);
  return list;
}

/// Text of a file inside a message: control characters escaped, of bounded length.
inline std::string quoted(const std::string& text) {
  using Json = nlohmann::json;
  return Json(text.size() > 200 ? text.substr(0, 200) + "..." : text)
      .dump(-1, ' ', true, Json::error_handler_t::replace);
}

/// The length field and the JSON, padded so that the elements begin at a multiple of 8.
inline std::string header_bytes(const Metadata& metadata, const std::vector<Entry>& list) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const Entry& entry : list) {
    header[entry.name] = {
        {"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {offset, offset + entry.bytes}}};
    offset += entry.bytes;
  }
  std::string json;
  try {
    json = header.dump();
  } catch (const nlohmann::json::type_error& e) {
    throw ArgumentError(std::string("io::save: names and metadata: expected UTF-8, got ") + e.what());
  }
  json.append((8 - json.size() % 8) % 8, ' ');
  const std::uint64_t length = json.size();
  expect(length <= kLongestHeader, "io::save", "header", "at most 100 MB", length);
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + json;
}

/// A file whose header has been read.
struct Opened {
  std::string path{};
  File file{};
  std::uint64_t data_begin = 0, size = 0;
  nlohmann::json header{};

  [[noreturn]] void fail(const std::string& reason) const { throw FileError(path + ": " + reason); }
  [[noreturn]] void fail(std::uint64_t offset, const std::string& reason) const {
    fail("offset " + std::to_string(offset) + ": " + reason);
  }
  void read(void* to, std::uint64_t count, std::uint64_t offset) {
    errno = 0;
    const std::size_t got = std::fread(to, 1, static_cast<std::size_t>(count), file.get());
    if (got == count) return;
    if (std::ferror(file.get())) fail(offset + got, "cannot read: " + std::generic_category().message(errno));
    fail(offset + got, "truncated: expected " + std::to_string(count - got) + " more bytes");
  }
};

/// JSON, refused as soon as it is deeper than a header or names something twice.
inline nlohmann::json parse(const Opened& from, const std::string& text) {
  using Json = nlohmann::json;
  std::vector<std::set<std::string>> names;
  try {
    return Json::parse(text, [&](int depth, Json::parse_event_t event, Json& value) {
      using Event = Json::parse_event_t;
      if (event == Event::object_start || event == Event::array_start) {
        if (depth > 2) from.fail(8, "header: nested too deeply");
      }
      if (event == Event::object_start) names.emplace_back();
      if (event == Event::object_end) names.pop_back();
      if (event == Event::key) {
        const auto& name = value.get_ref<const std::string&>();
        if (!names.back().insert(name).second) from.fail(8, "header: " + quoted(name) + " appears twice");
      }
      return true;
    });
  } catch (const Json::parse_error& e) {
    // The byte counts from 1; the text begins at 8.
    from.fail(7 + e.byte, "header: not JSON: " + quoted(e.what()));
  } catch (const Json::exception& e) {
    from.fail(8, "header: not JSON: " + quoted(e.what()));
  }
}

/// Open a file and read its header, no more than the file holds.
inline Opened open(const std::filesystem::path& where) {
  Opened from;
  from.path = where.string();
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(where, error);
  // Opening a pipe would wait for its other end.
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    from.fail("cannot open: not a regular file");
  }
  errno = 0;
  from.file.reset(std::fopen(from.path.c_str(), "rb"));
  if (!from.file) from.fail("cannot open: " + std::generic_category().message(errno));
  from.size = std::filesystem::file_size(where, error);
  if (error) from.fail("cannot open: " + error.message());

  std::uint64_t length = 0;
  if (from.size < 8) from.fail(from.size, "truncated: expected 8 bytes of header length");
  from.read(&length, 8, 0);
  if (length > kLongestHeader) from.fail(0, "header length: expected at most 100 MB, got " + std::to_string(length));
  if (length > from.size - 8) {
    from.fail(0, "truncated: the header is " + std::to_string(length) + " bytes, the file has " +
                     std::to_string(from.size - 8) + " after its length");
  }
  std::string text(static_cast<std::size_t>(length), '\0');
  from.read(text.data(), length, 8);
  if (text.empty() || text[0] != '{') from.fail(8, "header: expected '{'");
  from.header = parse(from, text);
  from.data_begin = 8 + length;
  return from;
}

inline Metadata metadata(const Opened& from) {
  Metadata result;
  const auto found = from.header.find("__metadata__");
  if (found == from.header.end()) return result;
  if (!found->is_object()) from.fail(8, "__metadata__: expected an object");
  for (const auto& [key, value] : found->items()) {
    if (!value.is_string()) from.fail(8, "__metadata__: " + quoted(key) + ": expected a string");
    result[key] = value.get<std::string>();
  }
  return result;
}

/// Where a tensor lies in the data of a file.
struct Range {
  std::uint64_t begin = 0, end = 0;
  std::size_t entry = 0;
};

/// The numbers of an array of the header.
inline std::vector<std::uint64_t> numbers(const Opened& from, const std::string& name, const nlohmann::json& info,
                                          const char* key) {
  const auto found = info.find(key);
  if (found == info.end()) from.fail(8, "tensor " + quoted(name) + ": no " + key);
  std::vector<std::uint64_t> values;
  bool good = found->is_array();
  for (std::size_t i = 0; good && i < found->size(); ++i) {
    good = (*found)[i].is_number_unsigned();
    if (good) values.push_back((*found)[i].get<std::uint64_t>());
  }
  if (!good) from.fail(8, "tensor " + quoted(name) + ": " + key + ": expected an array of non-negative integers");
  return values;
}

inline std::string shape_text(const std::vector<std::uint64_t>& shape) {
  std::string text = "[";
  for (std::size_t d = 0; d < shape.size(); ++d) text += (d ? ", " : "") + std::to_string(shape[d]);
  return text + "]";
}

/// Require that the header names exactly the tensors of the list, with their types and shapes, and that their elements
/// fill the rest of the file without gap or overlap.
/// @return the tensors in the order of the file
inline std::vector<Range> match(const Opened& from, const std::vector<Entry>& list) {
  std::map<std::string_view, std::size_t> by_name;
  for (std::size_t i = 0; i < list.size(); ++i) by_name.emplace(list[i].name, i);
  std::vector<Range> ranges;
  for (const auto& [name, info] : from.header.items()) {
    if (name == "__metadata__") continue;
    const auto found = by_name.find(name);
    const std::string tensor = "tensor " + quoted(name) + ": ";
    if (found == by_name.end()) from.fail(8, tensor + "unexpected");
    const Entry& entry = list[found->second];
    if (!info.is_object()) from.fail(8, tensor + "expected an object");
    const auto dtype = info.find("dtype");
    if (dtype == info.end() || !dtype->is_string()) from.fail(8, tensor + "no dtype");
    if (const auto& got = dtype->get_ref<const std::string&>(); got != entry.dtype) {
      from.fail(8, tensor + "dtype: expected " + entry.dtype + ", got " + quoted(got));
    }
    if (const auto shape = numbers(from, name, info, "shape"); shape != entry.shape) {
      const std::string got = shape.size() > 16 ? std::to_string(shape.size()) + " dimensions" : shape_text(shape);
      from.fail(8, tensor + "expected " + shape_text(entry.shape) + ", got " + got);
    }
    const auto offsets = numbers(from, name, info, "data_offsets");
    if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] - offsets[0] != entry.bytes) {
      from.fail(8, tensor + "data_offsets: expected " + std::to_string(entry.bytes) + " bytes, got " +
                       (offsets.size() == 2 ? shape_text(offsets) : std::to_string(offsets.size()) + " numbers"));
    }
    ranges.push_back({offsets[0], offsets[1], found->second});
    by_name.erase(found);
  }
  if (!by_name.empty()) from.fail(8, "tensor " + quoted(std::string(by_name.begin()->first)) + ": missing");

  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin != b.begin ? a.begin < b.begin : a.end < b.end; });
  const std::uint64_t available = from.size - from.data_begin;
  std::uint64_t at = 0;
  for (const Range& range : ranges) {
    const std::string tensor = "tensor " + quoted(list[range.entry].name) + ": ";
    if (range.begin != at) {
      from.fail(8, tensor + "data_offsets: expected to begin at " + std::to_string(at) + ", got " +
                       std::to_string(range.begin) + (range.begin < at ? " (overlap)" : " (gap)"));
    }
    at = range.end;
    if (at > available) {
      from.fail(from.size, "truncated: " + tensor + "ends at " + std::to_string(from.data_begin + at));
    }
  }
  if (at != available) from.fail(from.data_begin + at, "expected the end of the file, found more bytes");
  return ranges;
}

/// All elements of a file in host memory, each tensor aligned.
struct Data {
  std::vector<std::byte> bytes;
  std::vector<std::uint64_t> begins;  // by entry
};

inline Data read_data(Opened& from, const std::vector<Range>& ranges) {
  Data data;
  std::uint64_t size = 0;
  data.begins.resize(ranges.size());
  for (const Range& range : ranges) {
    data.begins[range.entry] = size;
    size += (range.end - range.begin + kAlignment - 1) / kAlignment * kAlignment;
  }
  data.bytes.resize(static_cast<std::size_t>(size));
  for (const Range& range : ranges) {
    from.read(data.bytes.data() + data.begins[range.entry], range.end - range.begin, from.data_begin + range.begin);
  }
  return data;
}

}  // namespace safetensors

/// Write packs of tensors to a safetensors file: `save(path, ctx, {{"step", "12"}}, Part{"params", params})`.
///
/// Source: https://github.com/huggingface/safetensors, section "Format".
/// @param metadata  strings kept in the header
/// @param parts     packs of float (F32), double (F64) and Index (I64) tensors, with the prefix of their names
/// @throws ArgumentError when two tensors have one name or a text is not UTF-8; FileError when the file cannot be
///         written, in which case a file that was there is untouched and no other is left
/// @cost   one copy in pieces of 4 MiB; the file appears at once, by a rename
/// @order  tensors in the order of visiting: the same data gives the same bytes
template <class C, class... P>
void save(const std::filesystem::path& path, C& ctx, const Metadata& metadata, const Part<P>&... parts) {
  const std::string header = safetensors::header_bytes(metadata, safetensors::entries("io::save", parts...));
  Replacement file(path);
  file.write(header.data(), header.size());
  std::vector<std::byte> piece;
  safetensors::visit(
      [&]<class T, int Rank, class B>(const Name&, const Tensor<T, Rank, B>& tensor) {
        static_assert(std::is_same_v<B, typename C::Backend>,
                      "gatefold: tensors and context are of different backends");
        constexpr Index step = (Index(4) << 20) / sizeof(T);
        const Index longest = std::min(step, tensor.size());
        piece.resize(std::max(piece.size(), static_cast<std::size_t>(longest) * sizeof(T)));
        for (Index at = 0; at < tensor.size(); at += step) {
          const Index count = std::min(step, tensor.size() - at);
          B::to_host(ctx, count, tensor.data() + at, reinterpret_cast<T*>(piece.data()));
          file.write(piece.data(), static_cast<std::size_t>(count) * sizeof(T));
        }
      },
      parts...);
  file.commit();
}

/// Read a safetensors file into packs that have their shapes already: `load(path, ctx, Part{"params", params})`.
///
/// The file must hold exactly the tensors of the parts. Everything is read and checked before the first tensor is
/// written: after an exception nothing has changed.
/// @return the metadata of the file
/// @throws FileError with path, offset and reason when the file is missing, truncated, too long or not safetensors, and
///         when a tensor is missing, unexpected or of another type or shape; ArgumentError when two tensors of the
///         parts have one name
/// @cost   host memory of the size of the tensors (never of what the file claims) while it runs
template <class C, class... P>
Metadata load(const std::filesystem::path& path, C& ctx, const Part<P>&... parts) {
  static_assert((!std::is_const_v<P> && ...), "gatefold: io::load writes into its packs, they cannot be const");
  const std::vector<safetensors::Entry> list = safetensors::entries("io::load", parts...);
  safetensors::Opened from = safetensors::open(path);
  Metadata metadata = safetensors::metadata(from);
  const safetensors::Data data = safetensors::read_data(from, safetensors::match(from, list));
  auto begin = data.begins.begin();
  safetensors::visit(
      [&]<class T, int Rank, class B>(const Name&, Tensor<T, Rank, B>& tensor) {
        static_assert(std::is_same_v<B, typename C::Backend>,
                      "gatefold: tensors and context are of different backends");
        B::from_host(ctx, tensor.size(), reinterpret_cast<const T*>(data.bytes.data() + *begin++), tensor.data());
      },
      parts...);
  return metadata;
}

/// The metadata of a safetensors file, whatever its tensors are.
///
/// @throws FileError as load, for the header alone
inline Metadata read_metadata(const std::filesystem::path& path) {
  return safetensors::metadata(safetensors::open(path));
}

}  // namespace gatefold::io
