#include "gatefold/policy/policy.hpp"

#include <doctest/doctest.h>

#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/shapes.hpp"
#include "gatefold/core/error.hpp"

using namespace gatefold;

namespace {

struct Empty {};

struct Full {
  Index model_dim = 0;
  static constexpr int evaluations = 3;

  template <class T, class B>
  struct Params {
    Tensor<T, 1, B> weight;
    GATEFOLD_PACK(weight)
  };
  template <class T, class B>
  struct Saved {};
  template <class T, class B>
  struct Carry {};
  template <class T, class B>
  struct Extra {
    Random random{};
    bool auxiliary = true;
    Extra at(Index layer) const { return {random.at(layer), auxiliary}; }
    Extra without_auxiliary() const { return {random, false}; }
  };
  template <class T, class B>
  struct ExtraGrad {};

  Full with_model_dim(Index dim) const {
    expect(model_dim == 0 || model_dim == dim, "Full", "model_dim", dim, model_dim);
    return {dim};
  }
  template <class T, class B>
  Params<T, B> init(typename B::Context&, Seed seed) const {
    Params<T, B> p{Tensor<T, 1, B>(1)};
    p.weight(0) = static_cast<T>(seed.value);
    return p;
  }
};

struct Plain {
  int value = 4;
};

template <class V>
constexpr bool is_nothing = std::is_same_v<V, Nothing<float, Cpu>>;

template <class P>
constexpr bool has_nothing() {
  return is_nothing<Params<P, float, Cpu>> && is_nothing<Saved<P, float, Cpu>> && is_nothing<Carry<P, float, Cpu>> &&
         is_nothing<Extra<P, float, Cpu>> && is_nothing<ExtraGrad<P, float, Cpu>>;
}

}  // namespace

TEST_CASE("nested types: missing ones are Nothing") {
  static_assert(has_nothing<Empty>());
  static_assert(!has_nothing<Full>());
  Cpu::Context ctx(1);
  const auto params = init_params<double, Cpu>(Empty{}, ctx, Seed{1});
  static_assert(std::is_same_v<decltype(params), const Nothing<double, Cpu>>);
  CHECK(count_values(params) == 0);
}

TEST_CASE("nested types: are found for each element type") {
  static_assert(std::is_same_v<Params<Full, float, Cpu>, Full::Params<float, Cpu>>);
  static_assert(std::is_same_v<Params<Full, double, Cpu>, Full::Params<double, Cpu>>);
  static_assert(std::is_same_v<Saved<Full, float, Cpu>, Full::Saved<float, Cpu>>);
  static_assert(std::is_same_v<Carry<Full, float, Cpu>, Full::Carry<float, Cpu>>);
  static_assert(std::is_same_v<Extra<Full, float, Cpu>, Full::Extra<float, Cpu>>);
  static_assert(std::is_same_v<ExtraGrad<Full, float, Cpu>, Full::ExtraGrad<float, Cpu>>);
  Cpu::Context ctx(1);
  CHECK(init_params<double, Cpu>(Full{}, ctx, Seed{12}).weight(0) == 12);
}

TEST_CASE("evaluations: a rule evaluates its branch once by default") {
  static_assert(detail_::hook::rule::evaluations<Empty>() == 1);
  static_assert(detail_::hook::rule::evaluations<Full>() == 3);
}

TEST_CASE("at_layer: calls fork with the layer number, if defined") {
  const Full::Extra<float, Cpu> extra{{Seed{3}, 8}};
  CHECK(at_layer(extra, 2).random.seed == Seed{3}.fork(2));
  CHECK(at_layer(extra, 2).random.step == 8);
  CHECK(at_layer(extra, 2).auxiliary);
  CHECK(at_layer(Plain{7}, 2).value == 7);
  at_layer(Nothing<float, Cpu>{}, 1);
}

TEST_CASE("at_layer: forks each part of extra inputs without a fork") {
  struct Inside {
    Index length = 0;
    Noise noise{};
  };
  struct Composed {
    Inside attention{};
    std::tuple<Inside, Full::Extra<float, Cpu>> layers{};
    Noise noise{};
    Noise other{};  // at_layer copies members with other names
  };
  const Noise given{Random{Seed{3}, 8}};
  const Composed extra{{5, given}, {Inside{7, given}, {{Seed{3}, 8}}}, given, given}, forked = at_layer(extra, 2);
  for (const Noise& noise : {forked.attention.noise, std::get<0>(forked.layers).noise, forked.noise})
    CHECK(noise.random->seed == Seed{3}.fork(2));
  CHECK(std::get<1>(forked.layers).random.seed == Seed{3}.fork(2));
  CHECK(forked.other.random->seed == Seed{3});
  CHECK(forked.attention.length == 5);
  CHECK(std::get<0>(forked.layers).length == 7);
  CHECK_FALSE(std::get<1>(without_auxiliary(extra).layers).auxiliary);
  CHECK(std::get<1>(extra.layers).auxiliary);
}

TEST_CASE("without_auxiliary: clears the auxiliary flag, keeps other values") {
  const Full::Extra<float, Cpu> extra{{Seed{3}, 8}};
  CHECK_FALSE(without_auxiliary(extra).auxiliary);
  CHECK(without_auxiliary(extra).random.step == 8);
  CHECK(without_auxiliary(Plain{7}).value == 7);
}

