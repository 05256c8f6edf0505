#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "gatefold/distributed.hpp"
#include "gatefold/policies.hpp"

/// Compares a mixture on shards that exchange rows as bfloat16 with loops in double that round the same rows. Values
/// and weights are such that floats hold every sum of the experts exactly, in any order. The mixture and the loops then
/// round the same numbers.
namespace gatefold::test {

/// Rounds v to the nearest number with 8 significant bits. Ties go to the even one. Subnormals are multiples of 2⁻¹³³.
inline double to_bfloat16(double v) {
  int exponent = 0;
  std::frexp(v, &exponent);
  const int unit = std::max(exponent - 8, -133);
  const double r = std::ldexp(std::nearbyint(std::ldexp(v, -unit)), unit);
  return std::abs(r) >= std::ldexp(1.0, 128) ? std::copysign(HUGE_VAL, v) : r;
}

/// A Linear without weighted_backward. Its backward gets an adjoint for each slot, and its results are exchanged and
/// kept.
struct UnweightedLinear {
  Linear linear;
  template <class T, class B>
  using Params = Linear::Params<T, B>;
  Index in_dim() const { return linear.in_dim(); }
  Index out_dim() const { return linear.out_dim(); }
  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Index experts, Seed seed) const {
    return linear.init<T, B>(ctx, experts, seed);
  }
  template <class T, class B>
  void forward(typename B::Context& ctx, const Linear::Params<T, B>& p, Groups<B> groups, In<T, 2, B> x, Out<T, 2, B> z,
               Nothing<T, B>& saved) const {
    linear.forward(ctx, p, groups, x, z, saved);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Linear::Params<T, B>& p, Groups<B> groups, In<T, 2, B> x,
                const Nothing<T, B>& saved, In<T, 2, B> dz, Out<T, 2, B> dslots, Linear::Params<T, B>& grads) const {
    linear.backward(ctx, p, groups, x, saved, dz, dslots, grads);
  }
};

/// A case in which each item picks a pair of the four experts. The weights are 1/2, because the logits of a pair are
/// equal.
struct PayloadCase {
  static constexpr Index items = 37, dim = 6, out = 5, experts = 4;
  using Values = std::vector<double>;  // row-major
  Values x{}, du{}, gate{}, weight{}, bias{};
  // The picks of an item are the experts 2·pair and 2·pair + 1.
  std::vector<Index> pair{};
  Values u{}, dx{}, dgate{}, dgate_bias{}, dweight{}, dbias{};

  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }
  static double uniform(std::uint64_t seed, Index i) {  // in (-1, 1), with 22 bits
    return std::ldexp(static_cast<double>(mix64(mix64(seed) + static_cast<std::uint64_t>(i)) >> 42), -21) - 1;
  }
  /// @param keeps_results  true if the shard of the item computes the adjoint of a weight, from results that were
  ///         exchanged
  explicit PayloadCase(bool keeps_results) {
    const auto away_from_zero = [](double v) { return std::copysign((1 + std::abs(v)) / 2, v); };
    for (Index i = 0; i < items * dim; ++i) x.push_back(away_from_zero(uniform(1, i)));
    for (Index i = 0; i < items * out; ++i) du.push_back(away_from_zero(uniform(2, i)));
    for (Index i = 0; i < dim * experts; ++i) gate.push_back(uniform(3, i / 2));
    for (Index i = 0; i < experts * dim * out; ++i) weight.push_back(std::round(3 * uniform(4, i)));
    for (Index i = 0; i < experts * out; ++i) bias.push_back(std::round(3 * uniform(5, i)));
    find(keeps_results);
  }

 private:
  void find(bool keeps_results) {
    u.assign(at(items * out), 0);
    dx.assign(at(items * dim), 0);
    dgate.assign(gate.size(), 0);
    dgate_bias.assign(at(experts), 0);
    dweight.assign(weight.size(), 0);
    dbias.assign(bias.size(), 0);
    for (Index n = 0; n < items; ++n) {
      const double* item = &x[at(n * dim)];
      double logit[2] = {};
      for (Index p = 0; p < 2; ++p)
        for (Index d = 0; d < dim; ++d) logit[p] += item[d] * gate[at(d * experts + 2 * p)];
      pair.push_back(logit[1] > logit[0]);
      double dw[2] = {};
      for (Index k = 0; k < 2; ++k) {
        const Index e = 2 * pair.back() + k;
        for (Index o = 0; o < out; ++o) {
          const double given = du[at(n * out + o)], dz = to_bfloat16(given) / 2;
          double z = bias[at(e * out + o)];
          for (Index d = 0; d < dim; ++d) {
            z += to_bfloat16(item[d]) * weight[at((e * dim + d) * out + o)];
            dweight[at((e * dim + d) * out + o)] += to_bfloat16(item[d]) * dz;
          }
          dbias[at(e * out + o)] += dz;
          u[at(n * out + o)] += to_bfloat16(z) / 2;
          dw[k] += keeps_results ? given * to_bfloat16(z) : to_bfloat16(given) * z;
        }
        for (Index d = 0; d < dim; ++d) {
          double of_slot = 0;
          for (Index o = 0; o < out; ++o)
            of_slot += to_bfloat16(du[at(n * out + o)]) / 2 * weight[at((e * dim + d) * out + o)];
          dx[at(n * dim + d)] += to_bfloat16(of_slot);
        }
      }
      for (Index k = 0; k < 2; ++k) {
        const Index e = 2 * pair.back() + k;
        const double dlogit = (dw[k] - (dw[0] + dw[1]) / 2) / 2;
        dgate_bias[at(e)] += dlogit;
        for (Index d = 0; d < dim; ++d) {
          dgate[at(d * experts + e)] += item[d] * dlogit;
          dx[at(n * dim + d)] += dlogit * gate[at(d * experts + e)];
        }
      }
    }
  }
};

