#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/larger.hpp"
#include "support/layer_run.hpp"
#include "support/rounded_double.hpp"

/// Compares a layer on a backend whose experts multiply bfloat16 with the same code in double, which rounds the same
/// values (rounded_double.hpp).
///
/// The results differ if a value is so close to the midpoint of two bfloat16 that only one of the two runs rounds it
/// up. The run in double lists these few values v. For each of them, it computes the results again with this value
/// rounded the other way. An element must satisfy
///
///     |got − expected| <= 2 Σ_v |expected where v is rounded the other way − expected| + (1) of layer_run.hpp     (2)
///
/// The factor 2 covers the product of two such changes, each less than 2⁻⁷ of a factor. If no such value affects an
/// element, only the term (1) remains, which is 256 roundings u of the largest element. A sum of K products takes K
/// roundings on the CPU and 4 (K/16 + 1) on tensor cores (bf16_product.cuh). Here K is at most about 30, and a gradient
/// depends on about six products in a row.
///
/// This checks products, epilogues and all other code of a backend. It does not check which values a policy passes to
/// which product, because both runs use the code of the policy. bf16_by_hand.hpp checks that, without a tolerance.
namespace gatefold::test {

/// The numbers of a tensor of one run, and its name.
struct NamedValues {
  std::string name;
  std::vector<double> values;
  bool exact;  // integers, which must be equal
};
template <class B>
struct Collect {
  typename B::Context& ctx;
  std::vector<NamedValues>& all;
  std::string name;
  void operator()(const Name& part, const auto& t) const {
    using T = std::remove_cvref_t<decltype(*t.data())>;
    std::vector<T> v(static_cast<std::size_t>(t.size()));
    B::to_host(ctx, t.size(), t.data(), v.data());
    all.push_back({name + " " + part.str(), {v.begin(), v.end()}, !std::is_floating_point_v<T>});
  }
};
/// Returns all numbers of a pack.
template <class C, class P>
std::vector<double> values_of(C& ctx, const P& pack) {
  std::vector<NamedValues> parts;
  for_each_tensor(Collect<typename C::Backend>{ctx, parts, ""}, pack);
  std::vector<double> all;
  for (const NamedValues& part : parts) all.insert(all.end(), part.values.begin(), part.values.end());
  return all;
}
/// Returns the plan of every mixture, all outputs, and all gradients.
template <class L, class T, class B>
std::vector<NamedValues> outcome(const LayerRun<L, T, B>& run) {
  std::vector<NamedValues> all;
  const auto add = [&](const char* name, const auto& pack) { for_each_tensor(Collect<B>{run.ctx, all, name}, pack); };
  for_each_mixture(run.saved, [&](const auto& mixture) {
    const auto& plan = mixture.plan;
    add("plan.offsets", plan.offsets);
    if constexpr (requires { plan.pick; }) {
      add("plan.expert", plan.expert);
      add("plan.item", plan.item);
      add("plan.weight", plan.weight);
    } else {
      add("plan.dispatch_weight", plan.dispatch_weight);
      add("plan.combine_weight", plan.combine_weight);
    }
  });
  add("y", run.y);
  add("carry", run.carry);
  add("dx", run.dx);
  add("grads", run.grads);
  add("dcarry", run.dcarry);
  return all;
}
inline bool same(const std::vector<NamedValues>& a, const std::vector<NamedValues>& b, bool integers_alone = false) {
  for (std::size_t i = 0; i < a.size(); ++i)
    if ((a[i].exact || !integers_alone) && a[i].values != b[i].values) return false;
  return a.size() == b.size();
}

/// Rounds doubles to floats and keeps them as doubles.
struct ToFloats {
  void operator()(const Name&, auto& t) const {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(*t.data())>, double>)
      for (Index i = 0; i < t.size(); ++i) t.data()[i] = static_cast<double>(static_cast<float>(t.data()[i]));
  }
};
struct Move {
  HostSide& on;
  double by;
  Seed seed;
  void operator()(const Name&, auto& t) {
    const auto step = random_tensor<double>(on, seed = seed.fork(1), by, t.size());
    for (Index i = 0; i < t.size(); ++i) t.data()[i] += step(i);
  }
};

