// Layers whose products are large enough for Hopper's kernel, forward and backward, compared with plain loops.

#include <doctest/doctest.h>

#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/bf16_layers.cuh"

using namespace gatefold;
using namespace gatefold::test;

namespace {

constexpr Index dim = 136, items = 150;

template <class E>
void check(const E& expert) {
  REQUIRE(detail_::device::device_code() == detail_::device::DeviceCode::hopper);
  REQUIRE(detail_::device::bf16_tile_rows(items, 2) ==
          detail_::device::Bf16ManyRows::rows);  // with dim columns, uses_hopper() is then true
  // A hidden value consists of nine sums of 16 products, and a tensor core truncates each sum near 2^-24. So about one
  // hidden value in 2^12 is rounded to the other neighbour in bfloat16, and an output depends on at least 130 of them.
  // Therefore up to a tenth of the values may differ from the loops by more than sums in float do.
  const Mixture mixture{SoftmaxTopK{.scores = {.experts = 2}, .selection = {.k = 1}}, expert};
  check_bf16_layer(Residual{update::Plain{}, mixture}, items, dim, 0.1);
}

/// Returns the results of forward and backward, with or without copies of the rounded weights.
template <class E>
std::vector<float> outcome_with(const E& expert, bool copies) {
  const Residual layer{update::Plain{}, Mixture{SoftmaxTopK{.scores = {.experts = 2}, .selection = {.k = 1}}, expert}};
  using Layer = std::remove_const_t<decltype(layer)>;
  CudaBf16::Context ctx;
  const auto params = init_params<float, CudaBf16>(layer, ctx, Seed{1});
  auto grads = zeros_like(ctx, params);
  const auto x = uniform_tensor<float>(ctx, Seed{2}, 1, items, dim),
             dy = uniform_tensor<float>(ctx, Seed{3}, 1, items, dim);
  Tensor<float, 2, CudaBf16> y(items, dim), dx(items, dim);
  zero(ctx, dx);
  Saved<Layer, float, CudaBf16> saved;
  Carry<Layer, float, CudaBf16> carry;
  RoundedWeights<CudaBf16> rounded;
  rounded.run(ctx, params, {.keep = copies}, [&] {
    layer.begin(ctx, params, items, carry);
    layer.forward(ctx, params, x, carry, y, saved);
    backward(layer, ctx, params, x, saved, dy, carry, dx, grads);
  });
  CHECK(rounded.packed.size() == (copies ? 2 : 0));
  std::vector<float> all;
  const auto append = [&](const Name&, const auto& t) {
    const auto part = metric::to_vector(ctx, t.view());
    all.insert(all.end(), part.begin(), part.end());
  };
  append({}, y);
  append({}, dx);
  for_each_tensor(append, std::as_const(grads));
  return all;
}

}  // namespace

TEST_CASE("cuda: Hopper kernel: packed weights, also transposed, change no bit") {
  const Mlp<Gelu> expert{.model_dim = dim, .hidden_dim = 130};
  const auto without = outcome_with(expert, false), with = outcome_with(expert, true);
  REQUIRE(with.size() == without.size());
  CHECK(std::memcmp(with.data(), without.data(), with.size() * sizeof(float)) == 0);
}

TEST_CASE("cuda: gated experts: slots hold only bfloat16 values in memory") {
  constexpr Index in = 128, hidden = 32, many = 8192, picks = 2, slots = many * picks;
  constexpr std::size_t megabyte = std::size_t(1) << 20, rest = 3 * megabyte;  // routing, unused ends of memory chunks
  const Mixture layer{SoftmaxTopK{.scores = {.experts = 4}, .selection = {.k = picks}},
                      GatedMlp<Silu>{.model_dim = in, .hidden_dim = hidden}};
  using Layer = std::remove_const_t<decltype(layer)>;
  CudaBf16::Context ctx;
  REQUIRE(ctx.has_hopper_code());
  const auto params = init_params<float, CudaBf16>(layer, ctx, Seed{1});
  auto grads = zeros_like(ctx, params);
  const auto x = uniform_tensor<float>(ctx, Seed{2}, 1, many, in),
             du = uniform_tensor<float>(ctx, Seed{3}, 1, many, in);
  Tensor<float, 2, CudaBf16> u(many, in), dx(many, in);
  zero(ctx, dx);
  Saved<Layer, float, CudaBf16> saved;
  layer.forward(ctx, params, x, u, saved);
  const std::size_t of_slot = in * sizeof(Bfloat16), of_hidden = hidden * sizeof(Bfloat16);
  CHECK(ctx.capacity() <= slots * (of_slot + of_hidden) + rest);
  CHECK(saved.z.size() == 0);
  CHECK(saved.expert.gate.size() * Index(sizeof(*saved.expert.gate.data())) == slots * Index(of_hidden));
  backward(layer, ctx, params, x, saved, du, dx, grads);
  CHECK(ctx.capacity() <= slots * (of_slot + 3 * of_hidden) + rest);
}

TEST_CASE("cuda: Hopper kernel: layers match loops that round to bfloat16") {
  SUBCASE("Mlp") { check(Mlp<Gelu>{.model_dim = dim, .hidden_dim = 130}); }
  SUBCASE("GatedMlp") { check(GatedMlp<Silu>{.model_dim = dim, .hidden_dim = 136}); }
}
