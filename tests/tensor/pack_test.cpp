#include "gatefold/tensor/pack.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdlib>
#include <new>
#include <sstream>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/elementwise.hpp"
#include "gatefold/core/error.hpp"

namespace {

int allocations = 0;

void* counted(std::size_t bytes) {
  ++allocations;
  if (void* p = std::malloc(bytes)) return p;
  throw std::bad_alloc();
}

}  // namespace

// Not inlined, because g++ would warn of a mismatch between malloc and delete, or between new and free.
[[gnu::noinline]] void* operator new(std::size_t bytes) { return counted(bytes); }
[[gnu::noinline]] void* operator new[](std::size_t bytes) { return counted(bytes); }
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p, std::size_t) noexcept { std::free(p); }

using namespace gatefold;

namespace {

struct Pair {
  Tensor<double, 2, Cpu> weight;
  Tensor<double, 1, Cpu> bias;
  GATEFOLD_PACK(weight, bias)
};
/// A wrapper that adds nothing to names.
struct Wrapped {
  Pair inside;
  static void each(auto&& f, auto&... p) { f("", p.inside...); }
};
struct Model {
  std::vector<Wrapped> layers;
  std::tuple<Pair, Tensor<Index, 1, Cpu>> parts;
  Nothing<double, Cpu> nothing;
  Tensor<double, 1, Cpu> scale;
  GATEFOLD_PACK(layers, parts, nothing, scale)
};

Model model() {
  Model m;
  m.layers.resize(2);
  for (Wrapped& l : m.layers) {
    l.inside.weight.resize(2, 3);
    l.inside.bias.resize(3);
  }
  std::get<0>(m.parts).weight.resize(1, 1);
  std::get<0>(m.parts).bias.resize(0);
  std::get<1>(m.parts).resize(5);
  m.scale.resize(4);
  return m;
}

std::vector<std::string> names(const Model& m) {
  std::vector<std::string> all;
  for_each_tensor([&](const Name& name, const auto&) { all.push_back(name.str()); }, m);
  return all;
}

const std::vector<std::string> kNames = {"layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias",
                                         "parts.0.weight",  "parts.0.bias",  "parts.1",         "scale"};

}  // namespace

TEST_CASE("Name: joins members and indices; empty parts add nothing") { CHECK(names(model()) == kNames); }

TEST_CASE("Name: the name of a single tensor is empty") {
  Tensor<double, 1, Cpu> t(3);
  int visited = 0;
  for_each_tensor(
      [&](const Name& name, auto& same) {
        ++visited;
        CHECK(name.str() == "");
        CHECK(&same == &t);
      },
      t);
  CHECK(visited == 1);
}

TEST_CASE("Name: str and printing give the same text") {
  const Name root, layers{&root, "layers"}, ten{&layers, 10}, wrapped{&ten, ""}, gate{&wrapped, "gate"};
  const Name index_only{&root, 0}, lone{nullptr, "w"};
  const auto check = [](const Name& name, const std::string& text) {
    std::ostringstream printed;
    printed << name;
    CHECK(name.str() == text);
    CHECK(printed.str() == text);
  };
  check(root, "");
  check(layers, "layers");
  check(ten, "layers.10");
  check(wrapped, "layers.10");
  check(gate, "layers.10.gate");
  check(index_only, "0");
  check(lone, "w");
}

TEST_CASE("for_each_tensor: visits several packs in lock step") {
  Model a = model(), b = model();
  const Model c = model();
  std::vector<std::string> seen;
  for_each_tensor(
      [&](const Name& name, auto& x, auto& y, const auto& z) {
        static_assert(std::is_same_v<decltype(x), decltype(y)>);
        static_assert(!std::is_const_v<std::remove_reference_t<decltype(x)>>);
        seen.push_back(name.str());
        CHECK(x.size() == z.size());
      },
      a, b, c);
  CHECK(seen == kNames);

  for_each_tensor([&](const Name&, auto& x, auto& y) { y.resize_like(x), x.resize_like(y); }, a, b);
  std::size_t at = 0;
  const void* of_a[] = {a.layers[0].inside.weight.data(),   a.layers[0].inside.bias.data(),
                        a.layers[1].inside.weight.data(),   a.layers[1].inside.bias.data(),
                        std::get<0>(a.parts).weight.data(), std::get<0>(a.parts).bias.data(),
                        std::get<1>(a.parts).data(),        a.scale.data()};
  const void* of_b[] = {b.layers[0].inside.weight.data(),   b.layers[0].inside.bias.data(),
                        b.layers[1].inside.weight.data(),   b.layers[1].inside.bias.data(),
                        std::get<0>(b.parts).weight.data(), std::get<0>(b.parts).bias.data(),
                        std::get<1>(b.parts).data(),        b.scale.data()};
  for_each_tensor(
      [&](const Name&, auto& x, auto& y) {
        CHECK(static_cast<const void*>(x.data()) == of_a[at]);
        CHECK(static_cast<const void*>(y.data()) == of_b[at]);
        ++at;
      },
      a, b);
  CHECK(at == kNames.size());
}

