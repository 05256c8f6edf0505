#include "gatefold/expert/output_adjoint.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "gatefold/expert/gated_mlp.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/routing/sparse_plan.hpp"
#include "support/experts.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

/// Calls f with every kind of expert that has weighted_backward.
template <class F>
void each_expert(const F& f) {
  f(Mlp<Gelu>{.model_dim = 7, .hidden_dim = 45});
  f(Mlp<Relu>{.model_dim = 7, .hidden_dim = 5, .bias = false});
  f(Mlp<Tanh>{.model_dim = 7, .hidden_dim = 19});
  f(GatedMlp<Silu>{.model_dim = 7, .hidden_dim = 45});
  f(Linear{.model_dim = 7, .output_dim = 37});
  f(Linear{.model_dim = 7, .bias = false});
}

/// A bank whose items receive the weighted sum of their slots.
template <class T, class E>
struct WeightedBank : Bank<T, E> {
  Tensor<T, 2, Cpu> du;
  Tensor<T, 1, Cpu> weight, dweight;

  WeightedBank(Cpu::Context& ctx, const E& e, const std::vector<Index>& counts, Index items, Index spare = 0)
      : Bank<T, E>(ctx, e, counts, items, spare),
        du(uniform_tensor<T>(ctx, Seed{4}, 1, items, e.out_dim())),
        weight(uniform_tensor<T>(ctx, Seed{5}, 1, static_cast<Index>(this->rows.size()))),
        dweight(constant_tensor<T>(ctx, this->sentinel, static_cast<Index>(this->rows.size()))) {
    // Replaces parameters that begin as 0, because other values find more errors.
    for_each_tensor(
        [&](const Name&, auto& t) {
          for (Index i = 0; i < t.size(); ++i)
            if (t.data()[i] == 0) t.data()[i] = T(i % 7) / 8 - T(0.3);
        },
        this->params);
  }
  void weighted_backward() {
    this->expert.weighted_backward(this->ctx, this->params, this->groups(), this->x, this->saved, du,
                                   SlotWeights<T, Cpu>{weight, dweight}, this->dslots, this->grads);
  }
  Index item(Index s) const { return this->rows[std::size_t(s)]; }
  std::vector<double> used_dweight() const {
    auto all = values(dweight);
    all.resize(static_cast<std::size_t>(this->used()));
    return all;
  }
  std::vector<double> outcome() const {
    auto all = this->of_slots(this->dslots);
    for (const auto& more : {used_dweight(), values(this->grads)}) all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

/// Computes what a mixture that keeps z does: dz[s] = w[s] du[row(s)] and dw[s] = ⟨du[row(s)], z[s]⟩.
template <class T, class E>
void backward_with_z(WeightedBank<T, E>& b) {
  for (Index s = 0; s < b.used(); ++s) {
    T dot = 0;
    for (Index d = 0; d < b.du.extent(1); ++d) {
      dot += b.du(b.item(s), d) * b.z(s, d);
      b.dz(s, d) = b.weight(s) * b.du(b.item(s), d);
    }
    b.dweight(s) = dot;
  }
  b.backward();
}

}  // namespace

TEST_CASE("OutputAdjoint (2), (3): equals a backward that keeps z") {
  Cpu::Context ctx(2);
  each_expert([&](const auto& expert) {
    for (const auto& counts : uneven_counts()) {
      using Expert = std::remove_cvref_t<decltype(expert)>;
      WeightedBank<double, Expert> without(ctx, expert, counts, 6), with(ctx, expert, counts, 6);
      for (auto* b : {&without, &with}) {
        for (Index s = 0; s < b->used(); s += 3) b->weight(s) = 0;
        b->forward();
      }
      without.weighted_backward();
      backward_with_z(with);
      CHECK(difference(without.outcome(), with.outcome()) <= 1e-12);
    }
  });
}

TEST_CASE("OutputAdjoint (1), (2): the weight gradient equals central differences") {
  Cpu::Context ctx(1);
  each_expert([&](const auto& expert) {
    using Expert = std::remove_cvref_t<decltype(expert)>;
    WeightedBank<double, Expert> b(ctx, expert, {2, 0, 5, 1}, 3);
    b.forward();
    b.weighted_backward();
    const auto loss = [&] {  // ⟨du, u⟩
      double sum = 0;
      for (Index s = 0; s < b.used(); ++s)
        for (Index d = 0; d < b.du.extent(1); ++d) sum += b.du(b.item(s), d) * b.weight(s) * b.z(s, d);
      return sum;
    };
    for (Index s = 0; s < b.used(); ++s) {
      const double before = b.weight(s), step = 1e-3;  // u is linear in the weights, so the step adds no error
      b.weight(s) = before + step;
      const double above = loss();
      b.weight(s) = before - step;
      const double slope = (above - loss()) / (2 * step);
      b.weight(s) = before;
      CHECK(b.dweight(s) == doctest::Approx(slope).epsilon(1e-9));
    }
  });
}

TEST_CASE_TEMPLATE("weighted_backward: threads and batches change no bit", T, float, double) {
  each_expert([&](const auto& expert) {
    using Expert = std::remove_cvref_t<decltype(expert)>;
    std::vector<double> first;
    for (const int threads : {1, 2, 3, 8}) {
      Cpu::Context ctx(threads, threads == 3);
      WeightedBank<T, Expert> b(ctx, expert, {70, 0, 9, 1, 300}, 50);
      b.forward();
      b.weighted_backward();
      if (threads == 1) first = b.outcome();
      CHECK(same_bits(b.outcome(), first));
    }
    // Runs a bank in which each expert has only one of its slots in `all`.
    Cpu::Context ctx(2);
    WeightedBank<T, Expert> all(ctx, expert, {70, 0, 9, 1, 300}, 50), one(ctx, expert, {1, 1, 1, 1, 1}, 50);
    copy_pack(ctx, all.params, one.params);
    std::vector<Index> of;
    for (Index e = 0; e < 5; ++e) {
      const Index begin = all.offsets[std::size_t(e)], count = all.offsets[std::size_t(e) + 1] - begin;
      of.push_back(begin + count / 2);
      one.rows[std::size_t(e)] = all.rows[std::size_t(of.back())];
      one.weight(e) = all.weight(of.back());
    }
    for (auto* b : {&all, &one}) {
      b->forward();
      b->weighted_backward();
    }
    for (Index e = 0; e < 5; ++e) {
      if (e == 1) continue;  // it has no slots
      const Index s = of[std::size_t(e)];
      CHECK(one.dweight(e) == all.dweight(s));
      CHECK(std::memcmp(&one.dslots(e, 0), &all.dslots(s, 0), sizeof(T) * std::size_t(all.dslots.extent(1))) == 0);
    }
  });
}

TEST_CASE("weighted_backward: unused slots stay untouched; gradients are added") {
  Cpu::Context ctx(1);
  each_expert([&](const auto& expert) {
    using Expert = std::remove_cvref_t<decltype(expert)>;
    WeightedBank<float, Expert> clean(ctx, expert, {2, 0, 3}, 6), spare(ctx, expert, {2, 0, 3}, 6, 4);
    copy_pack(ctx, clean.params, spare.params);
    copy(ctx, clean.weight.view(), spare.weight.view().rows(0, 5));
    for (Index s = 5; s < 9; ++s) spare.weight(s) = float(quiet_nan);
    for (auto* b : {&clean, &spare}) b->forward();
    {
      auto mark = ctx.mark();  // memory that scratch reuses
      fill(ctx, ctx.scratch<float>(1 << 14), float(quiet_nan));
    }
    for (auto* b : {&clean, &spare}) b->weighted_backward();
    CHECK(same_bits(clean.outcome(), spare.outcome()));
    CHECK(spare.spare_untouched(spare.dslots));
    for (Index s = 5; s < 9; ++s) CHECK(spare.dweight(s) == float(spare.sentinel));

    const auto once = values(clean.grads);
    clean.weighted_backward();
    auto twice = values(clean.grads);
    for (double& v : twice) v /= 2;
    CHECK(difference(twice, once) <= 1e-6);
    // The expert without slots has gradient 0.
    for_each_tensor(
        [&](const Name&, const auto& t) {
          const Index part = t.size() / 3;
          for (Index i = part; i < 2 * part; ++i) CHECK(t.data()[i] == 0);
        },
        clean.grads);
  });
}

TEST_CASE("weighted_backward: NaN in du reaches only slots of its item") {
  Cpu::Context ctx(1);
  each_expert([&](const auto& expert) {
    using Expert = std::remove_cvref_t<decltype(expert)>;
    WeightedBank<double, Expert> clean(ctx, expert, {4, 5}, 6), spoilt(ctx, expert, {4, 5}, 6);
    for (Index d = 0; d < spoilt.du.extent(1); ++d) spoilt.du(2, d) = quiet_nan;
    for (auto* b : {&clean, &spoilt}) {
      for (Index s = 0; s < b->used(); ++s)
        if (b->item(s) == 2 && s < 4) b->weight(s) = 0;
      b->forward();
      b->weighted_backward();
    }
    int seen = 0;
    for (Index s = 0; s < spoilt.used(); ++s) {
      const bool own = spoilt.item(s) == 2;
      seen += own;
      CHECK(std::isnan(spoilt.dweight(s)) == own);
      if (!own) CHECK(spoilt.dweight(s) == clean.dweight(s));
      for (Index d = 0; d < spoilt.dslots.extent(1); ++d) {
        CHECK(std::isnan(spoilt.dslots(s, d)) == own);
        if (!own) CHECK(spoilt.dslots(s, d) == clean.dslots(s, d));
      }
    }
    CHECK(seen > 0);
  });
}
