#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <filesystem>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/backend/shapes.hpp"
#include "gatefold/core/bfloat16.hpp"
#include "gatefold/core/weights.hpp"
#include "gatefold/io/layout.hpp"
#include "gatefold/io/safetensors.hpp"
#include "gatefold/io/safetensors_header.hpp"
#include "gatefold/io/save.hpp"
#include "gatefold/io/tensor_files.hpp"
#include "gatefold/layer/frozen.hpp"
#include "gatefold/train/load_parameters.hpp"

/// Files of frozen parameters with weights of 8 or 4 bits.
namespace gatefold::io {

/// Writes frozen parameters to a safetensors file. load_frozen reads the file on any processor:
///
///     io::save_frozen("model.safetensors", ctx, freeze(ctx, std::move(params), {.weights = Weights::int4}));
///     const auto frozen = io::load_frozen("model.safetensors", ctx, model);
///
/// A quantised tensor NAME [E, depth, columns] becomes two tensors. backend/cpu/quantised_bytes.hpp explains their
/// elements:
///
///     NAME.int8                 I8    [E, depth, columns]          or
///     NAME.int4 or NAME.mxfp4   U8    [E, ⌈depth / 2⌉, columns]
///     NAME.scale                BF16  [E, ⌈depth / 32⌉, columns]
///
/// Tensors with a packed copy of bfloat16 are stored as BF16, others as `save` stores them. load_frozen reads both as
/// plain floats without a packed copy.
/// @param metadata  strings kept in the header
/// @throws FileError as `save`; ArgumentError if a tensor has no elements, and its packed copy is not quantised
/// @cost   memory for the numbers and scales of one tensor
template <class C, class P, class B>
void save_frozen(const std::filesystem::path& path, C& ctx, const FrozenParams<P, B>& frozen,
                 const Metadata& metadata = {}, const SaveOptions& options = {});

/// Returns the frozen float parameters of a model from a file of save_frozen. Quantised tensors exist only in packed
/// form, so they cannot be trained. Results have the same bits as before the parameters were saved.
/// @throws FileError that names the tensor if one is missing or unexpected, if its type, its shape or a number does not
///         fit, or if there are two forms of it; ArgumentError if options of the model do not fit, as init does
/// @cost   memory for the parameters, and for the largest tensor while it runs
template <class C, class M>
auto load_frozen(const std::filesystem::path& path, C& ctx, const M& model);

namespace frozen_file {

inline constexpr Weights forms[] = {Weights::int8, Weights::int4, Weights::mxfp4};
inline const char* suffix(Weights form) {
  return form == Weights::int8 ? ".int8" : form == Weights::int4 ? ".int4" : ".mxfp4";
}
inline const char* dtype(Weights form) { return form == Weights::int8 ? "I8" : "U8"; }

/// Returns the shape [E, rows, columns] of the numbers or scales of a quantised tensor.
template <class Bytes>
std::vector<std::uint64_t> shape(const Bytes& of, Index rows) {
  return {static_cast<std::uint64_t>(of.experts), static_cast<std::uint64_t>(rows),
          static_cast<std::uint64_t>(of.columns)};
}

/// A quantised tensor that is written. Its numbers and scales are computed when the first of them is written.
template <class B>
struct Quantised {
  typename B::QuantisedMatrix matrix;
  typename B::QuantisedBytes bytes;
  bool scales;  // whether this describes the scales
};
/// The context of the functions that copy elements to the file.
template <class C>
struct Writing {
  C& ctx;
  const void* current = nullptr;  // the matrix whose numbers and scales are in memory
  std::vector<std::byte> numbers{};
  std::vector<Bfloat16> scales{};

