#include "gatefold/expert/transformer_expert.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "gatefold/check/gradient.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/mixture.hpp"
#include "support/attention.hpp"
#include "support/experts.hpp"
#include "support/naive_moe.hpp"
#include "support/nan_position.hpp"
#include "support/part_of_slots.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

using Row = std::vector<double>;

constexpr Index dim = 4, length = 3;

TransformerExpert<Gelu> expert(bool causal, bool bias) {
  return {
      .model_dim = dim, .hidden_dim = 5, .heads = 2, .length = length, .causal = causal, .bias = bias, .epsilon = 0.1};
}

/// Returns LN of every position, with the gain and bias of expert e.
template <class P>
Row normed(const P& p, Index e, Row x) {
  for (Index l = 0; l < length; ++l) {
    double* at = x.data() + l * dim;
    double mean = 0, variance = 0;
    for (Index d = 0; d < dim; ++d) mean += at[d] / dim;
    for (Index d = 0; d < dim; ++d) variance += (at[d] - mean) * (at[d] - mean) / dim;
    for (Index d = 0; d < dim; ++d) at[d] = (at[d] - mean) / std::sqrt(variance + 0.1) * p.gain(e, d) + p.bias(e, d);
  }
  return x;
}

}  // namespace

TEST_CASE("TransformerExpert (1): equals loops for empty, full, many experts") {
  Cpu::Context ctx(2);
  for (const bool causal : {false, true})
    for (const auto& counts : uneven_counts()) {
      Bank<double, TransformerExpert<Gelu>> b(ctx, expert(causal, causal), counts, 6);
      for (auto* norm : {&b.params.attention_norm, &b.params.mlp_norm}) {
        fill_uniform(ctx, Seed{5}, 0.5, 1, norm->gain);
        fill_uniform(ctx, Seed{6}, -1, 1, norm->bias);
      }
      b.forward();
      CHECK(difference(b.of_slots(b.z), b.expected([&](Index e, const Row& x) {
              Row h =
                  naive::multi_head(b.params.attention, e, normed(b.params.attention_norm, e, x), length, 2, causal);
              for (std::size_t i = 0; i < h.size(); ++i) h[i] += x[i];
              const Row n = normed(b.params.mlp_norm, e, h);
              for (Index l = 0; l < length; ++l) {
                const Row token(n.begin() + l * dim, n.begin() + (l + 1) * dim);
                const Row y = naive::mlp(b.params.mlp, e, token, naive::gelu);
                for (Index d = 0; d < dim; ++d) h[std::size_t(l * dim + d)] += y[std::size_t(d)];
              }
              return h;
            })) <= 1e-13);
    }
}

TEST_CASE("TransformerExpert: unused slots stay untouched; gradients are added") {
  const auto broken = broken_promises<double>(expert(true, true), [](auto& bank) {
    auto& s = bank.saved;
    for (auto* t : {&s.attention_norm.normalized, &s.attention.q, &s.attention.k, &s.attention.v, &s.attention.context,
                    &s.attention.log_sum_exp, &s.mlp_norm.normalized, &s.mlp.pre})
      for (Index i = bank.used() * length * t->extent(1); i < t->size(); ++i) t->data()[i] = quiet_nan;
  });
  CHECK_MESSAGE(broken.empty(), (broken.empty() ? "" : broken[0]));
}

TEST_CASE("TransformerExpert: NaN reaches no earlier position and no other item") {
  for (const bool causal : {false, true}) {
    const auto broken = leaks_of_nan<float>(expert(causal, true), causal);
    CHECK_MESSAGE(broken.empty(), (broken.empty() ? "" : broken[0]));
  }
}

TEST_CASE("TransformerExpert: slots may start anywhere") {
  const auto broken = broken_for_later_slots<double>(expert(true, true));
  CHECK_MESSAGE(broken.empty(), (broken.empty() ? "" : broken[0]));
}

TEST_CASE("TransformerExpert: gradients in a mixture equal finite differences") {
  Cpu::Context ctx(1);
  const SoftmaxTopK gate{
      .scores = {.experts = 2, .length = length}, .mixing = {}, .selection = {.k = 1, .renormalise = false}};
  const auto report = check::gradients(ctx, Mixture{gate, expert(false, true)}, {.items = 5, .of_largest = 1e-8});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("TransformerExpert: shared initial values give equal experts") {
  Cpu::Context ctx(1);
  auto shared = expert(false, true);
  shared.initial.shared = true;
  auto p = shared.init<double, Cpu>(ctx, 3, Seed{1});
  for_each_tensor(
      [&](const Name&, const auto& t) {
        const Index part = t.size() / 3;
        for (Index i = 0; i < t.size(); ++i) CHECK(t.data()[i] == t.data()[i % part]);
      },
      p);
  CHECK(message_of([&] { shared.validate(p, 3); }) == "no ArgumentError");
  CHECK(message_of([&] { shared.validate(p, 4); }) == "LayerNorm: params.gain: expected [4, 4], got [3, 4]");
  CHECK(message_of([&] { (void)TransformerExpert<>{.model_dim = 4}.init<double, Cpu>(ctx, 1, {}); }) ==
        "Mlp.init: hidden_dim: expected at least 1, got 0");
}
