#pragma once

#include <gatefold/gatefold.hpp>
#include <gatefold/papers/signal_mixture.hpp>

#include "options.hpp"

namespace studies::mot {

using gatefold::Cpu;
using gatefold::Seed;

/// The training and test items of a run, and the signals that they contain.
struct Data {
  gatefold::SignalMixture law;
  gatefold::SignalMixture::Signals<float, Cpu> signals;
  gatefold::SignalMixture::Sample<float, Cpu> train, test;

  Data(Cpu::Context& ctx, const Setting& s, Seed seed)
      : law(of(s)),
        signals(law.signals<float, Cpu>(ctx, seed.fork(0))),
        train(law.draw(ctx, signals, seed.fork(1), s.samples)),
        test(law.draw(ctx, signals, seed.fork(2), s.test)) {}

  static gatefold::SignalMixture of(const Setting& s) {
    return {.clusters = s.classes, .model_dim = s.dim, .length = s.length, .noise = s.noise};
  }
};

/// Returns the share of items whose output has the sign of the label.
template <class Outputs>
double accuracy(const Outputs& y, const gatefold::Tensor<float, 2, Cpu>& target) {
  Index right = 0;
  for (Index n = 0; n < target.extent(0); ++n) right += y(n, 0) * target(n, 0) > 0;
  return static_cast<double>(right) / static_cast<double>(target.extent(0));
}

}  // namespace studies::mot
