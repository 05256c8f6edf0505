#include "gatefold/check/hooks.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <gatefold/check.hpp>
#include <gatefold/gatefold.hpp>
#include <string>
#include <string_view>
#include <vector>

using namespace gatefold;

namespace {

using Names = std::vector<std::string>;

/// A heavy-ball rule with two misspelt names. Without these members the library silently does something else.
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

/// Misspelt members of each family and of nested types.
namespace odd {

struct Rule {
  template <class T, class B>
  struct Carry {
    update::Pass pas;
  };
  [[maybe_unused]] static constexpr int evaluation = 2;
  Rule withModelDim(Index) const { return {}; }
};
struct Scores {
  void forward_row() const {}
};
struct Mixing {
  template <class T, class B>
  struct Saved {
    void choice() const {}
  };
  void rows_backwards() const {}
};
struct Selection {
  template <class T, class B>
  struct Params {
    void adept() {}
  };
  [[maybe_unused]] static constexpr bool complete_pick = true;
};
struct Gate {
  template <class T, class B>
  struct Extra {
    void with_valit() const {}
  };
  Scores scores{};
  Mixing mixing{};
  Selection selection{};
  void infers() const {}
};
struct Expert {
  void weighted_backwards() const {}
};
struct Branch {
  template <class T, class B>
  struct Saved {
    void mixture() const {}
  };
  Gate gate{};
  Expert expert{};
};
struct Layer {
  Rule rule{};
  Branch branch{};
};

}  // namespace odd

/// An expert whose init throws, as if a misspelt with_model_dim had left the expert without a dimension.
struct Refuses : Linear {
  template <class T, class B>
  Params<T, B> init(typename B::Context&, Index, Seed) const {
    throw ArgumentError("Refuses.init: model_dim: expected at least 1, got 0");
  }
};

Names names_of(const std::vector<check::NamedHooks>& hooks, const std::string& part) {
  for (const auto& of : hooks)
    if (of.part == part) return of.names;
  return {"no such part"};
}

/// Returns the parts of tensor names before "weight".
template <class L>
Names paths_of_weights(const L& model) {
  Cpu::Context ctx(1);
  const auto params = init_params<float, Cpu>(as_layer<float, Cpu>(model), ctx, Seed{1});
  Names paths;
  for_each_tensor(
      [&](const Name& name, const auto&) {
        const std::string text = name.str();
        constexpr std::string_view last = "weight";
        if (text.size() >= last.size() && text.substr(text.size() - last.size()) == last)
          paths.push_back(text.substr(0, text.size() - last.size()));
      },
      params);
  return paths;
}
template <class L>
bool has_part(const L& model, const std::string& part) {
  const auto found = check::hooks_of<Cpu>(model);
  return std::any_of(found.begin(), found.end(), [&](const check::NamedHooks& of) { return of.part == part; });
}

}  // namespace

TEST_CASE("hooks_of: lists the hooks of a layer and its parts") {
  const Residual layer{update::HeavyBall{},
                       Mixture{WithAuxiliary<SoftmaxTopK, GShard>{}, Experts<Mlp<Gelu>, Linear>{}}};
  const auto hooks = check::hooks_of<Cpu>(layer);
  CHECK(names_of(hooks, "rule") == Names{"Carry", "begin", "validate", "advance", "advance_backward", "Carry.pass"});
  CHECK(names_of(hooks, "") == Names{"Params", "Saved", "Carry", "Extra", "ExtraGrad", "begin", "validate", "infer",
                                     "Saved.mixtures", "Carry.pass", "Extra.without_auxiliary", "Extra.WithoutTrace",
                                     "Extra.with_trace", "ExtraGrad.set_trace"});
  CHECK(names_of(hooks, "branch.gate.scores") ==
        Names{"Params", "validate", "forward_rows", "items_adjoint_is_optional", "experts", "with_model_dim"});
  CHECK(names_of(hooks, "branch.gate.selection") ==
        Names{"validate_options", "rows", "rows_backward", "complete_picks", "items_adjoint_is_optional"});
  CHECK(names_of(hooks, "branch.gate.auxiliary.0") == Names{"validate", "needs_picks_by_item"});
  CHECK(names_of(hooks, "branch.expert.kinds.1") == Names{"Params", "validate", "weighted_backward"});

  const Block block{Residual{update::TimeVarying{}, PreNorm{LayerNorm{}, Attention{}}}, layer};
  const auto of_block = check::hooks_of<Cpu>(block);
  CHECK(names_of(of_block, "attention.rule.schedule") == check::hooks_of<Cpu>(update::TimeVarying{}.schedule)[0].names);
  CHECK(names_of(of_block, "attention.branch.norm") == Names{"Params", "Saved", "validate", "infer", "with_model_dim"});
}

