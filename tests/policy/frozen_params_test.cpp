#include "gatefold/policy/frozen_params.hpp"

#include <doctest/doctest.h>

#include <type_traits>
#include <utility>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/shapes.hpp"

using namespace gatefold;

namespace {

/// Parameters with one tensor of experts.
struct Experts {
  Tensor<float, 3, Cpu> weight;  // [E, D, H]
  GATEFOLD_PACK(weight)
};

}  // namespace

TEST_CASE("FrozenParams: model_params returns plain or frozen parameters") {
  const Experts plain;
  const FrozenParams<Experts, Cpu> frozen;
  CHECK(&model_params(plain) == &plain);
  CHECK(&model_params(frozen) == &frozen.params);
  CHECK(count_tensors(model_params(frozen)) == 1);
}

TEST_CASE("FrozenParams: products read packed weights only during the call") {
  Cpu::Context ctx(1);
  FrozenParams<Experts, Cpu> frozen;
  frozen.params.weight.resize(2, 5, 3);
  const float* const weights = frozen.params.weight.data();
  Cpu::pack(ctx, std::as_const(frozen.params.weight).view(), Weights::unchanged, frozen.packed);
  bool during = false, plain = true;
  detail_::lookup::with_packed(ctx, frozen, [&] { during = bool(ctx.packed<float>(weights)); });
  detail_::lookup::with_packed(ctx, frozen.params, [&] { plain = bool(ctx.packed<float>(weights)); });
  CHECK(during);
  CHECK(!plain);
  CHECK(!ctx.packed<float>(weights));
}

TEST_CASE("FrozenParams: a backend without packed weights has an empty pack") {
  static_assert(std::is_same_v<decltype(FrozenParams<Experts, Shapes>::packed), Nothing<float, Shapes>>);
}
