#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gatefold/core/error.hpp"
#include "gatefold/core/regular_file.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/io/elements.hpp"
#include "gatefold/io/replacement.hpp"
#include "gatefold/io/safetensors_header.hpp"
#include "gatefold/tensor/pack.hpp"
#include "gatefold/tensor/tensor.hpp"

/// Packs of tensors in safetensors files, the format of Hugging Face: the length of a header (64 bits, little-endian),
/// the header (JSON: name → dtype, shape, data_offsets; `__metadata__` → strings), the elements, little-endian, without
/// gaps.
namespace gatefold::io {

/// A pack and the prefix of its tensors' names: with `Part{"params", params}` they begin with
/// "params" and a dot.
template <class P>
struct Part {
  std::string prefix;
  P& pack;
};
template <class P>
Part(const char*, P&) -> Part<P>;
template <class P>
Part(std::string, P&) -> Part<P>;

namespace safetensors {

/// Where a tensor's elements lie in memory.
inline constexpr std::uint64_t kAlignment = 8;

/// Tensors of backend B whose elements a file may hold; others stop the compiler.
template <class B>
struct Storable {
  template <class T>
  static constexpr void tensor() {
    static_assert(std::is_same_v<B, typename pack::Of<T>::Backend>,
                  "gatefold: tensors and context are of different backends");
    dtype<typename pack::Of<T>::Element>();
  }
};
/// Call f(name, tensor) for every tensor of every part, of backend B.
template <class B, class F, class... P>
void visit(const F& f, const Part<P>&... parts) {
  (pack::visit_any<Storable<B>>(f, Name{nullptr, parts.prefix}, false, parts.pack), ...);
}
/// f(T{}) with the type T of the elements of a tensor that is Storable.
template <class F>
void with_element(const AnyTensor& tensor, const F& f) {
  if (tensor.type == AnyTensor::type_of<float>()) return f(float{});
  if (tensor.type == AnyTensor::type_of<double>()) return f(double{});
  f(Index{});
}

/// The tensors of a caller, whose names differ.
class Entries {
 public:
  explicit Entries(const char* where) : where_(where) {}
  /// @throws ArgumentError when two tensors have one name
  void add(const Name& at, const char* dtype, std::uint64_t bytes, std::vector<std::uint64_t> shape) {
    std::string name = at.str();
    expect(name != "__metadata__", where_, "tensor name", "any other", name);
    expect(names_.insert(name).second, where_, "tensor names", "different ones", "two of \"" + name + "\"");
    list.push_back({std::move(name), dtype, std::move(shape), bytes});
  }
  std::vector<Entry> list;

 private:
  const char* where_;
  std::set<std::string> names_;
};

/// Take a tensor into the list.
struct AddEntry {
  Entries& all;
  void operator()(const Name& at, const AnyTensor* tensor) const {
    with_element(*tensor, [&]<class T>(T) {
      all.add(at, dtype<T>(), static_cast<std::uint64_t>(tensor->size) * sizeof(T),
              {tensor->extents, tensor->extents + tensor->rank});
    });
  }
};
/// @throws ArgumentError when two tensors have one name
template <class B, class... P>
std::vector<Entry> entries(const char* where, const Part<P>&... parts) {
  Entries all(where);
  visit<B>(AddEntry{all}, parts...);
  return std::move(all.list);
}

/// Whether one is the other but for leading extents of 1: a bank of one expert, and what it is the only one of.
inline bool same_but_for_leading_ones(const std::vector<std::uint64_t>& a, const std::vector<std::uint64_t>& b) {
  const auto rest = [](const auto& shape) {
    return std::find_if(shape.begin(), shape.end(), [](std::uint64_t n) { return n != 1; });
  };
  return std::equal(rest(a), a.end(), rest(b), b.end());
}

/// Require that the header names exactly the tensors of the list, with their types and shapes.
/// @param by_name  the tensors of the list, none of which the header lacks another of
/// @return for each tensor of the header its place in the list
template <class Json = nlohmann::json>
std::vector<std::size_t> match(const RegularFile& from, const Header& header, const std::vector<Entry>& list,
                               const std::unordered_map<std::string_view, std::size_t>& by_name) {
  std::vector<std::size_t> places;
  std::vector<bool> found(list.size());
  for (const Described& t : header.tensors) {
    const std::size_t i = by_name.at(header.name(t));
    const Entry& entry = list[i];
    const auto fail = [&](const std::string& reason) {
      from.fail(8, "tensor " + in_quotes<Json>(entry.name) + ": " + reason);
    };
    if (t.dtype->name != entry.dtype)
      fail(std::string("dtype: expected ") + entry.dtype + ", got " + in_quotes<Json>(t.dtype->name));
    const auto shape = header.shape(t);
    if (t.rank > Header::kExtents || !same_but_for_leading_ones(shape, entry.shape)) {
      const std::string got = t.rank > Header::kExtents ? std::to_string(t.rank) + " dimensions" : shape_text(shape);
      fail("expected " + shape_text(entry.shape) + ", got " + got);
    }
    places.push_back(i);
    found[i] = true;
  }
  if (const auto missing = std::find(found.begin(), found.end(), false); missing != found.end())
    from.fail(8,
              "tensor " + in_quotes<Json>(list[static_cast<std::size_t>(missing - found.begin())].name) + ": missing");
  return places;
}

/// Where the elements of a tensor are.
struct Source {
  const void* data;
  Index size;
  std::size_t element;  // bytes
  void (*to_host)(void* context, const void* data, Index at, Index count, std::byte* to);
};

/// Take where the elements of a tensor are into the list.
template <class C>
struct AddSource {
  std::vector<Source>& all;
  void operator()(const Name&, const AnyTensor* tensor) const {
    with_element(*tensor, [&]<class T>(T) {
      all.push_back({tensor->elements, tensor->size, sizeof(T),
                     [](void* context, const void* from, Index begin, Index count, std::byte* to) {
                       C::Backend::to_host(*static_cast<C*>(context), count, static_cast<const T*>(from) + begin,
                                           reinterpret_cast<T*>(to));
                     }});
    });
  }
};

/// Write a file. @param list, sources  of the same tensors
template <class Json = nlohmann::json>
void write(const std::filesystem::path& path, void* context, const Metadata& metadata, const std::vector<Entry>& list,
           const std::vector<Source>& sources) {
  std::vector<std::size_t> order(list.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto rank = [&](std::size_t i) { return std::string_view("F32F64I64").find(list[i].dtype); };
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return rank(a) != rank(b) ? rank(a) > rank(b) : list[a].name < list[b].name;
  });
  std::vector<const Entry*> in_order;
  for (const std::size_t i : order) in_order.push_back(&list[i]);