TEST_CASE("compare_hooks: finds misspelt members of every family") {
  const auto sentences = check::compare_hooks(check::hooks_of<Cpu>(odd::Layer{}),
                                              {{"rule", {"Carry", "evaluations", "with_model_dim", "Carry.pass"}},
                                               {"branch", {"Saved", "Saved.mixtures"}},
                                               {"branch.gate", {"Extra", "infer", "Extra.with_valid"}},
                                               {"branch.gate.scores", {"forward_rows"}},
                                               {"branch.gate.mixing", {"Saved", "rows_backward", "Saved.choices"}},
                                               {"branch.gate.selection", {"Params", "complete_picks", "Params.adapt"}},
                                               {"branch.expert", {"weighted_backward"}}});
  const Names missing{"rule evaluations",
                      "rule with_model_dim",
                      "rule Carry.pass",
                      "branch Saved.mixtures",
                      "branch.gate infer",
                      "branch.gate Extra.with_valid",
                      "branch.gate.scores forward_rows",
                      "branch.gate.mixing rows_backward",
                      "branch.gate.mixing Saved.choices",
                      "branch.gate.selection complete_picks",
                      "branch.gate.selection Params.adapt",
                      "branch.expert weighted_backward"};
  REQUIRE(sentences.size() == missing.size());
  for (std::size_t i = 0; i < missing.size(); ++i) {
    const std::size_t space = missing[i].find(' ');
    CHECK(sentences[i] == missing[i].substr(0, space) + " has no " + missing[i].substr(space + 1) +
                              ", which was expected: is it misspelt?");
  }
}

TEST_CASE("conformance: misspelt or unexpected members are reported") {
  const Residual layer{Misspelt{}, OneExpert{Linear{.model_dim = 3}}};
  CHECK(check::conformance<Cpu>(layer));
  const auto report = check::conformance<Cpu>(
      layer, {.hooks = {{"rule", {"Carry", "begin", "validate", "advance", "advance_backward", "Carry.pass"}}}});
  CHECK_FALSE(report);
  CHECK(report.sentences == Names{"rule has no validate, which was expected: is it misspelt?",
                                  "rule has no advance, which was expected: is it misspelt?",
                                  "rule has no advance_backward, which was expected: is it misspelt?"});
  CHECK(report.str().find("\n  rule: Carry, begin, Carry.pass\n") != std::string::npos);

  const auto unaware = check::compare_hooks(check::hooks_of<Cpu>(layer), {{"rule", {"begin"}}});
  CHECK(unaware == Names{"rule has Carry, which was not expected", "rule has Carry.pass, which was not expected"});
  CHECK(check::compare_hooks(check::hooks_of<Cpu>(layer), {{"branch.norm", {}}}) ==
        Names{"there is no part branch.norm; the parts are rule, branch, branch.expert"});
}

TEST_CASE("conformance: reports members even if the layer throws") {
  const Residual layer{update::Plain{}, OneExpert{Refuses{{.model_dim = 3}}}};
  CHECK_THROWS_WITH_AS(check::conformance<Cpu>(layer), "Refuses.init: model_dim: expected at least 1, got 0",
                       ArgumentError);
  const auto report = check::conformance<Cpu>(layer, {.hooks = {{"rule", {"begin"}}}});
  CHECK_FALSE(report);
  CHECK(report.sentences == Names{"rule has no begin, which was expected: is it misspelt?",
                                  "Refuses.init: model_dim: expected at least 1, got 0"});
}

TEST_CASE("Names: a stack has one part, and tensors per layer") {
  const Stack stack{OneExpert{Linear{2, 2}}, 2};
  CHECK(has_part(stack, "layer"));
  CHECK(paths_of_weights(stack) == Names{"layers.0.", "layers.1."});
  const Chain chain{stack, Linear{2, 2}};
  CHECK(has_part(chain, "layers.0.layer"));
  CHECK(has_part(chain, "layers.1"));
  CHECK(paths_of_weights(chain) == Names{"layers.0.layers.0.", "layers.0.layers.1.", "layers.1."});
}

TEST_CASE("Names: a wrapper of one part adds no tensor name") {
  const Residual layer{update::Plain{}, OneExpert{Linear{2, 2}}};
  const Names names{"branch."};
  CHECK(paths_of_weights(layer) == names);
  CHECK(has_part(layer, "branch.expert"));
  CHECK(paths_of_weights(PerToken{3, layer}) == names);
  CHECK(has_part(PerToken{3, layer}, "layer.branch.expert"));
  CHECK(paths_of_weights(Skip{layer}) == names);
  CHECK(paths_of_weights(Recompute{layer}) == names);
  CHECK(paths_of_weights(Residual{update::Plain{}, Dropout{0.5, OneExpert{Linear{2, 2}}}}) == names);
  CHECK(paths_of_weights(Linear{2, 2}) == Names{""});
  CHECK(paths_of_weights(OneExpert{Linear{2, 2}}) == Names{""});
  CHECK(paths_of_weights(NoResidual{OneExpert{Linear{2, 2}}}) == Names{""});
}
