#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/gate/hash_gate.hpp"
#include "gatefold/gate/soft_moe.hpp"
#include "gatefold/layer/mixture.hpp"
#include "support/naive_moe.hpp"
#include "support/pass.hpp"

/// Edge cases for one gate. Some of them have been bugs in similar libraries. tests/gate/gates_test.cpp and the files
/// next to it run each case as a named test for every gate.
namespace gatefold::support {

inline constexpr Index edge_dim = 4, edge_heads = 2;

/// True if the gate takes a mask of valid items. The edge cases depend on this and on compares_items.
template <class G>
inline constexpr bool has_valid = requires(Extra<G, double, Cpu> e) {
  e.valid;
};
template <class G>
inline constexpr bool compares_items = false;
template <class S, class M, class L, class... A>
inline constexpr bool compares_items<ComposedGate<S, M, L, A...>> =
    !std::is_same_v<M, Independent> || std::is_same_v<L, ExpertChoice> || requires(L l) {
  l.multiple_of;
};
template <>
inline constexpr bool compares_items<SoftMoe> = true;

template <class G>
G gate_of(Index experts) {
  G gate{};
  if constexpr (requires { gate.scores.scores.experts; }) {
    gate.scores.scores.experts = experts;
  } else if constexpr (requires { gate.scores.experts; }) {
    gate.scores.experts = experts;
  } else {
    gate.count = experts;
  }
  const Index k = experts < 2 ? experts : 2;
  if constexpr (requires { gate.selection.selection.k; }) {
    gate.selection.selection.k = k;
  } else if constexpr (requires { gate.selection.k; }) {
    gate.selection.k = k;
  }
  return gate;
}

/// A mixture with this gate, and the memory to which its extra inputs point.
template <class G>
struct Edge {
  using Layer = Mixture<G, Linear>;
  using ExtraT = gatefold::Extra<G, double, Cpu>;

  Cpu::Context ctx;
  Layer layer;
  gatefold::Params<Layer, double, Cpu> params, grads;
  Tensor<double, 2, Cpu> x, u, du, dx;
  Saved<Layer, double, Cpu> saved;
  Tensor<double, 2, Cpu> keys, log_sum_exp, output;  // parts of an attention trace
  std::vector<Index> ids, recorded;
  std::vector<double> mask{};

  Edge(Index items, Index experts, int threads = 1)
      : ctx(threads),
        layer{gate_of<G>(experts), Linear{.model_dim = edge_dim}},
        params(init_params<double, Cpu>(layer, ctx, Seed{1})),
        grads(zeros_like(ctx, params)),
        x(uniform_tensor<double>(ctx, Seed{2}, 1, items, edge_dim)),
        u(constant_tensor<double>(ctx, 12345, items, edge_dim)),
        du(uniform_tensor<double>(ctx, Seed{3}, 1, items, edge_dim)),
        dx(constant_tensor<double>(ctx, 0, items, edge_dim)),
        keys(uniform_tensor<double>(ctx, Seed{21}, 1, items, edge_dim)),
        log_sum_exp(uniform_tensor<double>(ctx, Seed{22}, 1, items, edge_heads)),
        output(uniform_tensor<double>(ctx, Seed{23}, 1, edge_dim, edge_dim)) {
    for (Index n = 0; n < items; ++n) ids.push_back(1000 * n + 7);
    for (Index n = 0; n < items; ++n) recorded.insert(recorded.end(), {n % 2, Index(2)});
  }
  Edge(const Edge&) = delete;

  ExtraT extra() const {
    if constexpr (requires(ExtraT e) { e.ids; }) {
      return {View<const Index, 1, Cpu>(ids)};
    } else if constexpr (requires(ExtraT e) { e.mixing.trace; }) {
      const AttentionTrace<const double, Cpu> trace{keys, keys, keys, log_sum_exp, output, keys.extent(0), 1.0, true};
      return {{}, {trace, {}}, {}, mask};
    } else {
      ExtraT e{};
      if constexpr (requires { e.valid; }) e.valid = mask;
      if constexpr (requires { e.selection.recorded; })
        e.selection.recorded = View<const Index, 2, Cpu>(recorded.data(), 1, static_cast<Index>(recorded.size()));
      if constexpr (requires { e.selection.random; }) e.selection.random = Random{Seed{5}, 3};
      if constexpr (requires { e.scores.random; }) e.scores.random = Random{Seed{5}, 4};
      return e;
    }
  }
  void forward() { layer.forward(ctx, params, x, u, saved, extra()); }
  void backward() {
    ExtraGrad<G, double, Cpu> dextra{};
    layer.backward(ctx, params, x, saved, du, dx, grads, extra(), dextra);
  }
  void run() {
    forward();
    backward();
  }
  std::vector<double> outcome() const { return values(u, dx, grads); }

  /// Returns true if all picks name existing experts, and no item has an expert twice.
  bool picks_are_in_order() const {
    if constexpr (requires { saved.plan.item; }) {
      std::set<std::pair<Index, Index>> seen;
      for (Index p = 0; p < saved.plan.item.size(); ++p) {
        const Index n = saved.plan.item(p), e = saved.plan.expert(p);
        if (e < 0) continue;  // a dropped pick
        if (n < 0 || n >= x.extent(0) || e >= count_experts(layer.gate) || !seen.insert({n, e}).second) return false;
      }
    }
    return true;
  }
};

inline bool finite(const std::vector<double>& all) {
  return std::all_of(all.begin(), all.end(), [](double v) { return std::isfinite(v); });
}

}  // namespace gatefold::support

