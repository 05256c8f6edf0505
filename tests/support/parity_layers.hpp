#pragma once

#include <utility>
#include <vector>

#include "support/parity.hpp"

/// A bank of experts, run by the naive backend and by CUDA on slots of any counts.
namespace gatefold::test {

/// How many slots each expert has, and how many more there are past the last one, which nobody may touch.
struct Slots {
  std::vector<Index> counts;
  Index spare = 0;

  Index experts() const { return static_cast<Index>(counts.size()); }
};

/// A bank as a policy without its number of experts: what params_of asks for.
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

/// All a bank of experts does on one backend.
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
  // Of weighted_backward, where it has one.
  Params<E, T, B> weighted_grads = zeros_like(ctx, params);
  Tensor<T, 2, B> weighted_dslots = wide(expert.in_dim());
  Tensor<T, 1, B> dweight = constant_tensor<T>(ctx, untouched, rows.size());

  void run(const Tensor<T, 2, B>& dz, const Tensor<T, 2, B>& du, const Tensor<T, 1, B>& weight) {
    const Groups<B> groups{offsets, rows, rows.size()};
    expert.forward(ctx, params, groups, x, z, saved);
    infer_expert<T, B>(expert, ctx, params, groups, x, inferred);
    expert.backward(ctx, params, groups, x, saved, dz, dslots, grads);
    if constexpr (hook::expert::weighted_backward<E, T, B>())
      expert.weighted_backward(ctx, params, groups, x, saved, du, SlotWeights<T, B>{weight, dweight}, weighted_dslots,
                               weighted_grads);
  }

 private:
  auto wide(Index columns) { return constant_tensor<T>(ctx, untouched, rows.size(), columns); }
};

/// A bank of experts on both backends: initial parameters, forward and infer, every gradient (0 where no slot is in
/// use), and slots nobody may touch.
/// What forward keeps is compared where there are no such slots and (`saved_is_whole`) an expert fills all of it.
template <class T, class E>
void expect_same_bank(Backends& on, const E& expert, const Slots& slots, const Expected& expected = {},
                      bool saved_is_whole = true) {
  constexpr Index items = 9;
  auto [params, cuda_params] = params_of<T>(on, BankInit<E>{expert, slots.experts()}, {}, {.scale = expected.scale});
  Tensor<Index, 1, Naive> offsets(slots.experts() + 1);
  offsets(0) = 0;
  for (Index e = 0; e < slots.experts(); ++e) offsets(e + 1) = offsets(e) + slots.counts[static_cast<std::size_t>(e)];
  const Index used = offsets(slots.experts());
  Tensor<Index, 1, Naive> rows(used + slots.spare);
  for (Index s = 0; s < rows.size(); ++s) rows(s) = s < used ? (7 * s + 3) % items : -1;
  auto x = random_tensor<T>(on, Seed{2}, 1, items, expert.in_dim());
  const auto dz = random_tensor<T>(on, Seed{3}, 1, rows.size(), expert.out_dim()),
             du = random_tensor<T>(on, Seed{4}, 1, items, expert.out_dim());
  const auto weight = random_tensor<T>(on, Seed{5}, 1, rows.size());

  const auto indices = [&](const Tensor<Index, 1, Naive>& t) { return on_cuda<Tensor<Index, 1, Cuda>>(on, t); };
  const auto matrix = [&](const Tensor<T, 2, Naive>& t) { return on_cuda<Tensor<T, 2, Cuda>>(on, t); };
  BankRun<E, T, Cuda> cuda{on.cuda, expert, std::move(cuda_params), indices(offsets), indices(rows), matrix(x)};
  BankRun<E, T, Naive> naive{on.naive, expert, std::move(params), std::move(offsets), std::move(rows), std::move(x)};
  naive.run(dz, du, weight);
  cuda.run(matrix(dz), matrix(du), on_cuda<Tensor<T, 1, Cuda>>(on, weight));
  expect_same(on, "z", naive.z, cuda.z, expected);
  expect_same(on, "inferred", naive.inferred, cuda.inferred, expected);
  if (slots.spare == 0 && saved_is_whole) expect_same(on, "saved", naive.saved, cuda.saved, expected);
  expect_same(on, "dslots", naive.dslots, cuda.dslots, expected);
  Expected of_grads = expected;
  if (used == 0)
    for_each_tensor([&](const Name& part, const auto&) { of_grads.zeros.push_back("grads." + part.str()); },
                    naive.grads);
  expect_same(on, "grads", naive.grads, cuda.grads, of_grads);
  if constexpr (hook::expert::weighted_backward<E, T, Cuda>()) {
    expect_same(on, "weighted_dslots", naive.weighted_dslots, cuda.weighted_dslots, expected);
    expect_same(on, "dweight", naive.dweight, cuda.dweight, expected);
    expect_same(on, "grads", naive.weighted_grads, cuda.weighted_grads, of_grads);
  }
}

}  // namespace gatefold::test
