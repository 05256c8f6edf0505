#pragma once

#include <gatefold/gatefold.hpp>
#include <utility>

namespace studies::mot {

/// Algorithm 1 without a router, as an optimizer: what is not attention by steps of a fixed length up to epoch `first`,
/// attention up to epoch `second`, then the rest again by plain gradient descent. One step is one epoch.
struct InStages {
  using IsOptimizer = void;
  gatefold::Index first = 0, second = 0;
  gatefold::optim::NormalizedGd ffn{};
  gatefold::optim::Sgd attention{}, fine{};

  template <class Pack>
  struct State {
    gatefold::ParameterGroup<Pack> attention, rest;
    gatefold::optim::NormalizedGd::State<Pack> of_ffn;
    gatefold::optim::Sgd::State<Pack> of_attention, of_fine;
    gatefold::Index step = 0;
  };
  template <class C, class Pack>
  State<Pack> begin(C& ctx, const Pack& params) const {
    using gatefold::is_attention;
    using gatefold::Name;
    gatefold::ParameterGroup only_attention(params, is_attention),
        rest(params, [](const Name&name) { return !is_attention(name); });
    Pack like = gatefold::zeros_like(ctx, params);  // a ParameterGroup hollows out what it is applied to
    const auto begins = [&](const auto& optimizer) { return [&](auto& p) { return optimizer.begin(ctx, p); }; };
    auto of_ffn = rest.only(begins(ffn), like);
    auto of_attention = only_attention.only(begins(attention), like);
    auto of_fine = rest.only(begins(fine), like);
    return {std::move(only_attention), std::move(rest),    std::move(of_ffn),
            std::move(of_attention),   std::move(of_fine), 0};
  }
  template <class C, class Pack>
  void step(C& ctx, Pack& params, Pack& grads, State<Pack>& state) const {
    const auto steps = [&](const auto& optimizer, auto& of) {
      return [&](auto& p, auto& g) { optimizer.step(ctx, p, g, of); };
    };
    ++state.step;
    if (state.step <= first) {
      state.rest.only(steps(ffn, state.of_ffn), params, grads);
    } else if (state.step <= second) {
      state.attention.only(steps(attention, state.of_attention), params, grads);
    } else {
      state.rest.only(steps(fine, state.of_fine), params, grads);
    }
  }
};

}  // namespace studies::mot
