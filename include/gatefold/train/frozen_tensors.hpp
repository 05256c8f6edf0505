#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/backend/panels.hpp"
#include "gatefold/backend/quantised_bytes.hpp"
#include "gatefold/io/safetensors.hpp"
#include "gatefold/io/save.hpp"
#include "gatefold/io/tensor_files.hpp"
#include "gatefold/layer/frozen.hpp"

/// Writes and reads the tensors of a file of frozen parameters (frozen_file.hpp).
namespace gatefold::io::frozen_file {

inline constexpr Weights forms[] = {Weights::unchanged, Weights::bfloat16, Weights::int8, Weights::int4,
                                    Weights::mxfp4};
inline const char* suffix(Weights form) {
  constexpr const char* of_form[] = {".f32", ".bf16", ".int8", ".int4", ".mxfp4"};
  return of_form[static_cast<std::size_t>(form)];
}
/// The end of the name of a tensor that holds the bytes of a packed copy (backend/panels.hpp).
inline constexpr const char* panels_suffix = ".panels";
/// Returns the name of the tensor with the bytes of the packed copy of tensor `name`.
inline std::string panels_name(const std::string& name, Weights form) { return name + suffix(form) + panels_suffix; }
inline constexpr Index most_columns = 1024;  // the widest panel that is read
inline const char* dtype(Weights form) { return form == Weights::int8 ? "I8" : "U8"; }
inline const char* dtype_of_panels(Weights form) {
  return is_quantised(form) ? "U8" : form == Weights::bfloat16 ? "BF16" : "F32";
}

/// Returns the shape [E, rows, columns] of the numbers or scales of a quantised tensor.
inline std::vector<std::uint64_t> shape(const QuantisedBytes& of, Index rows) {
  return {static_cast<std::uint64_t>(of.experts), static_cast<std::uint64_t>(rows),
          static_cast<std::uint64_t>(of.columns)};
}

template <class T>
std::vector<std::uint64_t> extents(const T& tensor) {
  std::vector<std::uint64_t> shape;
  for (int i = 0; i < T::rank; ++i) shape.push_back(static_cast<std::uint64_t>(tensor.extent(i)));
  return shape;
}

/// True if output layers have a packed copy on a backend.
template <class B>
inline constexpr bool packs_output = requires {
  &B::template packs_transposed<float>;
};
/// True if a backend can use packed copies of weights in a mapped file without copying them to other memory.
template <class B>
inline constexpr bool maps = requires {
  &B::share_packed;
};

/// Collects tensors, and writes them to a file.
template <class C>
class File {
 public:
  using B = typename C::Backend;

  /// @param mappable  if true, packed copies are written with the bytes that they have in memory, unless the backend
  ///         cannot read packed copies from a mapped file
  File(const typename B::PackedWeights& packed, bool mappable) : packed_(packed), mappable_(maps<B> && mappable) {}