  const std::string header = header_bytes<Json>(metadata, in_order);
  Replacement file(path);
  file.write(header.data(), header.size());
  std::vector<std::byte> piece;
  for (const std::size_t i : order) {
    const Source& source = sources[i];
    const Index step = (Index(4) << 20) / static_cast<Index>(source.element);
    piece.resize(std::max(piece.size(), static_cast<std::size_t>(std::min(step, source.size)) * source.element));
    for (Index at = 0; at < source.size; at += step) {
      const Index count = std::min(step, source.size - at);
      source.to_host(context, source.data, at, count, piece.data());
      file.write(piece.data(), static_cast<std::size_t>(count) * source.element);
    }
  }
  file.commit();
}

/// All elements of a file in host memory, each tensor aligned.
struct Data {
  std::vector<std::byte> bytes;
  std::vector<std::uint64_t> begins;  // by entry
  Metadata metadata{};
};

/// @param places  of match
inline Data read_data(RegularFile& from, const Header& header, const std::vector<std::size_t>& places) {
  Data data;
  std::uint64_t size = 0;
  data.begins.resize(places.size());
  for (std::size_t i = 0; i < places.size(); ++i) {
    data.begins[places[i]] = size;
    size += (header.tensors[i].end - header.tensors[i].begin + kAlignment - 1) / kAlignment * kAlignment;
  }
  data.bytes.resize(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < places.size(); ++i) {
    const Described& t = header.tensors[i];
    from.read(data.bytes.data() + data.begins[places[i]], t.end - t.begin, header.data_begin + t.begin);
  }
  return data;
}

/// What the list names, all of it checked. @param only  whether the file must hold no other tensors
template <class Json = nlohmann::json>
Data read_entries(const std::filesystem::path& path, bool only, const std::vector<Entry>& list) {
  std::unordered_map<std::string_view, std::size_t> by_name;
  for (std::size_t i = 0; i < list.size(); ++i) by_name.emplace(list[i].name, i);
  RegularFile from(path);
  Header header = read_header<Json>(from, [&](const std::string& name) { return !only || by_name.contains(name); });
  std::erase_if(header.tensors, [&](const Described& t) { return !by_name.contains(header.name(t)); });
  Data data = read_data(from, header, match<Json>(from, header, list, by_name));
  data.metadata = std::move(header.metadata);
  return data;
}

#if defined(GATEFOLD_IO_KERNEL)
GATEFOLD_IO_KERNEL void write<nlohmann::json>(const std::filesystem::path&, void*, const Metadata&,
                                              const std::vector<Entry>&, const std::vector<Source>&);
GATEFOLD_IO_KERNEL Data read_entries<nlohmann::json>(const std::filesystem::path&, bool, const std::vector<Entry>&);
#endif

}  // namespace safetensors

