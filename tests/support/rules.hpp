#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/elementwise.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "gatefold/check/conformance.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "support/pass.hpp"

/// Shared code of the tests of update rules: a cheap branch, and a function that compares a rule with a recursion that
/// the test states.
namespace gatefold::support {

using Numbers = std::vector<double>;

/// A branch that computes u[d] = w[d] sin(x[d] + x[d+1] / 2), where the dimension after the last is the first. It is
/// smooth and connects all dimensions.
struct Swirl {
  Index model_dim = 4;

  template <class T, class B>
  struct Params {
    Tensor<T, 1, B> weight;  // [D]
    GATEFOLD_PACK(weight)
  };
  template <class T, class B>
  struct Forward {
    View<const T, 1, B> w;
    View<const T, 2, B> x;
    View<T, 2, B> u;
    void operator()(Index i) const {
      const Index dim = w.size(), n = i / dim, d = i % dim;
      u(n, d) = w(d) * std::sin(x(n, d) + x(n, (d + 1) % dim) / 2);
    }
  };
  template <class T, class B>
  struct Backward {
    View<const T, 1, B> w;
    View<const T, 2, B> x, du;
    View<T, 2, B> dx;
    T inner(Index n, Index d) const { return du(n, d) * w(d) * std::cos(x(n, d) + x(n, (d + 1) % w.size()) / 2); }
    void operator()(Index i) const {
      const Index dim = w.size(), n = i / dim, d = i % dim;
      dx(n, d) += inner(n, d) + inner(n, (d + dim - 1) % dim) / 2;
    }
  };
  template <class T, class B>
  struct WeightBackward {
    View<const T, 2, B> x, du;
    View<T, 1, B> dw;
    void operator()(Index d) const {
      for (Index n = 0; n < x.extent(0); ++n) dw(d) += du(n, d) * std::sin(x(n, d) + x(n, (d + 1) % dw.size()) / 2);
    }
  };

  Index in_dim() const { return model_dim; }
  Index out_dim() const { return model_dim; }
  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    return {uniform_tensor<T>(ctx, seed, 1, model_dim)};
  }
  template <class T, class B, class Step = functor::NoStep<T>>
  void forward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, Out<T, 2, B> u, Nothing<T, B>&,
               const Nothing<T, B>&, const Step& step = {}) const {
    B::for_each(ctx, x.size(), Forward<T, B>{p.weight, x, u});
    run_step(ctx, u, step);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, const Nothing<T, B>&, In<T, 2, B> du,
                Out<T, 2, B> dx, Params<T, B>& grads, const Nothing<T, B>&, Nothing<T, B>&) const {
    B::for_each(ctx, x.size(), Backward<T, B>{p.weight, x, du, dx});
    B::for_each(ctx, model_dim, WeightBackward<T, B>{x, du, grads.weight});
  }
};

/// Computes Swirl on plain numbers.
inline Numbers swirl(const Numbers& w, const Numbers& x) {
  Numbers u(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t row = i / w.size() * w.size(), d = i % w.size();
    u[i] = w[d] * std::sin(x[i] + 0.5 * x[row + (d + 1) % w.size()]);
  }
  return u;
}

using Evaluate = std::function<Numbers(const Numbers&)>;

/// Returns an evaluation for a rule. The branch f(point, u, call) writes all of u. Then the step of the rule runs on u.
template <class T, class F>
auto with_steps(Cpu::Context& ctx, const F& f) {
  return make_evaluation<T, Cpu>([&ctx, f](View<const T, 2, Cpu> point, View<T, 2, Cpu> u, int call, const auto& step) {
    f(point, u, call);
    run_step(ctx, u, step);
  });
}

/// Runs `rule` around Swirl through `depth` layers, and compares the result with a recursion on plain numbers: `step(t,
/// x, u)` returns the stream after layer t = 1, 2, …. x is the stream before the layer, and u(point) evaluates the
/// branch of the layer.
/// @return  the pass after forward, for tests that check the carry or learned parameters
template <class RuleT, class Step>
auto follow(Cpu::Context& ctx, const RuleT& rule, Step&& step, Index depth = 4) {
  auto p = pass<double>(ctx, Stack{Residual{rule, Swirl{}}, depth}, 3);
  p.forward();
  Numbers stream = values(p.x);
  for (Index l = 0; l < depth; ++l) {
    const Numbers w = values(p.params.layers[static_cast<std::size_t>(l)].branch);
    const Numbers before = stream;
    stream = step(static_cast<int>(l) + 1, before, Evaluate([&](const Numbers& point) { return swirl(w, point); }));
    CHECK(difference(stream, before) > 1e-4);  // every layer must change the stream
  }
  CHECK(difference(values(p.y), stream) <= 1e-14);
  return p;
}

/// Checks the conformance of a rule through several layers, with the gradients of x, of the parameters of branch and
/// rule, and of the carry.
template <class RuleT>
void keeps_its_promises(const RuleT& rule, check::ConformanceOptions options = {.items_are_independent = true},
                        Index depth = 4) {
  options.gradients.items = 3;
  const auto report = check::conformance<Cpu, double>(Stack{Residual{rule, Swirl{}}, depth}, options);
  CHECK_MESSAGE(report, report.str());
}

/// Returns the message for a rule with options outside their range. Checks that nothing was written before the
/// exception.
template <class RuleT>
std::string refusal(const RuleT& rule) {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, Stack{Residual{rule, Swirl{}}, 2}, 3);
  const auto message = message_of([&] { p.forward(); });
  CHECK(p.untouched());
  return message;
}

/// Checks that two layers in a Chain share the state of the rule as two layers in a Stack do.
template <class RuleT>
void survives_a_chain(const RuleT& rule) {
  Cpu::Context ctx(1);
  const Residual layer{rule, Swirl{}};
  auto stack = pass<double>(ctx, Stack{layer, 2}, 3);
  auto chain = pass<double>(ctx, Chain{layer, layer}, 3);
  stack.forward();
  chain.forward();
  stack.backward();
  chain.backward();
  const auto all = [](const auto& p) { return values(p.y, p.carry, p.dx, p.dcarry); };
  CHECK(same_bits(all(stack), all(chain)));
}

inline Numbers operator+(Numbers a, const Numbers& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}
inline Numbers operator*(double scale, Numbers a) {
  for (double& v : a) v *= scale;
  return a;
}
/// Applies f element by element. All arguments must have the same number of elements.
template <class F, class... More>
Numbers each(F&& f, const Numbers& a, const More&... more) {
  Numbers out(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) out[i] = f(a[i], more[i]...);
  return out;
}

}  // namespace gatefold::support
