#pragma once

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "support/pass.hpp"

/// Checks that forward and backward refuse tensors of a wrong shape.
namespace gatefold::support {

/// For each tensor of a pack and each of its dimensions d, makes extent d larger by 1, calls f(name, d), and restores
/// the tensor.
template <class F>
struct WithWrongShapes {
  Cpu::Context& ctx;
  const F& f;

  template <class T, int Rank>
  void operator()(const Name& name, Tensor<T, Rank, Cpu>& tensor) const {
    for (int d = 0; d < Rank; ++d) {
      const auto larger = [&]<int... At>(std::integer_sequence<int, At...>) {
        return constant_tensor<T>(ctx, 1, tensor.extent(At) + (At == d)...);
      };
      Tensor<T, Rank, Cpu> wrong = larger(std::make_integer_sequence<int, Rank>{});
      std::swap(tensor, wrong);
      f(name, d);
      std::swap(tensor, wrong);
    }
  }
  template <class T>
  void operator()(const Name& name, Table<T, Cpu>& table) const {
    for (int d = 0; d < 2; ++d) {
      Table<T, Cpu> wrong;
      wrong.resize(table.extent(0) + (d == 0), table.extent(1) + (d == 1));
      std::swap(table, wrong);
      f(name, d);
      std::swap(table, wrong);
    }
  }
};

/// Checks that forward refuses parameters and carries in which one extent is too large by 1, before it writes to the
/// output or the carry. Checks the same of backward for parameters, their gradients and dcarry.
template <class T, class L>
void check_wrong_shapes(Pass<T, L>& run) {
  int tried = 0;
  const auto expect_refused = [&](const Name& name, int d, auto&& call, auto&& written) {
    const std::string tensor = name.str();
    CAPTURE(tensor);
    CAPTURE(d);
    const std::vector<double> before = written();
    CHECK(message_of(call) != "no ArgumentError");
    CHECK(same_bits(written(), before));
    ++tried;
  };
  const auto forward = [&](const Name& name, int d) {
    expect_refused(
        name, d, [&] { run.forward(); }, [&] { return values(run.y, run.carry); });
  };
  for_each_tensor(WithWrongShapes<decltype(forward)>{run.ctx, forward}, run.params);
  for_each_tensor(WithWrongShapes<decltype(forward)>{run.ctx, forward}, run.carry);
  CHECK(message_of([&] { run.forward(); }) == "no ArgumentError");
  const auto backward = [&](const Name& name, int d) {
    expect_refused(
        name, d, [&] { run.backward(); }, [&] { return values(run.dx, run.grads, run.dcarry); });
  };
  for (auto* pack : {&run.params, &run.grads})
    for_each_tensor(WithWrongShapes<decltype(backward)>{run.ctx, backward}, *pack);
  for_each_tensor(WithWrongShapes<decltype(backward)>{run.ctx, backward}, run.dcarry);
  CHECK(message_of([&] { run.backward(); }) == "no ArgumentError");
  CHECK(tried > 0);
}

}  // namespace gatefold::support