  template <class T>
  static void to_host(void* self, const void* data, Index at, Index count, std::byte* to) {
    safetensors::to_host<C, T>(&static_cast<Writing*>(self)->ctx, data, at, count, to);
  }
  /// Copies floats, rounded to bfloat16.
  static void rounded(void* self, const void* data, Index at, Index count, std::byte* to) {
    std::vector<float> values(static_cast<std::size_t>(count));
    to_host<float>(self, data, at, count, reinterpret_cast<std::byte*>(values.data()));
    for (const float value : values) {
      const Bfloat16 half = Bfloat16::from(value);
      std::memcpy(to, &half, sizeof(half));
      to += sizeof(half);
    }
  }
  static void quantised(void* self, const void* data, Index at, Index count, std::byte* to) {
    Writing& w = *static_cast<Writing*>(self);
    const auto& of = *static_cast<const Quantised<typename C::Backend>*>(data);
    if (w.current != of.matrix.data) {
      w.numbers.resize(static_cast<std::size_t>(of.bytes.numbers()));
      w.scales.resize(static_cast<std::size_t>(of.bytes.scales()));
      of.bytes.write(of.matrix, w.numbers.data(), w.scales.data());
      w.current = of.matrix.data;
    }
    if (of.scales)
      std::memcpy(to, w.scales.data() + at, static_cast<std::size_t>(count) * sizeof(Bfloat16));
    else
      std::memcpy(to, w.numbers.data() + at, static_cast<std::size_t>(count));
  }
};

/// Returns the packed copy of a tensor, or null.
template <class B, class T, int Rank>
auto packed_copy(const typename B::PackedWeights& packed, const View<const T, Rank, B>& t) {
  if constexpr (Rank == 3 && std::is_same_v<T, float>)
    return B::packed_copy(packed, t.data());
  else
    return decltype(B::template packed_copy<float>(packed, nullptr)){};
}

/// Reads one quantised tensor into reserved memory, and gives `t` its address.
template <class B, class T>
void read_quantised(const TensorFiles& files, const std::string& name, Weights form, Index experts, Index depth,
                    Index columns, typename B::PackedWeights& packed, Tensor<T, 3, B>& t) {
  const typename B::QuantisedBytes bytes{form, experts, depth, columns};
  const std::string of_numbers = name + suffix(form), of_scales = name + ".scale";
  const auto expect_tensor = [&](const std::string& tensor, const char* type, Index rows) {
    if (!files.contains(tensor)) files.fail(tensor, "missing");
    const TensorInfo& info = files.info(tensor);
    if (info.dtype != type)
      files.fail(tensor, std::string("dtype: expected ") + type + ", got " + std::string(info.dtype));
    if (info.shape != shape(bytes, rows))
      files.fail(tensor, "expected " + safetensors::shape_text(shape(bytes, rows)) + ", got " +
                             safetensors::shape_text(info.shape));
  };
  expect_tensor(of_numbers, dtype(form), bytes.number_rows());
  expect_tensor(of_scales, "BF16", bytes.scale_rows());
  const std::vector<std::byte> numbers = files.read_bytes(of_numbers), scales = files.read_bytes(of_scales);
  if (const Index at = bytes.wrong_number(numbers.data()); at >= 0)
    files.fail(of_numbers, "expected numbers from -127 to 127, got -128 as number " + std::to_string(at));
  T* const address = B::template reserve_packed<T>(experts, depth, columns, form, packed);
  std::vector<Bfloat16> of_groups(static_cast<std::size_t>(bytes.scales()));
  std::memcpy(of_groups.data(), scales.data(), scales.size());
  bytes.read(numbers.data(), of_groups.data(), packed.reserved(address));
  t.resize_without_memory(address, experts, depth, columns);
}

/// Reads each tensor of a pack, with the extents of the same tensor in another pack.
template <class C>
struct Read {
  using B = typename C::Backend;
  C& ctx;
  const TensorFiles& files;
  typename B::PackedWeights& packed;
  mutable const std::string* next;  // the name of the next tensor
  std::set<std::string>& read;      // the names of the tensors that were read

