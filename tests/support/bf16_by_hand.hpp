#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <type_traits>
#include <vector>

#include "gatefold/policies.hpp"
#include "support/bank_run.hpp"
#include "support/layer_run.hpp"
#include "support/rounding_check.hpp"

/// Linear, Mlp and GatedMlp as loops, with a rounding at each place that docs/explanation/bfloat16.md names. The loops
/// share no code with the policies. (Other tests use the code of the policies for both results that they compare.)
///
/// All numbers are whole, and no sum of absolute values reaches 2²⁴. Float sums are then exact in any order, and
/// results are compared bit for bit. Numbers called rough need more than the 8 bits of a bfloat16. So do the results of
/// products.
namespace gatefold::test::by_hand {

/// Computes v². Its slope depends on v, so a test notices if the saved v was not rounded.
struct Square {
  template <class V>
  GATEFOLD_HD static V value(V v) {
    return v * v;
  }
  template <class V>
  GATEFOLD_HD static V slope(V v) {
    return V(2) * v;
  }
};

using Vector = Tensor<double, 1, Naive>;
using Matrix = Tensor<double, 2, Naive>;
inline constexpr Index dim = 2, hidden = 4, experts = 3, items = 5;
inline constexpr Index offsets[] = {0, 4, 4, 7}, slots = 7;
inline constexpr Index row(Index s) { return (3 * s + 1) % items; }

/// Returns the nearest number with 8 significant bits. Ties go to the even one.
inline double rounded(double v) {
  int exponent = 0;
  const double mantissa = std::frexp(v, &exponent);  // in [0.5, 1)
  return std::ldexp(std::nearbyint(std::ldexp(mantissa, 8)), exponent - 8);
}

/// The results of a bank, and its gradients if the adjoint of slot s is w[s] du.
template <class E>
struct Outcome {
  Params<E, double, Naive> grads;
  Matrix z = constant(slots, dim), dslots = constant(slots, dim);
  Vector dweight = Vector(slots);