TEST_CASE("for_each_tensor: visiting allocates nothing") {
  Model a = model(), b = model();
  Index total = 0;
  const int before = allocations;
  for_each_tensor([&](const Name&, auto& x, const auto& y) { total += x.size() + y.size(); }, a, b);
  const Index values = count_values(a);
  CHECK(allocations == before);
  CHECK(total == 2 * values);
}

TEST_CASE("Name: str allocates memory") {
  const Model a = model();
  const int before = allocations;
  for_each_tensor([&](const Name& name, const auto&) { (void)(name.str() + " is longer than any short string"); }, a);
  CHECK(allocations > before);
}

TEST_CASE("count_values: adds up every tensor") {
  CHECK(count_values(model()) == 2 * (6 + 3) + 1 + 0 + 5 + 4);
  CHECK(count_values(Nothing<double, Cpu>{}) == 0);
  CHECK(count_values(Model{}) == 0);
  CHECK(count_values(Tensor<float, 2, Cpu>(3, 5)) == 15);
  CHECK(count_values(std::vector<Pair>{}) == 0);
}

TEST_CASE("shape_like: copies the shape and nothing else") {
  const Model from = model();
  Model to;
  shape_like(to, from);
  CHECK(names(to) == kNames);
  for_each_tensor(
      [](const Name&, const auto& a, const auto& b) {
        for (int d = 0; d < std::remove_cvref_t<decltype(a)>::rank; ++d) CHECK(a.extent(d) == b.extent(d));
        if (a.size() > 0) CHECK(a.data() != b.data());
      },
      to, from);

  Model larger = model();
  larger.layers.resize(5);
  larger.scale.resize(100);
  shape_like(larger, from);
  CHECK(larger.layers.size() == 2);
  CHECK(larger.scale.size() == 4);
  Tensor<float, 2, Cpu> a, b(2, 7);
  shape_like(a, b);
  CHECK(a.extent(1) == 7);
  Nothing<float, Cpu> nothing;
  shape_like(nothing, Nothing<float, Cpu>{});
}

namespace {

/// A pack that no optimizer steps, and that adapts itself.
struct Bias {
  static constexpr bool learned = false;
  Tensor<double, 1, Cpu> bias{2};
  void adapt(Cpu::Context&, const Bias& counts) {
    for (Index i = 0; i < 2; ++i) bias(i) += counts.bias(i);
  }
  GATEFOLD_PACK(bias)
};
struct Gated {
  Tensor<double, 1, Cpu> weight{2};
  std::vector<Bias> biases{2};
  std::tuple<Bias> one{};
  GATEFOLD_PACK(weight, biases, one)
};

}  // namespace

TEST_CASE("for_each_learned: skips packs that are not learned") {
  Gated gated;
  std::vector<std::string> all, learned;
  for_each_tensor([&](const Name& name, const auto&) { all.push_back(name.str()); }, gated);
  for_each_learned([&](const Name& name, const auto&) { learned.push_back(name.str()); }, gated);
  CHECK(all == std::vector<std::string>{"weight", "biases.0.bias", "biases.1.bias", "one.0.bias"});
  CHECK(learned == std::vector<std::string>{"weight"});
  CHECK(is_learned<Gated>);
  CHECK_FALSE(is_learned<Bias>);
}

TEST_CASE("adapt_params: adapts every adaptive pack with its gradients") {
  Cpu::Context ctx(1);
  Gated params, grads;
  double v = 0;
  for (auto* pack : {&params, &grads}) for_each_tensor([&](const Name&, auto& t) { t(0) = ++v, t(1) = ++v; }, *pack);
  adapt_params(ctx, params, grads);
  CHECK(params.weight(0) == 1);
  CHECK(params.biases[0].bias(0) == 3 + 11);
  CHECK(params.biases[1].bias(1) == 6 + 14);
  CHECK(std::get<0>(params.one).bias(1) == 8 + 16);
}

