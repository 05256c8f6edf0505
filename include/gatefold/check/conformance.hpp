#pragma once

#include <cmath>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/backend/random_fill.hpp"
#include "gatefold/check/gradient.hpp"
#include "gatefold/check/hooks.hpp"
#include "gatefold/check/items.hpp"
#include "gatefold/check/rows.hpp"
#include "gatefold/check/unlisted.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/layer/layer.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/policy/policy.hpp"

/// Checks that a policy of your own does what the library requires of every policy.
namespace gatefold::check {

/// Additional requirements of conformance.
struct ConformanceOptions {
  GradientOptions gradients{};
  bool items_are_independent = false;  // if true: an item's output must have the same bits in any batch
  std::vector<NamedHooks> hooks{};     // these parts must have exactly these optional members
};

/// The result of conformance. It is true if the policy conforms; `str()` describes the failures.
struct ConformanceReport {
  GradientReport gradients{};
  std::vector<std::string> sentences{};
  std::vector<NamedHooks>
      hooks{};  // optional members that the library has found; it never calls one that is missing here

  explicit operator bool() const { return sentences.empty() && static_cast<bool>(gradients); }
  std::string str() const {
    std::string text = "gradients: " + gradients.str();
    for (const std::string& sentence : sentences) text += "\n  " + sentence;
    return hooks.empty() ? text : text + "\noptional members found:" + to_string(hooks);
  }
};

/// The default argument `extra` of conformance: all extra inputs have their default values.
struct EmptyExtra {};

namespace steps {

template <class T>
struct Append {
  std::vector<T>& all;
  void operator()(const Name&, const auto& t) const { all.insert(all.end(), t.data(), t.data() + t.size()); }
};

/// The values that a loop keeps from one batch to the next.
template <class L, class T, class B>
struct Kept {
  Carry<L, T, B> carry, dcarry;
  Saved<L, T, B> saved;
};

/// Runs one forward and `backwards` backward passes from the same seed, and returns all results in one list.
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

/// Returns a context that divides even the few items of a check between threads, if the backend has such a context.
template <class B>
auto eager_context(int threads) {
  if constexpr (std::is_constructible_v<typename B::Context, int, bool>) {
    return typename B::Context(threads, true);
  } else {
    return typename B::Context(threads);
  }
}

/// An executor that runs only one part of each loop; the calling thread then runs the others. Parts thus run in an
/// unusual order, which is the same every time.
struct OnePart {
  int part = 0;
  void run(int count, auto f) const {
    if (part < count) f(part);
  }
};
/// Calls f(ctx) for different orders in which `threads` threads can reach the parts of a loop, one part at a time.
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

}  // namespace steps

/// Checks the following for a layer (or branch, or expert):
///
/// - its parameters list every tensor that they have (see unlisted.hpp); if not, no other check is made;
/// - its gradients agree with finite differences (see gradient.hpp);
/// - two runs, and runs on 1, 2, 3 and 8 threads, give the same bits, forward and backward;
/// - `infer` gives the bits of `forward`;
/// - backward adds: two passes give twice the gradient;
/// - a Saved and a Carry that an earlier batch has used change no bit of a later batch, because a Trainer reuses both;
/// - the carry after forward, set to zero, can serve as the gradient of a carry that is not used, as in a Trainer;
/// - a batch without items is valid;
/// - `forward` and `rows` of mixings and selections give the same results (see rows.hpp);
/// - scratch memory is given back, and does not grow after the first step;
/// - optionally, an item's output does not depend on the batch around it;
/// - optionally, parts have the intended optional members (policy/hooks.hpp), because the library never calls a
///   misspelt one.
///
/// @tparam B  a host backend whose contexts can be made with a number of threads
/// @param extra  a function that returns the extra inputs, Extra<L, T, B>, of items [first, first + count). It is
///               called as extra(Element<T>{}, first, count) with T double and float
/// @return a report that converts to bool, with a sentence for each failure
template <class B, class L, class ExtraF = EmptyExtra>
ConformanceReport conformance(const L& part, const ConformanceOptions& options = {}, const ExtraF& extra = {}) {
  ConformanceReport report;
  const Seed seed = options.gradients.seed;
  const Index items = options.gradients.items;
  auto expect_that = [&](bool ok, const std::string& sentence) {
    if (!ok) report.sentences.push_back(sentence);
  };

  const auto extra_of = [&]<class T>(Element<T> element, Index first, Index count) -> Extra<AsLayer<L, T, B>, T, B> {
    if constexpr (std::is_same_v<ExtraF, EmptyExtra>) {
      return {};
    } else {
      return extra(element, first, count);
    }
  };
  const auto extra_double = extra_of(Element<double>{}, 0, items);
  const auto extra_float = extra_of(Element<float>{}, 0, items);

  report.hooks = hooks_of<B>(part);
  report.sentences = compare_hooks(report.hooks, options.hooks);

  typename B::Context of_gradients(1), ctx(1);
  const auto layer = as_layer<float, B>(part);
  try {
    const auto missing = unlisted<B>(init_params<float, B>(layer, ctx, seed), "params");
    if (!missing.empty()) {  // their gradients would have no memory
      report.sentences.insert(report.sentences.end(), missing.begin(), missing.end());
      return report;
    }
    report.gradients = gradients(of_gradients, part, options.gradients, extra_double);
  } catch (const std::exception& error) {
    if (report.sentences.empty()) throw;
    report.sentences.push_back(error.what());  // possibly caused by a misspelt member
    return report;
  }

  for (const std::string& sentence : rows_unlike_forward<B>(part, seed, items)) expect_that(false, sentence);
  const auto before = ctx.taken();
  const auto first = steps::outcome<float, B>(ctx, layer, items, seed, 1, extra_float);
  expect_that(ctx.taken() == before,
              "scratch memory was not released: write `auto mark = ctx.mark();` before ctx.scratch");
  const auto held = ctx.capacity();
  expect_that(steps::same_bits(first, steps::outcome<float, B>(ctx, layer, items, seed, 1, extra_float)),
              "two runs from the same seed differ: is there state outside the arguments?");
  expect_that(ctx.capacity() == held, "scratch memory grew in the second step, which has the same sizes as the first");
  for (int threads : {2, 3, 8}) {
    auto several = steps::eager_context<B>(threads);
    bool same = true;
    const auto compare = [&](auto& context) {
      same = same && steps::same_bits(first, steps::outcome<float, B>(context, layer, items, seed, 1, extra_float));
    };
    for (int i = 0; i < 4; ++i) compare(several);  // a race of two writes rarely changes a result
    steps::each_order<B>(threads, compare);        // shows sums that depend on the order of threads
    expect_that(same, "different bits on " + std::to_string(threads) + " threads than on 1");
  }
  steps::Kept<AsLayer<L, float, B>, float, B> kept;
  for (const Index count : {items / 2, items, items}) {
    const auto of_count = extra_of(Element<float>{}, 0, count);
    std::vector<float> alone;
    try {
      alone = steps::outcome<float, B>(ctx, layer, count, seed, 1, of_count);
    } catch (const ArgumentError&) {
      continue;  // for example items that come in sequences
    }
    if (steps::same_bits(alone, steps::outcome<float, B>(ctx, layer, count, seed, 1, of_count, kept, kept.carry)))
      continue;
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
    steps::outcome<float, B>(ctx, layer, 0, seed, 1, extra_of(Element<float>{}, 0, 0));
  } catch (const std::exception& error) {
    expect_that(false, std::string("a batch of no items throws: ") + error.what());
  }

  auto params = init_params<float, B>(layer, ctx, seed);
  const auto x = random_items<float>(ctx, seed.fork(1), 1, layer, items);
  auto inferred = [&](Index row, Index count) {
    Carry<AsLayer<L, float, B>, float, B> carry;
    layer.begin(ctx, params, count, carry);
    Tensor<float, 2, B> y(count, layer.out_dim());
    infer<float, B>(layer, ctx, params, x.view().rows(row, count), carry, y, extra_of(Element<float>{}, row, count));
    return std::vector<float>(y.data(), y.data() + y.size());
  };
  const std::vector<float> forwarded(first.begin(), first.begin() + static_cast<std::ptrdiff_t>(from));
  expect_that(steps::same_bits(forwarded, inferred(0, items)), "infer and forward give different bits");
  if (options.items_are_independent)
    for (Index n = 0; n < items; ++n) {
      const auto at = forwarded.begin() + static_cast<std::ptrdiff_t>(n * layer.out_dim());
      const std::vector<float> row(at, at + static_cast<std::ptrdiff_t>(layer.out_dim()));
      expect_that(steps::same_bits(row, inferred(n, 1)),
                  "item " + std::to_string(n) + " gives different bits alone than in the batch");
    }
  return report;
}

}  // namespace gatefold::check