  /// Adds all tensors of a pack. Their names in the file begin with `prefix`. Leaves out the tensor whose name in the
  /// file is `but`.
  template <class P>
  void add(const std::string& prefix, const P& pack, const std::string& but = "") {
    const std::vector<bool> only = detail_::lookup::only_products_read(pack);
    std::size_t next = 0;
    for_each_tensor(
        [&](const Name& at, const auto& t) {
          const std::string name = prefix + at.str();
          const bool multiplied = only[next++];
          if (name != but) add_tensor(name, t.view(), multiplied);
        },
        pack);
  }
  /// Adds the tensors of a loss with the output layer w [V, D].
  template <class P, class T>
  void add_loss(const P& loss, const View<const T, 2, B>& w) {
    if constexpr (packs_output<B>)
      if (const auto packed = B::packed_transposed(packed_, w.data())) {
        const std::string name = "loss.weight";
        add("loss.", loss, name);
        if constexpr (maps<B>)
          if (mappable_) return add_panels(name, B::panels(packed_, w.data(), 1, w.extent(1), w.extent(0)));
        if (packed.quantised)
          return add_quantised(name, packed.quantised.format->form, w.data(), 1, w.extent(1), w.extent(0));
        return has_elements(w.data()) ? add_elements(name, w, true) : add_unpacked(name, w, packed);
      }
    add("loss.", loss);
  }
  /// Adds a packed copy with its bytes as they are in memory.
  void add_panels(const std::string& name, const Panels& panels) {
    const std::size_t element = is_quantised(panels.form) ? 1 : panels.form == Weights::bfloat16 ? 2 : 4;
    const auto copy = [panels, element](C&, Index at, Index count, std::byte* to) {
      std::memcpy(to, panels.data + static_cast<std::size_t>(at) * element, static_cast<std::size_t>(count) * element);
    };
    add_source(panels_name(name, panels.form), dtype_of_panels(panels.form), panels.shape(),
               panels.bytes() / static_cast<Index>(element), element, copy);
    all_.list.back().aligned = true;
  }
  /// Adds the numbers and scales of a tensor [E, depth, columns] that has a packed copy of 8 or 4 bits. Numbers and
  /// scales are computed together when the first of these two is written.
  void add_quantised(const std::string& name, Weights form, const float* weights, Index experts, Index depth,
                     Index columns) {
    const QuantisedBytes bytes{form, experts, depth, columns};
    const auto part = [&](bool scales, const std::string& of, const char* type, Index rows) {
      const std::size_t element = scales ? sizeof(Bfloat16) : 1;
      add_source(of, type, shape(bytes, rows), experts * rows * columns, element,
                 [this, weights, bytes, scales, element](C& ctx, Index at, Index count, std::byte* to) {
                   if (std::exchange(current_, weights) != weights) {
                     numbers_.resize(static_cast<std::size_t>(bytes.numbers()));
                     scales_.resize(static_cast<std::size_t>(bytes.scales()));
                     B::write_quantised(ctx, packed_, weights, bytes, numbers_.data(), scales_.data());
                   }
                   const void* const from =
                       scales ? static_cast<const void*>(scales_.data() + at) : numbers_.data() + at;
                   std::memcpy(to, from, static_cast<std::size_t>(count) * element);
                 });
    };
    part(false, name + suffix(form), dtype(form), bytes.number_rows());
    part(true, name + ".scale", "BF16", bytes.scale_rows());
  }
  /// Adds a tensor with its elements, which are rounded to bfloat16 if `half` is true.
  template <class T, int Rank>
  void add_elements(const std::string& name, const View<const T, Rank, B>& t, bool half) {
    add_values(name, t, half, [t](C& ctx, Index at, Index count, T* to) { B::to_host(ctx, count, t.data() + at, to); });
  }
  /// Adds a tensor that has a packed copy, but no elements. The packed copy is not quantised, and the values are read
  /// from it. A tensor of rank 2 is [columns, depth].
  template <class T, int Rank, class Matrix>
  void add_unpacked(const std::string& name, const View<const T, Rank, B>& t, const Matrix& matrix) {
    constexpr bool transposed = Rank == 2;
    const Index depth = t.extent(transposed ? 1 : Rank - 2), columns = t.extent(transposed ? 0 : Rank - 1);
    add_values(name, t, matrix.half, [=](C&, Index at, Index count, T* to) {
      for (Index i = at; i < at + count; ++i) {
        const Index e = i / (depth * columns), rest = i % (depth * columns);
        *to++ = transposed ? matrix.value(i % depth, i / depth, depth, columns)
                           : matrix.expert(e, depth, columns).value(rest / columns, rest % columns, depth, columns);
      }
    });
  }
  void write(const std::filesystem::path& path, C& ctx, const Metadata& metadata, const SaveOptions& options) {
    safetensors::write_files(path, metadata, std::move(all_.list), options, &ctx, sources_);
  }

