#pragma once

#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>

#include "support.cuh"

/// The mixture-of-experts layer that the GPU benchmarks time, and its sizes.
namespace bench {

struct Shape {
  const char* name;
  Index items, dim, hidden, experts, picks;

  double product_flop() const { return 4.0 * double(items) * double(picks) * double(dim) * double(hidden); }
  double flop() const { return product_flop() + 2.0 * double(items) * double(dim) * double(experts); }
};

inline constexpr Shape kShapes[] = {
    {"tokens_16384", 16384, 1024, 4096, 8, 2}, {"tokens_4096", 4096, 512, 2048, 8, 2},
    {"papers_medium", 4096, 352, 352, 16, 2},  {"experts_64", 16384, 1024, 2048, 64, 2},
    {"small_experts", 65536, 64, 128, 64, 2},  {"decode_16", 16, 1024, 4096, 8, 2},
    {"decode_1", 1, 1024, 4096, 8, 2},
};

using Gate = SoftmaxTopK;

template <class ExpertT>
ExpertT expert_of(const Shape& s) {
  ExpertT expert;
  expert.model_dim = s.dim;
  expert.hidden_dim = s.hidden;
  if constexpr (requires { expert.bias; }) expert.bias = false;
  return expert;
}

template <class B = Cuda, class ExpertT = Mlp<GeluTanh>>
struct Run {
  using Layer = Residual<update::Plain, Mixture<Gate, ExpertT>>;

  explicit Run(const Shape& s, typename B::Options options = {})
      : shape(s),
        ctx(options),
        layer{.rule = {},
              .branch = {Gate{.scores = {.model_dim = s.dim, .experts = s.experts}, .selection = {.k = s.picks}},
                         expert_of<ExpertT>(s)}},
        params(init_params<float, B>(layer, ctx, Seed{1})),
        grads(zeros_like(ctx, params)),
        x(uniform_tensor<float>(ctx, Seed{2}, 1, s.items, s.dim)),
        dy(uniform_tensor<float>(ctx, Seed{3}, 1, s.items, s.dim)),
        y(s.items, s.dim),
        dx(s.items, s.dim) {}

  void forward() {
    layer.begin(ctx, params, shape.items, carry);
    layer.forward(ctx, params, x, carry, y, saved, {});
  }
  void infer() {
    layer.begin(ctx, params, shape.items, carry);
    gatefold::infer<float, B>(layer, ctx, params, x, carry, y);
  }
  template <class FrozenParams>
  void infer(const FrozenParams& frozen) {
    const auto scope = ctx.use(frozen.packed);
    layer.begin(ctx, frozen.params, shape.items, carry);
    gatefold::infer<float, B>(layer, ctx, frozen.params, x, carry, y);
  }
  /// Computes only the outputs `z` of the experts, with the routing of the last forward.
  void infer_experts(const auto& of_layer, View<float, 2, B> z) {
    const auto d = saved.calls[0].plan.dispatch(ctx, x);
    infer_expert<float, B>(layer.branch.expert, ctx, of_layer.branch.expert, d.groups, d.x, z);
  }
  /// Runs backward as a Trainer does: the gradients of weights are stored, instead of being added to zeros.
  void backward() {
    set_zero_later(ctx, grads);
    set_zero(ctx, dx);
    gatefold::backward(layer, ctx, params, x, saved, dy, carry, dx, grads);
    write_zeros(grads);
  }

  Shape shape;
  typename B::Context ctx;
  Layer layer;
  gatefold::Params<Layer, float, B> params, grads;
  Tensor<float, 2, B> x, dy, y, dx;
  gatefold::Saved<Layer, float, B> saved;
  gatefold::Carry<Layer, float, B> carry;
};

/// Implements main() of a benchmark: calls f(shape) for every shape whose name contains the first program argument.
template <class F>
int for_named_shapes(int argc, char** argv, std::span<const Shape> shapes, const F& f) {
  const std::string word = argc > 1 ? argv[1] : "";
  try {
    for (const Shape& s : shapes)
      if (std::string(s.name).find(word) != std::string::npos) f(s);
  } catch (const Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}

}  // namespace bench
