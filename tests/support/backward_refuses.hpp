#pragma once

#include <doctest/doctest.h>

#include <string>

#include "gatefold/core/types.hpp"
#include "gatefold/layer/layer.hpp"
#include "gatefold/policy/policy.hpp"
#include "gatefold/tensor/tensor.hpp"
#include "support/pass.hpp"

namespace gatefold::support {

/// Checks that the backward of an attention of width 6 throws for x, dy, dx and `saved` of wrong shapes, before it
/// writes anything.
/// @param of_nothing  the expected message, after "NAME.backward: ", for 10 items and a `saved` that no forward has
///         filled
template <class L>
void check_backward_refuses(const std::string& name, const L& layer, const std::string& of_nothing) {
  Cpu::Context ctx(1);
  auto p = pass<float>(ctx, layer, 10);
  p.forward();
  const Tensor<float, 2, Cpu> few(3, 6), narrow(10, 4);
  Tensor<float, 2, Cpu> few_dx(3, 6), y(3, 6);
  Saved<L, float, Cpu> nothing, of_few;
  layer.forward(ctx, p.params.branch, few, y, of_few);
  const auto message = [&](const auto& x, const auto& saved, const auto& du, auto& dx) {
    const auto before = values(p.dx, p.grads);
    const auto text = message_of([&] { backward(layer, ctx, p.params.branch, x, saved, du, dx, p.grads.branch); });
    CHECK(same_bits(values(p.dx, p.grads), before));
    return text;
  };
  const auto& saved = p.saved.branch;
  const std::string where = name + ".backward: ";
  CHECK(message(narrow, saved, p.dy, p.dx) == where + "x: expected [?, 6], got [10, 4]");
  CHECK(message(few, saved, p.dy, p.dx) == where + "dy: expected [3, 6], got [10, 6]");
  CHECK(message(p.x, saved, few, p.dx) == where + "dy: expected [10, 6], got [3, 6]");
  CHECK(message(p.x, saved, p.dy, few_dx) == where + "dx: expected [10, 6], got [3, 6]");
  CHECK(message(p.x, nothing, p.dy, p.dx) == where + of_nothing);
  CHECK(message(p.x, of_few, p.dy, p.dx) == where + "saved.q: expected [10, 6], got [3, 6]");
}

}  // namespace gatefold::support
