#include "gatefold/train/not_trained.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "gatefold/gatefold.hpp"
#include "gatefold/io.hpp"
#include "gatefold/papers/routed_trainer.hpp"
#include "gatefold/train/checkpoint.hpp"
#include "support/allocations.hpp"
#include "support/pass.hpp"
#include "support/temp_directory.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

constexpr Index items = 24, dim = 4;

auto mixture() {
  return Mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}},
                 Mlp<Gelu>{.model_dim = dim, .hidden_dim = 5}};
}
auto model() { return Stack{Residual{update::LearnedHeavyBall{}, PreNorm{LayerNorm{}, mixture()}}, 2}; }
auto rows(std::uint64_t seed) {
  Cpu::Context ctx(1);
  return uniform_tensor<float>(ctx, Seed{seed}, 1., items, dim);
}

/// Returns the values of tensors whose names the predicate accepts.
template <class P, class F>
std::vector<double> values_of(const P& pack, const F& belongs) {
  std::vector<double> all;
  for_each_tensor(
      [&](const Name& name, const auto& t) {
        if (!belongs(name.str())) return;
        for (Index i = 0; i < t.size(); ++i) all.push_back(static_cast<double>(t.data()[i]));
      },
      pack);
  return all;
}
bool of_expert(const std::string& name) { return name.find(".expert.") != std::string::npos; }
bool not_of_expert(const std::string& name) { return !of_expert(name); }
template <class P>
Index count_if_named(const P& pack, bool (*belongs)(const std::string&)) {
  return static_cast<Index>(values_of(pack, belongs).size());
}

/// An expert of a user that always writes its gradients, because its Params do not declare gradient_is_optional.
struct ByHand {
  Index model_dim = dim;
  template <class T, class B>
  struct Params {
    Tensor<T, 2, B> scale;  // [E, D]
    GATEFOLD_PACK(scale)
  };
  Index in_dim() const { return model_dim; }
  Index out_dim() const { return model_dim; }
  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Index experts, Seed seed) const {
    return {uniform_tensor<T>(ctx, seed, 1, experts, model_dim)};
  }
  template <class T, class B>
  void forward(typename B::Context&, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x, Out<T, 2, B> z,
               Nothing<T, B>&) const {
    for (Index s = 0; s < groups.offsets(groups.offsets.extent(0) - 1); ++s)
      for (Index d = 0; d < model_dim; ++d) z(s, d) = x(groups.row(s), d) * p.scale(groups.expert(s), d);
  }
  template <class T, class B>
  void backward(typename B::Context&, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x, const Nothing<T, B>&,
                In<T, 2, B> dz, Out<T, 2, B> dslots, Params<T, B>& grads) const {
    for (Index s = 0; s < groups.offsets(groups.offsets.extent(0) - 1); ++s)
      for (Index d = 0; d < model_dim; ++d) {
        const Index e = groups.expert(s);
        dslots(s, d) = dz(s, d) * p.scale(e, d);
        grads.scale.data()[e * model_dim + d] += dz(s, d) * x(groups.row(s), d);
      }
  }
};

}  // namespace

TEST_CASE("NotTrained: trained tensors keep the bits of gradients and steps") {
  Cpu::Context ctx(2);
  const auto x = rows(1), target = rows(2);
  Trainer all{ctx, model(), MeanSquaredError{}, optim::AdamW{.lr = 0.1, .decay = 0.3}, Seed{1}};
  Trainer some{ctx,
               model(),
               MeanSquaredError{},
               optim::AdamW{.lr = 0.1, .decay = 0.3},
               Seed{1},
               NotTrained{"layers.*.branch.branch.expert"}};
  const auto begin = values_of(some.params, of_expert);
  CHECK(all.step(x, target) == some.step(x, target));
  CHECK(same_bits(values_of(some.grads, not_of_expert), values_of(all.grads, not_of_expert)));
  CHECK(same_bits(values_of(some.params, not_of_expert), values_of(all.params, not_of_expert)));
  CHECK(same_bits(values_of(some.params, of_expert), begin));
  CHECK_FALSE(same_bits(values_of(all.params, of_expert), begin));
  for (int t = 0; t < 3; ++t) some.step(x, target);
  CHECK(same_bits(values_of(some.params, of_expert), begin));
}

