#include "gatefold/gate/mixing/attention_posterior.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/check/conformance.hpp"
#include "gatefold/check/gradient.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/attention.hpp"
#include "gatefold/layer/block.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/update/plain.hpp"
#include "support/mixing.hpp"
#include "support/pass.hpp"
#include "support/slow_build.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

using Gate = ComposedGate<LinearScores, AttentionPosterior, TopK>;
constexpr Index model_dim = 4, experts = 3;
constexpr FollowedHead all_choices[] = {FollowedHead::lowest_entropy, FollowedHead::lowest_entropy_of_sequence,
                                        FollowedHead::every};

auto block(const AttentionPosterior& mixing, bool causal, Index heads = 2) {
  return Block{
      Residual{update::Plain{}, Attention{.model_dim = model_dim, .heads = heads, .causal = causal}},
      Residual{update::Plain{}, Mixture{Gate{.scores = {.experts = experts}, .mixing = mixing, .selection = {.k = 2}},
                                        Linear{.model_dim = model_dim}}}};
}

/// An attention and a mixing that reads its trace. The mixing has random items and logits of its own.
struct Alone {
  Cpu::Context ctx{1};
  Attention attention;
  AttentionPosterior mixing;
  Params<Attention, double, Cpu> params;
  Tensor<double, 2, Cpu> in, u, x, z, q;
  Saved<Attention, double, Cpu> saved_attention;
  Saved<AttentionPosterior, double, Cpu> saved;
  Index length;
  std::vector<double> mask{};       // of the attention
  std::vector<double> gate_mask{};  // of the gate; empty: the same

