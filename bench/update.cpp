#include "descriptors/rule.hpp"
#include "support/layer.hpp"

// Times every update rule. A rule combines the input of a layer with the output of its branch; here, the branch only
// copies its input. Compares the time with reading the N·D values of a layer from memory.
namespace {

using namespace bench;

/// A branch of a layer that only copies its input.
struct CopyBranch {
  Index dim;
  Index in_dim() const { return dim; }
  Index out_dim() const { return dim; }
  template <class T, class B, class Step = functor::NoStep<T>>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, Out<T, 2, B> u, Nothing<T, B>&,
               const Nothing<T, B>&, const Step& step = {}) const {
    copy(ctx, x, u);
    run_step(ctx, u, step);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B>, const Nothing<T, B>&, In<T, 2, B> du,
                Out<T, 2, B> dx, Nothing<T, B>&, const Nothing<T, B>&, Nothing<T, B>&) const {
    add(ctx, du, dx);
  }
};

template <class RuleT>
void rule(benchmark::State& state, RuleT rule) {
  constexpr Index kItems = 4096, kDim = 512;
  Run run(Residual{rule, CopyBranch{kDim}}, kItems);
  run.forward();
  const double bytes = static_cast<double>(run.x.size()) * sizeof(float);
  const ReadBandwidth read;
  Rounds rounds;
  rounds.time([&] { run.infer(); });
  const auto copied = rounds.time([&] { copy(run.ctx, run.x.view(), run.y.view()); });
  const auto forward = rounds.time([&] { run.forward(); });
  const auto backward = rounds.time([&] { run.backward(); });
  const auto bandwidth = rounds.measure([&] { return read(run.ctx.threads()); });
  run_rounds(state, rounds);
  count(state, "forward_ms", rounds.median_of(forward) * 1e3);
  count(state, "backward_ms", rounds.median_of(backward) * 1e3);
  // The time of the rule is counted without the copies that the branch makes. The counter `copies` divides this time by
  // the time to copy [N, D] values once, and `reads` divides it by the time to read [N, D] values.
  const auto own = [&](auto of) { return of(0) - detail_::hook::rule::evaluations<RuleT>() * of(copied); };
  count(state, "copies", rounds.median_over([&](auto of) { return own(of) / of(copied); }));
  count(state, "reads", rounds.median_over([&](auto of) { return own(of) * of(bandwidth) / bytes; }));
}

// Times every update rule in tests/descriptors/rule.hpp.
#define ROW(name) BENCHMARK_CAPTURE(rule, name, rows::name.make(rows::tiny))->Apply(timed);
#include "rows/rule.inc"

}  // namespace
