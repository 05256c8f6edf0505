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

#include "gatefold/io/elements.hpp"
#include "gatefold/io/json.hpp"
#include "gatefold/io/save.hpp"
#include "gatefold/tensor/pack.hpp"

/// Saves packs (structs of named tensors) to safetensors files, the format of Hugging Face, and loads them. A file
/// consists of the length of its header (64 bits, little-endian), the header (JSON: name → dtype, shape, data_offsets;
/// `__metadata__` → strings), and the elements, little-endian and without gaps.
namespace gatefold::io {

/// A pack (a struct of named tensors) and the prefix of its tensor names in a file. With `Part{"params", params}`, the
/// names begin with "params" and a dot.
template <class P>
struct Part {
  std::string prefix;
  P& pack;
};
template <class P>
Part(const char*, P&) -> Part<P>;
template <class P>
Part(std::string, P&) -> Part<P>;

/// True if M is a model (a layer, branch or expert), false if it is a pack of tensors. `load` has an overload for each
/// of the two. The overload for models returns their parameters (train/load_parameters.hpp).
template <class M>
inline constexpr bool has_dims = requires(const M& model) {
  model.in_dim();
};

namespace safetensors {

/// The alignment in bytes of each tensor in the host memory into which files are read.
inline constexpr std::uint64_t kAlignment = 8;

/// Checks at compile time that a tensor is in memory of backend B (for example Cpu) and that a file can hold its type
/// of elements.
template <class B>
struct Storable {
  template <class T>
  static constexpr void tensor() {
    GATEFOLD_REQUIRE(
        (std::is_same_v<B, typename detail_::pack::Of<T>::Backend>),
        "gatefold: io needs tensors and a context of the same backend, for example Cpu tensors and a Cpu::Context");
    dtype<typename detail_::pack::Of<T>::Element>();
  }
};
/// Calls f(name, tensor) for every tensor of every part (a pack with a prefix for names). All tensors must be in memory
/// of backend B.
template <class B, class F, class... P>
void visit(const F& f, const Part<P>&... parts) {
  (detail_::pack::visit_any<Storable<B>>(f, Name{nullptr, parts.prefix}, false, parts.pack), ...);
}
/// Calls f(T{}), with T the element type of a tensor: float, double or Index. Files hold no other types.
void with_element(const AnyTensor& tensor, const auto& f) {
  if (tensor.type == AnyTensor::type_of<float>()) return f(float{});
  if (tensor.type == AnyTensor::type_of<double>()) return f(double{});
  f(Index{});
}

/// Collects name, type and shape of the tensors to save or to load. The names must differ.
class Entries {
 public:
  explicit Entries(const char* where) : where_(where) {}
  /// Adds one tensor to the list.
  /// @throws ArgumentError if the list already has this name, or the name is `__metadata__`
  void add(const Name& at, const char* dtype, std::uint64_t bytes, std::vector<std::uint64_t> shape,
           bool skipped = false) {
    std::string name = at.str();
    expect(name != "__metadata__", where_, "tensor name", "any name except \"__metadata__\"", name);
    expect(names_.insert(name).second, where_, "tensor names", "distinct names", "two of \"" + name + "\"");
    list.push_back({std::move(name), dtype, std::move(shape), bytes, {{0, bytes}}, skipped});
  }
  std::vector<Entry> list;

