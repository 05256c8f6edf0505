#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/optim/clone.hpp"
#include "gatefold/optim/optimizer.hpp"

/// A test for optimizers that you write yourself: `optimizer_steps` checks what the library requires of every
/// optimizer.
namespace gatefold::check {

/// Tests an optimizer on the parameters of a model, with random gradients. Checks that
///
/// - the struct of its state lists all its tensors (see unlisted.hpp);
/// - a run that continues from a checkpoint, that is, from the tensors and numbers that its state lists
///   (optim/clone.hpp), gives the bits of an uninterrupted run;
/// - two runs, and runs on 1, 2, 3 and 8 threads, give the same bits;
/// - each step gives scratch memory back, and takes no more than the first step;
/// - each step is counted in `state.step`, and does not change tensors that are not learned;
/// - the function `expect_step` of the optimizer, if it has one, refuses gradients with wrong extents.
///
/// @tparam B  a host backend whose contexts can be made with a number of threads
/// @param model  a layer, a branch or an expert. The optimizer updates its parameters
/// @param steps  number of steps before the interruption, and number of steps after it. If the optimizer does some work
///               only in every n-th step, `steps` must exceed n
/// @return a sentence for each failure; empty if all checks pass
template <class B, class O, class L>
std::vector<std::string> optimizer_steps(const O& optimizer, const L& model, Seed seed = Seed{1}, Index steps = 12);

namespace steps {

/// Resizes a tensor so that each dimension is larger by one, to make a gradient with a wrong shape.
void widen(auto& t) {
  const auto extents = [&]<std::size_t... D>(std::index_sequence<D...>) { t.resize(t.extent(D) + 1 ...); };
  extents(std::make_index_sequence<std::remove_cvref_t<decltype(t)>::rank>{});
}

/// Returns the values of all parameters that are not learned, and that an optimizer therefore must not change.
std::vector<double> not_learned(const auto& params) {
  std::vector<const void*> learned;
  for_each_learned([&](const Name&, const auto& t) { learned.push_back(t.data()); }, params);
  std::vector<double> fixed;
  for_each_tensor(
      [&](const Name& name, const auto& t) {
        if (std::find(learned.begin(), learned.end(), t.data()) == learned.end()) Append<double>{fixed}(name, t);
      },
      params);
  return fixed;
}

/// Parameters that an optimizer updates, their gradients, and the state of the optimizer.
template <class O, class P>
struct Optimized {
  P params, grads;
  typename O::template State<P> state;
  // True if all steps so far have released their scratch memory.
  bool gives_back = true;

  template <class C>
  Optimized(C& ctx, const O& optimizer, P&& initial)
      : params(std::move(initial)), grads(zeros_like(ctx, params)), state(optimizer.begin(ctx, params)) {}

  /// Makes `count` optimizer steps in the same way as a Trainer, with random gradients that depend on the number of the
  /// step. The first step has the number `first`.
  template <class C>
  void run(C& ctx, const O& optimizer, Seed seed, Index first, Index count) {
    for (Index i = first; i < first + count; ++i) {
      Index n = 0;
      for_each_tensor(
          [&](const Name&, auto& g) {
            fill_uniform(ctx, seed.fork(static_cast<std::uint64_t>(i)).fork(static_cast<std::uint64_t>(n++)), -1, 1, g);
          },
          grads);
      auto mark = ctx.mark();
      const auto measured = optim::measure_gradients(optimizer, ctx, grads);
      const auto before = ctx.taken();
      optim::measured_step(optimizer, ctx, params, grads, state, measured);
      gives_back = gives_back && ctx.taken() == before;
    }
  }
  /// Copies from another run the values that a checkpoint contains: the tensors of the parameters, and the tensors and
  /// numbers of the state.
  void restore(auto& ctx, Optimized& from) {
    copy_pack(ctx, from.params, params);
    copy_pack(ctx, from.state, state);
    optim::copy_counters(from.state, state);
  }
  std::vector<double> values() const {
    std::vector<double> all;
    for_each_tensor(Append<double>{all}, params);
    for_each_tensor(Append<double>{all}, state);
    return all;
  }
};

}  // namespace steps

template <class B, class O, class L>
std::vector<std::string> optimizer_steps(const O& optimizer, const L& model, Seed seed, Index steps) {
  using T = float;
  using P = Params<AsLayer<L, T, B>, T, B>;
  static_assert(optim::check<O, typename B::Context, P>());
  using Run = steps::Optimized<O, P>;
  std::vector<std::string> sentences;
  const auto layer = as_layer<T, B>(model);
  const auto started = [&](auto& ctx, Seed from) { return Run(ctx, optimizer, init_params<T, B>(layer, ctx, from)); };
  typename B::Context ctx(1);

  Run run = started(ctx, seed);
  sentences = unlisted<B>(run.state, "state");
  const auto fixed = steps::not_learned(run.params);
  run.run(ctx, optimizer, seed, 0, 1);
  const auto held = ctx.capacity();
  run.run(ctx, optimizer, seed, 1, steps - 1);
  if (ctx.capacity() != held) sentences.push_back("scratch memory grew after the first step");
  if (!run.gives_back)
    sentences.push_back("scratch memory was not released: write `auto mark = ctx.mark();` before ctx.scratch");
  if (run.state.step != steps)
    sentences.push_back("state.step is " + std::to_string(run.state.step) + " after " + std::to_string(steps) +
                        " steps: step must increase state.step by 1, because schedules read it");
  if (!steps::same_bits(fixed, steps::not_learned(run.params)))
    sentences.push_back(
        "tensors that are not learned are stepped: visit the parameters with for_each_learned, which skips them");

  Run resumed = started(ctx, seed.fork(1));
  resumed.restore(ctx, run);
  run.run(ctx, optimizer, seed, steps, steps);
  resumed.run(ctx, optimizer, seed, steps, steps);
  const std::vector<double> whole = run.values();
  if (!steps::same_bits(whole, resumed.values()))
    sentences.push_back(
        "a run that continues from a checkpoint gives different bits: the state has a member that neither `each` nor "
        "`counters` lists");
  if constexpr (detail_::named::expect_step<O>()) {
    P other = zeros_like(ctx, run.params);
    bool widened = false;
    for_each_tensor(
        [&](const Name&, auto& g) {
          if (!std::exchange(widened, true)) steps::widen(g);
        },
        other);
    try {
      optimizer.expect_step(run.params, other, run.state);
      if (widened) sentences.push_back("expect_step accepts gradients with a wrong extent");
    } catch (const ArgumentError&) {
    }
  }
  for (const int threads : {1, 2, 3, 8}) {
    bool same = true;
    const auto compare = [&](auto& context) {
      Run again = started(context, seed);
      again.run(context, optimizer, seed, 0, 2 * steps);
      same = same && steps::same_bits(whole, again.values());
    };
    auto several = steps::eager_context<B>(threads);
    compare(several);
    if (threads > 1) steps::each_order<B>(threads, compare);
    if (!same)
      sentences.push_back(threads == 1 ? "two runs differ: is there state outside the arguments?"
                                       : "different bits on " + std::to_string(threads) + " threads than on 1");
  }
  return sentences;
}

}  // namespace gatefold::check