  static Matrix constant(Index rows, Index columns) {
    Naive::Context ctx;
    return constant_tensor<double>(ctx, 0, rows, columns);
  }
};

/// Computes z = x W + b for slot s.
inline void slot(const Linear&, const Params<Linear, double, Naive>& p, Index e, Index s, const double* x,
                 const double* du, double w, Outcome<Linear>& to) {
  double dw = 0;
  for (Index o = 0; o < dim; ++o) {
    to.z(s, o) = p.bias(e, o);
    for (Index d = 0; d < dim; ++d) {
      to.z(s, o) += rounded(x[d]) * rounded(p.weight(e, d, o));
      to.grads.weight(e, d, o) += rounded(w * x[d]) * rounded(du[o]);
    }
    to.grads.bias(e, o) += w * du[o];
    dw += du[o] * p.bias(e, o);
  }
  for (Index d = 0; d < dim; ++d) {
    double r = 0;
    for (Index o = 0; o < dim; ++o) r += rounded(du[o]) * rounded(p.weight(e, d, o));
    to.dslots(s, d) = w * r;
    dw += r * x[d];
  }
  to.dweight(s) = dw;
}
/// Computes h = act(x U + a) and z = h V + b for slot s.
template <class Act>
void slot(const Mlp<Act>&, const Params<Mlp<Act>, double, Naive>& p, Index e, Index s, const double* x,
          const double* du, double w, Outcome<Mlp<Act>>& to) {
  double dw = 0;
  for (Index o = 0; o < dim; ++o) {
    to.z(s, o) = p.down_bias(e, o);
    to.grads.down_bias(e, o) += w * du[o];
    dw += du[o] * p.down_bias(e, o);
  }
  for (Index h = 0; h < hidden; ++h) {
    double pre = p.up_bias(e, h), r = 0;
    for (Index d = 0; d < dim; ++d) pre += rounded(x[d]) * rounded(p.up(e, d, h));
    for (Index o = 0; o < dim; ++o) {
      to.z(s, o) += rounded(Act::value(pre)) * rounded(p.down(e, h, o));
      r += rounded(du[o]) * rounded(p.down(e, h, o));
    }
    const double kept = rounded(pre), dpre = w * r * Act::slope(kept);
    dw += r * Act::value(kept);
    to.grads.up_bias(e, h) += dpre;
    for (Index o = 0; o < dim; ++o) to.grads.down(e, h, o) += rounded(w * Act::value(kept)) * rounded(du[o]);
    for (Index d = 0; d < dim; ++d) {
      to.grads.up(e, d, h) += rounded(x[d]) * rounded(dpre);
      to.dslots(s, d) += rounded(dpre) * rounded(p.up(e, d, h));
    }
  }
  to.dweight(s) = dw;
}
/// Computes h = act(x G + a) ⊙ (x U + b) and z = h V + c for slot s.
template <class Act>
void slot(const GatedMlp<Act>& mlp, const Params<GatedMlp<Act>, double, Naive>& p, Index e, Index s, const double* x,
          const double* du, double w, Outcome<GatedMlp<Act>>& to) {
  double dw = 0;
  if (mlp.bias)
    for (Index o = 0; o < dim; ++o) {
      to.z(s, o) = p.down_bias(e, o);
      to.grads.down_bias(e, o) += w * du[o];
      dw += du[o] * p.down_bias(e, o);
    }
  for (Index h = 0; h < hidden; ++h) {
    double gate = mlp.bias ? p.gate_bias(e, h) : 0, up = mlp.bias ? p.up_bias(e, h) : 0, r = 0;
    for (Index d = 0; d < dim; ++d) {
      gate += rounded(x[d]) * rounded(p.gate(e, d, h));
      up += rounded(x[d]) * rounded(p.up(e, d, h));
    }
    for (Index o = 0; o < dim; ++o) {
      to.z(s, o) += rounded(Act::value(gate) * up) * rounded(p.down(e, h, o));
      r += rounded(du[o]) * rounded(p.down(e, h, o));
    }
    const double g = rounded(gate), u = rounded(up), dgate = w * r * u * Act::slope(g), dup = w * r * Act::value(g);
    dw += r * Act::value(g) * u;
    if (mlp.bias) {
      to.grads.gate_bias(e, h) += dgate;
      to.grads.up_bias(e, h) += dup;
    }
    for (Index o = 0; o < dim; ++o) to.grads.down(e, h, o) += rounded(w * Act::value(g) * u) * rounded(du[o]);
    for (Index d = 0; d < dim; ++d) {
      to.grads.gate(e, d, h) += rounded(x[d]) * rounded(dgate);
      to.grads.up(e, d, h) += rounded(x[d]) * rounded(dup);
      to.dslots(s, d) += rounded(dgate) * rounded(p.gate(e, d, h)) + rounded(dup) * rounded(p.up(e, d, h));
    }
  }
  to.dweight(s) = dw;
}

/// Fills a tensor with whole numbers. If `rough` is true, they are from -300 to 300, and bfloat16 cannot represent all
/// of them. Otherwise they are from -1 to 1, and bfloat16 represents them exactly.
struct Whole {
  Naive::Context& ctx;
  Seed seed;
  bool rough;
  void operator()(auto& t) const {
    fill_uniform(ctx, seed, -1, 1, t);
    for (Index i = 0; i < t.size(); ++i) t.data()[i] = std::round(t.data()[i] * (rough ? 300 : 1.4));
  }
};

template <class B>
struct ExpectSame {
  typename B::Context& ctx;
  void operator()(const Name& name, const auto& expected, const auto& got) const {
    const std::vector<double> e(expected.data(), expected.data() + expected.size());
    CHECK_MESSAGE(values_of(ctx, got) == e, name.str());
  }
};

/// Checks forward, infer and both backward functions of a bank on backend B with elements T, bit for bit.
/// @param x  true if the items are rough
/// @param up  true if all weights except those of the last product are rough
/// @param down  true if the weights of the last product are rough
/// @param du  true if the adjoints are rough
template <class T, class B, class E>
void check(const E& expert, bool x, bool up, bool down, bool du) {
  Naive::Context naive;
  typename B::Context ctx;
  auto params = expert.template init<double, Naive>(naive, experts, Seed{1});
  Seed seed{1};
  for_each_tensor(
      [&](const Name& name, auto& t) {
        const std::string part = name.str();
        const bool bias = part.ends_with("bias"), last = part == "down" || part == "weight";
        Whole{naive, seed = seed.fork(1), !bias && (last ? down : up)}(t);
      },
      params);
  Matrix items_x(items, dim), items_du(items, dim), dz(slots, dim);
  Whole{naive, Seed{2}, x}(items_x);
  Whole{naive, Seed{3}, du}(items_du);
  Whole{naive, Seed{4}, du}(dz);
  Vector weight(slots);
  for (Index s = 0; s < slots; ++s) weight(s) = s % 3 == 0 ? -1 : 1 + s % 2;
  Tensor<Index, 1, Naive> host_offsets(experts + 1), rows(slots);
  std::copy(std::begin(offsets), std::end(offsets), host_offsets.data());
  for (Index s = 0; s < slots; ++s) rows(s) = row(s);

  Outcome<E> plain{zeros_like(naive, params)}, weighted{zeros_like(naive, params)};
  for (Index e = 0; e < experts; ++e)
    for (Index s = offsets[e]; s < offsets[e + 1]; ++s) {
      slot(expert, params, e, s, &items_x(row(s), 0), &dz(s, 0), 1, plain);
      slot(expert, params, e, s, &items_x(row(s), 0), &items_du(row(s), 0), weight(s), weighted);
    }

  BankRun<E, T, B> run{ctx,
                       expert,
                       copied_to<Params<E, T, B>, B>(ctx, params),
                       copied_to<Tensor<Index, 1, B>, B>(ctx, host_offsets),
                       copied_to<Tensor<Index, 1, B>, B>(ctx, rows),
                       copied_to<Tensor<T, 2, B>, B>(ctx, items_x)};
  run.run(copied_to<Tensor<T, 2, B>, B>(ctx, dz), copied_to<Tensor<T, 2, B>, B>(ctx, items_du),
          copied_to<Tensor<T, 1, B>, B>(ctx, weight));
  const auto same = [&](const std::string& name, const auto& expected, const auto& got) {
    CAPTURE(name);
    for_each_tensor(ExpectSame<B>{ctx}, expected, got);
  };
  same("z", plain.z, run.z);
  same("inferred", plain.z, run.inferred);
  same("dslots", plain.dslots, run.dslots);
  same("grads", plain.grads, run.grads);
  same("weighted dslots", weighted.dslots, run.weighted_dslots);
  same("weighted grads", weighted.grads, run.weighted_grads);
  same("dweight", weighted.dweight, run.dweight);

  using Z = SlotElement<E, T, B>;
  if constexpr (!std::is_same_v<Z, T>) {  // values that are rounded when they are stored for each slot
    const auto round_all = [](Matrix& m) {
      for (Index i = 0; i < m.size(); ++i) m.data()[i] = rounded(m.data()[i]);
    };
    round_all(plain.z);
    round_all(weighted.dslots);
    const Groups<B> groups{run.offsets, run.rows, run.rows.size()};
    Tensor<Z, 2, B> z(slots, dim), inferred(slots, dim), dslots(slots, dim);
    Tensor<T, 1, B> dweight = constant_tensor<T>(ctx, T(0), slots);
    Saved<E, T, B> saved;
    auto grads = zeros_like(ctx, run.params);
    forward_slots<T, B, Z>(expert, ctx, run.params, groups, run.x, z, saved);
    infer_expert<T, B, Z>(expert, ctx, run.params, groups, run.x, inferred);
    const auto slot_du = copied_to<Tensor<T, 2, B>, B>(ctx, items_du);
    const auto slot_weight = copied_to<Tensor<T, 1, B>, B>(ctx, weight);
    weighted_backward_slots<T, B, Z>(expert, ctx, run.params, groups, run.x, saved, slot_du,
                                     SlotWeights<T, B>{slot_weight, dweight}, dslots, grads);
    same("stored z", plain.z, z);
    same("stored inferred", plain.z, inferred);
    same("stored dslots", weighted.dslots, dslots);
    same("grads of stored slots", weighted.grads, grads);
    same("dweight of stored slots", weighted.dweight, dweight);
  }
}

/// Checks an expert with each set of tensors that can be rough at the same time.
template <class T, class B, class E>
void check_all(const E& expert) {
  check<T, B>(expert, true, false, false, false);
  check<T, B>(expert, false, true, false, false);
  check<T, B>(expert, false, false, true, true);
}
template <class T, class B>
void check_experts() {
  check_all<T, B>(Linear{.model_dim = dim});
  check_all<T, B>(Mlp<Square>{.model_dim = dim, .hidden_dim = hidden});
  for (const bool bias : {false, true})
    check_all<T, B>(GatedMlp<Relu>{.model_dim = dim, .hidden_dim = hidden, .bias = bias});
}

}  // namespace gatefold::test::by_hand