/// Write packs of tensors to a safetensors file: `save(path, ctx, {{"step", "12"}}, Part{"params", params})`.
///
/// Source: https://github.com/huggingface/safetensors, section "Format".
/// @param metadata  strings kept in the header
/// @param parts     packs of float (F32), double (F64) and Index (I64) tensors, with the prefix of their names
/// @throws ArgumentError when two tensors have one name or a text is not UTF-8; FileError when the file cannot be
///         written, in which case a file that was there is untouched and no other is left
/// @cost   one copy in pieces of 4 MiB; the file appears at once, by a rename, when it is on the disk
/// @order  tensors by falling size of an element (I64, F64, F32), then by name, as the reference implementation writes
///         them: each is aligned, and the same data gives the same bytes
template <class C, class... P>
void save(const std::filesystem::path& path, C& ctx, const Metadata& metadata, const Part<P>&... parts) {
  using B = typename C::Backend;
  const std::vector<safetensors::Entry> list = safetensors::entries<B>("io::save", parts...);
  std::vector<safetensors::Source> sources;
  safetensors::visit<B>(safetensors::AddSource<C>{sources}, parts...);
  safetensors::write(path, &ctx, metadata, list, sources);
}

namespace safetensors {

/// Elements of the tensors one after the other, from where they begin in `bytes`.
template <class C>
struct Fill {
  C& ctx;
  const std::byte* bytes;
  mutable const std::uint64_t* begin;
  void operator()(const Name&, const AnyTensor* tensor) const {
    with_element(*tensor, [&]<class T>(T) {
      using B = typename C::Backend;
      B::from_host(ctx, tensor->size, reinterpret_cast<const T*>(bytes + *begin++), FlatTensor<T, B>(*tensor).data());
    });
  }
};
/// @param only  whether the file must hold no other tensors
template <class C, class... P>
Metadata load(const std::filesystem::path& path, C& ctx, bool only, const Part<P>&... parts) {
  static_assert((!std::is_const_v<P> && ...), "gatefold: io::load writes into its packs, they cannot be const");
  using B = typename C::Backend;
  Data data = read_entries(path, only, entries<B>("io::load", parts...));
  visit<B>(Fill<C>{ctx, data.bytes.data(), data.begins.data()}, parts...);
  return std::move(data.metadata);
}

}  // namespace safetensors

/// Read a safetensors file into packs that have their shapes already: `load(path, ctx, Part{"params", params})`.
///
/// The file must hold exactly the tensors of the parts; leading extents of 1 may be there or not. Everything is read
/// and checked before the first tensor is written: after an exception nothing has changed.
/// @return the metadata of the file
/// @throws FileError with path, offset and reason when the file is missing, truncated, too long or not safetensors, and
///         when a tensor is missing, unexpected or of another type or shape; ArgumentError when two tensors of the
///         parts have one name
/// @cost   host memory of the size of the tensors (never of what the file claims) while it runs
template <class C, class... P>
Metadata load(const std::filesystem::path& path, C& ctx, const Part<P>&... parts) {
  return safetensors::load(path, ctx, true, parts...);
}
/// The same of a file that may hold other tensors besides, which are left alone: a part of a model, or of a run.
template <class C, class... P>
Metadata load_subset(const std::filesystem::path& path, C& ctx, const Part<P>&... parts) {
  return safetensors::load(path, ctx, false, parts...);
}

/// The metadata of a safetensors file, whatever its tensors are.
///
/// @throws FileError with path, offset and reason when the file is missing, truncated, too long or not safetensors:
/// what
///         load refuses whatever its parts are
/// @cost   reads the header alone
template <class Json = nlohmann::json>
Metadata read_metadata(const std::filesystem::path& path) {
  RegularFile from(path);
  return safetensors::read_header<Json>(from, [](const std::string&) { return true; }).metadata;
}
/// The names of its tensors.
template <class Json = nlohmann::json>
std::set<std::string> read_names(const std::filesystem::path& path) {
  RegularFile from(path);
  const auto header = safetensors::read_header<Json>(from, [](const std::string&) { return true; });
  std::set<std::string> names;
  for (const auto& t : header.tensors) names.emplace(header.name(t));
  return names;
}

#if defined(GATEFOLD_IO_KERNEL)
GATEFOLD_IO_KERNEL Metadata read_metadata<nlohmann::json>(const std::filesystem::path&);
GATEFOLD_IO_KERNEL std::set<std::string> read_names<nlohmann::json>(const std::filesystem::path&);
#endif

}  // namespace gatefold::io
