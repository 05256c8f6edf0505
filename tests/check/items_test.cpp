#include "gatefold/check/items.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/layer/frozen.hpp"
#include "gatefold/loss/cross_entropy.hpp"
#include "gatefold/optim/sgd.hpp"
#include "gatefold/train/trainer.hpp"
#include "support/larger.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using support::message_of, support::same_bits, support::values;

namespace {

/// A minimal branch that reads ids: y[n] = weight[id[n]].
struct LookUp {
  Index count = 5, dim = 3;
  bool wrong = false;  // a fault: it writes the gradient of the next row

  template <class T, class B>
  using Items = View<const Index, 1, B>;
  template <class T, class B>
  struct Params {
    Tensor<T, 2, B> weight;
    GATEFOLD_PACK(weight)
  };
  Index in_dim() const { return count; }
  Index out_dim() const { return dim; }
  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    return {uniform_tensor<T>(ctx, seed, 1, count, dim)};
  }
  template <class T, class B, class Step = functor::NoStep<T>>
  void forward(typename B::Context& ctx, const Params<T, B>& p, In<Index, 1, B> x, Out<T, 2, B> u, Nothing<T, B>&,
               const Nothing<T, B>&, const Step& step = {}) const {
    for (Index n = 0; n < x.extent(0); ++n)
      for (Index d = 0; d < dim; ++d) u(n, d) = p.weight(x(n), d);
    run_step(ctx, u, step);
  }
  template <class T, class B>
  void backward(typename B::Context&, const Params<T, B>&, In<Index, 1, B> x, const Nothing<T, B>&, In<T, 2, B> du,
                Nothing<T, B>, Params<T, B>& grads, const Nothing<T, B>&, Nothing<T, B>&) const {
    for (Index n = 0; n < x.extent(0); ++n)
      for (Index d = 0; d < dim; ++d) grads.weight(wrong ? (x(n) + 1) % count : x(n), d) += du(n, d);
  }
};

auto model() { return Chain{LookUp{}, Linear{.model_dim = 3, .output_dim = 4}}; }

}  // namespace

TEST_CASE("items: a policy reads rows unless it defines ids") {
  using Model = decltype(model());
  static_assert(std::is_same_v<Items<Linear, float, Cpu>, View<const float, 2, Cpu>>);
  static_assert(std::is_same_v<ItemsGrad<Linear, float, Cpu>, View<float, 2, Cpu>>);
  static_assert(std::is_same_v<Items<Model, float, Cpu>, View<const Index, 1, Cpu>>);
  static_assert(std::is_same_v<ItemsGrad<Model, float, Cpu>, Nothing<float, Cpu>>);
  static_assert(detail_::policy::reads_ids<AsLayer<LookUp, double, Cpu>, double, Cpu>);
  static_assert(!detail_::policy::reads_ids<Chain<Linear, Linear>, double, Cpu>);
}

TEST_CASE("random items: cover all ids, or are rows") {
  Cpu::Context ctx(1);
  const auto ids = check::random_items<double>(ctx, Seed{1}, 1, as_layer<double, Cpu>(LookUp{}), 200);
  CHECK(std::set<Index>(ids.data(), ids.data() + 200) == std::set<Index>{0, 1, 2, 3, 4});
  const auto rows = check::random_items<double>(ctx, Seed{1}, 0.5, as_layer<double, Cpu>(Linear{.model_dim = 3}), 200);
  CHECK(rows.extent(1) == 3);
  double largest = 0;
  for (Index i = 0; i < rows.size(); ++i) largest = support::larger(largest, std::abs(rows.data()[i]));
  CHECK(largest <= 0.5);
  CHECK(largest > 0.4);
  CHECK(values(check::zero_items_grad<double>(ctx, as_layer<double, Cpu>(LookUp{}), 7)).empty());
  const auto dx = check::zero_items_grad<double>(ctx, as_layer<double, Cpu>(Linear{.model_dim = 2}), 2);
  CHECK(values(dx) == std::vector<double>(4, 0));
}

