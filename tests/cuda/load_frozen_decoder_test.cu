// A decoder that is read from a folder to the device with its weights in 8 or 4 bits.

#include <doctest/doctest.h>

#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/gatefold.cuh"
#include "gatefold/io/safetensors.hpp"
#include "gatefold/io/save.hpp"
#include "gatefold/model/decoder.hpp"
#include "gatefold/train/load_frozen_decoder.hpp"
#include "support/temp_directory.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

/// Calls f(model) with the decoder of a configuration of Mixtral. f is compiled only for this form, to save time.
template <class F>
void with_mixtral(const io::DecoderConfig& config, const F& f) {
  bool called = false;
  with_decoder(config.sizes, [&](const auto& model) {
    using Branch =
        std::remove_cvref_t<decltype(std::get<1>(std::get<1>(model.layers).layer.layers).branch.branch.first)>;
    if constexpr (std::is_same_v<Branch, Mixture<SoftmaxTopK, GatedMlp<Silu>>>) {
      f(model);
      called = true;
    }
  });
  CHECK(called);
}

/// Returns the outputs of a decoder for 7 ids.
template <class M, class P>
std::vector<float> outputs(Cuda::Context& ctx, Index model_dim, const M& model, const P& frozen) {
  const std::vector<Index> ids{1, 2, 3, 4, 5, 6, 7};
  Tensor<Index, 1, Cuda> on_device(7);
  Cuda::from_host(ctx, 7, ids.data(), on_device.data());
  Carry<M, float, Cuda> carry;
  Tensor<float, 2, Cuda> y(7, model_dim);
  model.begin(ctx, frozen.params, 7, carry);
  infer(model, ctx, frozen, on_device, carry, y, extra_of<Extra<M, float, Cuda>>(Segment<float, Cuda>{.length = 7}));
  std::vector<float> values(static_cast<std::size_t>(y.size()));
  Cuda::to_host(ctx, y.size(), std::as_const(y).data(), values.data());
  return values;
}

}  // namespace

TEST_CASE("cuda: load_frozen_decoder: has the bits of load_decoder and freeze") {
  const TempDirectory folder;
  folder.write(R"({"model_type": "mixtral", "vocab_size": 13, "hidden_size": 36, "num_hidden_layers": 2,
                   "num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 4,
                   "num_experts_per_tok": 2, "intermediate_size": 41})",
               "config.json");
  const auto config = io::read_decoder_config(folder.path);
  Cuda::Context ctx;
  with_mixtral(config, [&]<class M>(const M& model) {
    const ModelAndLoss<Params<M, float, Cuda>, Params<StreamedCrossEntropy, float, Cuda>> made{
        init_params<float, Cuda>(model, ctx, Seed{1}), init_params<float, Cuda>(config.sizes.loss(), ctx, Seed{2})};
    io::save(folder.path / "model.safetensors", ctx, {}, io::decoder_map(config), made, io::Stored::f32);
    for (const Weights form : {Weights::unchanged, Weights::bfloat16, Weights::int8, Weights::int4, Weights::mxfp4}) {
      CAPTURE(static_cast<int>(form));
      const FreezeOptions options{.weights = form};
      auto plain = io::load_decoder(folder.path, ctx, config, model);
      const auto expected = freeze(ctx, std::move(plain.model), options);
      const auto frozen = io::load_frozen_decoder(folder.path, ctx, config, model, options);
      CHECK(outputs(ctx, config.sizes.model_dim, model, frozen.model) ==
            outputs(ctx, config.sizes.model_dim, model, expected));
      CHECK(frozen.model.packed.quantised_bytes() == expected.packed.quantised_bytes());
      int without = 0;
      for_each_tensor(
          [&](const Name&, const auto& t) {
            if constexpr (std::remove_cvref_t<decltype(t)>::rank == 3) without += !has_elements(t.data());
          },
          frozen.model.params);
      CHECK((without > 0) == is_quantised(form));
    }
  });
}