  template <class To, class Like>
  void operator()(To& t, const Like& like) const {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(like.data())>>;
    const std::string& name = *next++;
    if constexpr (std::is_same_v<To, Tensor<float, 3, B>>) {
      bool found = files.contains(name);
      for (const Weights form : forms) {
        if (!files.contains(name + suffix(form))) continue;
        if (found) files.fail(name + suffix(form), "another form of the same tensor");
        found = true;
        read.insert(name + suffix(form));
        read.insert(name + ".scale");
        read_quantised(files, name, form, like.extent(0), like.extent(1), like.extent(2), packed, t);
      }
      if (found && !files.contains(name)) return;
    }
    t.resize_like(like);
    if (!files.contains(name)) {
      if (like.size() == 0) return;
      files.fail(name, "missing");
    }
    read.insert(name);
    std::vector<std::uint64_t> shape;
    for (int i = 0; i < To::rank; ++i) shape.push_back(static_cast<std::uint64_t>(like.extent(i)));
    if (files.info(name).shape != shape)
      files.fail(name, "expected " + safetensors::shape_text(shape) + ", got " +
                           safetensors::shape_text(files.info(name).shape));
    B::from_host(ctx, t.size(), files.read<T>(name).data(), t.data());
  }
};

}  // namespace frozen_file

template <class C, class P, class B>
void save_frozen(const std::filesystem::path& path, C& ctx, const FrozenParams<P, B>& frozen, const Metadata& metadata,
                 const SaveOptions& options) {
  using Writing = frozen_file::Writing<C>;
  safetensors::Entries all("io::save_frozen");
  std::vector<safetensors::Source> sources;
  std::deque<frozen_file::Quantised<B>> quantised;  // a deque, because sources point to its elements
  const auto add = [&]<class T, int Rank>(const Name& at, const View<const T, Rank, B>& t) {
    const auto packed = frozen_file::packed_copy<B>(frozen.packed, t);
    if constexpr (Rank == 3)
      if (const typename B::QuantisedMatrix matrix = packed.quantised) {
        const Weights form = matrix.format->form;
        const typename B::QuantisedBytes bytes{form, t.extent(0), t.extent(1), t.extent(2)};
        const auto part = [&](bool scales, const std::string& name, const char* type, Index rows, std::size_t element) {
          const Index size = t.extent(0) * rows * t.extent(2);
          quantised.push_back({matrix, bytes, scales});
          all.add(Name{nullptr, name}, type, static_cast<std::uint64_t>(size) * element,
                  frozen_file::shape(bytes, rows));
          sources.push_back({&quantised.back(), size, element, &Writing::quantised});
        };
        part(false, at.str() + frozen_file::suffix(form), frozen_file::dtype(form), bytes.number_rows(), 1);
        part(true, at.str() + ".scale", "BF16", bytes.scale_rows(), sizeof(Bfloat16));
        return;
      }
    std::vector<std::uint64_t> shape;
    for (int i = 0; i < Rank; ++i) shape.push_back(static_cast<std::uint64_t>(t.extent(i)));
    const bool half = static_cast<bool>(packed.half);
    const std::size_t element = half ? sizeof(Bfloat16) : sizeof(T);
    all.add(at, half ? "BF16" : safetensors::dtype<T>(), static_cast<std::uint64_t>(t.size()) * element,
            std::move(shape));
    sources.push_back({t.data(), t.size(), element, half ? &Writing::rounded : &Writing::template to_host<T>});
  };
  for_each_tensor([&](const Name& at, const auto& t) { add(at, t.view()); }, frozen.params);
  Writing writing{ctx};
  safetensors::write_files(path, metadata, std::move(all.list), options, &writing, sources);
}

template <class C, class M>
auto load_frozen(const std::filesystem::path& path, C& ctx, const M& model) {
  using B = typename C::Backend;
  const TensorFiles files(path);
  Shapes::Context of_shapes;
  const auto shapes = init_params<float, Shapes>(detail_::lookup::with_init<float, Shapes>(model), of_shapes, Seed{});
  std::vector<std::string> names;
  for_each_tensor([&](const Name& at, const auto&) { names.push_back(at.str()); }, shapes);
  FrozenParams<ParametersOf<float, C, M>, B> frozen;
  const auto here = ctx.here();
  std::set<std::string> read;
  const frozen_file::Read<C> leaf{ctx, files, frozen.packed, names.data(), read};
  detail_::pack::structure_like(frozen.params, shapes, leaf);
  for (const TensorInfo& info : files.tensors())
    if (!read.contains(info.name)) files.fail(info.name, "unexpected");
  return frozen;
}

}  // namespace gatefold::io
