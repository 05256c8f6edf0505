// expect: gatefold: a number that counters\(f, state\) lists must be an integer, a double or a float, which checkpoints save; see docs/reference/optional_members\.md
#include <gatefold/gatefold.hpp>

#include <gatefold/io.hpp>

using namespace gatefold;

struct Fading {
  using IsOptimizer = void;
  double lr = 0.1;
  template <class Pack>
  struct State {
#ifndef GATEFOLD_FAIL
    double power = 1;
#else
    long double power = 1;
#endif
    Index step = 0;
    static void each(auto&&, auto&...) {}
    static void counters(auto&& f, auto&... s) { f("power", s.power...); }
  };
  template <class C, class Pack>
  State<Pack> begin(C&, const Pack&) const {
    return {};
  }
  template <class C, class Pack>
  void step(C&, Pack&, Pack&, State<Pack>&) const {}
};

int main() {
  Cpu::Context ctx;
  Trainer run{ctx, Linear{.model_dim = 4}, MeanSquaredError{}, Fading{}, Seed{1}};
  save_checkpoint("run.safetensors", run);
  load_checkpoint("run.safetensors", run);
}