TEST_CASE("for_each_tensor: packs of different depth throw before any write") {
  Cpu::Context ctx(1);
  Gated two, three;
  three.biases.resize(3);
  for_each_tensor([&](const Name&, auto& t) { t(0) = t(1) = 1; }, two);
  for_each_tensor([&](const Name&, auto& t) { t(0) = t(1) = 2; }, three);
  const auto message = [&](auto&& f) {
    try {
      f();
    } catch (const ArgumentError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(message([&] { copy_pack(ctx, three, two); }) == "pack: biases.size(): expected 3, got 2");
  CHECK(message([&] { copy_pack(ctx, two, three); }) == "pack: biases.size(): expected 2, got 3");
  CHECK(message([&] { adapt_params(ctx, two, three); }) ==
        "adapt_params: grads: size of a vector of packs: expected 2, as in params, got 3");
  for_each_tensor([&](const Name&, auto& t) { CHECK(t(0) == 1); }, two);
}

TEST_CASE("expect_like: names the first part or tensor that differs") {
  const auto pair = [](Index n) { return Pair{Tensor<double, 2, Cpu>(n, 3), Tensor<double, 1, Cpu>(n)}; };
  const auto message = [](const auto& like, const auto& other) -> std::string {
    try {
      expect_like("f", "g", like, other);
    } catch (const ArgumentError& error) {
      return error.what();
    }
    return "none";
  };
  std::vector<Pair> two(2), one(1);
  CHECK(message(two, two) == "none");
  CHECK(message(two, one) == "f: g.size(): expected 2, got 1");
  CHECK(message(one, two) == "f: g.size(): expected 1, got 2");
  one[0] = pair(3);
  CHECK(message(one, std::vector<Pair>(1)) == "f: g.0.weight: expected [3, 3], got [0, 0]");
  two[1] = pair(4);
  std::vector<Pair> other(2);
  CHECK(message(two, other) == "f: g.1.weight: expected [4, 3], got [0, 0]");
  other[1] = Pair{Tensor<double, 2, Cpu>(4, 3), Tensor<double, 1, Cpu>(5)};
  CHECK(message(two, other) == "f: g.1.bias: expected [4], got [5]");
  CHECK(message(Tensor<double, 2, Cpu>(2, 3), Tensor<double, 2, Cpu>(3, 2)) == "f: g: expected [2, 3], got [3, 2]");
  const std::tuple a{pair(1), pair(2)}, b{pair(1), pair(3)};
  CHECK(message(a, a) == "none");
  CHECK(message(a, b) == "f: g.1.weight: expected [2, 3], got [3, 3]");
}

TEST_CASE("skipped tensors: for_each_learned omits them; zeros_like skips them") {
  Cpu::Context ctx(1);
  const auto pair = [] { return Pair{Tensor<double, 2, Cpu>(2, 3), Tensor<double, 1, Cpu>(2)}; };
  std::vector<Pair> params(2), grads(2);
  for (auto* pack : {&params, &grads})
    for (Pair& of : *pack) of = pair();
  grads[0].weight.skip();
  grads[1].bias.skip();
  CHECK(count_values(grads) == 2 + 6);
  CHECK_NOTHROW(expect_like("f", "grads", params, grads));
  CHECK_THROWS_AS(expect_like("f", "params", grads, params), ArgumentError);
  std::vector<std::string> seen;
  for_each_learned(
      [&](const Name& name, const auto& p, const auto& g) {
        CHECK(p.size() == g.size());
        seen.push_back(name.str());
      },
      params, grads);
  CHECK(seen == std::vector<std::string>{"0.bias", "1.weight"});
  auto moments = zeros_like(ctx, grads);
  CHECK(moments[0].weight.is_skipped());
  CHECK(moments[1].bias.is_skipped());
  CHECK(moments[1].weight(1, 2) == 0);
  CHECK_NOTHROW(copy_pack(ctx, grads, moments));
  CHECK_THROWS_AS(copy_pack(ctx, params, moments), ArgumentError);
}

namespace {

struct DeclaresIt {
  static constexpr bool only_multiplied = true;
};
struct DeniesIt {
  static constexpr bool only_multiplied = false;
};

}  // namespace

TEST_CASE("pack: only_multiplied is false unless a pack declares it") {
  CHECK(only_multiplied<DeclaresIt>);
  CHECK(!only_multiplied<DeniesIt>);
  CHECK(!only_multiplied<int>);
}