/// A layer with parameters, items and adjoints that floats hold exactly, and its expected results.
/// @tparam B  RoundedDouble for CpuBf16, RoundedSlots for CudaBf16
template <class L, class B = RoundedDouble>
class RoundedLayer {
 public:
  /// @param moved  largest random change of the initial parameters
  RoundedLayer(const L& part, const Case& c, double moved) : part_(part), c_(c) {
    const Layer layer = as_layer<double, B>(part);
    params_ = init_params<double, B>(layer, ctx_, c.seed);
    for_each_tensor(FillZeros{on_, c.seed.fork(3)}, params_);
    if (moved > 0) for_each_tensor(Move{on_, moved, c.seed.fork(6)}, params_);
    x_ = items_of<double>(on_, c, layer.in_dim());
    in_ = inputs_of<double>(on_, c, layer.in_dim());
    dy_ = random_tensor<double>(on_, c.seed.fork(4), 1, c.items, layer.out_dim());
    layer.begin(ctx_, params_, c.items, dcarry_);
    for_each_tensor(FillZeros{on_, c.seed.fork(5)}, dcarry_);
    for_each_tensor(ToFloats{}, params_);
    for_each_tensor(ToFloats{}, x_);
    for_each_tensor(ToFloats{}, in_);
    for_each_tensor(ToFloats{}, dy_);
    for_each_tensor(ToFloats{}, dcarry_);
    expected_ = outcome(run<double, B>(ctx_, false));
    for (const NamedValues& n : expected_) apart_.emplace_back(n.values.size());
    const auto close = ctx_.rounding.close();
    for (const double v : close) {
      ctx_.rounding.round_the_other_way(v);
      const auto other = outcome(run<double, B>(ctx_, false));
      steady_ = steady_ && same(other, expected_, true);
      for (std::size_t i = 0; i < other.size(); ++i)
        for (std::size_t k = 0; k < other[i].values.size(); ++k)
          apart_[i][k] += std::abs(other[i].values[k] - expected_[i].values[k]);
    }
  }
  /// Returns true if the routing stays the same when a value close to a border is rounded the other way.
  bool steady() const { return steady_; }

  /// Runs all functions of the layer on a backend.
  template <class T, class To>
  auto run(typename To::Context& ctx, bool infer = true) const {
    using Run = LayerRun<L, T, To>;
    Run to(ctx, part_, c_, copied_to<Params<typename Run::Layer, T, To>, To>(ctx, params_),
           copied_to<Tensor<T, 2, To>, To>(ctx, x_), copied_to<Inputs<T, To>, To>(ctx, in_));
    for_each_tensor(CopyTo<To>{ctx}, dcarry_, to.dcarry);
    infer ? to.forward() : to.forward_to_keep();
    to.backward(copied_to<Tensor<T, 2, To>, To>(ctx, dy_));
    return to;
  }
  /// Checks (2) for the results of a backend.
  void expect(const std::vector<NamedValues>& got) const { expect_alike(expected_, got, 1); }
  /// Compares the results of two backends. Each of them may differ from the results in double by the bound (2), so
  /// they may differ from each other by twice this bound.
  void expect_alike(const std::vector<NamedValues>& a, const std::vector<NamedValues>& b, double bounds = 2) const {
    REQUIRE(a.size() == expected_.size());
    REQUIRE(b.size() == expected_.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      CAPTURE(expected_[i].name);
      REQUIRE(b[i].values.size() == a[i].values.size());
      if (expected_[i].exact) {
        CHECK(b[i].values == a[i].values);
      } else {
        CHECK(difference(i, a[i].values, b[i].values, bounds) == "");
      }
    }
  }

 private:
  using Layer = AsLayer<L, double, B>;

  /// Returns a message about the first element of a tensor whose difference is more than `bounds` times (2), or "".
  std::string difference(std::size_t i, const std::vector<double>& a, const std::vector<double>& b,
                         double bounds) const {
    const std::vector<double>& expected = expected_[i].values;
    double largest = 0;
    for (const double v : expected) largest = support::larger(largest, std::abs(v));
    for (std::size_t k = 0; k < expected.size(); ++k) {
      const double bound = 2 * apart_[i][k] + summation_tolerance<float> * largest +
                           (relative_tolerance<float> - summation_tolerance<float>)*std::abs(expected[k]);
      if (std::abs(b[k] - a[k]) <= bounds * bound) continue;  // false for NaN
      std::ostringstream message;
      message.precision(9);
      message << "[" << k << "] of " << expected.size() << ": expected " << a[k] << ", got " << b[k] << ", off by "
              << std::abs(b[k] - a[k]) << ", at most " << bounds * bound << "; largest " << largest;
      return message.str();
    }
    return "";
  }

  L part_;
  Case c_;
  HostSide on_;
  mutable RoundingContext<B> ctx_;
  Params<Layer, double, B> params_;
  Tensor<double, 2, Naive> x_, dy_;
  Inputs<double, Naive> in_;
  Carry<Layer, double, B> dcarry_;
  std::vector<NamedValues> expected_;
  std::vector<std::vector<double>> apart_;
  bool steady_ = true;
};

}  // namespace gatefold::test