  Alone(const AttentionPosterior& m, bool causal, Index heads, Index items, Index sequence)
      : attention{.model_dim = model_dim, .heads = heads, .causal = causal},
        mixing(m),
        params(init_params<double, Cpu>(attention, ctx, Seed{1})),
        in(uniform_tensor<double>(ctx, Seed{2}, 3, items, model_dim)),
        u(items, model_dim),
        x(uniform_tensor<double>(ctx, Seed{3}, 1, items, model_dim)),
        z(uniform_tensor<double>(ctx, Seed{4}, 3, items, experts)),
        q(items, experts),
        length(sequence) {}
  void forward(bool entropies = true) {
    const Sequence<double, Cpu> sequence{length, mask};
    attention.forward(ctx, params, in, u, saved_attention, sequence);
    Nothing<double, Cpu> none;
    auto trace = attention.trace(params, saved_attention);
    if (!entropies) trace.entropy = {};
    const Extra<AttentionPosterior, double, Cpu> extra{trace, gate_mask.empty() ? mask : gate_mask};
    mixing.validate(none, x.extent(0), extra);
    mixing.forward(ctx, none, x, z, q, saved, extra);
  }
  Index first(Index i) const { return i / length * length; }
  /// Returns whether item n is padding neither for the attention nor for the gate.
  bool real(Index n) const {
    for (const auto* m : {&mask, &gate_mask})
      if (!m->empty() && (*m)[static_cast<std::size_t>(n)] == 0) return false;
    return true;
  }
  bool sees(Index i, Index j) const {
    if (attention.causal && j > i) return false;
    if (!real(i) || !real(j)) return false;  // padding neither gives nor receives probabilities
    return !mixing.only_confident || j == i || naive::entropy(r(j)) <= naive::entropy(r(i));
  }
  std::vector<double> r(Index n) const { return naive::softmax(naive::row(z, n)); }
  std::vector<std::vector<double>> rows(Index i) const {
    std::vector<std::vector<double>> all;
    for (Index j = first(i); j < first(i) + length; ++j) all.push_back(r(j));
    return all;
  }
  double projected(const Tensor<double, 2, Cpu>& w, Index n, Index c) const {
    double v = 0;
    for (Index d = 0; d < model_dim; ++d) v += in(n, d) * w(d, c);
    return v;
  }
  /// Returns A_h[i,:] over the sequence of i with the masks of the attention, without the mask of the gate.
  std::vector<double> probabilities(Index h, Index i) const {
    const Index width = model_dim / attention.heads;
    std::vector<double> a;
    double total = 0;
    for (Index j = first(i); j < first(i) + length; ++j) {
      double dot = 0;
      for (Index c = h * width; c < (h + 1) * width; ++c)
        dot += projected(params.query, i, c) * projected(params.key, j, c);
      const bool masked =
          !mask.empty() && (mask[static_cast<std::size_t>(i)] == 0 || mask[static_cast<std::size_t>(j)] == 0);
      a.push_back(masked || (attention.causal && j > i) ? 0 : std::exp(dot / std::sqrt(double(width))));
      total += a.back();
    }
    for (double& v : a) v = total > 0 ? v / total : 0;
    return a;
  }
  /// Returns exp(−‖u_i − m_h,j‖² / 2σ²) in its direct form.
  double likelihood(Index h, Index i, Index j) const {
    const Index width = model_dim / attention.heads;
    double square = 0;
    for (Index d = 0; d < model_dim; ++d) {
      double m = 0;
      for (Index c = h * width; c < (h + 1) * width; ++c) m += projected(params.value, j, c) * params.output(c, d);
      if (mixing.mean_of_heads) m *= double(attention.heads);
      square += (x(i, d) - m) * (x(i, d) - m);
    }
    return std::exp(-square / (2 * mixing.sigma * mixing.sigma));
  }
  /// Returns A_h[i,j] L_h[i,j] over the sequence; the sum is the mass of head h.
  std::vector<double> joint(Index h, Index i) const {
    auto a = probabilities(h, i);
    for (Index j = 0; j < length; ++j)
      a[static_cast<std::size_t>(j)] *= sees(i, first(i) + j) ? likelihood(h, i, first(i) + j) : 0;
    return a;
  }
  /// Returns the head with the lowest mean entropy over items [from, last].
  Index lowest_entropy(Index from, Index last) const {
    Index best = 0;
    double least = infinity;
    for (Index h = 0; h < attention.heads; ++h) {
      double total = 0;
      for (Index i = from; i <= last; ++i)
        if (real(i)) total += naive::entropy(probabilities(h, i));
      if (total < least) {
        least = total;
        best = h;
      }
    }
    return best;
  }
  std::vector<double> expected(Index i) const {
    const auto w = weights(i);
    return w.empty() ? r(i) : naive::mixed(w, rows(i));
  }
  /// Returns the weights of r_j in (2) or (3) for item i over the sequence, or {} if item i sees no item.
  std::vector<double> weights(Index i) const {
    std::vector<double> w(static_cast<std::size_t>(length));
    double total = 0;
    const bool so_far = attention.causal && mixing.head == FollowedHead::lowest_entropy;
    const Index followed = lowest_entropy(first(i), so_far ? i : first(i) + length - 1);
    for (Index h = 0; h < attention.heads; ++h) {
      if (mixing.head != FollowedHead::every && h != followed) continue;
      const auto mass = joint(h, i);
      for (std::size_t j = 0; j < w.size(); ++j) w[j] += mass[j], total += mass[j];
    }
    if (total == 0) return {};
    for (double& v : w) v /= total;
    return w;
  }
};

}  // namespace