// The cases. A file instantiates them for a list of gates: GATEFOLD_EDGE_CASES(gatefold::XMoe, …). Three of them failed
// in other libraries: expert counts (llama.cpp #6527, vLLM #51521), experts without items (CUTLASS #2547, DeepGEMM #20)
// and NaN logits (vLLM #39244).
#define GATEFOLD_EDGE_CASES(...)                                                                     \
  TEST_CASE_TEMPLATE("every gate: accepts a batch without items", G, __VA_ARGS__) {                  \
    Edge<G> e(0, 3);                                                                                 \
    e.run();                                                                                         \
    CHECK(std::isfinite(values(e.grads).front()));                                                   \
  }                                                                                                  \
  TEST_CASE_TEMPLATE("every gate: works with 1 to 257 experts", G, __VA_ARGS__) {                    \
    for (const Index experts : {1, 3, 257}) {                                                        \
      CAPTURE(experts);                                                                              \
      Edge<G> e(5, experts);                                                                         \
      e.run();                                                                                       \
      CHECK(finite(e.outcome()));                                                                    \
      CHECK(e.picks_are_in_order());                                                                 \
    }                                                                                                \
  }                                                                                                  \
  TEST_CASE_TEMPLATE("every gate: experts without items have gradient exactly 0", G, __VA_ARGS__) {  \
    Edge<G> e(1, 16);                                                                                \
    e.run();                                                                                         \
    CHECK(finite(e.outcome()));                                                                      \
    const auto groups = e.saved.plan.groups();                                                       \
    for (Index j = 0; j < 16; ++j) {                                                                 \
      bool zero = true;                                                                              \
      for (Index d = 0; d < edge_dim; ++d)                                                           \
        for (Index o = 0; o < edge_dim; ++o) zero = zero && e.grads.expert.weight(j, d, o) == 0;     \
      CHECK(zero == (groups.offsets(j) == groups.offsets(j + 1)));                                   \
    }                                                                                                \
  }                                                                                                  \
  TEST_CASE_TEMPLATE("every gate: a single item gives finite, ordered picks", G, __VA_ARGS__) {      \
    Edge<G> e(1, 4);                                                                                 \
    e.run();                                                                                         \
    CHECK(finite(e.outcome()));                                                                      \
    CHECK(e.picks_are_in_order());                                                                   \
  }                                                                                                  \
  TEST_CASE_TEMPLATE("every gate: NaN logits give distinct experts in range", G, __VA_ARGS__) {      \
    Edge<G> clean(6, 5), e(6, 5);                                                                    \
    for (Index d = 0; d < edge_dim; ++d) e.x(2, d) = quiet_nan;                                      \
    clean.forward();                                                                                 \
    e.run();                                                                                         \
    CHECK(e.picks_are_in_order());                                                                   \
    if (!compares_items<G>)                                                                          \
      for (Index n = 0; n < 6; ++n)                                                                  \
        if (n != 2) CHECK(same_bits(naive::row(e.u, n), naive::row(clean.u, n)));                    \
    Edge<G> all(6, 5);                                                                               \
    fill(all.ctx, all.x.view(), quiet_nan);                                                          \
    all.run();                                                                                       \
    CHECK(all.picks_are_in_order());                                                                 \
  }                                                                                                  \
  TEST_CASE_TEMPLATE("every gate: accepts equal items and equal logits", G, __VA_ARGS__) {           \
    Edge<G> e(7, 3);                                                                                 \
    fill(e.ctx, e.x.view(), 0);                                                                      \
    e.run();                                                                                         \
    CHECK(finite(e.outcome()));                                                                      \
    CHECK(e.picks_are_in_order());                                                                   \
  }                                                                                                  \
  TEST_CASE_TEMPLATE(                                                                                \
      "every gate: padding, whatever it holds, reaches no output and no gradient, and gets 0 "       \
      "(transformers #45621, pytorch #193633)",                                                      \
      G, __VA_ARGS__) {                                                                              \
    if constexpr (has_valid<G>) {                                                                    \
      Edge<G> zeros(8, 3), nans(8, 3);                                                               \
      for (Edge<G> * e : {&zeros, &nans}) {                                                          \
        e->mask = {1, 1, 0, 1, 0, 0, 1, 0};                                                          \
        for (Index n = 0; n < 8; ++n)                                                                \
          for (Index d = 0; d < edge_dim; ++d)                                                       \
            if (e->mask[static_cast<std::size_t>(n)] == 0) e->x(n, d) = e == &zeros ? 0 : quiet_nan; \
        e->run();                                                                                    \
      }                                                                                              \
      CHECK(finite(nans.outcome()));                                                                 \
      CHECK(same_bits(nans.outcome(), zeros.outcome()));                                             \
      for (const Index n : {2, 4, 5, 7})                                                             \
        for (Index d = 0; d < edge_dim; ++d) CHECK(nans.u(n, d) == 0);                               \
    }                                                                                                \
  }                                                                                                  \
  TEST_CASE_TEMPLATE(                                                                                \
      "every gate: the same bits again, and on 1, 2, 3 and 8 threads (transformers #43360, sglang "  \
      "#33511)",                                                                                     \
      G, __VA_ARGS__) {                                                                              \
    Edge<G> first(33, 5);                                                                            \
    first.run();                                                                                     \
    for (const int threads : {1, 2, 3, 8}) {                                                         \
      Edge<G> e(33, 5, threads);                                                                     \
      e.run();                                                                                       \
      CHECK(same_bits(e.outcome(), first.outcome()));                                                \
    }                                                                                                \
  }
