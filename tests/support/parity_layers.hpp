#pragma once

#include <utility>

#include "support/bank_run.hpp"
#include "support/parity.hpp"

/// Runs experts on given slots, without a gate, on the naive backend and on CUDA. An expert can have any number of
/// slots.
namespace gatefold::test {

/// Compares experts on both backends: the initial parameters, forward and infer, and every gradient (0 for
/// experts without slots). Also checks that spare slots (the slots after the slots of the last expert) are not touched.
/// The saved values are compared only if there are no spare slots.
/// @param saved_is_whole  false if the expert does not fill all of its saved values, which are then not compared
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
  if constexpr (detail_::hook::expert::weighted_backward<E, T, Cuda>()) {
    expect_same(on, "weighted_dslots", naive.weighted_dslots, cuda.weighted_dslots, expected);
    expect_same(on, "dweight", naive.dweight, cuda.dweight, expected);
    expect_same(on, "grads", naive.weighted_grads, cuda.weighted_grads, of_grads);
  }
}

}  // namespace gatefold::test