TEST_CASE("AttentionPosterior (1)-(3): the stable form equals the direct form") {
  for (const FollowedHead head : all_choices)
    for (const bool causal : {false, true})
      for (const bool mean : {false, true}) {
        CAPTURE(static_cast<int>(head));
        CAPTURE(causal);
        CAPTURE(mean);
        Alone a({.sigma = 0.8, .head = head, .mean_of_heads = mean, .only_confident = mean}, causal, 2, 18, 6);
        for (const bool masked : {false, true}) {
          if (masked)
            a.mask = {1, 1, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1};  // the second sequence is all padding
          a.forward();
          for (Index i = 0; i < 18; ++i) {
            CAPTURE(i);
            CHECK(difference(naive::row(a.q, i), a.expected(i)) < 1e-12);
            double sum = 0;
            for (Index e = 0; e < experts; ++e) {
              sum += a.q(i, e);
              CHECK(a.saved.log_q(i, e) == doctest::Approx(std::log(a.q(i, e))).epsilon(1e-12));
            }
            CHECK(sum == doctest::Approx(1).epsilon(1e-14));
          }
        }
      }
}

TEST_CASE("AttentionPosterior: rank is exact if q almost underflows") {
  Index between = 0;
  for (double level = -716; level < -664; level += 0.75) {
    Alone a({.sigma = 0.8, .head = FollowedHead::every}, false, 2, 10, 5);
    for (Index n = 0; n < 10; ++n) a.z(n, 1) = level + a.z(n, 0);
    a.forward();
    for (Index i = 0; i < 10; ++i) {
      std::vector<std::vector<double>> log_r;
      for (Index j = a.first(i); j < a.first(i) + 5; ++j) log_r.push_back(naive::log_softmax(naive::row(a.z, j)));
      for (Index e = 0; e < experts; ++e)
        CHECK(a.saved.log_q(i, e) ==
              doctest::Approx(naive::log_mixed(a.weights(i), log_r, static_cast<std::size_t>(e))).epsilon(1e-12));
      const double least = std::numeric_limits<double>::min();
      between += a.q(i, 1) >= least && a.q(i, 1) < least / std::numeric_limits<double>::epsilon();
    }
  }
  CHECK(between > 300);
}

TEST_CASE("AttentionPosterior: attention and gate may have different masks") {
  for (const FollowedHead head : all_choices)
    for (const bool causal : {false, true}) {
      CAPTURE(static_cast<int>(head));
      CAPTURE(causal);
      Alone a({.sigma = 0.8, .head = head, .only_confident = causal}, causal, 2, 18, 6);
      a.mask = {1, 1, 0, 1, 1, 0, 1, 1, 1, 1, 1, 1, 0, 1, 1, 0, 1, 1};
      a.gate_mask = {1, 0, 1, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 0, 1, 1};
      a.forward();
      for (Index i = 0; i < 18; ++i) {
        CAPTURE(i);
        CHECK(difference(naive::row(a.q, i), a.expected(i)) < 1e-12);
      }
    }
}

