// expect: gatefold: an optimizer has State<Pack> begin\(ctx, params\) const, with params const Pack&; see docs/how-to/extending_parts\.md#optimizer
// expect: gatefold: an optimizer has step\(ctx, params, grads, state\) const, with both packs Pack& and state State<Pack>&; see docs/how-to/extending_parts\.md#optimizer
// expect: gatefold: an optimizer has template <class Pack> struct State, a pack with a member Index step; see docs/how-to/extending_parts\.md#optimizer
// expect: gatefold: a Trainer needs an optimizer \(gatefold::optim\), which steps parameters; .* your own optimizer must declare using IsOptimizer = void; see docs/how-to/extending_parts\.md#optimizer
#include <gatefold/gatefold.hpp>

using namespace gatefold;

enum class Lack { nothing, begin, step, count, tag };

struct Tagged {
  using IsOptimizer = void;
};
struct Untagged {};
struct Count {
  Index step = 0;
};
struct NoCount {};

/// An optimizer that only counts its steps, and lacks the part kLack.
template <Lack kLack>
struct Idle : std::conditional_t<kLack == Lack::tag, Untagged, Tagged> {
  double lr = 0.1;
  template <class Pack>
  struct State : std::conditional_t<kLack == Lack::count, NoCount, Count> {
    static void each(auto&&, auto&...) {}
  };
  template <class C, class Pack>
  State<Pack> begin(C&, const Pack&) const requires(kLack != Lack::begin) {
    return {};
  }
  template <class C, class Pack>
  void step(C&, Pack&, Pack&, State<Pack>& state) const requires(kLack != Lack::step) {
    ++state.step;
  }
};
template <Lack kLack>
void train(Cpu::Context& ctx) {
  Trainer trainer{ctx, Linear{.model_dim = 2}, MeanSquaredError{}, Idle<kLack>{}, Seed{1}};
}

int main() {
  Cpu::Context ctx;
#ifndef GATEFOLD_FAIL
  train<Lack::nothing>(ctx);
#else
  train<Lack::begin>(ctx);
  train<Lack::step>(ctx);
  train<Lack::count>(ctx);
  train<Lack::tag>(ctx);
#endif
}
