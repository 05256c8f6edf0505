// The library against PyTorch (float64, autograd): files and script in tests/golden.

#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gatefold/expert/gated_mlp.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/layer_norm.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/pre_norm.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/update/heavy_ball.hpp"
#include "gatefold/update/plain.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

/// A golden file: lines `name rank extents…` and a line of values. Remembers what was asked for.
class Golden {
 public:
  explicit Golden(const std::string& name) {
    std::ifstream file(GATEFOLD_TEST_DIR "/golden/" + name + ".txt");
    REQUIRE_MESSAGE(file.good(), name);
    std::string tensor;
    for (std::size_t rank; file >> tensor >> rank;) {
      Entry& entry = entries_[tensor];
      entry.shape.resize(rank);
      std::size_t size = 1;
      for (Index& n : entry.shape) {
        file >> n;
        size *= static_cast<std::size_t>(n);
      }
      entry.values.resize(size);
      for (double& v : entry.values) file >> v;
      REQUIRE_MESSAGE(!file.fail(), tensor);
    }
    REQUIRE(file.eof());
    REQUIRE(!entries_.empty());
  }

  const std::vector<double>& values(const std::string& name) { return entry(name).values; }
  double option(const std::string& name) { return entry("options." + name).values[0]; }
  Index extent(const std::string& name) { return static_cast<Index>(option(name)); }
  Index items() { return entry("x").shape[0]; }

  /// Call f(tensor, values) for every tensor of a pack; their shapes agree.
  template <class P, class F>
  void each(const std::string& prefix, P& pack, F&& f) {
    for_each_tensor(
        [&](const Name& at, auto& t) {
          const std::string name = at.str().empty() ? prefix : prefix + "." + at.str();
          const Entry& from = entry(name);
          REQUIRE_MESSAGE(static_cast<int>(from.shape.size()) == std::decay_t<decltype(t)>::rank, name);
          for (std::size_t d = 0; d < from.shape.size(); ++d) REQUIRE_MESSAGE(from.shape[d] == t.extent(d), name);
          f(name, t, from.values);
        },
        pack);
  }
  template <class P>
  void read(const std::string& prefix, P& pack) {
    each(prefix, pack, [](const std::string&, auto& t, const std::vector<double>& from) {
      std::copy(from.begin(), from.end(), t.data());
    });
  }
  template <class P>
  void compare(const std::string& prefix, const P& pack) {
    each(prefix, pack, [](const std::string& name, const auto& t, const std::vector<double>& expected) {
      const double worst = difference(support::values(t), expected);
      CHECK_MESSAGE(worst <= 1e-10, name << " differs by " << worst);
    });
  }
  std::vector<std::string> unread() const {
    std::vector<std::string> names;
    for (const auto& [name, entry] : entries_)
      if (!read_.count(name)) names.push_back(name);
    return names;
  }

 private:
  struct Entry {
    std::vector<Index> shape;
    std::vector<double> values;
  };
  const Entry& entry(const std::string& name) {
    const auto found = entries_.find(name);
    REQUIRE_MESSAGE(found != entries_.end(), name << " is missing");
    read_.insert(name);
    return found->second;
  }

  std::map<std::string, Entry> entries_;
  std::set<std::string> read_;
};

update::HeavyBall heavy_ball(Golden& g) { return {.mu = g.option("mu"), .gamma = g.option("gamma")}; }
update::Plain plain(Golden&) { return {}; }

SoftmaxTopK top_k(Golden& g) {
  return {.scores = {.experts = g.extent("experts")},
          .selection = {.k = g.extent("k"), .renormalise = g.option("renormalise") != 0}};
}
WithAuxiliary<SoftmaxTopK, Balance, ZLoss> with_losses(Golden& g) {
  const auto gate = top_k(g);
  return {.scores = gate.scores,
          .selection = gate.selection,
          .auxiliary = {Balance{.weight = g.option("balance"), .per_pick = g.option("per_pick") != 0},
                        ZLoss{.weight = g.option("z")}}};
}
template <class ExpertT>
ExpertT expert(Golden& g) {
  return {.model_dim = g.extent("model_dim"), .hidden_dim = g.extent("hidden_dim")};
}

template <class ExpertT, class RuleF, class GateF>
void agrees(const std::string& variant, RuleF rule, GateF gate) {
  for (const std::string size : {"one", "odd", "more"}) {
    CAPTURE(size);
    Golden g(variant + "_" + size);
    const Stack stack{
        Residual{rule(g), PreNorm{LayerNorm{.epsilon = g.option("epsilon")}, Mixture{gate(g), expert<ExpertT>(g)}}},
        g.extent("depth")};
    Cpu::Context ctx(2);
    auto p = pass<double>(ctx, stack, g.items());
    g.read("params", p.params);
    g.read("x", p.x);
    g.read("dy", p.dy);
    g.read("carry", p.carry);
    g.read("dafter", p.dcarry);
    p.forward();
    g.compare("y", p.y);
    g.compare("after", p.carry);
    std::vector<double> auxiliary;
    for_each_mixture(p.saved, [&](const auto& m) {
      for (const double v : values(m.gate.auxiliary)) auxiliary.push_back(v);
    });
    if (!auxiliary.empty()) CHECK(difference(auxiliary, g.values("auxiliary")) <= 1e-10);
    p.backward();
    g.compare("dx", p.dx);
    g.compare("dcarry", p.dcarry);
    g.compare("grads", p.grads);
    CHECK(g.unread() == std::vector<std::string>{});
  }
}

}  // namespace

TEST_CASE("golden: plain residual stack, MLP experts, softmax of all logits") {
  agrees<Mlp<Gelu>>("plain_mlp", plain, top_k);
}

TEST_CASE("golden: plain residual stack, MLP experts, renormalised") {
  agrees<Mlp<Gelu>>("plain_mlp_renormalised", plain, top_k);
}

TEST_CASE("golden: heavy-ball stack, MLP experts, renormalised") {
  agrees<Mlp<Gelu>>("heavy_ball_mlp_renormalised", heavy_ball, top_k);
}

TEST_CASE("golden: heavy-ball stack, MLP experts, balance and z loss") {
  agrees<Mlp<Gelu>>("heavy_ball_mlp_losses", heavy_ball, with_losses);
}

TEST_CASE("golden: plain residual stack, gated experts, balance per pick and z loss") {
  agrees<GatedMlp<Silu>>("plain_gated_losses", plain, with_losses);
}

TEST_CASE("golden: heavy-ball stack, gated experts, renormalised") {
  agrees<GatedMlp<Silu>>("heavy_ball_gated_renormalised", heavy_ball, top_k);
}

TEST_CASE("golden: heavy-ball stack with negative momentum, gated experts, balance and z loss") {
  agrees<GatedMlp<Silu>>("heavy_ball_gated_losses", heavy_ball, with_losses);
}
