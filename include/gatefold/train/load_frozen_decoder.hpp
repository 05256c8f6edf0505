#pragma once

#include <cstddef>
#include <filesystem>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/train/load_decoder.hpp"

namespace gatefold::io {

namespace decoder_folder {

template <class B>
struct ReserveLike;
template <class T, class C>
struct PackOutput;

}  // namespace decoder_folder

/// Reads a decoder from a folder for inference, with the weights of matrix products only in packed form:
///
///     const auto frozen = io::load_frozen_decoder(folder, ctx, config, model, {.weights = Weights::int8});
///     infer(model, ctx, frozen.model, ids, carry, y);
///     config.sizes.loss().logits(ctx, frozen.loss, frozen.model, y, z);
///
/// The results have the same bits as with load_decoder and then freeze (model/decoder.hpp). Those two calls need more
/// memory, because load_decoder first stores all weights as T. Here, packed tensors have no elements: they cannot be
/// changed, and only save_frozen can save them. Packed tensors are the tensors [E, rows, columns] that only products
/// read, and an output layer that is not tied. Matrices with one column keep their elements, because SigmoidGated reads
/// them in place. On Cuda and CudaBf16, only tensors with a form of 8 or 4 bits have no elements, and the output layer
/// is not packed. On a backend without packed weights, the function calls load_decoder and freeze.
/// @return a FrozenDecoder
/// @throws FileError under the same conditions as load_decoder. If you use the parameters without their packed copies,
///         the function that reads them throws ArgumentError
/// @cost   memory of the packed weights (2 bytes for each weight in bfloat16, 34 for 32 weights in int8; see Weights)
///         and of the other tensors as T. While the function runs, it also needs memory for about five blocks of 1 MiB,
///         or for five copies of the largest matrix if it has more than 1 MiB
template <class T = float, class C, class M>
auto load_frozen_decoder(const std::filesystem::path& folder, C& ctx, const DecoderConfig& config, const M& model,
                         FreezeOptions options = {}) {
  using B = typename C::Backend;
  using P = ModelAndLoss<ParametersOf<T, C, M>, Params<StreamedCrossEntropy, T, B>>;
  if constexpr (requires { &B::template reserve_packed<T>; }) {
    const TensorFiles files(folder / "model.safetensors");
    const TensorMap map = decoder_folder::map_of(files, config);
    const auto shapes = decoder_folder::checked_shapes<T>(files, map, config, model);
    const auto here = ctx.here();
    P params;
    typename B::PackedWeights packed;
    const std::vector<Weights> forms = detail_::frozen_decoder::forms(options, shapes);
    const std::vector<bool> only = detail_::lookup::only_products_read(shapes);
    auto form = forms.cbegin();
    auto multiplied = only.cbegin();
    detail_::pack::structure_like(params.model, shapes.model, decoder_folder::ReserveLike<B>{form, multiplied, packed});
    const Weights of_output = *form;  // form of the tensor loss.weight
    const Index vocabulary = shapes.loss.weight.extent(0), dim = shapes.loss.weight.extent(1);
    params.loss.bias.resize_like(shapes.loss.bias);
    constexpr bool packs_output = requires { &B::template packs_transposed<T>; };
    T* output = nullptr;  // the address of a packed output layer that is not tied
    if constexpr (packs_output)
      if (vocabulary > 0 && B::template packs_transposed<T>(of_output)) {
        output = B::template reserve_transposed<T>(vocabulary, dim, of_output, packed);
        params.loss.weight.resize_without_memory(output, vocabulary, dim);
      }
    if (!output) params.loss.weight.resize(vocabulary, dim);
    decoder_folder::PackOutput<T, C> pack_output{ctx, packed, output, vocabulary, dim};
    tensor_map::for_each_block(
        files, map, params,
        [&]<class E, int Rank>(View<E, Rank, B> to, std::size_t first, std::size_t count, const E* values) {
          const auto at = static_cast<Index>(first), elements = static_cast<Index>(count);
          if constexpr (packs_output && Rank == 2 && std::is_same_v<E, T>)
            if (output && to.data() == output) return pack_output.add(values, elements);
          if constexpr (Rank == 3) {
            const Index rows = to.extent(1), columns = to.extent(2), matrix = rows * columns;
            if (!has_elements(to.data()))
              return B::pack_experts(ctx, to.data(), at / matrix,
                                     View<const E, 3, B>(values, elements / matrix, rows, columns), packed);
          }
          B::from_host(ctx, elements, values, to.data() + first);
        });
    decoder_folder::set_others(ctx, config, params);
    form = forms.cbegin();
    for_each_tensor(
        [&]<class Tensor>(const Name&, const Tensor& t) {
          const Weights weights = *form++;
          if constexpr (Tensor::rank == 3)
            if (has_elements(t.data())) B::pack(ctx, t.view(), weights, packed);
        },
        std::as_const(params.model));
    if constexpr (packs_output)
      if (!output)
        B::pack_transposed(ctx, detail_::frozen_decoder::output_weights(params.model, params.loss), of_output, packed);
    return FrozenDecoder<ParametersOf<T, C, M>, Params<StreamedCrossEntropy, T, B>, B>{
        {std::move(params.model), std::move(packed)}, std::move(params.loss)};
  } else {
    P params = load_decoder<T>(folder, ctx, config, model);
    return freeze(ctx, std::move(params), std::move(options));
  }
}

namespace decoder_folder {

/// Gives each tensor the extents of the same tensor in another pack. A tensor that has only a packed copy gets no
/// memory for elements.
template <class B>
struct ReserveLike {
  std::vector<Weights>::const_iterator& form;     // form of the next tensor
  std::vector<bool>::const_iterator& multiplied;  // whether only products read the next tensor
  typename B::PackedWeights& packed;
  template <class T, int Rank, class Of>
  void operator()(Tensor<T, Rank, B>& t, const Tensor<T, Rank, Of>& like) const {
    const Weights weights = *form++;
    const bool only = *multiplied++;
    if constexpr (Rank == 3)
      if (only && detail_::lookup::can_be_only_packed<B, T, Rank>(like, weights)) {
        const Index experts = like.extent(0), depth = like.extent(1), columns = like.extent(2);
        T* const address = B::template reserve_packed<T>(experts, depth, columns, weights, packed);
        return t.resize_without_memory(address, experts, depth, columns);
      }
    t.resize_like(like);
  }
  template <class To, class Like>
  void operator()(To& t, const Like& like) const {
    ++form;
    ++multiplied;
    t.resize_like(like);
  }
};

/// Packs the weights of an output layer, which arrive in blocks of elements in row-major order.
template <class T, class C>
struct PackOutput {
  using B = typename C::Backend;
  C& ctx;
  typename B::PackedWeights& packed;
  const T* address;  // from reserve_transposed
  Index vocabulary, dim;
  Index packed_rows = 0;
  std::vector<T> waiting{};  // elements after the rows that are packed

  void add(const T* values, Index count) {
    waiting.insert(waiting.end(), values, values + count);
    Index rows = static_cast<Index>(waiting.size()) / dim;
    if (packed_rows + rows < vocabulary) rows -= rows % B::template columns_together<T>;
    if (rows == 0) return;
    B::pack_columns(ctx, address, packed_rows, View<const T, 2, B>(waiting.data(), rows, dim), vocabulary, packed);
    waiting.erase(waiting.begin(), waiting.begin() + rows * dim);
    packed_rows += rows;
  }
};

}  // namespace decoder_folder

}  // namespace gatefold::io
