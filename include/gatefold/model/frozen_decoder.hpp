#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "gatefold/core/weights.hpp"
#include "gatefold/layer/frozen.hpp"
#include "gatefold/loss/model_and_loss.hpp"
#include "gatefold/loss/streamed_cross_entropy.hpp"
#include "gatefold/tensor/pack.hpp"

namespace gatefold {

/// The parameters of a decoder, or of another language model with a StreamedCrossEntropy, for inference only. Pass
/// `model` to `infer`, and `loss` and `model` to StreamedCrossEntropy::logits.
template <class ModelP, class LossP, class B>
struct FrozenDecoder {
  FrozenParams<ModelP, B> model;  // its packed copies include the copy of the output layer
  LossP loss;
};

/// Prepares a language model for inference, as freeze of its parameters does, together with its output layer W [V, D]:
///
///     auto frozen = freeze(ctx, std::move(trainer.params), {.weights = Weights::int8});
///     infer(model, ctx, frozen.model, ids, carry, y);
///     loss.logits(ctx, frozen.loss, frozen.model, y, z);                                 // z = y ŵᵀ + b
///
/// Weights::bfloat16 and the forms of 8 and 4 bits add a packed copy of W. The groups of 32 weights are parts of a row
/// of W, because D is the dimension over which the product sums. If the loss is tied, the embedding still reads its
/// rows as they are, and the output layer reads the packed copy next to them. Weights::unchanged makes no copy of W,
/// and on a backend without packed weights in host memory W is never copied. Patterns of the options are compared with
/// names of the model's tensors, without `model.`. The name of W is `loss.weight`, also if the loss is tied.
/// @throws ArgumentError as freeze
/// @cost   as freeze; also memory for the packed copy of W
template <class C, class ModelP, class T, class B>
FrozenDecoder<ModelP, StreamedCrossEntropy::Params<T, B>, B> freeze(
    C& ctx, ModelAndLoss<ModelP, StreamedCrossEntropy::Params<T, B>>&& params, FreezeOptions options = {});

namespace detail_::frozen_decoder {

/// Returns the form of each tensor of a ModelAndLoss, in the order of for_each_tensor.
/// @throws ArgumentError if a pattern selects no tensor
template <class P>
std::vector<Weights> forms(const FreezeOptions& options, const P& params) {
  return detail_::lookup::forms(options, params, "model.");
}

/// Returns the weights of the output layer: those of the loss or, if the loss is tied, the table of the embedding.
template <class T, class B, class ModelP>
View<const T, 2, B> output_weights(const ModelP& model, const StreamedCrossEntropy::Params<T, B>& loss) {
  const auto* table = loss.weight.extent(0) == 0 ? first_table<T, B>(model) : nullptr;
  return table ? table->view() : loss.weight.view();
}

}  // namespace detail_::frozen_decoder

template <class C, class ModelP, class T, class B>
FrozenDecoder<ModelP, StreamedCrossEntropy::Params<T, B>, B> freeze(
    C& ctx, ModelAndLoss<ModelP, StreamedCrossEntropy::Params<T, B>>&& params, FreezeOptions options) {
  const std::vector<Weights> forms = detail_::frozen_decoder::forms(options, params);
  const auto of_model = static_cast<std::ptrdiff_t>(count_tensors(params.model));
  auto model = detail_::lookup::freeze_as(ctx, std::move(params.model), {forms.begin(), forms.begin() + of_model},
                                          options.keep_plain);
  const View<const T, 2, B> output = detail_::frozen_decoder::output_weights(model.params, params.loss);
  const Weights form = forms[static_cast<std::size_t>(of_model)];  // of the tensor loss.weight
  if constexpr (requires { B::pack_transposed(ctx, output, form, model.packed); }) {
    const auto here = ctx.here();
    B::pack_transposed(ctx, output, form, model.packed);
  }
  return {std::move(model), std::move(params.loss)};
}

}  // namespace gatefold
