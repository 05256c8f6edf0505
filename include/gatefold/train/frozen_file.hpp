#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "gatefold/backend/panels.hpp"
#include "gatefold/backend/quantised_bytes.hpp"
#include "gatefold/model/decoder.hpp"
#include "gatefold/train/frozen_tensors.hpp"
#include "gatefold/train/load_parameters.hpp"

/// Files of frozen parameters, also with weights of 8 or 4 bits.
namespace gatefold::io {

/// Options of save_frozen.
struct SaveFrozenOptions {
  /// Whether packed copies are written as they are in memory, so that load_frozen maps the file instead of reading it.
  /// Cuda and CudaBf16 ignore this option and write the usual file, because their copies are in memory of the device.
  bool mappable = false;
  Index max_file_bytes = 0;  // as in SaveOptions
};

/// Writes frozen parameters to a safetensors file. load_frozen reads the file on any processor and backend:
///
///     io::save_frozen("model.safetensors", ctx, freeze(ctx, std::move(params), {.weights = Weights::int4}));
///     const auto frozen = io::load_frozen("model.safetensors", ctx, model);
///
/// A quantised tensor NAME [E, depth, columns] becomes two tensors, one for numbers and one for scales
/// (backend/quantised_bytes.hpp explains the elements):
///
///     NAME.int8                 I8    [E, depth, columns]          or
///     NAME.int4 or NAME.mxfp4   U8    [E, ⌈depth / 2⌉, columns]
///     NAME.scale                BF16  [E, ⌈depth / 32⌉, columns]
///
/// Tensors with a packed copy of bfloat16 are stored as BF16, other tensors as `save` stores them. load_frozen reads
/// the tensors of these two kinds as plain floats without a packed copy, with one exception. If the file also has
/// quantised tensors or panels (see below), load_frozen on a CPU packs every tensor of these two kinds that only
/// products read. The reason is that an expert with a hidden layer reads packed copies only if all its weight matrices
/// have one. The same weights in the same form give the same bytes on every backend.
///
/// With the option `mappable`, a packed copy of weights that only products read becomes one tensor with the bytes that
/// the copy has in memory (backend/panels.hpp). w is the number of columns of a panel, and p = ⌈columns / w⌉ is the
/// number of panels:
///
///     NAME.int8.panels                       U8    [E, ⌈depth / 32⌉ p, 34 w]
///     NAME.int4.panels, NAME.mxfp4.panels    U8    [E, ⌈depth / 32⌉ p, 18 w]
///     NAME.bf16.panels                       BF16  [E, depth p, w]
///     NAME.f32.panels                        F32   [E, depth p, w]
///
/// If the processor multiplies pairs of bfloat16, NAME.bf16.panels is [E, n p, w, 2] with n = ⌈depth / 2⌉. On a
/// processor with AMX, n is rounded up to a multiple of 16. If no weights are packed, the file is the same as without
/// `mappable`.
///
/// The tensors of panels come first in the file. Each of them begins at a multiple of min(2 w, 64) bytes.
/// @param metadata  strings kept in the header
/// @throws FileError under the same conditions as `save`
/// @cost   host memory for the numbers and scales of one tensor; panels need no additional memory
template <class C, class P, class B>
void save_frozen(const std::filesystem::path& path, C& ctx, const FrozenParams<P, B>& frozen,
                 const Metadata& metadata = {}, const SaveFrozenOptions& options = {});
/// Writes a frozen decoder (model/decoder.hpp). The names of the model's tensors begin with `model.`. A quantised
/// output layer W [V, D] becomes `loss.weight.scale` and `loss.weight.int8` [1, D, V], or `loss.weight.int4` or
/// `loss.weight.mxfp4` [1, ⌈D / 2⌉, V]. An output layer of bfloat16 becomes `loss.weight`, BF16 [V, D]. If W is tied to
/// the embedding, the table of the embedding is stored as well. Cuda and CudaBf16 do not pack the output layer, so they
/// store its floats.
template <class C, class ModelP, class LossP, class B>
void save_frozen(const std::filesystem::path& path, C& ctx, const FrozenDecoder<ModelP, LossP, B>& frozen,
                 const Metadata& metadata = {}, const SaveFrozenOptions& options = {});

/// Returns the frozen float parameters of a model from a file of save_frozen. Quantised tensors exist only in packed
/// form, so they cannot be trained. On the backend that saved the parameters, results have the same bits as with the
/// parameters before they were saved.
///
/// A file written with `mappable` is mapped (RegularFile::map): all tensors point into the file. The system reads a
/// page when it is first used, and processes that load the same file share its pages. Weights of every form then exist
/// only as panels, so they cannot be trained either. The member `packed` of the result keeps the mapping, so `params`
/// must not outlive it. The file can be deleted or replaced by a rename, but no program may truncate or overwrite it.
/// Writes to the parameters change neither the file nor the memory of other processes. Numbers and scales of mapped
/// weights are not checked, because this would read the whole file: wrong numbers or scales give wrong results. On a
/// CPU, if this program uses panels of another width, the weights are packed again in separate memory, and numbers and
/// scales are checked. Cuda and CudaBf16 do the same with quantised weights; other weights become plain floats there.
/// @throws FileError with the name of the tensor if a tensor is missing or unexpected, has a type or shape that the
///         model does not have, begins at an unaligned offset, has a number that is not allowed or a scale that is
///         infinite or NaN, or is in the file in two forms; ArgumentError if `init` of the model throws it because of
///         the model's options
/// @cost   memory for the parameters and, while the function runs, for the largest tensor. A mapped file needs memory
///         only for its header, unless weights are packed again or the system cannot map files
template <class C, class M>
auto load_frozen(const std::filesystem::path& path, C& ctx, const M& model);
/// Returns a frozen decoder (FrozenDecoder) from a file of save_frozen. It does not need the folder from which the
/// decoder was made:
///
///     io::save_frozen("int8.safetensors", ctx, io::load_frozen_decoder(folder, ctx, config, model, options));
///     const auto frozen = io::load_frozen("int8.safetensors", ctx, model, config.sizes.loss());
///
/// If the file has the weights W of the output layer as unpacked bfloat16, W is packed again on a CPU. Cuda and
/// CudaBf16 do not pack W: if W is tied to an embedding, their output layer reads the table of the embedding.
/// Otherwise, W becomes floats; if W is quantised, these are the rounded weights ŵ (core/weights.hpp).
template <class C, class M>
auto load_frozen(const std::filesystem::path& path, C& ctx, const M& model, const StreamedCrossEntropy& loss);

template <class C, class P, class B>
void save_frozen(const std::filesystem::path& path, C& ctx, const FrozenParams<P, B>& frozen, const Metadata& metadata,
                 const SaveFrozenOptions& options) {
  frozen_file::File<C> file(frozen.packed, options.mappable);
  file.add("", frozen.params);
  file.write(path, ctx, metadata, {options.max_file_bytes});
}

template <class C, class ModelP, class LossP, class B>
void save_frozen(const std::filesystem::path& path, C& ctx, const FrozenDecoder<ModelP, LossP, B>& frozen,
                 const Metadata& metadata, const SaveFrozenOptions& options) {
  frozen_file::File<C> file(frozen.model.packed, options.mappable);
  file.add("model.", frozen.model.params);
  file.add_loss(frozen.loss, detail_::frozen_decoder::output_weights(frozen.model.params, frozen.loss));
  file.write(path, ctx, metadata, {options.max_file_bytes});
}

template <class C, class M>
auto load_frozen(const std::filesystem::path& path, C& ctx, const M& model) {
  FrozenParams<ParametersOf<float, C, M>, typename C::Backend> frozen;
  const auto here = ctx.here();
  frozen_file::Reader<C> reader(path, ctx, frozen.packed);
  reader.read_pack("", frozen.params, shapes_of<float>(model));
  reader.expect_all_read();
  return frozen;
}

template <class C, class M>
auto load_frozen(const std::filesystem::path& path, C& ctx, const M& model, const StreamedCrossEntropy& loss) {
  using B = typename C::Backend;
  Shapes::Context of_shapes;
  const auto of_loss = init_params<float, Shapes>(loss, of_shapes, Seed{});
  FrozenDecoder<ParametersOf<float, C, M>, Params<StreamedCrossEntropy, float, B>, B> frozen;
  const auto here = ctx.here();
  frozen_file::Reader<C> reader(path, ctx, frozen.model.packed);
  reader.read_pack("model.", frozen.model.params, shapes_of<float>(model));
  reader.read_plain("loss.bias", frozen.loss.bias, of_loss.bias);
  const std::string name = "loss.weight";
  const Index rows = loss.vocabulary, dim = loss.model_dim;
  const std::vector<std::uint64_t> shape{static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(dim)};
  if constexpr (frozen_file::packs_output<B>) {
    const auto table = [&] {
      if (!loss.tied) return static_cast<float*>(nullptr);
      auto* const first = first_table<float, B>(frozen.model.params);
      expect(first, "io::load_frozen", "model", "a model with an Embedding, because the loss is tied", "no Embedding");
      return first->data();
    };
    const auto stored_at = [&](float* address) {
      if (loss.tied)
        frozen.loss.weight.resize_like(of_loss.weight);
      else
        frozen.loss.weight.resize_without_memory(address, rows, dim);
      return address;
    };
    const auto reserve = [&](Weights form) {
      return stored_at(B::template reserve_transposed<float>(rows, dim, form, frozen.model.packed, table()));
    };
    const auto share = [&](const Panels& panels, const std::shared_ptr<std::byte>& memory) {
      float* const address = B::share_transposed(panels, memory, frozen.model.packed, table());
      return address && stored_at(address);
    };
    const auto take = [&](const QuantisedBytes& of, const std::byte* numbers, const Bfloat16* scales) {
      B::read_quantised(ctx, frozen.model.packed, reserve(of.form), of, numbers, scales);
    };
    if (reader.read_packed(name, 1, dim, rows, share, take)) {
    } else if (reader.has_halves(name)) {
      const std::vector<float> values = reader.template read_values<float>(name, shape);
      B::pack_columns(ctx, reserve(Weights::bfloat16), 0, View<const float, 2, B>(values.data(), rows, dim), rows,
                      frozen.model.packed);
    } else {
      reader.read_plain(name, frozen.loss.weight, of_loss.weight);
    }
  } else {
    // If the loss is tied, the output layer reads the table of the embedding, and the values are only checked.
    std::vector<float> values;
    const auto take = [&](const QuantisedBytes& of, const std::byte* numbers, const Bfloat16* scales) {
      for (Index row = 0; row < rows; ++row)
        for (Index k = 0; k < dim; ++k) values.push_back(of.value(numbers, scales, 0, k, row));
    };
    const auto share = [](const Panels&, const std::shared_ptr<std::byte>&) { return false; };
    if (reader.read_packed(name, 1, dim, rows, share, take)) {
    } else if (loss.tied && !reader.has_halves(name)) {
      reader.read_plain(name, frozen.loss.weight, of_loss.weight);
    } else {
      values = reader.template read_values<float>(name, shape);
    }
    frozen.loss.weight.resize_like(of_loss.weight);
    if (!loss.tied) B::from_host(ctx, frozen.loss.weight.size(), values.data(), frozen.loss.weight.data());
  }
  reader.expect_all_read();
  return frozen;
}

}  // namespace gatefold::io