 private:
  // @param multiplied  whether only matrix products read the tensor; they read its packed copy instead of its elements
  template <class T, int Rank>
  void add_tensor(const std::string& name, const View<const T, Rank, B>& t, bool multiplied) {
    bool half = false;
    if constexpr (Rank == 3 && std::is_floating_point_v<T>) {
      const Weights form = B::packed_form(packed_, t);
      if constexpr (maps<B> && std::is_same_v<T, float>)
        if (mappable_ && multiplied)
          if (const Panels panels = B::panels(packed_, t.data(), t.extent(0), t.extent(1), t.extent(2)))
            return add_panels(name, panels);
      if constexpr (std::is_same_v<T, float>)
        if (is_quantised(form)) return add_quantised(name, form, t.data(), t.extent(0), t.extent(1), t.extent(2));
      if constexpr (requires { B::packed_copy(packed_, t.data()); })
        if (const auto packed = B::packed_copy(packed_, t.data()); packed && !has_elements(t.data()))
          return add_unpacked(name, t, packed);
      half = multiplied && form == Weights::bfloat16;
    }
    add_elements(name, t, half);
  }
  /// Adds a tensor. The function read(ctx, at, count, to) copies its elements to host memory.
  template <class T, int Rank, class F>
  void add_values(const std::string& name, const View<const T, Rank, B>& t, bool half, const F& read) {
    add_source(name, half ? "BF16" : safetensors::dtype<T>(), extents(t), t.size(), half ? sizeof(Bfloat16) : sizeof(T),
               [half, read](C& ctx, Index at, Index count, std::byte* to) {
                 if (!half) return read(ctx, at, count, reinterpret_cast<T*>(to));
                 std::vector<T> values(static_cast<std::size_t>(count));
                 read(ctx, at, count, values.data());
                 safetensors::encode("BF16", values.data(), values.size(), to);
               });
  }
  using Copy = std::function<void(C& ctx, Index at, Index count, std::byte* to)>;
  void add_source(const std::string& name, const char* type, std::vector<std::uint64_t> shape, Index size,
                  std::size_t element, Copy copy) {
    all_.add(Name{nullptr, name}, type, static_cast<std::uint64_t>(size) * element, std::move(shape));
    copies_.push_back(std::move(copy));
    const auto call = [](void* ctx, const void* of, Index at, Index count, std::byte* to) {
      (*static_cast<const Copy*>(of))(*static_cast<C*>(ctx), at, count, to);
    };
    sources_.push_back({&copies_.back(), size, element, call});
  }

  const typename B::PackedWeights& packed_;
  bool mappable_;
  safetensors::Entries all_{"io::save_frozen"};
  std::vector<safetensors::Source> sources_{};
  std::deque<Copy> copies_{};       // the functions to which sources_ point
  const float* current_ = nullptr;  // the weights to which the contents of numbers_ and scales_ belong
  std::vector<std::byte> numbers_{};
  std::vector<Bfloat16> scales_{};
};

/// Reads the tensors of a file, and records their names. A tensor points into the mapped file if the file has panels
/// (the option `mappable` of save_frozen) and the backend can use the bytes of the tensor without a change.
template <class C>
class Reader {
 public:
  using B = typename C::Backend;
  using Packed = typename B::PackedWeights;

  Reader(const std::filesystem::path& path, C& ctx, Packed& packed) : ctx_(ctx), files_(path), packed_(packed) {
    for (const TensorInfo& info : files_.tensors()) {
      mappable_ = mappable_ || info.name.ends_with(panels_suffix);
      for (const Weights form : forms)
        packed_form_ = packed_form_ || (is_quantised(form) && info.name.ends_with(suffix(form)));
    }
    packed_form_ = packed_form_ || mappable_;
  }