TEST_CASE("NotTrained: selected tensors have no gradient and no moments") {
  Cpu::Context ctx(1);
  Trainer some{ctx, model(), MeanSquaredError{}, optim::AdamW{}, Seed{1}, NotTrained{"layers.*.branch.branch.expert"}};
  const Index rest = count_if_named(some.params, not_of_expert);
  const auto check = [&] {
    CHECK(count_values(some.grads) == rest);
    CHECK(count_values(some.state.m) == rest);
    CHECK(count_values(some.state.v) == rest);
    for_each_tensor([](const Name& name, const auto& g) { CHECK(g.is_skipped() == of_expert(name.str())); },
                    some.grads);
  };
  check();
  some.step(rows(1), rows(2));
  check();
  CHECK(some.not_trained().size() == 8);
  CHECK(some.not_trained()[1] == "layers.0.branch.branch.expert.up_bias");
}

TEST_CASE("NotTrained: Clipped uses the norm of trained parameters") {
  Cpu::Context ctx(1);
  const Residual one{update::Plain{}, mixture()};
  const auto x = rows(1), target = rows(2);
  const double norm = 1e-3;
  const auto moved = [&](const auto& optimizer, const NotTrained& except) {
    Trainer run{ctx, one, MeanSquaredError{}, optimizer, Seed{1}, except};
    const auto before = values(run.params.branch.gate);
    run.step(x, target);
    auto after = values(run.params.branch.gate);
    for (std::size_t i = 0; i < after.size(); ++i) after[i] -= before[i];
    return after;
  };
  const optim::Sgd sgd{.lr = 1};
  const auto unclipped = moved(sgd, {});
  double squares = 0;
  for (const double d : unclipped) squares += d * d;
  REQUIRE(squares > norm * norm);
  const auto clipped = moved(optim::Clipped{sgd, norm}, {"branch.expert"});
  double of_clipped = 0;
  for (const double d : clipped) of_clipped += d * d;
  CHECK(std::sqrt(of_clipped) == doctest::Approx(norm).epsilon(1e-3));  // steps are differences of floats
  double of_all = 0;
  for (const double d : moved(optim::Clipped{sgd, norm}, {})) of_all += d * d;
  CHECK(std::sqrt(of_all) < 0.9 * norm);
  // The gate makes the same step if the experts have a separate optimizer outside of Clipped.
  const InGroups apart{[](const Name& name) { return of_expert("." + name.str()); }, sgd, optim::Clipped{sgd, norm}};
  CHECK(same_bits(clipped, moved(apart, {})));
}