TEST_CASE("AttentionPosterior: a Block masks attention and gate separately" * doctest::skip(support::slow_build)) {
  Cpu::Context ctx(1);
  const std::vector<double> of_attention{1, 1, 0, 1, 1, 0, 1, 1, 1, 1, 0, 1},
      of_gate{1, 0, 1, 1, 1, 1, 0, 1, 1, 1, 0, 1};
  for (const FollowedHead head : all_choices)
    for (const bool causal : {false, true}) {
      CAPTURE(static_cast<int>(head));
      CAPTURE(causal);
      const AttentionPosterior mixing{.sigma = 0.8, .head = head};
      auto p = pass<double>(ctx, block(mixing, causal), 12);
      p.extra.attention = {.length = 6, .valid = of_attention};
      p.extra.layer.valid = of_gate;
      p.forward();
      Alone a(mixing, causal, 2, 12, 6);
      copy_pack(ctx, p.params.attention.branch, a.params);
      copy(ctx, p.x, a.in.view());
      a.mask = of_attention;
      a.gate_mask = of_gate;
      const auto& gate = p.params.layer.branch.gate.scores;
      const auto& expert = p.params.layer.branch.expert;
      std::vector<naive::Row> between;  // x + attention
      for (Index i = 0; i < 12; ++i) {
        naive::Row context(model_dim);
        for (Index h = 0; h < 2; ++h) {
          const auto of_head = a.probabilities(h, i);
          for (Index j = 0; j < 6; ++j)
            for (Index c = 2 * h; c < 2 * h + 2; ++c)
              context[static_cast<std::size_t>(c)] +=
                  of_head[static_cast<std::size_t>(j)] * a.projected(a.params.value, a.first(i) + j, c);
        }
        between.push_back(naive::row(p.x, i));
        for (Index d = 0; d < model_dim; ++d)
          for (Index c = 0; c < model_dim; ++c)
            between.back()[static_cast<std::size_t>(d)] += context[static_cast<std::size_t>(c)] * a.params.output(c, d);
        const auto z = naive::logits(gate, between.back());
        for (Index d = 0; d < model_dim; ++d) a.x(i, d) = between.back()[static_cast<std::size_t>(d)];
        for (Index e = 0; e < experts; ++e) a.z(i, e) = z[static_cast<std::size_t>(e)];
      }
      for (Index i = 0; i < 12; ++i) {
        CAPTURE(i);
        auto y = between[static_cast<std::size_t>(i)];
        const auto x = y, q = a.expected(i);
        const auto picks = naive::best(q, 2);
        const double total = q[static_cast<std::size_t>(picks[0])] + q[static_cast<std::size_t>(picks[1])];
        for (const Index e : picks) {
          if (of_gate[static_cast<std::size_t>(i)] == 0) continue;  // padding goes to no expert
          const auto out = naive::affine(
              x, model_dim, [&](Index d, Index j) { return expert.weight(e, d, j); },
              [&](Index j) { return expert.bias.extent(1) > 0 ? expert.bias(e, j) : 0.0; });
          for (std::size_t j = 0; j < y.size(); ++j) y[j] += q[static_cast<std::size_t>(e)] / total * out[j];
        }
        CHECK(difference(naive::row(p.y, i), y) < 1e-12);
      }
      const auto report = check::gradients(ctx, p.layer, {.items = 12}, p.extra);
      CHECK_MESSAGE(report, report.str());
    }
}

TEST_CASE("AttentionPosterior (3): equals the direct form across block borders") {
  for (const bool causal : {false, true}) {
    CAPTURE(causal);
    Alone a({.sigma = 0.8, .head = FollowedHead::every}, causal, 2, 150, 150);
    a.forward();
    for (const Index i : {0, 1, 126, 127, 128, 149}) CHECK(difference(naive::row(a.q, i), a.expected(i)) < 1e-12);
  }
}

TEST_CASE("AttentionPosterior: follows the head of lowest mean entropy so far") {
  Alone a({.head = FollowedHead::lowest_entropy}, true, 4, 300, 300);
  a.forward();
  for (const Index i : {0, 1, 60, 128, 255, 256, 299}) {
    CHECK(a.saved.head(i) == a.lowest_entropy(0, i));
    CHECK(difference(naive::row(a.q, i), a.expected(i)) < 1e-12);
  }
  std::set<Index> followed;
  for (Index i = 0; i < 300; ++i) followed.insert(a.saved.head(i));
  CHECK(followed.size() > 1);
}

TEST_CASE("AttentionPosterior: computes entropies if the trace has no entropies" * doctest::skip(support::slow_build)) {
  std::set<Index> followed;
  for (const bool causal : {false, true})
    for (const Index length : {6, 600}) {
      Alone a({.head = FollowedHead::lowest_entropy, .only_confident = true}, causal, 4, 2 * length, length);
      for (Index n = 0; n < 2 * length; ++n) a.mask.push_back(n % 7 == 3 ? 0 : 1);
      a.forward();
      const auto with = values(a.q);
      const std::vector<Index> heads(a.saved.head.data(), a.saved.head.data() + a.saved.head.size());
      followed.insert(heads.begin(), heads.end());
      a.forward(false);
      CHECK(same_bits(values(a.q), with));
      CHECK(std::equal(heads.begin(), heads.end(), a.saved.head.data()));
    }
  CHECK(followed.size() > 1);
}

