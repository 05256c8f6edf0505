#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/elementwise.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/policy/policy.hpp"
#include "gatefold/tensor/pack.hpp"
#include "support/larger.hpp"

/// Runs a layer in a test and compares its results.
namespace gatefold::support {

inline constexpr double quiet_nan = std::numeric_limits<double>::quiet_NaN();
inline constexpr double infinity = std::numeric_limits<double>::infinity();

struct Append {
  std::vector<double>& all;
  void operator()(const Name&, const auto& t) const {
    for (Index i = 0; i < t.size(); ++i) all.push_back(static_cast<double>(t.data()[i]));
  }
};
/// Returns all numbers of packs or tensors, in the order of visiting. The conversion of floats to double is exact.
template <class... P>
std::vector<double> values(const P&... packs) {
  std::vector<double> all;
  (for_each_tensor(Append{all}, packs), ...);
  return all;
}

inline bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0);
}

/// Returns the largest error |a − b| of an element relative to |b|. If |b| is less than m, the error is relative to m,
/// where m is `floor` times the largest |b|, at most `floor`. Returns infinity if the sizes differ or a number is not
/// finite.
inline double difference(const std::vector<double>& a, const std::vector<double>& b, double floor = 0.1) {
  if (a.size() != b.size()) return infinity;
  double largest = 0, worst = 0;
  for (const double v : b) largest = support::larger(largest, std::abs(v));
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i]) || !std::isfinite(b[i])) return infinity;
    const double error = std::abs(a[i] - b[i]);
    if (error > 0) worst = std::max(worst, error / std::max(std::abs(b[i]), floor * std::min(1.0, largest)));
  }
  return worst;
}

template <class T>
Tensor<T, 2, Cpu> matrix(std::initializer_list<std::initializer_list<double>> rows) {
  Tensor<T, 2, Cpu> m(static_cast<Index>(rows.size()), static_cast<Index>(rows.begin()->size()));
  T* to = m.data();
  for (const auto& row : rows)
    for (const double v : row) *to++ = static_cast<T>(v);
  return m;
}

/// Returns the message of the ArgumentError that f() throws, or "no ArgumentError".
template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const ArgumentError& error) {
    return error.what();
  }
  return "no ArgumentError";
}

/// A layer (or branch, or expert) with all the state of one run. Every output starts as a sentinel.
template <class T, class L>
struct Pass {
  using Layer = AsLayer<L, T, Cpu>;
  static constexpr double sentinel = 12345;

  Cpu::Context& ctx;
  Layer layer;
  Params<Layer, T, Cpu> params, grads;
  Tensor<T, 2, Cpu> x, y, dy, dx;
  Carry<Layer, T, Cpu> carry, dcarry;
  Saved<Layer, T, Cpu> saved;
  Extra<Layer, T, Cpu> extra;

  Pass(Cpu::Context& context, const L& part, Index items, Seed seed = {1}) : Pass(context, part, items, seed, {}) {}
  Pass(Cpu::Context& context, const L& part, Index items, Seed seed, const Extra<Layer, T, Cpu>& inputs)
      : ctx(context),
        layer(as_layer<T, Cpu>(part)),
        params(init_params<T, Cpu>(layer, ctx, seed)),
        grads(zeros_like(ctx, params)),
        x(uniform_tensor<T>(ctx, seed.fork(1), 1, items, layer.in_dim())),
        y(constant_tensor<T>(ctx, sentinel, items, layer.out_dim())),
        dy(uniform_tensor<T>(ctx, seed.fork(2), 1, items, layer.out_dim())),
        dx(constant_tensor<T>(ctx, 0, items, layer.in_dim())),
        extra(inputs) {
    layer.begin(ctx, params, items, carry);
    layer.begin(ctx, params, items, dcarry);
  }
  void forward() { layer.forward(ctx, params, x, carry, y, saved, extra); }
  void infer() { gatefold::infer<T, Cpu>(layer, ctx, params, x, carry, y, extra); }
  void backward() { gatefold::backward(layer, ctx, params, x, saved, dy, dcarry, dx, grads, extra); }

  std::vector<double> outcome() const { return values(y, carry, dx, grads, dcarry); }
  bool untouched() const {
    const auto all = values(y);
    return std::all_of(all.begin(), all.end(), [](double v) { return v == sentinel; });
  }
};
template <class T, class L>
Pass<T, L> pass(Cpu::Context& ctx, const L& part, Index items, Seed seed = {1}) {
  return Pass<T, L>(ctx, part, items, seed);
}

/// The results u + x of a branch: x is added after forward, or by a step (functor) at the end of forward and of infer.
struct Stepped {
  std::vector<double> after, forward, infer;
};
template <class T, class L>
Stepped with_step_at_the_end(Cpu::Context& ctx, const L& branch, Index items) {
  auto p = pass<T>(ctx, branch, items);
  Tensor<T, 2, Cpu> u(items, branch.out_dim()), stepped(items, branch.out_dim()), inferred(items, branch.out_dim());
  branch.forward(ctx, p.params.branch, p.x, u, p.saved.branch, {});
  add(ctx, p.x, u.view());
  const auto add_x = [&](Tensor<T, 2, Cpu>& to) { return functor::AddScaled<T>{1, p.x.data(), to.data()}; };
  branch.forward(ctx, p.params.branch, p.x, stepped, p.saved.branch, {}, add_x(stepped));
  branch.infer(ctx, p.params.branch, p.x, inferred, {}, add_x(inferred));
  return {values(u), values(stepped), values(inferred)};
}

}  // namespace gatefold::support