TEST_CASE("NotTrained: accepts names, patterns and functions") {
  Cpu::Context ctx(1);
  const auto params = init_params<float, Cpu>(model(), ctx, Seed{1});
  const auto selected = [&](const NotTrained& except) {
    const auto of = except.of(params);
    std::vector<std::string> names;
    std::size_t i = 0;
    for_each_tensor(
        [&](const Name& name, const auto&) {
          if (of[i++]) names.push_back(name.str());
        },
        params);
    return names;
  };
  using Names = std::vector<std::string>;
  CHECK(selected({}) == Names{});
  CHECK(selected("layers.1.branch.norm") == Names{"layers.1.branch.norm.gain", "layers.1.branch.norm.bias"});
  CHECK(selected("layers.1.branch.norm.gain") == Names{"layers.1.branch.norm.gain"});
  CHECK(selected("layers.*.branch.norm.gain") == Names{"layers.0.branch.norm.gain", "layers.1.branch.norm.gain"});
  CHECK(selected("**.gate.scores.weight") ==
        Names{"layers.0.branch.branch.gate.scores.weight", "layers.1.branch.branch.gate.scores.weight"});
  CHECK(selected("layers.0.**.up*") ==
        Names{"layers.0.branch.branch.expert.up", "layers.0.branch.branch.expert.up_bias"});
  CHECK(selected("**.norm.**.gain").size() == 2);
  CHECK(selected({"layers.0.branch.norm.bias", "layers.0.branch.norm"}).size() == 2);
  CHECK(selected(std::vector<std::string>{"layers.0", "layers.1"}).size() == count_tensors(params));
  CHECK(selected("**").size() == count_tensors(params));
  CHECK(selected(NotTrained{[](const Name& name) { return name.part == "gain"; }}).size() == 2);

  CHECK(message_of([&] { selected("layers.0.branch.nrom"); }) ==
        "NotTrained: pattern: expected the name of a tensor or of a part, got \"layers.0.branch.nrom\"; the nearest "
        "names: layers.0.branch.norm, layers.1.branch.norm, layers.0.branch");
  CHECK(message_of([&] {
          selected({"layers.0", "gate"});
        }) ==
        "NotTrained: pattern: expected the name of a tensor or of a part, got \"gate\"; the nearest names: "
        "layers.0.branch.branch.gate, layers.1.branch.branch.gate, layers");
  for (const char* nothing : {"", "layer", "layers.2", "layers.0.branch.norm.gain.more", "*.gate", "layers..0"})
    CHECK(message_of([&] { selected(nothing); }).starts_with("NotTrained: pattern: expected the name"));
  CHECK(message_of([&] { selected(NotTrained{[](const Name&) { return false; }}); }) ==
        "NotTrained: function: expected true for at least one tensor, got false for all");
  bool (*none)(const Name&) = nullptr;
  CHECK(message_of([&] { NotTrained{none}; }) == "NotTrained: function: expected a function of names, got null");
  CHECK(message_of([&] {
          Trainer{ctx, model(), MeanSquaredError{}, optim::AdamW{}, Seed{1}, NotTrained{"gates"}};
        }).starts_with("NotTrained: pattern: "));
}

TEST_CASE("NotTrained: may come before or after the element type") {
  Cpu::Context ctx(1);
  const NotTrained except{"layers.0"};
  Trainer before{ctx, model(), MeanSquaredError{}, optim::AdamW{}, Seed{1}, except, Element<double>{}};
  Trainer after{ctx, model(), MeanSquaredError{}, optim::AdamW{}, Seed{1}, Element<double>{}, except};
  static_assert(std::is_same_v<decltype(before), decltype(after)>);
  CHECK(before.not_trained() == after.not_trained());
}

TEST_CASE("NotTrained: selecting all learned parameters is an error") {
  Cpu::Context ctx(1);
  for (const NotTrained& all : {NotTrained{"**"}, NotTrained{"layers"}, NotTrained{[](const Name&) { return true; }}}) {
    CHECK_THROWS_WITH_AS((Trainer{ctx, model(), MeanSquaredError{}, optim::Sgd{.lr = 0.1}, Seed{1}, all}),
                         "NotTrained: selection: expected at least one learned tensor that is not selected, got all "
                         "selected",
                         ArgumentError);
  }
}

TEST_CASE("NotTrained: a Trainer accepts a lambda of names instead") {
  Cpu::Context ctx(1);
  Trainer trainer{ctx, model(), MeanSquaredError{}, optim::Sgd{.lr = 0.1}, Seed{1}, [](const Name& name) {
                    return name.str().starts_with("layers.0");
                  }};
  Trainer named{ctx, model(), MeanSquaredError{}, optim::Sgd{.lr = 0.1}, Seed{1}, NotTrained{"layers.0"}};
  CHECK(trainer.not_trained() == named.not_trained());
  CHECK(!named.not_trained().empty());
}

TEST_CASE("NotTrained: works with accumulated parts and non-finite gradients") {
  Cpu::Context ctx(1);
  const auto x = rows(1), target = rows(2);
  const auto run = [&](const NotTrained& except) {
    Trainer t{ctx, model(), MeanSquaredError{}, optim::Sgd{.lr = 0.1}, Seed{1}, except};
    t.accumulate(x.view().rows(0, 10), target.view().rows(0, 10));
    t.step(x.view().rows(10, 14), target.view().rows(10, 14));
    return values_of(t.params, not_of_expert);
  };
  CHECK(same_bits(run({}), run({"**.expert"})));

  Trainer t{ctx, model(), MeanSquaredError{}, optim::Sgd{.lr = 0.1}, Seed{1}, NotTrained{"**.expert"}};
  auto broken = rows(1);
  broken(0, 0) = std::numeric_limits<float>::infinity();
  const auto begin = values(t.params);
  CHECK_THROWS_AS(t.step(broken, target), NotFiniteError);
  CHECK(same_bits(values(t.params), begin));
  t.not_finite = NotFinite::skips;
  t.step(broken, target);
  CHECK(t.skipped == 1);
  CHECK(same_bits(values(t.params), begin));
  t.step(x, target);
  CHECK_FALSE(same_bits(values(t.params), begin));
}