TEST_CASE("AttentionPosterior: the number of threads changes no bit" * doctest::skip(support::slow_build)) {
  for (const FollowedHead head : all_choices) {
    std::vector<double> first;
    for (const int threads : {1, 2, 3, 8}) {
      Cpu::Context ctx(threads);
      auto p = pass<float>(ctx, block({.head = head}, true), 2 * 300);
      p.extra.attention.length = 300;
      p.forward();
      p.backward();
      const auto all = values(p.y, p.dx, p.grads);
      if (first.empty()) first = all;
      CHECK(same_bits(all, first));
    }
  }
}

TEST_CASE("AttentionPosterior: a sequence follows its first lowest-entropy head") {
  Alone a({.head = FollowedHead::lowest_entropy_of_sequence}, true, 4, 40, 5);
  a.forward();
  bool several = false;
  for (Index i = 0; i < 40; ++i) {
    CHECK(a.saved.head(i) == a.lowest_entropy(a.first(i), a.first(i) + 4));
    several = several || a.saved.head(i) != a.saved.head(0);
  }
  CHECK(several);
  for (auto* w : {&a.params.query, &a.params.key}) set_zero(a.ctx, *w);  // all heads attend alike
  a.forward();
  for (Index i = 0; i < 40; ++i) CHECK(a.saved.head(i) == 0);
}

TEST_CASE("AttentionPosterior: large sigma gives attention, small nearest token") {
  for (const bool causal : {false, true}) {
    Alone wide({.sigma = 1e7, .head = FollowedHead::lowest_entropy_of_sequence}, causal, 2, 12, 6);
    Alone narrow({.sigma = 1e-3, .head = FollowedHead::lowest_entropy_of_sequence}, causal, 2, 12, 6);
    wide.forward();
    narrow.forward();
    for (Index i = 0; i < 12; ++i) {
      CHECK(difference(naive::row(wide.q, i), naive::mixed(wide.probabilities(wide.saved.head(i), i), wide.rows(i))) <
            1e-9);
      Index nearest = narrow.first(i);
      narrow.mixing.sigma = 1;  // a sigma at which likelihoods do not underflow
      const Index h = narrow.saved.head(i);
      for (Index j = narrow.first(i); j < narrow.first(i) + 6; ++j)
        if (narrow.sees(i, j) && narrow.likelihood(h, i, j) > narrow.likelihood(h, i, nearest)) nearest = j;
      CHECK(difference(naive::row(narrow.q, i), narrow.r(nearest)) < 1e-9);
    }
  }
}

TEST_CASE("AttentionPosterior: with one head, FollowedHead::every changes nothing") {
  for (const bool causal : {false, true}) {
    Alone one({.head = FollowedHead::lowest_entropy_of_sequence}, causal, 1, 12, 6),
        every({.head = FollowedHead::every}, causal, 1, 12, 6);
    one.forward();
    every.forward();
    CHECK(difference(values(every.q), values(one.q)) < 1e-14);
  }
}

TEST_CASE("AttentionPosterior, paper 002 (17): the entropy bound holds") {
  for (const bool confident : {false, true}) {
    Alone a({.head = FollowedHead::lowest_entropy_of_sequence, .only_confident = confident}, false, 2, 20, 10);
    a.forward();
    for (Index i = 0; i < 20; ++i) {
      auto s = a.joint(a.saved.head(i), i);
      double total = 0, bound = 0;
      for (const double v : s) total += v;
      const auto r = a.rows(i);
      for (std::size_t j = 0; j < s.size(); ++j) bound += (s[j] /= total) * naive::entropy(r[j]);
      CHECK(naive::entropy(naive::row(a.q, i)) <= bound + naive::entropy(s) + 1e-12);
    }
  }
}