TEST_CASE("conformance: a chain of ids passes; wrong gradients are found") {
  const auto report = check::conformance<Cpu>(model(), {.items_are_independent = true});
  CHECK_MESSAGE(report, report.str());
  const auto alone = check::conformance<Cpu>(LookUp{}, {.items_are_independent = true});
  CHECK_MESSAGE(alone, alone.str());
  Cpu::Context ctx(1);
  CHECK(!check::gradients(ctx, Chain{LookUp{.wrong = true}, Linear{.model_dim = 3}}));
}

TEST_CASE("Trainer: ids give the bits of one-hot rows") {
  Cpu::Context ctx(2);
  const std::vector<Index> ids{3, 0, 3, 4, 1, 3}, next{0, 1, 2, 3, 0, 1};
  Tensor<double, 2, Cpu> rows(6, 5);
  for (Index n = 0; n < 6; ++n)
    for (Index v = 0; v < 5; ++v) rows(n, v) = ids[static_cast<std::size_t>(n)] == v ? 1 : 0;
  const Chain of_rows{Linear{.model_dim = 5, .output_dim = 3, .bias = false}, Linear{.model_dim = 3, .output_dim = 4}};
  Trainer reads_rows{ctx, of_rows, CrossEntropy{}, optim::Sgd{.lr = 0.5}, Seed{1}, Element<double>{}};
  Trainer reads_ids{ctx, model(), CrossEntropy{}, optim::Sgd{.lr = 0.5}, Seed{1}, Element<double>{}};
  const auto table = values(std::get<0>(reads_rows.params.layers));
  std::copy(table.begin(), table.end(), std::get<0>(reads_ids.params.layers).branch.weight.data());
  for (int t = 0; t < 3; ++t)
    CHECK(reads_ids.step(ids, next) == doctest::Approx(reads_rows.step(rows, next)).epsilon(1e-14));
  CHECK(reads_ids.evaluate(ids, next) == doctest::Approx(reads_rows.evaluate(rows, next)).epsilon(1e-14));
  CHECK(support::difference(values(reads_ids.params), values(reads_rows.params)) < 1e-13);

  Tensor<double, 2, Cpu> y(6, 4), frozen_y(6, 4);
  reads_ids.infer(ids, y);
  Carry<decltype(model()), double, Cpu> carry;
  model().begin(ctx, reads_ids.params, 6, carry);
  infer(model(), ctx, reads_ids.params, ids, carry, frozen_y);
  CHECK(same_bits(values(y), values(frozen_y)));
  const auto frozen = freeze(ctx, std::move(reads_ids.params));
  model().begin(ctx, frozen.params, 6, carry);
  infer(model(), ctx, frozen, ids, carry, frozen_y);
  CHECK(same_bits(values(y), values(frozen_y)));
}

TEST_CASE("ids: an id out of range is reported with position") {
  Cpu::Context ctx(1);
  Trainer trainer{ctx, model(), CrossEntropy{}, optim::Sgd{}, Seed{1}};
  const std::vector<Index> high{0, 4, 5}, low{-1, 0, 0}, next{0, 1, 2};
  const auto before = values(trainer.params);
  CHECK(message_of([&] { trainer.step(high, next); }) == "Trainer.step: x[2]: expected an id from 0 to 4, got 5");
  CHECK(message_of([&] { trainer.evaluate(low, next); }) ==
        "Trainer.evaluate: x[0]: expected an id from 0 to 4, got -1");
  Tensor<float, 2, Cpu> y(3, 4);
  CHECK(message_of([&] { trainer.infer(high, y); }) == "Trainer.infer: x[2]: expected an id from 0 to 4, got 5");
  auto& p = trainer.params;
  Carry<decltype(model()), float, Cpu> carry;
  Saved<decltype(model()), float, Cpu> saved;
  model().begin(ctx, p, 3, carry);
  CHECK(message_of([&] { model().forward(ctx, p, high, carry, y, saved); }) ==
        "Chain.forward: x[2]: expected an id from 0 to 4, got 5");
  CHECK(same_bits(before, values(trainer.params)));
}