TEST_CASE("FixedScores: the router has no gradient and no moments") {
  Cpu::Context ctx(1);
  const ComposedGate<FixedScores, Independent, TopK> gate{.scores = {.scores = {.experts = 3}}, .selection = {.k = 2}};
  const Mixture fixed{gate, Mlp<Gelu>{.model_dim = dim, .hidden_dim = 5}};
  Trainer run{ctx, fixed, MeanSquaredError{}, optim::AdamW{}, Seed{1}};
  const Index experts = count_values(run.params.branch.expert);
  CHECK(count_values(run.grads) == experts);
  CHECK(count_values(run.state.m) == experts);
  const auto router = values(run.params.branch.gate);
  run.step(rows(1), rows(2));
  CHECK(same_bits(values(run.params.branch.gate), router));
  CHECK(run.not_trained().empty());
  RoutedTrainer routed{ctx, fixed, MeanSquaredError{}, Seed{1}};
  CHECK(count_values(routed.grads) == experts);
  routed.gradients(rows(1), rows(2));
}

TEST_CASE("NotTrained: an adaptive bias adapts unless the bias is selected") {
  Cpu::Context ctx(1);
  const ComposedGate<LinearScores, Independent, SigmoidBias> gate{.scores = {.experts = 3},
                                                                  .selection = {.k = 1, .speed = 0.5}};
  const Mixture balanced{gate, Mlp<Gelu>{.model_dim = dim, .hidden_dim = 5}};
  const auto bias_after = [&](const NotTrained& except) {
    Trainer run{ctx, balanced, MeanSquaredError{}, optim::AdamW{}, Seed{1}, except};
    CHECK(run.state.m.branch.gate.selection.bias.size() == 0);
    run.step(rows(1), rows(2));
    return values(run.params.branch.gate.selection.bias);
  };
  const std::vector<double> begin(3, 0);
  CHECK_FALSE(bias_after({}) == begin);
  CHECK(same_bits(bias_after("expert"), bias_after({})));
  for (const char* name : {"gate", "gate.selection", "gate.selection.bias", "gate.selection.speed"})
    CHECK(bias_after(name) == begin);
}

TEST_CASE("NotTrained: works with a table and a learned loss") {
  Cpu::Context ctx(1);
  const std::vector<Index> ids{1, 2, 5, 2, 0, 1}, next{2, 5, 2, 0, 1, 3};
  const Chain language{Embedding{.vocabulary = 7, .model_dim = dim, .places = 6}, Residual{update::Plain{}, mixture()},
                       LayerNorm{dim}};
  for (const bool tied : {false, true}) {
    CAPTURE(tied);
    const StreamedCrossEntropy loss{.vocabulary = 7, .model_dim = dim, .tied = tied};
    const auto run = [&](const NotTrained& except) {
      Trainer t{ctx, language, loss, optim::Sgd{.lr = 0.1}, Seed{1}, except};
      t.step(ids, next);
      return t;
    };
    const auto all = run({});
    for (const char* pattern : {"model.layers.0", "model.layers.0.weight", "model.layers.0.place", "loss", "loss.bias",
                                "model.layers.1", "model"}) {
      CAPTURE(pattern);
      const auto some = run(pattern);
      const auto trained = [&](const std::string& name) {
        return std::find(some.not_trained().begin(), some.not_trained().end(), name) == some.not_trained().end();
      };
      CHECK(same_bits(values_of(some.grads, trained), values_of(all.grads, trained)));
      CHECK(same_bits(values_of(some.params, trained), values_of(all.params, trained)));
      CHECK(count_values(some.grads) == static_cast<Index>(values_of(some.params, trained).size()));
    }
  }
}