/// The results of all shards for a case, for all items and experts, and the bytes that each shard has sent, forward and
/// backward.
struct PayloadRun {
  std::vector<float> u{}, dx{}, dweight{}, dbias{};
  std::vector<float> dgate{}, dgate_bias{};  // the sum over the shards
  std::vector<std::uint64_t> given{};
};
template <class B, class ExpertT, class W, class F>
PayloadRun run_payload(W& world, const PayloadCase& c, const ExpertT& expert, Index shards,
                       const dist::Placement& placement, dist::ExchangeOptions exchange, const F& begin) {
  using Case = PayloadCase;
  const auto at = [](Index i) { return static_cast<std::size_t>(i); };
  PayloadRun found;
  found.u.resize(c.u.size());
  found.dx.resize(c.dx.size());
  found.dweight.resize(c.weight.size());
  found.dbias.resize(c.bias.size());
  std::vector<std::vector<float>> gates(at(shards)), gate_biases(at(shards));
  found.given.resize(at(shards));
  dist::run(world, shards, [&](auto& shard) {
    begin(shard.index());
    typename B::Context ctx;
    const auto here = ctx.here();
    const dist::ExpertParallel branch{
        Mixture{SoftmaxTopK{.scores = {.model_dim = Case::dim, .experts = Case::experts}, .selection = {.k = 2}},
                expert},
        &shard, placement, exchange};
    using Branch = std::remove_const_t<decltype(branch)>;
    const auto write = [&](const double* values, auto& t) {
      const std::vector<float> floats(values, values + t.size());
      B::from_host(ctx, t.size(), floats.data(), t.data());
    };
    const auto read = [&](const auto& t, float* to) { B::to_host(ctx, t.size(), t.data(), to); };
    auto params = init_params<float, B>(branch, ctx, Seed{1});
    const std::vector<Index> mine = placement.filled("run_payload", Case::experts, shards).experts_of(shard.index());
    const auto own = [&](const Case::Values& all) {
      const auto width = static_cast<std::ptrdiff_t>(all.size()) / Case::experts;
      Case::Values rows;
      for (const Index e : mine) rows.insert(rows.end(), all.begin() + e * width, all.begin() + (e + 1) * width);
      return rows;
    };
    write(c.gate.data(), params.gate.scores.weight);
    fill(ctx, params.gate.scores.bias.view(), 0);
    write(own(c.weight).data(), params.expert.part.weight);
    write(own(c.bias).data(), params.expert.part.bias);
    const auto items = shard.part_of(Case::items);
    Tensor<float, 2, B> x(items.count, Case::dim), du(items.count, Case::out), u(items.count, Case::out),
        dx(items.count, Case::dim);
    write(c.x.data() + items.first * Case::dim, x);
    write(c.du.data() + items.first * Case::out, du);
    fill(ctx, dx.view(), 0);
    Saved<Branch, float, B> saved;
    auto grads = zeros_like(ctx, params);
    branch.forward(ctx, params, x, u, saved);
    backward(branch, ctx, params, x, saved, du, dx, grads);
    found.given[at(shard.index())] = shard.traffic().given;
    read(std::as_const(u), found.u.data() + items.first * Case::out);
    read(std::as_const(dx), found.dx.data() + items.first * Case::dim);
    const auto put = [&](const auto& t, std::vector<float>& all) {
      std::vector<float> rows(at(t.size()));
      read(t, rows.data());
      const Index width = static_cast<Index>(all.size()) / Case::experts;
      for (std::size_t i = 0; i < mine.size(); ++i)
        std::copy_n(rows.data() + static_cast<Index>(i) * width, width, all.data() + mine[i] * width);
    };
    put(std::as_const(grads).expert.part.weight, found.dweight);
    put(std::as_const(grads).expert.part.bias, found.dbias);
    const auto keep = [&](const auto& t, std::vector<float>& to) {
      to.resize(at(t.size()));
      read(t, to.data());
    };
    keep(std::as_const(grads).gate.scores.weight, gates[at(shard.index())]);
    keep(std::as_const(grads).gate.scores.bias, gate_biases[at(shard.index())]);
  });
  const auto add_up = [](const std::vector<std::vector<float>>& parts) {
    std::vector<float> sum(parts[0].size());
    for (const auto& part : parts)
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
    return sum;
  };
  found.dgate = add_up(gates);
  found.dgate_bias = add_up(gate_biases);
  return found;
}

/// Returns the number of wrong values. Values that floats hold exactly must be equal. Values that depend on the gate's
/// float arithmetic may differ by 1e-6 of the largest expected value.
inline int wrong_of_payload(const PayloadCase& c, const PayloadRun& found) {
  const auto differ = [](const std::vector<float>& values, const PayloadCase::Values& expected, double tolerance) {
    double largest = 0;
    for (const double v : expected) largest = std::max(largest, std::abs(v));
    int wrong = values.size() != expected.size();
    for (std::size_t i = 0; i < std::min(values.size(), expected.size()); ++i)
      wrong += !(std::abs(static_cast<double>(values[i]) - expected[i]) <= tolerance * largest);
    return wrong;
  };
  return differ(found.u, c.u, 0) + differ(found.dweight, c.dweight, 0) + differ(found.dbias, c.dbias, 0) +
         differ(found.dx, c.dx, 1e-6) + differ(found.dgate, c.dgate, 1e-6) +
         differ(found.dgate_bias, c.dgate_bias, 1e-6);
}

}  // namespace gatefold::test