TEST_CASE("AttentionPosterior: a later token changes no earlier output") {
  Cpu::Context ctx(2);
  for (const FollowedHead head : {FollowedHead::lowest_entropy, FollowedHead::every}) {
    auto a = pass<float>(ctx, block({.head = head}, true), 2 * 20),
         b = pass<float>(ctx, block({.head = head}, true), 2 * 20);
    a.extra.attention.length = b.extra.attention.length = 20;
    for (Index n = 12; n < 20; ++n)
      for (Index d = 0; d < model_dim; ++d)
        b.x(n, d) = n == 15 ? std::numeric_limits<float>::quiet_NaN() : 9 * b.x(n, d);
    a.forward();
    b.forward();
    for (Index n = 0; n < 40; ++n)
      for (Index d = 0; d < model_dim; ++d) {
        if (n < 12 || n >= 20) CHECK(b.y(n, d) == a.y(n, d));
        if (n == 12) CHECK(b.y(n, d) != a.y(n, d));
      }
  }
}

TEST_CASE("AttentionPosterior: padding of the attention is padding of the gate") {
  Cpu::Context ctx(1);
  const std::vector<double> mask{1, 1, 0, 1, 0, 1};
  auto zeros = pass<double>(ctx, block({}, false), 6), changed = pass<double>(ctx, block({}, false), 6);
  for (auto* p : {&zeros, &changed}) p->extra.attention.valid = mask;  // the gate gets no mask
  for (const Index n : {2, 4})
    for (Index d = 0; d < model_dim; ++d) changed.x(n, d) = -2 * changed.x(n, d);
  zeros.forward();
  changed.forward();
  for (const Index n : {0, 1, 3, 5})
    for (Index d = 0; d < model_dim; ++d) CHECK(changed.y(n, d) == zeros.y(n, d));
}

namespace {

/// A trace of windowed attention with random numbers. Log-sum-exps and entropies are also random, because in a real
/// trace they include keys outside the trace.
struct Windowed {
  static constexpr Index heads = 2, width = model_dim / heads;
  Cpu::Context ctx{1};
  AttentionPosterior mixing;
  Tensor<double, 2, Cpu> x, z, q, k, v, log_sum_exp, output, places, entropy, of_q, of_rank, mixed;
  Saved<AttentionPosterior, double, Cpu> saved;
  std::vector<double> mask;
  Extra<AttentionPosterior, double, Cpu> extra;