TEST_CASE("NotTrained: an expert without gradient_is_optional gets all gradients") {
  Cpu::Context ctx(1);
  const auto x = rows(1), target = rows(2);
  const Residual mine{update::Plain{}, Mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}}, ByHand{}}};
  const optim::Clipped clipped{optim::AdamW{.lr = 0.1, .decay = 0.1}, 1e-3};
  Trainer some{ctx, mine, MeanSquaredError{}, clipped, Seed{1}, NotTrained{"branch.expert"}};
  const auto begin = values(some.params.branch.expert);
  CHECK_FALSE(some.grads.branch.expert.scale.is_skipped());
  CHECK(some.state.m.branch.expert.scale.size() == 0);
  some.step(x, target);
  CHECK(same_bits(values(some.params.branch.expert), begin));
  // The gradient of the experts does not count for the norm of Clipped, and a NaN in it does no harm.
  const auto gate = values(some.params.branch.gate);
  Trainer broken{ctx, mine, MeanSquaredError{}, clipped, Seed{1}, NotTrained{"branch.expert"}};
  broken.accumulate(x, target);
  broken.grads.branch.expert.scale(0, 0) = std::numeric_limits<float>::quiet_NaN();
  CHECK_NOTHROW(broken.step(x, target));
  CHECK(same_bits(values(broken.params.branch.expert), begin));
  const InGroups apart{[](const Name& name) { return of_expert("." + name.str()); }, optim::Sgd{.lr = 0}, clipped};
  Trainer grouped{ctx, mine, MeanSquaredError{}, apart, Seed{1}};
  grouped.step(x, target);
  CHECK(same_bits(values(grouped.params.branch.gate), gate));
}

TEST_CASE("InputGradient: computes no gradient of parameters") {
  Cpu::Context ctx(1);
  Trainer run{ctx, model(), MeanSquaredError{}, optim::Sgd{}, Seed{1}};
  InputGradient gradient{ctx, model(), MeanSquaredError{}};
  Tensor<float, 2, Cpu> dx(items, dim), expected(items, dim), y(items, dim), dy(items, dim);
  gradient(run.params, rows(1), rows(2), dx);

  const auto layer = as_layer<float, Cpu>(model());
  auto grads = zeros_like(ctx, run.params);
  using Layer = std::remove_const_t<decltype(layer)>;
  Carry<Layer, float, Cpu> carry;
  Saved<Layer, float, Cpu> saved;
  const auto x = rows(1), target = rows(2);
  layer.begin(ctx, run.params, items, carry);
  layer.forward(ctx, run.params, x, carry, y, saved);
  backward(MeanSquaredError{}, ctx, y, target.view(), dy);
  set_zero(ctx, carry);
  set_zero(ctx, expected);
  backward(layer, ctx, run.params, x, saved, dy, carry, expected, grads);
  CHECK(same_bits(values(dx), values(expected)));
}

