#pragma once

#include <cstddef>
#include <filesystem>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/core/types.hpp"
#include "gatefold/core/weights.hpp"
#include "gatefold/io/tensor_files.hpp"
#include "gatefold/io/tensor_map.hpp"
#include "gatefold/layer/frozen.hpp"
#include "gatefold/loss/model_and_loss.hpp"
#include "gatefold/tensor/pack.hpp"
#include "gatefold/train/decoder_config.hpp"
#include "gatefold/train/load_decoder.hpp"
#include "gatefold/train/load_parameters.hpp"

namespace gatefold::io {

/// A decoder for inference only, from load_frozen_decoder. Pass `model` to `infer`, and `loss` and
/// model_params(frozen.model) to StreamedCrossEntropy::logits.
template <class ModelP, class LossP, class B>
struct FrozenDecoder {
  FrozenParams<ModelP, B> model;
  LossP loss;
};

namespace decoder_folder {

template <class B>
struct ReserveLike;

}  // namespace decoder_folder

/// Reads a decoder from a folder for inference, with the weights of matrix products only in packed form:
///
///     const auto frozen = io::load_frozen_decoder(folder, ctx, config, model, {.weights = Weights::int8});
///     infer(model, ctx, frozen.model, ids, carry, y);
///
/// The results have the same bits as load_decoder followed by freeze, which needs up to three times the memory, because
/// it keeps the weights as floats, too. Here, packed tensors [E, rows, columns] have no elements: they cannot be saved
/// or changed. Matrices with one column keep their elements, because SigmoidGated reads them in place. On Cuda, only
/// tensors with a form of 8 or 4 bits have no elements. On a backend without packed weights, the function calls
/// load_decoder and freeze. Patterns of the options are compared with names of the model's tensors, without `model.`.
/// @throws FileError as load_decoder; ArgumentError if the parameters are used without their packed copies
/// @cost   memory of the packed weights (Weights: 2 bytes for each weight in bfloat16, 34 for 32 weights in int8) and
///         of the other tensors as T; in addition some megabytes, or the largest matrix, while it runs
template <class T = float, class C, class M>
auto load_frozen_decoder(const std::filesystem::path& folder, C& ctx, const DecoderConfig& config, const M& model,
                         FreezeOptions options = {}) {
  using B = typename C::Backend;
  using P = ModelAndLoss<ParametersOf<T, C, M>, Params<StreamedCrossEntropy, T, B>>;
  using Frozen = FrozenDecoder<ParametersOf<T, C, M>, Params<StreamedCrossEntropy, T, B>, B>;
  if constexpr (requires { &B::template reserve_packed<T>; }) {
    const TensorFiles files(folder / "model.safetensors");
    const TensorMap map = decoder_folder::map_of(files, config);
    const auto shapes = decoder_folder::checked_shapes<T>(files, map, config, model);
    const auto here = ctx.here();
    P params;
    typename B::PackedWeights packed;
    std::vector<Weights> forms = detail_::lookup::forms(options, shapes.model);
    forms.resize(count_tensors(shapes));
    auto form = forms.cbegin();
    detail_::pack::structure_like(params, shapes, decoder_folder::ReserveLike<B>{form, packed});
    tensor_map::for_each_block(
        files, map, params,
        [&]<class E, int Rank>(View<E, Rank, B> to, std::size_t first, std::size_t count, const E* values) {
          if constexpr (Rank == 3) {
            const Index rows = to.extent(1), columns = to.extent(2), matrix = rows * columns;
            const auto at = static_cast<Index>(first), elements = static_cast<Index>(count);
            if (!has_elements(to.data()))
              return B::pack_experts(ctx, to.data(), at / matrix,
                                     View<const E, 3, B>(values, elements / matrix, rows, columns), packed);
          }
          B::from_host(ctx, static_cast<Index>(count), values, to.data() + first);
        });
    decoder_folder::set_others(ctx, config, params);
    form = forms.cbegin();
    for_each_tensor(
        [&]<class Tensor>(const Name&, const Tensor& t) {
          const Weights weights = *form++;
          if constexpr (Tensor::rank == 3)
            if (has_elements(t.data())) B::pack(ctx, t.view(), weights, packed);
        },
        std::as_const(params));
    return Frozen{{std::move(params.model), std::move(packed)}, std::move(params.loss)};
  } else {
    P params = load_decoder<T>(folder, ctx, config, model);
    return Frozen{freeze(ctx, std::move(params.model), options), std::move(params.loss)};
  }
}

namespace decoder_folder {

/// Gives each tensor the extents of the same tensor in another pack. A tensor that has only a packed copy gets no
/// memory for elements.
template <class B>
struct ReserveLike {
  std::vector<Weights>::const_iterator& form;  // of the next tensor
  typename B::PackedWeights& packed;
  template <class T, int Rank, class Of>
  void operator()(Tensor<T, Rank, B>& t, const Tensor<T, Rank, Of>& like) const {
    const Weights weights = *form++;
    if constexpr (Rank == 3)
      if (detail_::lookup::can_be_only_packed<B, T, Rank>(like, weights)) {
        const Index experts = like.extent(0), depth = like.extent(1), columns = like.extent(2);
        T* const address = B::template reserve_packed<T>(experts, depth, columns, weights, packed);
        return t.resize_without_memory(address, experts, depth, columns);
      }
    t.resize_like(like);
  }
  template <class To, class Like>
  void operator()(To& t, const Like& like) const {
    ++form;
    t.resize_like(like);
  }
};

}  // namespace decoder_folder

}  // namespace gatefold::io