  /// Gives the pack `to` the structure of the pack `like`, and reads the tensors of `to`. Their names in the file begin
  /// with `prefix`.
  template <class To, class Like>
  void read_pack(const std::string& prefix, To& to, const Like& like) {
    std::vector<std::string> names;
    for_each_tensor([&](const Name& at, const auto&) { names.push_back(prefix + at.str()); }, like);
    const std::vector<bool> only = detail_::lookup::only_products_read(like);
    std::size_t next = 0;
    detail_::pack::structure_like(to, like, Leaf{*this, names, only, next});
  }
  /// Reads a tensor as elements, not as a packed copy. Gives the tensor the extents of `like`. If the file has panels
  /// and the backend can use mapped memory, the tensor points to its elements in the mapped file unless share_elements
  /// returns false.
  template <class To, class Like>
  void read_plain(const std::string& name, To& t, const Like& like) {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(like.data())>>;
    if constexpr (maps<B>)
      if (mappable_ && like.size() > 0 && share_elements<T>(name, t, like)) return;
    t.resize_like(like);
    if (like.size() == 0 && !files_.contains(name)) return;
    const std::vector<T> values = read_values<T>(name, extents(like));
    B::from_host(ctx_, t.size(), values.data(), t.data());
  }
  /// Reads the elements of a tensor, which must have the shape `shape`. If the file has panels of the tensor that are
  /// not quantised, their weights become floats; `shape` is then [E, depth, columns], or [columns, depth] for an output
  /// layer.
  template <class T>
  std::vector<T> read_values(const std::string& name, const std::vector<std::uint64_t>& shape) {
    if constexpr (std::is_same_v<T, float>)
      if (const Weights* form = form_of_panels(name);
          form && !is_quantised(*form) && (shape.size() == 2 || shape.size() == 3)) {
        std::vector<Index> n(shape.begin(), shape.end());
        const bool transposed = n.size() == 2;
        if (transposed) n = {1, n[1], n[0]};
        const Panels panels = read_panels(panels_name(name, *form), *form, n[0], n[1], n[2]);
        std::vector<float> values(static_cast<std::size_t>(panels.experts * panels.depth * panels.columns));
        panels.to_floats(values.data(), transposed);
        return values;
      }
    read_.insert(name);
    expect_shape(name, shape);
    return files_.template read<T>(name);
  }
  /// Reads a tensor [E, depth, columns] if the file has a quantised form of this tensor (numbers or panels), or panels
  /// of another form that `share` accepts.
  /// @param share  a function share(panels, memory). If the backend can read panels with this order of bytes, the
  ///               function uses the panels in the mapped file without a copy and returns true
  /// @param take   a function take(bytes, numbers, scales), which stores the weights
  /// @return true if the tensor was read
  /// @throws FileError if the file also has another form of the tensor
  template <class Share, class Take>
  bool read_packed(const std::string& name, Index experts, Index depth, Index columns, const Share& share,
                   const Take& take) {
    const Weights *of_numbers = nullptr, *of_panels = nullptr;
    bool found = files_.contains(name);
    for (const Weights& form : forms) {
      const auto look = [&](const std::string& tensor, const Weights*& of) {
        if (!files_.contains(tensor)) return;
        if (std::exchange(found, true)) files_.fail(tensor, "another form of the same tensor");
        of = &form;
      };
      if (is_quantised(form)) look(name + suffix(form), of_numbers);
      look(panels_name(name, form), of_panels);
    }
    if (of_numbers) return read_form(name, {*of_numbers, experts, depth, columns}, take), true;
    if (!of_panels) return false;
    const std::string tensor = panels_name(name, *of_panels);
    const Panels panels = read_panels(tensor, *of_panels, experts, depth, columns);
    if (share(panels, files_.map(tensor))) return true;
    if (!is_quantised(panels.form)) return false;
    const QuantisedBytes bytes{panels.form, experts, depth, columns};
    std::vector<std::byte> numbers(static_cast<std::size_t>(bytes.numbers()));
    std::vector<Bfloat16> scales(static_cast<std::size_t>(bytes.scales()));
    panels.to_numbers(numbers.data(), scales.data());
    take_checked(bytes, {tensor, numbers.data()}, {tensor, scales.data()}, take);
    return true;
  }
  /// Returns whether the file stores a tensor as bfloat16, either as elements or as panels.
  bool has_halves(const std::string& name) const {
    const Weights* const form = form_of_panels(name);
    return form ? *form == Weights::bfloat16 : has(name, "BF16");
  }
  /// @throws FileError if the file has a tensor that was not read
  void expect_all_read() const {
    for (const TensorInfo& info : files_.tensors())
      if (!read_.contains(info.name)) files_.fail(info.name, "unexpected");
  }

 private:
  struct Leaf {
    Reader& reader;
    const std::vector<std::string>& names;
    const std::vector<bool>& only;  // whether only products read a tensor; a packed copy can then replace it
    std::size_t& next;

