#pragma once

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "support/pass.hpp"

/// Checks what forward says about parameters and carries of a wrong shape.
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
/// output or the carry.
template <class T, class L>
void check_wrong_shapes(Pass<T, L>& run) {
  int tried = 0;
  const auto refused = [&](const Name& name, int d) {
    const std::string tensor = name.str();
    CAPTURE(tensor);
    CAPTURE(d);
    const std::vector<double> before = values(run.carry);
    const std::string said = message_of([&] { run.forward(); });
    CHECK(said != "no ArgumentError");
    CHECK(run.untouched());
    CHECK(same_bits(values(run.carry), before));
    ++tried;
  };
  const WithWrongShapes<decltype(refused)> wrong{run.ctx, refused};
  for_each_tensor(wrong, run.params);
  for_each_tensor(wrong, run.carry);
  CHECK(tried > 0);
  CHECK(message_of([&] { run.forward(); }) == "no ArgumentError");
}

}  // namespace gatefold::support
