#pragma once

#include <vector>

#include "gatefold/policies.hpp"

/// Runs a bank of experts (experts on given slots, without a gate) on any backend.
namespace gatefold::test {

/// The number of slots of each expert, and the number of spare slots after the last one. Experts must not touch spare
/// slots.
struct Slots {
  std::vector<Index> counts;
  Index spare = 0;

  Index experts() const { return static_cast<Index>(counts.size()); }
};

/// A policy made of experts and their number, because params_of calls `init` without a number of experts.
template <class E>
struct BankInit {
  E expert;
  Index experts;

  template <class T, class B>
  using Params = gatefold::Params<E, T, B>;
  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    return expert.template init<T, B>(ctx, experts, seed);
  }
};

/// Runs all functions of a bank of experts on one backend and holds their results.
template <class E, class T, class B>
struct BankRun {
  static constexpr double untouched = 777;

  typename B::Context& ctx;
  E expert;
  Params<E, T, B> params;
  Tensor<Index, 1, B> offsets, rows;
  Tensor<T, 2, B> x;
  Params<E, T, B> grads = zeros_like(ctx, params);
  Tensor<T, 2, B> z = wide(expert.out_dim()), inferred = wide(expert.out_dim()), dslots = wide(expert.in_dim());
  Saved<E, T, B> saved{};
  // The results of weighted_backward, if the expert has this function.
  Params<E, T, B> weighted_grads = zeros_like(ctx, params);
  Tensor<T, 2, B> weighted_dslots = wide(expert.in_dim());
  Tensor<T, 1, B> dweight = constant_tensor<T>(ctx, untouched, rows.size());

  void run(const Tensor<T, 2, B>& dz, const Tensor<T, 2, B>& du, const Tensor<T, 1, B>& weight) {
    const Groups<B> groups{offsets, rows, rows.size()};
    expert.forward(ctx, params, groups, x, z, saved);
    infer_expert<T, B>(expert, ctx, params, groups, x, inferred);
    expert.backward(ctx, params, groups, x, saved, dz, dslots, grads);
    if constexpr (detail_::hook::expert::weighted_backward<E, T, B>())
      expert.weighted_backward(ctx, params, groups, x, saved, du, SlotWeights<T, B>{weight, dweight}, weighted_dslots,
                               weighted_grads);
  }

 private:
  auto wide(Index columns) { return constant_tensor<T>(ctx, untouched, rows.size(), columns); }
};

}  // namespace gatefold::test