  Windowed(const AttentionPosterior& m, Index items, const detail_::attending::Window& window, bool with_places)
      : mixing(m),
        x(random(1, items, model_dim)),
        z(random(2, items, experts)),
        q(random(3, items, model_dim)),
        k(random(4, items, model_dim)),
        v(random(5, items, model_dim)),
        log_sum_exp(random(6, items, heads)),
        output(random(7, model_dim, model_dim)),
        places(random(8, window.width, width)),
        entropy(random(9, items, heads)),
        of_q(random(10, items, experts)),
        of_rank(random(11, items, experts)),
        mixed(items, experts),
        extra{AttentionTrace<const double, Cpu>{.q = q,
                                                .k = k,
                                                .v = v,
                                                .log_sum_exp = log_sum_exp,
                                                .output = output,
                                                .length = window.length,
                                                .scale = 0.7,
                                                .entropy = entropy,
                                                .window = window}} {
    if (with_places) extra.trace.value.places = places;
  }
  Tensor<double, 2, Cpu> random(std::uint64_t seed, Index rows, Index columns) {
    return uniform_tensor<double>(ctx, Seed{seed}, 1, rows, columns);
  }
  void forward() {
    const Nothing<double, Cpu> none;
    mixing.validate(none, x.extent(0), extra);
    mixing.forward(ctx, none, x, z, mixed, saved, extra);
  }
  /// Equations (1)-(3) in their direct form.
  std::vector<double> expected(Index i) const {
    const AttentionTrace<const double, Cpu>& a = extra.trace.value;
    const Index first = i / a.length * a.length, begin = a.window.first(i - first);
    std::vector<double> w;
    std::vector<std::vector<double>> r;
    double total = 0;
    Index followed = 0;
    double least = infinity;
    for (Index h = 0; h < heads; ++h) {
      double sum = 0;
      for (Index j = first; j <= (mixing.head == FollowedHead::lowest_entropy ? i : first + a.length - 1); ++j)
        sum += entropy(j, h);
      if (sum < least) followed = h, least = sum;
    }
    for (Index h = 0; h < heads; ++h)
      for (Index o = 0; o < a.window.width; ++o) {
        const Index j = begin + o;
        if (j < 0 || (mixing.head != FollowedHead::every && h != followed)) continue;
        double dot = 0, square = 0;
        for (Index c = 0; c < width; ++c)
          dot += q(i, h * width + c) * (k(first + j, h * width + c) + (a.places.data() ? places(o, c) : 0));
        for (Index d = 0; d < model_dim; ++d) {
          double m = 0;
          for (Index c = h * width; c < (h + 1) * width; ++c) m += v(first + j, c) * output(c, d);
          m *= mixing.mean_of_heads ? double(heads) : 1;
          square += (x(i, d) - m) * (x(i, d) - m);
        }
        w.push_back(std::exp(a.scale * dot - log_sum_exp(i, h) - square / (2 * mixing.sigma * mixing.sigma)));
        total += w.back();
        r.push_back(naive::softmax(naive::row(z, first + j)));
      }
    if (w.empty()) return naive::softmax(naive::row(z, i));
    for (double& of : w) of /= total;
    return naive::mixed(w, r);
  }
};

}  // namespace

TEST_CASE("AttentionPosterior (1)-(3): windowed attention equals the direct form") {
  for (const FollowedHead head : all_choices)
    for (const bool itself : {true, false})
      for (const bool places : {true, false})
        for (const auto& size : {std::pair<Index, Index>{6, 3}, {6, 6}, {300, 40}}) {
          const Index length = size.first, width = size.second;
          const AttentionPosterior mixing{.sigma = 0.8, .head = head, .mean_of_heads = places};
          Windowed w(mixing, 2 * length, {length, 0, width, itself}, places);
          w.forward();
          for (Index i = 0; i<2 * length; i += length> 6 ? 7 : 1)
            REQUIRE(difference(naive::row(w.mixed, i), w.expected(i)) <= 1e-12);
          // If no item sees itself, the first item of a sequence sees none and keeps its own probabilities.
          if (!itself) CHECK(difference(naive::row(w.mixed, length), naive::softmax(naive::row(w.z, length))) <= 1e-15);
        }
}

TEST_CASE("AttentionPosterior: windowed gradients equal finite differences") {
  for (const FollowedHead head : all_choices)
    for (const bool itself : {true, false})
      for (const bool confident : {true, false}) {
        Windowed w({.sigma = 0.8, .head = head, .only_confident = confident}, 10, {5, 0, 3, itself}, true);
        const auto loss = [&] {
          w.forward();
          double f = 0;
          for (Index i = 0; i < w.mixed.size(); ++i)
            f += w.mixed.data()[i] * w.of_q.data()[i] + w.saved.log_q.data()[i] * w.of_rank.data()[i];
          return f;
        };
        (void)loss();
        const auto zero = [&](const auto& like) {
          return constant_tensor<double>(w.ctx, 0, like.extent(0), like.extent(1));
        };
        auto dx = zero(w.x), dz = zero(w.z), dq = zero(w.q), dk = zero(w.k), dv = zero(w.v), dlse = zero(w.log_sum_exp),
             doutput = zero(w.output), dplaces = zero(w.places);
        ExtraGrad<AttentionPosterior, double, Cpu> dextra{
            {.q = dq, .k = dk, .v = dv, .log_sum_exp = dlse, .output = doutput, .places = dplaces}};
        Nothing<double, Cpu> none;
        w.mixing.backward(w.ctx, none, w.x, w.z, w.mixed, w.saved, w.of_rank, w.of_q, dz, dx, none, w.extra, dextra);
        std::vector<check::GradientSlot> slots;
        const auto slot = [&](const char* name, auto& of, const auto& d) {
          slots.push_back({name, of.data(), d.data(), of.size()});
        };
        slot("x", w.x, dx), slot("z", w.z, dz), slot("q", w.q, dq), slot("k", w.k, dk), slot("v", w.v, dv);
        slot("output", w.output, doutput), slot("places", w.places, dplaces);
        if (head == FollowedHead::every) slot("log_sum_exp", w.log_sum_exp, dlse);
        const auto report =
            check::compare_gradients(slots, loss, [] { return std::uint64_t(0); }, {.of_largest = 1e-8});
        CHECK_MESSAGE(report, report.str());
      }
}

