#include "gatefold/attention/attention_trace.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/gate/gates.hpp"
#include "support/naive.hpp"

using namespace gatefold;

using naive::random_vector;

namespace {

using Trace = AttentionTrace<const double, Cpu>;
using TraceGrad = AttentionTrace<double, Cpu>;

/// Equation (1): returns entry (i, j) of the attention matrix of head h, computed from the trace.
double probability(const Trace& t, Index h, Index i, Index j) {
  if (i / t.length != j / t.length || (t.causal && j > i)) return 0;
  const Index width = t.q.extent(1) / t.heads();
  double score = 0;
  for (Index d = h * width; d < (h + 1) * width; ++d) score += t.q(i, d) * t.k(j, d);
  return std::exp(t.scale * score - t.log_sum_exp(i, h));
}

/// Extra inputs of a gate with and without a trace.
struct NeedsTrace {
  int own = 0;
  const Trace* trace = nullptr;
  struct WithoutTrace {
    int own = 0;
  };
  static NeedsTrace with_trace(const WithoutTrace& rest, const Trace& t) { return {rest.own, &t}; }
};
struct NeedsNone {
  int own = 0;
};
struct Adjoint {
  Index heads = -1;
  void set_trace(const TraceGrad& t) { heads = t.heads(); }
};

}  // namespace

TEST_CASE("AttentionTrace (1): q, k and log-sum-exp give probability rows") {
  const Index N = 6, D = 8, H = 2, L = 3;
  const auto q = random_vector<double>(N * D, 1), k = random_vector<double>(N * D, 2),
             v = random_vector<double>(N * D, 3);
  const auto output = random_vector<double>(D * D, 4);
  for (const bool causal : {false, true}) {
    std::vector<double> log_sum_exp(static_cast<std::size_t>(N * H));
    Trace t{};
    t.q = {q.data(), N, D};
    t.k = {k.data(), N, D};
    t.v = {v.data(), N, D};
    t.log_sum_exp = {log_sum_exp.data(), N, H};
    t.output = {output.data(), D, D};
    t.length = L;
    t.scale = 0.5;
    t.causal = causal;
    CHECK(t.heads() == H);
    for (Index i = 0; i < N; ++i)
      for (Index h = 0; h < H; ++h) {
        double total = 0;
        for (Index j = i / L * L; j < i / L * L + L; ++j) {
          double score = 0;
          for (Index d = 0; d < D / H; ++d)
            score +=
                q[static_cast<std::size_t>(i * D + h * D / H + d)] * k[static_cast<std::size_t>(j * D + h * D / H + d)];
          if (!causal || j <= i) total += std::exp(0.5 * score);
        }
        log_sum_exp[static_cast<std::size_t>(i * H + h)] = std::log(total);
      }
    for (Index i = 0; i < N; ++i)
      for (Index h = 0; h < H; ++h) {
        double row = 0;
        for (Index j = 0; j < N; ++j) row += probability(t, h, i, j);
        CHECK(row == doctest::Approx(1).epsilon(1e-13));
      }
    CHECK((probability(t, 0, 0, 1) > 0) == !causal);
    CHECK(probability(t, 1, 2, 3) == 0);
  }
}

TEST_CASE("AttentionTrace: a new trace is causal, unscaled and empty") {
  const Trace t{};
  CHECK(t.heads() == 0);
  CHECK(t.q.empty());
  CHECK(t.scale == 1);
  CHECK(t.causal);
}

TEST_CASE("with_trace: only extra inputs that need a trace receive it") {
  static_assert(std::is_same_v<WithoutTrace<NeedsTrace>, NeedsTrace::WithoutTrace>);
  static_assert(std::is_same_v<WithoutTrace<NeedsNone>, NeedsNone>);
  const Trace t{};
  const NeedsTrace joined = with_trace<NeedsTrace>(NeedsTrace::WithoutTrace{5}, t);
  CHECK(joined.own == 5);
  CHECK(joined.trace == &t);
  CHECK(with_trace<NeedsNone>(NeedsNone{6}, t).own == 6);
}

TEST_CASE("set_trace: only adjoints that need a trace receive it") {
  TraceGrad t{};
  t.log_sum_exp = {nullptr, 0, 4};
  Adjoint adjoint;
  set_trace(adjoint, t);
  CHECK(adjoint.heads == 4);
  NeedsNone none{3};
  set_trace(none, t);
  CHECK(none.own == 3);
}

TEST_CASE("NoisyExtra: at_layer forks `noise` and the noise of `branch`") {
  const Noise noise{Random{Seed{9}, 4}};
  const NoisyExtra<Noise> both{noise, noise}, third = at_layer(both, 3);
  CHECK(third.noise.random->seed.value == noise.at(3).random->seed.value);
  CHECK(third.branch.random->seed.value == noise.at(3).random->seed.value);
  CHECK(third.noise.random->seed.value != noise.random->seed.value);
  CHECK_FALSE(at_layer(NoisyExtra<Noise>{}, 3).noise.random);

  using Gate = Extra<SoftmaxTopK, float, Cpu>;
  const NoisyExtra<Gate> once = without_auxiliary(NoisyExtra<Gate>{noise, {}});
  CHECK_FALSE(once.branch.count_auxiliary);
  CHECK(once.noise.random->seed.value == 9);
}

TEST_CASE("NoisyExtra: a trace reaches the part that accepts it") {
  using Plain = NoisyExtra<Extra<SoftmaxTopK, float, Cpu>>;
  static_assert(std::is_same_v<WithoutTrace<Plain>, Plain>);
  using Aware = NoisyExtra<Extra<AttentionAware<SoftmaxTopK>, float, Cpu>>;
  static_assert(!std::is_same_v<WithoutTrace<Aware>, Aware>);
  AttentionTrace<const float, Cpu> trace{};
  trace.length = 7;
  const Aware joined = with_trace<Aware>(WithoutTrace<Aware>{{Random{Seed{9}, 4}}, {}}, trace);
  CHECK(joined.branch.mixing.trace.value.length == 7);
  CHECK(joined.noise.random->seed.value == 9);
}
