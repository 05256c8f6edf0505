#include "gatefold/check/hooks.hpp"

#include <doctest/doctest.h>

#include <gatefold/check.hpp>
#include <gatefold/gatefold.hpp>

using namespace gatefold;

namespace {

using Names = std::vector<std::string>;

/// Heavy ball whose author mistyped two names: without them the library takes other ways, and says nothing.
struct Misspelt {
  double mu = 0.7;
  template <class T, class B>
  using Carry = update::HeavyBall::Carry<T, B>;
  template <class T, class B>
  void begin(typename B::Context& ctx, Index items, Index dim, Carry<T, B>& carry) const {
    update::HeavyBall{mu}.begin(ctx, items, dim, carry);
  }
  template <class T, class B>
  void valdate(const Nothing<T, B>&, Index items, Index dim, const Carry<T, B>& carry) const {
    carry.validate("Misspelt", items, dim);
  }
  void advanse() const {}
  template <class T, class B, class F>
  void forward(typename B::Context& ctx, const Nothing<T, B>& p, In<T, 2, B> x, Carry<T, B>& carry, F&& f,
               Out<T, 2, B> y, Nothing<T, B>& saved) const {
    update::HeavyBall{mu}.forward(ctx, p, x, carry, f, y, saved);
  }
  template <class T, class B, class F>
  void backward(typename B::Context& ctx, const Nothing<T, B>& p, In<T, 2, B> x, const Nothing<T, B>& saved, F&& df,
                In<T, 2, B> dy, Carry<T, B>& dcarry, Out<T, 2, B> dx, Nothing<T, B>& grads) const {
    update::HeavyBall{mu}.backward(ctx, p, x, saved, df, dy, dcarry, dx, grads);
  }
};

Names names_of(const std::vector<check::NamedHooks>& hooks, const std::string& part) {
  for (const auto& of : hooks)
    if (of.part == part) return of.names;
  return {"no such part"};
}

}  // namespace

TEST_CASE("hooks_of: what a layer and the parts within it name") {
  const Residual layer{update::HeavyBall{},
                       Mixture{WithAuxiliary<SoftmaxTopK, GShard>{}, Experts<Mlp<Gelu>, Linear>{}}};
  const auto hooks = check::hooks_of(layer);
  CHECK(names_of(hooks, "rule") == Names{"Carry", "begin", "validate", "advance", "advance_backward"});
  CHECK(names_of(hooks, "branch.gate.scores") ==
        Names{"Params", "validate", "forward_rows", "items_adjoint_is_optional", "experts", "with_model_dim"});
  CHECK(names_of(hooks, "branch.gate.selection") ==
        Names{"validate_options", "rows", "rows_backward", "complete_picks", "items_adjoint_is_optional"});
  CHECK(names_of(hooks, "branch.gate.auxiliary.0") == Names{"needs_picks_by_item"});
  CHECK(names_of(hooks, "branch.expert.kinds.1") == Names{"Params", "validate", "weighted_backward"});

  const Block block{Residual{update::TimeVarying{}, PreNorm{LayerNorm{}, Attention{}}}, layer};
  const auto of_block = check::hooks_of(block);
  CHECK(names_of(of_block, "attention.rule.schedule") == check::hooks_of(update::TimeVarying{}.schedule)[0].names);
  CHECK(names_of(of_block, "attention.branch.norm") == Names{"Params", "Saved", "validate", "infer", "with_model_dim"});
}

TEST_CASE("conformance names a misspelt member, and one that was not expected") {
  const Residual layer{Misspelt{}, OneExpert{Linear{.model_dim = 3}}};
  CHECK(check::conformance<Cpu>(layer));
  const auto report = check::conformance<Cpu>(
      layer, {.hooks = {{"rule", {"Carry", "begin", "validate", "advance", "advance_backward"}}}});
  CHECK_FALSE(report);
  CHECK(report.sentences == Names{"rule has no validate, which was expected: is it misspelt?",
                                  "rule has no advance, which was expected: is it misspelt?",
                                  "rule has no advance_backward, which was expected: is it misspelt?"});
  CHECK(report.str().find("\n  rule: Carry, begin\n") != std::string::npos);

  const auto unaware = check::compare_hooks(check::hooks_of(layer), {{"rule", {"begin"}}});
  CHECK(unaware == Names{"rule has Carry, which was not expected"});
  CHECK(check::compare_hooks(check::hooks_of(layer), {{"branch.norm", {}}}) == Names{"there is no part branch.norm"});
}