TEST_CASE("AttentionPosterior: wrong options and shapes throw") {
  Alone a({.sigma = 0}, true, 2, 6, 3);
  CHECK(message_of([&] { a.forward(); }) == "AttentionPosterior: sigma: expected more than 0, got 0");
  a.mixing.sigma = 1;
  a.forward();
  Nothing<double, Cpu> none;
  Extra<AttentionPosterior, double, Cpu> extra{a.attention.trace(a.params, a.saved_attention)};
  const auto validate = [&](Index items) { return message_of([&] { a.mixing.validate(none, items, extra); }); };
  CHECK(validate(6) == "no ArgumentError");
  CHECK(validate(5) == "AttentionPosterior: extra.trace.q, k, v: expected [5, 4], got [6, 4]");
  extra.trace.value.length = 4;
  CHECK(validate(6) == "AttentionPosterior: extra.trace.length: expected a divisor of the number of items 6, got 4");
  extra.trace.value.length = 3;
  extra.trace.value.entropy = a.attention.trace(a.params, a.saved_attention).entropy.rows(0, 5);
  CHECK(validate(6) == "AttentionPosterior: extra.trace.entropy: expected [6, 2], got [5, 2]");
  extra.trace.value.entropy = a.attention.trace(a.params, a.saved_attention).entropy;
  extra.trace.value.window = {3, 1, 2};
  CHECK(validate(6) ==
        "AttentionPosterior: extra.trace.window: expected the window of a causal attention to the items of the trace, "
        "got another window");
  extra.trace.value.window = {3, 0, 2};
  const Tensor<double, 2, Cpu> places(3, 2);
  extra.trace.value.places = places;
  CHECK(validate(6) == "AttentionPosterior: extra.trace.places: expected [2, 2], got [3, 2]");
  extra.trace.value.places = {};
  CHECK(validate(6) == "no ArgumentError");
  extra.trace.value.entropy = {};
  CHECK(validate(6) ==
        "AttentionPosterior: extra.trace.entropy: expected the entropies, because with a window they cannot be "
        "computed from the trace, got an empty view");
}

TEST_CASE("AttentionPosterior: gradients and conformance, including the attention") {
  for (const FollowedHead head : all_choices)
    for (const bool causal : {false, true}) {
      CAPTURE(static_cast<int>(head));
      CAPTURE(causal);
      const auto report =
          check::conformance<Cpu, double>(block({.sigma = 1.3, .head = head, .only_confident = causal}, causal),
                                          {.gradients = {.items = 8}}, []<class T>(Element<T>, Index, Index count) {
                                            Extra<decltype(block({}, true)), T, Cpu> extra;
                                            extra.attention.length = count % 4 ? 0 : 4;
                                            return extra;
                                          });
      CHECK_MESSAGE(report, report.str());
    }
}