    template <class To, class Like>
    void operator()(To& t, const Like& like) const {
      const std::size_t at = next++;
      const std::string& name = names[at];
      if constexpr (std::is_same_v<To, Tensor<float, 3, B>>) {
        const Index experts = like.extent(0), depth = like.extent(1), columns = like.extent(2);
        const auto take = [&](const QuantisedBytes& of, const std::byte* numbers, const Bfloat16* scales) {
          float* const packed = B::template reserve_packed<float>(experts, depth, columns, of.form, reader.packed_);
          t.resize_without_memory(packed, experts, depth, columns);
          B::read_quantised(reader.ctx_, reader.packed_, packed, of, numbers, scales);
        };
        const auto share = [&]([[maybe_unused]] const Panels& panels,
                               [[maybe_unused]] const std::shared_ptr<std::byte>& memory) {
          float* packed = nullptr;
          if constexpr (maps<B>) packed = B::share_packed(panels, memory, reader.packed_);
          if (packed) t.resize_without_memory(packed, experts, depth, columns);
          return packed != nullptr;
        };
        if (only[at] && like.size() > 0) {
          if (reader.read_packed(name, experts, depth, columns, share, take)) return;
          // On a CPU, an expert with a hidden layer reads packed copies only if all its weight matrices have one.
          // Therefore tensors that are not packed in the file are packed here if the file has other packed tensors.
          if (B::template packs_only<float>(Weights::unchanged) && reader.packed_form_) {
            const Weights form = reader.has_halves(name) ? Weights::bfloat16 : Weights::unchanged;
            const std::vector<float> values = reader.template read_values<float>(name, extents(like));
            float* const packed = B::template reserve_packed<float>(experts, depth, columns, form, reader.packed_);
            t.resize_without_memory(packed, experts, depth, columns);
            return B::pack_experts(reader.ctx_, packed, 0,
                                   View<const float, 3, B>(values.data(), experts, depth, columns), reader.packed_);
          }
        }
      }
      reader.read_plain(name, t, like);
    }
  };

  void expect_shape(const std::string& name, const std::vector<std::uint64_t>& shape) const {
    if (files_.info(name).shape != shape)
      files_.fail(name, "expected " + safetensors::shape_text(shape) + ", got " +
                            safetensors::shape_text(files_.info(name).shape));
  }
  template <class F>
  void read_form(const std::string& name, const QuantisedBytes& bytes, const F& take) {
    const std::string of_numbers = name + suffix(bytes.form), of_scales = name + ".scale";
    const auto expect_tensor = [&](const std::string& tensor, const char* type, Index rows) {
      if (!files_.contains(tensor)) files_.fail(tensor, "missing");
      if (!has(tensor, type))
        files_.fail(tensor, std::string("dtype: expected ") + type + ", got " + std::string(files_.info(tensor).dtype));
      expect_shape(tensor, shape(bytes, rows));
      read_.insert(tensor);
    };
    expect_tensor(of_numbers, dtype(bytes.form), bytes.number_rows());
    expect_tensor(of_scales, "BF16", bytes.scale_rows());
    const std::vector<std::byte> numbers = files_.read_bytes(of_numbers), scales = files_.read_bytes(of_scales);
    std::vector<Bfloat16> of_groups(static_cast<std::size_t>(bytes.scales()));
    std::memcpy(of_groups.data(), scales.data(), scales.size());
    take_checked(bytes, {of_numbers, numbers.data()}, {of_scales, of_groups.data()}, take);
  }
  /// Checks the numbers and scales of a quantised tensor, and calls take(bytes, numbers, scales).
  /// @param numbers, scales  the name of the tensor in the file (for messages), and its values
  /// @throws FileError if a number or a scale is not allowed
  template <class F>
  void take_checked(const QuantisedBytes& bytes, const std::pair<std::string, const std::byte*>& numbers,
                    const std::pair<std::string, const Bfloat16*>& scales, const F& take) const {
    if (const Index at = bytes.wrong_number(numbers.second); at >= 0)
      files_.fail(numbers.first, "expected numbers from -127 to 127, got -128 as number " + std::to_string(at));
    if (const Index at = bytes.wrong_scale(scales.second); at >= 0)
      files_.fail(scales.first, "expected finite scales, got " + std::to_string(float(scales.second[at])) +
                                    " as number " + std::to_string(at));
    take(bytes, numbers.second, scales.second);
  }