 private:
  const char* where_;
  std::set<std::string> names_;
};

/// A visitor that adds each tensor to the list of tensors to save or to load.
struct AddEntry {
  Entries& all;
  void operator()(const Name& at, const AnyTensor* tensor) const {
    with_element(*tensor, [&]<class T>(T) {
      all.add(at, dtype<T>(), static_cast<std::uint64_t>(tensor->size) * sizeof(T),
              {tensor->extents, tensor->extents + tensor->rank}, tensor->skipped);
    });
  }
};
/// Returns name, type and shape of all tensors of the parts (packs with prefixes for names).
/// @throws ArgumentError if two tensors have the same name, or one is called `__metadata__`
template <class B, class... P>
std::vector<Entry> entries(const char* where, const Part<P>&... parts) {
  Entries all(where);
  visit<B>(AddEntry{all}, parts...);
  return std::move(all.list);
}

/// Returns whether two shapes are equal except for leading extents of 1. For example, [1, D, H] of one expert in a bank
/// matches [D, H] of a single expert.
inline bool same_but_for_leading_ones(const std::vector<std::uint64_t>& a, const std::vector<std::uint64_t>& b) {
  const auto rest = [](const auto& shape) {
    return std::find_if(shape.begin(), shape.end(), [](std::uint64_t n) { return n != 1; });
  };
  return std::equal(rest(a), a.end(), rest(b), b.end());
}

/// Checks that the tensors in the header of a file have the types and shapes of the caller's list, and throws FileError
/// otherwise. A tensor with Entry::skipped may have any shape in the file, because older checkpoints contain optimizer
/// moments of tensors that are not learned.
/// @param by_name  maps the name of each tensor to its index in the list; it must have all names of the header
/// @param found    in, out; set to true for the tensors of the list that the header has
/// @return for each tensor of the header, its index in the list
template <class Json = nlohmann::json>
std::vector<std::size_t> match(const RegularFile& from, const Header& header, const std::vector<Entry>& list,
                               const std::unordered_map<std::string_view, std::size_t>& by_name,
                               std::vector<bool>& found) {
  std::vector<std::size_t> places;
  for (const Described& t : header.tensors) {
    const std::size_t i = by_name.at(header.name(t));
    const Entry& entry = list[i];
    const auto fail = [&](const std::string& reason) {
      from.fail(8, "tensor " + in_quotes<Json>(entry.name) + ": " + reason);
    };
    if (t.dtype->name != entry.dtype)
      fail(std::string("dtype: expected ") + entry.dtype + ", got " + in_quotes<Json>(t.dtype->name));
    const auto shape = header.shape(t);
    if (!entry.skipped && (t.rank > Header::kExtents || !same_but_for_leading_ones(shape, entry.shape))) {
      const std::string got = t.rank > Header::kExtents ? std::to_string(t.rank) + " dimensions" : shape_text(shape);
      fail("expected " + shape_text(entry.shape) + ", got " + got);
    }
    places.push_back(i);
    found[i] = true;
  }
  return places;
}

template <class C, class T>
void to_host(void* context, const void* from, Index begin, Index count, std::byte* to) {
  C::Backend::to_host(*static_cast<C*>(context), count, static_cast<const T*>(from) + begin, reinterpret_cast<T*>(to));
}
/// Returns the Source of a tensor in memory of the context's backend: the address, number and size of its elements, and
/// a function that copies them to host memory.
template <class C, class T>
Source source_of(const T* data, Index size) {
  return {data, size, sizeof(T), to_host<C, T>};
}
/// A visitor that appends the Source of each tensor to `all`: the address, number and size of its elements, and a
/// function that copies them to host memory.
template <class C>
struct AddSource {
  std::vector<Source>& all;
  void operator()(const Name&, const AnyTensor* tensor) const {
    with_element(*tensor, [&]<class T>(T) {
      all.push_back(source_of<C>(static_cast<const T*>(tensor->elements), tensor->size));
    });
  }
};

/// The bytes of all tensors of a list, as a load has read them into host memory. If the process needs only some slices
/// of a tensor (Entry::here), only these are read. Each tensor begins at a multiple of kAlignment.
struct Data {
  std::vector<std::byte> bytes;
  std::vector<std::uint64_t> begins;  // offset of each tensor in `bytes`
  Metadata metadata{};
};

/// Reads the tensors of a list from the file of a path, or from the files that its index lists. First checks their
/// types and shapes. Tensors of the list without elements can be missing in the files. An example is an optional tensor
/// of a policy that an earlier version of gatefold did not have.
/// @param only  true if other tensors in the files are an error, false if they are ignored
template <class Json = nlohmann::json>
Data read_entries(const std::filesystem::path& path, bool only, const std::vector<Entry>& list) {
  std::unordered_map<std::string_view, std::size_t> by_name;
  for (std::size_t i = 0; i < list.size(); ++i) by_name.emplace(list[i].name, i);
  Opened from = open(path, [&](const std::string& name) { return !only || by_name.contains(name); });
  std::vector<bool> found(list.size());  // a tensor without elements counts as found
  for (std::size_t i = 0; i < list.size(); ++i) found[i] = list[i].bytes == 0;
  std::vector<std::vector<std::size_t>> places;  // for each file: index in `list` of each of its tensors
  for (OpenFile& part : from.files) {
    std::erase_if(part.header.tensors, [&](const Described& t) { return !by_name.contains(part.header.name(t)); });
    places.push_back(match<Json>(part.file, part.header, list, by_name, found));
  }
  if (const auto missing = std::find(found.begin(), found.end(), false); missing != found.end()) {
    const std::string name = in_quotes<Json>(list[static_cast<std::size_t>(missing - found.begin())].name);
    if (from.files.size() != 1) throw FileError(path.string() + ": tensor " + name + ": missing");
    from.files.front().file.fail("tensor " + name + ": missing");
  }

  Data data;
  std::uint64_t size = 0;
  for (const Entry& entry : list) {
    data.begins.push_back(size);
    for (const Slice& slice : entry.here) size += slice.count;
    size = divide_up(size, kAlignment) * kAlignment;
  }
  data.bytes.resize(size);
  for (std::size_t f = 0; f < places.size(); ++f) {
    OpenFile& part = from.files[f];
    for (std::size_t i = 0; i < places[f].size(); ++i) {
      std::byte* to = data.bytes.data() + data.begins[places[f][i]];
      for (const Slice& slice : list[places[f][i]].here) {
        part.file.read(to, slice.count, part.header.data_begin + part.header.tensors[i].begin + slice.begin);
        to += slice.count;
      }
    }
  }
  data.metadata = std::move(from.metadata);
  return data;
}

#if defined(GATEFOLD_IO_KERNEL)
GATEFOLD_IO_KERNEL Data read_entries<nlohmann::json>(const std::filesystem::path&, bool, const std::vector<Entry>&);
#endif

}  // namespace safetensors

/// Writes packs of tensors to a safetensors file: `save(path, ctx, {{"step", "12"}}, Part{"params", params})`.
///
/// Source: https://github.com/huggingface/safetensors, section "Format".
/// @param metadata  strings kept in the header
/// @param parts     packs of float (F32), double (F64) and Index (I64) tensors, with the prefix of their names
/// @param options   the largest size of a file: `save(path, ctx, {}, {.max_file_bytes = 5'000'000'000}, Part{"params",
///                  params})`. If the tensors are larger, `NAME.safetensors` becomes
///                  `NAME-CONTENT-00001-of-00003.safetensors`, …, and the index `NAME.safetensors.index.json`. The
///                  index is replaced in one step after all parts are on the disk. Until then the previous save of the
///                  path (one file or several parts) is complete; afterwards the previous save is deleted
/// @throws ArgumentError if two tensors have the same name, a text is not UTF-8, an option is invalid, `path` ends with
///         `.json`, or `path` is a symbolic link and the tensors need several files; FileError if the files cannot be
///         written. An existing save is unchanged then, and no other file is left
/// @cost   one copy in pieces of 4 MiB; a file appears in one step, by a rename, after it is on the disk
/// @order  tensors by decreasing size of an element (I64, F64, F32), then by name, as in the reference implementation.
///         Each tensor is aligned, and the same data gives the same bytes
template <class C, class... P>
void save(const std::filesystem::path& path, C& ctx, const Metadata& metadata, const SaveOptions& options,
          const Part<P>&... parts) {
  using B = typename C::Backend;
  std::vector<safetensors::Entry> list = safetensors::entries<B>("io::save", parts...);
  std::vector<safetensors::Source> sources;
  safetensors::visit<B>(safetensors::AddSource<C>{sources}, parts...);
  safetensors::write_files(path, metadata, std::move(list), options, &ctx, sources);
}
template <class C, class... P>
void save(const std::filesystem::path& path, C& ctx, const Metadata& metadata, const Part<P>&... parts) {
  save(path, ctx, metadata, SaveOptions{}, parts...);
}

namespace safetensors {

/// A visitor that loads each tensor: copies its elements from host memory at bytes + *begin, and then advances `begin`
/// to the offset of the next tensor.
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
/// Loads the tensors of the parts (packs with prefixes for names) from the file at `path`, or from the files that an
/// index lists.
/// @param only  if true, other tensors in the files are an error; if false, other tensors are ignored
template <class C, class... P>
Metadata load(const std::filesystem::path& path, C& ctx, bool only, const Part<P>&... parts) {
  GATEFOLD_REQUIRE((!std::is_const_v<P> && ...), "gatefold: io::load writes into its packs, so they must not be const");
  using B = typename C::Backend;
  Data data = read_entries(path, only, entries<B>("io::load", parts...));
  visit<B>(Fill<C>{ctx, data.bytes.data(), data.begins.data()}, parts...);
  return std::move(data.metadata);
}

}  // namespace safetensors

/// Reads a safetensors file, or the files that an index lists, into packs of tensors that already have their shapes:
/// `load(path, ctx, Part{"params", params})`.
///
/// The file must have exactly the tensors of the parts. Only tensors without elements, for example the bias of a layer
/// without bias, can be missing. Leading extents of 1 can be present or absent. Everything is read and checked before
/// the first tensor is written, so after an exception nothing has changed.
/// @return the metadata of the file
/// @throws FileError with path, offset and reason if the file is missing, truncated, too long or not safetensors, or if
///         a tensor is missing, unexpected or has a different type or shape; ArgumentError if two tensors of the parts
///         have the same name
/// @cost   while load runs, host memory of the size of the parts' tensors, whatever size the file declares
template <class C, class... P>
Metadata load(const std::filesystem::path& path, C& ctx, const Part<P>&... parts) {
  return safetensors::load(path, ctx, true, parts...);
}
/// Loads packs from a file like load, but ignores other tensors of the file. Use it for a part of a model, or for a
/// part of the tensors of a training run.
template <class C, class... P>
Metadata load_subset(const std::filesystem::path& path, C& ctx, const Part<P>&... parts) {
  return safetensors::load(path, ctx, false, parts...);
}

namespace safetensors {

template <class P>
concept Pack = requires(P& pack) {
  P::each(0, pack);
};
template <class... A>
inline constexpr bool begins_with_metadata = false;
template <class First, class... A>
inline constexpr bool begins_with_metadata<First, A...> = std::is_convertible_v<const First&, Metadata>;

template <class C>
void refuse() {
  GATEFOLD_REQUIRE(std::is_void_v<C>,
                   "gatefold: io::save takes metadata (may be {}) and Parts, which are a prefix of names and a pack, "
                   "and io::load takes Parts: io::save(path, ctx, metadata, Part{prefix, params}), io::load(path, ctx, "
                   "Part{prefix, params}); see docs/how-to/checkpoints.md");
}

}  // namespace safetensors

/// Overloads of save and load for wrong arguments. They stop the compilation with a static_assert that shows how to
/// call save and load.
template <class C, class... A, class = std::enable_if_t<!safetensors::begins_with_metadata<A...>>>
void save(const std::filesystem::path&, C&, const A&...) {
  safetensors::refuse<C>();
}
template <class C, safetensors::Pack P>
void save(const std::filesystem::path&, C&, const Metadata&, P&) {
  safetensors::refuse<C>();
}
template <class C, safetensors::Pack P>
void load(const std::filesystem::path&, C&, P&) {
  safetensors::refuse<C>();
}

/// Returns the metadata strings of a safetensors file or of an index. The file may contain any tensors.
///
/// @throws FileError with path, offset and reason if the file is missing, truncated, too long or not safetensors
/// @cost   reads only the header, or the index and the headers of its files
inline Metadata read_metadata(const std::filesystem::path& path) {
  return safetensors::open(path, [](const std::string&) { return true; }).metadata;
}
/// Returns the names of the tensors of a safetensors file, or of the tensors that an index lists.
/// @throws FileError in the same cases as read_metadata
inline std::set<std::string> read_names(const std::filesystem::path& path) {
  std::set<std::string> names;
  for (const auto& part : safetensors::open(path, [](const std::string&) { return true; }).files)
    for (const auto& t : part.header.tensors) names.emplace(part.header.name(t));
  return names;
}

}  // namespace gatefold::io