TEST_CASE("checkpoint: a run continues only with the same NotTrained") {
  Cpu::Context ctx(1);
  const support::TempDirectory temp;
  const std::filesystem::path folder = temp.path;
  const auto x = rows(1), target = rows(2);
  const optim::Clipped adam{optim::AdamW{.lr = 0.1}, 0.5};
  const auto begun = [&](const NotTrained& except, Seed seed = {1}) {
    return Trainer{ctx, model(), MeanSquaredError{}, adam, seed, except};
  };
  const NotTrained experts{"**.expert"};
  auto run = begun(experts);
  run.step(x, target);
  save_checkpoint(folder / "run", run);
  {
    AsyncCheckpoint beside;
    beside.save(folder / "beside", run);
  }
  CHECK(read_bytes(folder / "run") == read_bytes(folder / "beside"));
  const io::TensorFiles file(folder / "run");
  Index values_in_file = 0;
  for (const auto& tensor : file.tensors()) {
    Index n = 1;
    for (const auto extent : tensor.shape) n *= static_cast<Index>(extent);
    values_in_file += n;
  }
  CHECK(values_in_file == count_values(run.params) + 2 * count_if_named(run.params, not_of_expert));

  auto again = begun(experts, Seed{7});
  load_checkpoint(folder / "run", again);
  CHECK(run.step(x, target) == again.step(x, target));
  CHECK(same_bits(values(run.params), values(again.params)));
  CHECK(same_bits(values(run.state), values(again.state)));

  auto full = begun({}, Seed{7});
  const auto before = values(full.params);
  const auto refused = [&](auto& into, const char* name) {
    try {
      load_checkpoint(folder / name, into);
    } catch (const FileError& error) {
      const std::string text = error.what();
      return text.substr(text.find("metadata"));
    }
    return std::string("no FileError");
  };
  CHECK(refused(full, "run") ==
        "metadata: expected a checkpoint of a run with the same NotTrained, got one that does not train "
        "\"layers.0.branch.branch.expert.down\"");
  CHECK(same_bits(values(full.params), before));
  save_checkpoint(folder / "full", full);
  CHECK(refused(again, "full") ==
        "metadata: expected a checkpoint of a run with the same NotTrained, got one that trains "
        "\"layers.0.branch.branch.expert.down\"");
  // Without moments, the tensors of an optimizer do not show what is trained.
  Trainer plain{ctx, model(), MeanSquaredError{}, optim::NormalizedGd{.per_expert = false}, Seed{1}, experts};
  save_checkpoint(folder / "plain", plain);
  Trainer other{
      ctx, model(), MeanSquaredError{}, optim::NormalizedGd{.per_expert = false}, Seed{1}, NotTrained{"layers.0"}};
  CHECK(refused(other, "plain").starts_with("metadata: expected a checkpoint of a run with the same NotTrained"));
  // load_model loads values whatever is trained.
  load_model(folder / "run", ctx, full.params);
  CHECK(same_bits(values_of(full.params, of_expert), values_of(run.params, of_expert)));
}

TEST_CASE("checkpoint: old moments of excluded tensors are ignored") {
  const support::TempDirectory temp;
  const auto path = temp.path / "run.safetensors";
  Cpu::Context ctx(1);
  const ComposedGate<FixedScores, Independent, TopK> gate{.scores = {.scores = {.experts = 4}}, .selection = {.k = 2}};
  const Mixture model{gate, Mlp<Relu>{.model_dim = 3, .hidden_dim = 4}};
  const auto x = uniform_tensor<float>(ctx, Seed{2}, 1.0, 10, 3);
  Trainer run{ctx, model, MeanSquaredError{}, optim::AdamW{}, Seed{1}};
  run.step(x, x);
  save_checkpoint(path, run);

  // The same run as an older version saved it, with moments for every tensor, also for those that do not learn.
  auto m = zeros_like(ctx, run.params), v = zeros_like(ctx, run.params);
  const auto fill_in = [&](const Name&, auto& to, const auto& from) {
    for (Index i = 0; i < from.size(); ++i) to.data()[i] = std::as_const(from).data()[i];
  };
  for_each_learned(fill_in, m, run.state.m);
  for_each_learned(fill_in, v, run.state.v);
  io::save(path, ctx, io::read_metadata(path), io::Part{"params", run.params}, io::Part{"optimizer.m", m},
           io::Part{"optimizer.v", v});

  Trainer loaded{ctx, model, MeanSquaredError{}, optim::AdamW{}, Seed{9}};
  load_checkpoint(path, loaded);
  for (int step = 0; step < 3; ++step) CHECK(loaded.step(x, x) == run.step(x, x));
}

TEST_CASE("NotTrained: no step after the first allocates" * doctest::skip(GATEFOLD_TEST_COUNTS == 0)) {
  Cpu::Context ctx(1);
  const auto x = rows(1), target = rows(2);
  Trainer run{ctx, model(), MeanSquaredError{}, optim::Clipped{optim::AdamW{}, 1.0}, Seed{1}, NotTrained{"**.expert"}};
  run.step(x, target);
  const int before = support::allocations;
  for (int t = 0; t < 3; ++t) run.step(x, target);
  CHECK(support::allocations == before);
}