TEST_CASE("with_model_dim: fills an open dimension; a different dimension throws") {
  CHECK(with_model_dim(Full{}, 16).model_dim == 16);
  CHECK(with_model_dim(Full{16}, 16).model_dim == 16);
  CHECK_THROWS_WITH_AS(with_model_dim(Full{8}, 16), "Full: model_dim: expected 16, got 8", ArgumentError);
  CHECK(with_model_dim(Plain{7}, 16).value == 7);
}

TEST_CASE("Required: converts from a value") {
  static_assert(std::is_convertible_v<int, Required<int>>);
  const Required<int> given = 5;
  CHECK(given.value == 5);
}

namespace {

/// Parameters with one tensor of experts.
struct ExpertWeights {
  Tensor<float, 3, Cpu> weight;  // [E, D, H]
  GATEFOLD_PACK(weight)
};

}  // namespace

TEST_CASE("FrozenParams: model_params returns plain or frozen parameters") {
  const ExpertWeights plain;
  const FrozenParams<ExpertWeights, Cpu> frozen;
  CHECK(&model_params(plain) == &plain);
  CHECK(&model_params(frozen) == &frozen.params);
  CHECK(count_tensors(model_params(frozen)) == 1);
}

TEST_CASE("with_packed: products read packed weights only during the call") {
  Cpu::Context ctx(1);
  FrozenParams<ExpertWeights, Cpu> frozen;
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
  static_assert(std::is_same_v<decltype(FrozenParams<ExpertWeights, Shapes>::packed), Nothing<float, Shapes>>);
}

namespace {

struct Part {
  char name;
};
struct Gate {
  char name;
  Part scores{'s'}, mixing{'m'}, selection{'k'};
};
struct Drop {
  char name;
  Noise noise{};
  Gate branch{'g'};
};
struct Pair {
  char name;
  Part attention{'a'};
  Drop layer{'d'};
};
struct Layers {
  char name;
  std::tuple<Part, Pair> layers{{'1'}, {'2'}};
};

}  // namespace

TEST_CASE("for_each_extra: visits each inner part once, in order") {
  Layers all{'c'};
  std::string order;
  detail_::lookup::for_each_extra(all, [&](auto& part) {
    if constexpr (requires { part.name; }) {
      order += part.name;
      part.name = 'x';
    } else {
      order += 'n';
    }
  });
  CHECK(order == "c12adgsmkn");
  CHECK(std::get<1>(all.layers).layer.branch.selection.name == 'x');  // the parts themselves, not copies
}

namespace {

struct LearnsNothing {};

template <class T, class B>
struct Weight {
  Tensor<T, 1, B> weight;
};

struct Learns {
  template <class T, class B>
  using Params = Weight<T, B>;
  template <class T, class B>
  Params<T, B> init(typename B::Context&, Seed) const {
    return {};
  }
};
struct WithoutInit {
  template <class T, class B>
  using Params = Weight<T, B>;
};
struct OtherResult : WithoutInit {
  template <class T, class B>
  int init(typename B::Context&, Seed) const {
    return 0;
  }
};
struct NotConst : WithoutInit {
  template <class T, class B>
  Weight<T, B> init(typename B::Context&, Seed) {
    return {};
  }
};

}  // namespace

TEST_CASE("HasInit: a policy with Params needs a matching init") {
  static_assert(detail_::policy::HasInit<LearnsNothing, float, Cpu>);
  static_assert(detail_::policy::HasInit<Learns, float, Cpu>);
  static_assert(!detail_::policy::HasInit<WithoutInit, float, Cpu>);
  static_assert(!detail_::policy::HasInit<OtherResult, float, Cpu>);
  static_assert(!detail_::policy::HasInit<NotConst, float, Cpu>);
  CHECK(detail_::policy::HasInit<Learns, double, Cpu>);
}

TEST_CASE("Probe: holds arguments for forward and backward") {
  Cpu::Context ctx(1);
  const detail_::policy::Probe<float, Cpu> probe{ctx, {}, {}, {}};
  CHECK(probe.in.empty());
  CHECK(probe.out.empty());
  CHECK(probe.groups.slots == 0);
  CHECK(&probe.ctx == &ctx);
}

namespace {

template <bool Fits>
struct Composed {};

}  // namespace

namespace gatefold::detail_::policy {

template <bool Fits>
struct Parts<Composed<Fits>> {
  template <class T, class B>
  static constexpr bool check() {
    return Fits;
  }
};

}  // namespace gatefold::detail_::policy

TEST_CASE("parts_fit: checks a composition's parts, if it has parts") {
  CHECK(detail_::policy::parts_fit<Composed<true>, float, Cpu>());
  CHECK_FALSE(detail_::policy::parts_fit<Composed<false>, float, Cpu>());
  CHECK(detail_::policy::parts_fit<LearnsNothing, float, Cpu>());
}

TEST_CASE("is_misplaced: recognises the type deduced for misplaced parts") {
  CHECK(detail_::policy::is_misplaced<detail_::policy::Misplaced<>>);
  CHECK(detail_::policy::is_misplaced<detail_::policy::Misplaced<int, Learns>>);
  CHECK_FALSE(detail_::policy::is_misplaced<Learns>);
}