  bool has(const std::string& name, const char* type) const {
    return files_.contains(name) && files_.info(name).dtype == type;
  }
  /// Returns the form of the panels of a tensor, or null if the file has no panels of this tensor.
  const Weights* form_of_panels(const std::string& name) const {
    for (const Weights& form : forms)
      if (mappable_ && files_.contains(panels_name(name, form))) return &form;
    return nullptr;
  }
  /// Returns the panels of weights [E, depth, columns] in the memory of the mapped file.
  /// @throws FileError if the tensor has another type or shape, or its address is not a multiple of the panels'
  ///         alignment
  Panels read_panels(const std::string& tensor, Weights form, Index experts, Index depth, Index columns) {
    const TensorInfo& info = files_.info(tensor);
    const auto extent = [&](std::size_t d) { return d < info.shape.size() ? static_cast<Index>(info.shape[d]) : 0; };
    if (info.dtype != dtype_of_panels(form))
      files_.fail(tensor, std::string("dtype: expected ") + dtype_of_panels(form) + ", got " + std::string(info.dtype));
    Panels panels{form, info.shape.size() == 4, experts, depth, columns};
    panels.width = extent(2) / (is_quantised(form) ? panels.bytes_of_column() : 1);
    if (columns > 0 && panels.width >= 1 && panels.width <= most_columns) panels.units = extent(1) / panels.panels();
    const Index units = divide_up(depth, panels.rows_of_unit()),
                most = panels.pairs ? divide_up(units, Index(16)) * 16 : units;  // with AMX, a multiple of 16 pairs
    if (!std::has_single_bit(static_cast<std::uint64_t>(panels.width)) || panels.units < units || panels.units > most ||
        (panels.pairs && form != Weights::bfloat16) || panels.shape() != info.shape)
      files_.fail(tensor, "expected panels of " +
                              safetensors::shape_text(shape({form, experts, depth, columns}, depth)) + ", got " +
                              safetensors::shape_text(info.shape));
    const std::shared_ptr<std::byte> memory = files_.map(tensor);
    const auto line = static_cast<std::uintptr_t>(std::min<Index>(2 * panels.width, safetensors::kLine));
    if (const std::uintptr_t after = reinterpret_cast<std::uintptr_t>(memory.get()) % line; after != 0)
      files_.fail(tensor, "expected to begin at a multiple of " + std::to_string(line) + " bytes, got " +
                              std::to_string(after) + " bytes after a multiple; write the file again with save_frozen");
    read_.insert(tensor);
    panels.data = memory.get();
    return panels;
  }
  /// Lets a tensor point to its elements in the mapped file.
  /// @return false if the elements in the file do not have type T, have scales, or are not aligned for T; the tensor is
  /// then unchanged
  template <class T, class To, class Like>
  bool share_elements(const std::string& name, To& t, const Like& like) {
    if (!has(name, safetensors::dtype<T>()) || files_.has_scales(name)) return false;
    expect_shape(name, extents(like));
    const std::shared_ptr<std::byte> memory = files_.map(name);
    if (reinterpret_cast<std::uintptr_t>(memory.get()) % alignof(T) != 0) return false;
    B::keep(packed_, memory);
    Tensor<T, To::rank, B> elements;  // t can be a Table, to which a tensor can be assigned
    const auto resize = [&]<std::size_t... D>(std::index_sequence<D...>) {
      elements.resize_without_memory(reinterpret_cast<T*>(memory.get()), like.extent(D)...);
    };
    resize(std::make_index_sequence<std::size_t{To::rank}>{});
    t = std::move(elements);
    read_.insert(name);
    return true;
  }

  C& ctx_;
  const TensorFiles files_;
  Packed& packed_;
  bool mappable_ = false;         // whether the file has panels
  bool packed_form_ = false;      // whether the file has panels or quantised tensors
  std::set<std::string> read_{};  // the names of the tensors that were read
};

}  // namespace gatefold::io::frozen_file
