#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "gatefold/check/gradient.hpp"
#include "gatefold/check/hooks.hpp"
#include "gatefold/check/unlisted.hpp"
#include "gatefold/gate/candidates.hpp"
#include "gatefold/gate/gate.hpp"

/// A test for policies that you write yourself, for example a gate or an expert: `conformance` checks what the library
/// requires of every policy.
namespace gatefold::check {

/// Options of `conformance`: tolerances for gradients, and optional requirements.
struct ConformanceOptions {
  GradientOptions gradients{};
  // If true, checks that the output for an item has the same bits in a batch of only this item as in the whole batch.
  bool items_are_independent = false;
  // Expected optional members, with at most one entry for each part of the policy. A part with an entry must have
  // exactly the optional members of the entry. Parts without an entry are not checked.
  std::vector<NamedHooks> hooks{};
};

/// The result of `conformance`. It converts to true if the policy passed all checks; `str()` describes the failures.
struct ConformanceReport {
  GradientReport gradients{};
  std::vector<std::string> sentences{};
  std::vector<NamedHooks>
      // The optional members that the library has found in the policy. The library calls no other optional member.
      hooks{};

  explicit operator bool() const { return sentences.empty() && static_cast<bool>(gradients); }
  std::string str() const {
    std::string text = "gradients: " + gradients.str();
    for (const std::string& sentence : sentences) text += "\n  " + sentence;
    return hooks.empty() ? text : text + "\noptional members found:" + to_string(hooks);
  }
};

/// The default argument `extra` of `conformance`: all extra inputs of a layer, for example masks, have their default
/// values.
struct EmptyExtra {};

/// Tests a layer, a branch or an expert. Checks that
///
/// - the struct of its parameters lists all its tensors (see unlisted.hpp); if not, no other check is made;
/// - its gradients agree with finite differences (see gradient.hpp);
/// - two runs, and runs on 1, 2, 3 and 8 threads, give the same bits, forward and backward;
/// - `infer` gives the bits of `forward`;
/// - backward adds to gradients: two backward passes give twice the gradient;
/// - a Saved and a Carry of an earlier batch can be reused for the next batch, as in a Trainer, with the same results
///   as new ones;
/// - the carry after forward, set to zero, can be passed to backward as the gradient of the carry, as in a Trainer;
/// - a batch without items is valid;
/// - `forward` and `rows` of mixings and selections give the same results (rows_unlike_forward);
/// - scratch memory is given back, and does not grow after the first step;
/// - optionally, an item's output does not depend on the other items of the batch;
/// - optionally, its parts have the expected optional members (policy/hooks.hpp). This finds misspelt members, which
///   the library never calls.
///
/// @tparam B  a host backend whose contexts can be made with a number of threads
/// @tparam T  the element type of the checks of bits. Gradients are compared in double
/// @param extra  a function that returns the extra inputs, Extra<L, V, B>, of items [first, first + count). It is
///               called as extra(Element<V>{}, first, count) with V double and T
/// @return a report that converts to bool, with a sentence for each failure
template <class B, class T = float, class L, class ExtraF = EmptyExtra>
ConformanceReport conformance(const L& part, const ConformanceOptions& options = {}, const ExtraF& extra = {});

namespace steps {

template <class T>
struct Append {
  std::vector<T>& all;
  void operator()(const Name&, const auto& t) const { all.insert(all.end(), t.data(), t.data() + t.size()); }
};

/// The objects that a training loop reuses from batch to batch: the carry (the state passed from layer to layer), its
/// gradient, and the values saved for backward.
template <class L, class T, class B>
struct Kept {
  Carry<L, T, B> carry, dcarry;
  Saved<L, T, B> saved;
};

/// Runs one forward and `backwards` backward passes of a layer with parameters and items drawn from `seed`. Returns the
/// output, the gradients and the carry in one list.
/// @param dcarry  the gradient of the carry; it can be the same object as kept.carry, as in a Trainer
template <class T, class B, class L>
std::vector<T> outcome(typename B::Context& ctx, const L& layer, Index items, Seed seed, int backwards,
                       const Extra<L, T, B>& extra, Kept<L, T, B>& kept, Carry<L, T, B>& dcarry) {
  auto params = init_params<T, B>(layer, ctx, seed);
  auto grads = zeros_like(ctx, params);
  const auto x = random_items<T>(ctx, seed.fork(1), 1, layer, items);
  const auto dy = uniform_tensor<T>(ctx, seed.fork(2), 1, items, layer.out_dim());
  Tensor<T, 2, B> y(items, layer.out_dim());
  auto dx = zero_items_grad<T>(ctx, layer, items);
  layer.begin(ctx, params, items, kept.carry);
  layer.forward(ctx, params, x, kept.carry, y, kept.saved, extra);
  std::vector<T> all, carried;
  for_each_tensor(Append<T>{carried}, kept.carry);
  for (int i = 0; i < backwards; ++i) {
    if (&dcarry != &kept.carry) layer.begin(ctx, params, items, dcarry);
    set_zero(ctx, dcarry);
    backward(layer, ctx, params, x, kept.saved, dy, dcarry, dx, grads, extra);
  }
  const Append<T> append{all};
  append({}, y);
  for_each_tensor(append, dx);
  for_each_tensor(append, grads);
  all.insert(all.end(), carried.begin(), carried.end());
  return all;
}
template <class T, class B, class L>
std::vector<T> outcome(typename B::Context& ctx, const L& layer, Index items, Seed seed, int backwards,
                       const Extra<L, T, B>& extra) {
  Kept<L, T, B> kept;
  return outcome<T, B>(ctx, layer, items, seed, backwards, extra, kept, kept.dcarry);
}

/// Returns a context that divides even small loops between threads, so that a check with few items tests several
/// threads. If the contexts of backend B do not have this option, returns an ordinary context.
template <class B>
auto eager_context(int threads) {
  if constexpr (std::is_constructible_v<typename B::Context, int, bool>) {
    return typename B::Context(threads, true);
  } else {
    return typename B::Context(threads);
  }
}

/// An executor for tests. It runs only part number `part` of each parallel loop, and leaves the other parts to the
/// calling thread. The parts then run in an unusual order, which is the same every time.
struct OnePart {
  int part = 0;
  void run(int count, auto f) const {
    if (part < count) f(part);
  }
};
/// Calls f(ctx) with contexts that run the parts of each parallel loop one after the other, in different orders. These
/// are orders in which `threads` threads could run the parts.
template <class B, class F>
void each_order(int threads, const F& f) {
  if constexpr (std::is_constructible_v<typename B::Context, OnePart&, int, bool>)
    for (OnePart executor; executor.part < threads; ++executor.part) {
      typename B::Context ctx(executor, threads, true);
      f(ctx);
    }
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// True for a gate whose mixing and selection both have `rows`, the implementation for one item at a time. Such a gate
/// does not call `forward` of its mixing and selection. Also requires that no part of the gate needs extra inputs.
template <class G, class T, class B>
concept RoutesByRows = requires(const G& gate) {
  gate.scores;
  requires detail_::policy::RowByRow<std::remove_cvref_t<decltype(gate.mixing)>,
                                     std::remove_cvref_t<decltype(gate.selection)>, T, B>;
  requires std::is_same_v<Extra<std::remove_cvref_t<decltype(gate.scores)>, T, B>, Nothing<T, B>>;
  requires std::is_same_v<Extra<std::remove_cvref_t<decltype(gate.mixing)>, T, B>, Nothing<T, B>>;
  requires std::is_same_v<Extra<std::remove_cvref_t<decltype(gate.selection)>, T, B>, Nothing<T, B>>;
};

/// Returns a sorted list of the gate's picks that are not dropped, as (expert, item, weight).
template <class T, class B>
std::vector<std::tuple<Index, Index, T>> picks_of(const SparsePlan<T, B>& plan) {
  std::vector<std::tuple<Index, Index, T>> picks;
  for (Index e = 0; e < plan.experts(); ++e)
    for (Index s = plan.offsets(e); s < plan.offsets(e + 1); ++s)
      picks.emplace_back(e, plan.rows(s), plan.weight(plan.pick(s)));
  std::sort(picks.begin(), picks.end());
  return picks;
}

}  // namespace steps

/// Compares the two implementations `forward` (a batch) and `rows` (one item) of the mixing and the selection of each
/// gate in a layer. Returns a sentence for each difference. Other checks do not cover `forward`, because a gate only
/// calls it if its mixing or its selection has no `rows`.
///
/// @tparam B  a host backend
/// @param at  the name of `part` in the sentences; empty for the outermost part
template <class T, class B, class P>
std::vector<std::string> rows_unlike_forward(const P& part, Seed seed, Index items, const std::string& at = "") {
  std::vector<std::string> sentences;
  const auto within = [&](const char* member) { return at.empty() ? std::string(member) : at + "." + member; };
  if constexpr (requires { part.filled_gate(); }) {
    const auto gate = part.filled_gate();
    using G = std::remove_const_t<decltype(gate)>;
    if constexpr (steps::RoutesByRows<G, T, B>) {
      typename B::Context ctx(1);
      const auto p = gate.template init<T, B>(ctx, seed);
      const auto x = uniform_tensor<T>(ctx, seed.fork(1), 1, items, part.in_dim());
      SparsePlan<T, B> by_rows, plan;
      Saved<G, T, B> saved;
      gate.forward(ctx, p, x, by_rows, saved);
      const View<const T, 2, B> z = saved.logits, q = saved.probabilities;
      Tensor<T, 2, B> mixed(items, count_experts(gate));
      gate.mixing.forward(ctx, p.mixing, x, z, mixed.view(), saved.mixing, Nothing<T, B>{});
      bool same = true;
      for (Index i = 0; i < q.size(); ++i) same = same && mixed.data()[i] == q.data()[i];
      if (!same) sentences.push_back(within("gate.mixing") + ": forward and rows give different bits");
      const auto selection = with_experts(gate.selection, count_experts(gate));
      selection.forward(ctx, p.selection, Candidates<T, B>{x, z, q}, plan, saved.selection, Nothing<T, B>{});
      if (steps::picks_of(plan) != steps::picks_of(by_rows))
        sentences.push_back(within("gate.selection") + ": forward and rows give different picks or weights");
    }
  } else if constexpr (requires { std::tuple_size<decltype(part.layers)>::value; }) {
    const auto look = [&](const auto& layer, int i) {
      const auto found = rows_unlike_forward<T, B>(layer, seed, items, within(("layers." + std::to_string(i)).c_str()));
      sentences.insert(sentences.end(), found.begin(), found.end());
    };
    std::apply(
        [&](const auto&... layer) {
          int i = 0;
          (look(layer, i++), ...);
        },
        part.layers);
  } else if constexpr (requires { part.branch; }) {
    return rows_unlike_forward<T, B>(part.branch, seed, items, within("branch"));
  } else if constexpr (requires { part.layer; }) {
    return rows_unlike_forward<T, B>(part.layer, seed, items, within("layer"));
  }
  return sentences;
}

template <class B, class T, class L, class ExtraF>
ConformanceReport conformance(const L& part, const ConformanceOptions& options, const ExtraF& extra) {
  ConformanceReport report;
  const Seed seed = options.gradients.seed;
  const Index items = options.gradients.items;
  auto expect_that = [&](bool ok, const std::string& sentence) {
    if (!ok) report.sentences.push_back(sentence);
  };

  const auto extra_of = [&]<class V>(Element<V> element, Index first, Index count) -> Extra<AsLayer<L, V, B>, V, B> {
    if constexpr (std::is_same_v<ExtraF, EmptyExtra>) {
      return {};
    } else {
      return extra(element, first, count);
    }
  };
  const auto extra_double = extra_of(Element<double>{}, 0, items);
  const auto extra_of_bits = extra_of(Element<T>{}, 0, items);

  report.hooks = hooks_of<B>(part);
  report.sentences = compare_hooks(report.hooks, options.hooks);

  typename B::Context of_gradients(1), ctx(1);
  const auto layer = as_layer<T, B>(part);
  try {
    const auto missing = unlisted<B>(init_params<T, B>(layer, ctx, seed), "params");
    // A tensor that the parameters do not list has no memory for its gradient, so no other check is possible.
    if (!missing.empty()) {
      report.sentences.insert(report.sentences.end(), missing.begin(), missing.end());
      return report;
    }
    report.gradients = gradients(of_gradients, part, options.gradients, extra_double);
  } catch (const std::exception& error) {
    if (report.sentences.empty()) throw;
    // The exception can be a consequence of the failures so far, for example of a misspelt member, so all of them are
    // reported.
    report.sentences.push_back(error.what());
    return report;
  }

  for (const std::string& sentence : rows_unlike_forward<T, B>(part, seed, items)) expect_that(false, sentence);
  const auto before = ctx.taken();
  const auto first = steps::outcome<T, B>(ctx, layer, items, seed, 1, extra_of_bits);
  expect_that(ctx.taken() == before,
              "scratch memory was not released: write `auto mark = ctx.mark();` before ctx.scratch");
  const auto held = ctx.capacity();
  expect_that(steps::same_bits(first, steps::outcome<T, B>(ctx, layer, items, seed, 1, extra_of_bits)),
              "two runs from the same seed differ: is there state outside the arguments?");
  expect_that(ctx.capacity() == held,
              "scratch memory grew in the second step of the same sizes: take as much ctx.scratch in every step");
  for (int threads : {2, 3, 8}) {
    auto several = steps::eager_context<B>(threads);
    bool same = true;
    const auto compare = [&](auto& context) {
      same = same && steps::same_bits(first, steps::outcome<T, B>(context, layer, items, seed, 1, extra_of_bits));
    };
    // The runs are repeated, because a data race between threads rarely changes a result.
    for (int i = 0; i < 4; ++i) compare(several);
    // Unusual orders of the threads reveal sums that depend on the order.
    steps::each_order<B>(threads, compare);
    expect_that(same, "different bits on " + std::to_string(threads) + " threads than on 1");
  }
  steps::Kept<AsLayer<L, T, B>, T, B> kept;
  for (const Index count : {items / 2, items, items}) {
    const auto of_count = extra_of(Element<T>{}, 0, count);
    std::vector<T> alone;
    try {
      alone = steps::outcome<T, B>(ctx, layer, count, seed, 1, of_count);
    } catch (const ArgumentError&) {
      // The policy does not accept this number of items, for example because its items come in sequences.
      continue;
    }
    if (steps::same_bits(alone, steps::outcome<T, B>(ctx, layer, count, seed, 1, of_count, kept, kept.carry))) continue;
    expect_that(false,
                "different bits after another batch: forward must set every tensor of Saved, begin every tensor of "
                "Carry, and `each` of Carry must list all its tensors");
    break;
  }

  const auto layer_double = as_layer<double, B>(part);
  const auto once = steps::outcome<double, B>(ctx, layer_double, items, seed, 1, extra_double);
  const auto twice = steps::outcome<double, B>(ctx, layer_double, items, seed, 2, extra_double);
  const std::size_t from = static_cast<std::size_t>(items * layer.out_dim());
  std::size_t carried = 0;
  {
    auto params = init_params<double, B>(layer_double, ctx, seed);
    const auto dx = zero_items_grad<double>(ctx, layer_double, items);
    carried = once.size() - from - static_cast<std::size_t>(count_values(dx) + count_values(params));
  }
  for (std::size_t i = from; i < once.size() - carried; ++i) {
    if (std::abs(twice[i] - 2 * once[i]) <= 1e-9 * std::abs(once[i]) + 1e-12) continue;
    expect_that(false, "backward must add to dx and grads: two passes do not give twice the gradients of one pass");
    break;
  }

  try {
    steps::outcome<T, B>(ctx, layer, 0, seed, 1, extra_of(Element<T>{}, 0, 0));
  } catch (const std::exception& error) {
    expect_that(false, std::string("a batch of no items throws: ") + error.what());
  }

  auto params = init_params<T, B>(layer, ctx, seed);
  const auto x = random_items<T>(ctx, seed.fork(1), 1, layer, items);
  auto inferred = [&](Index row, Index count) {
    Carry<AsLayer<L, T, B>, T, B> carry;
    layer.begin(ctx, params, count, carry);
    Tensor<T, 2, B> y(count, layer.out_dim());
    infer<T, B>(layer, ctx, params, x.view().rows(row, count), carry, y, extra_of(Element<T>{}, row, count));
    return std::vector<T>(y.data(), y.data() + y.size());
  };
  const std::vector<T> forwarded(first.begin(), first.begin() + static_cast<std::ptrdiff_t>(from));
  expect_that(steps::same_bits(forwarded, inferred(0, items)), "infer and forward give different bits");
  if (options.items_are_independent)
    for (Index n = 0; n < items; ++n) {
      const auto at = forwarded.begin() + static_cast<std::ptrdiff_t>(n * layer.out_dim());
      const std::vector<T> row(at, at + static_cast<std::ptrdiff_t>(layer.out_dim()));
      expect_that(steps::same_bits(row, inferred(n, 1)),
                  "item " + std::to_string(n) + " gives different bits alone than in the batch");
    }
  return report;
}

}  // namespace gatefold::check
