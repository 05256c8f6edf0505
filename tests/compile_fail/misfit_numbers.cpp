// expect: gatefold: the member `layer` of a Carry must be an Index: it counts the layers that have run, and Recompute copies it; see docs/reference/optional_members\.md
// expect: gatefold: step of a State must be an Index, which checkpoints save; list numbers of other types in static counters\(f, state\); see docs/reference/optional_members\.md
// Numbers of type int, which Recompute would not copy and checkpoints would not save.
#include <gatefold/gatefold.hpp>

#include "gatefold/train/checkpoint.hpp"

using namespace gatefold;

#ifdef GATEFOLD_FAIL
using Number = int;
#else
using Number = Index;
#endif

struct Odd : update::Plain {
  template <class T, class B>
  struct Carry {
    Number layer = 0;
    static void each(auto&&, auto&...) {}
  };
  template <class T, class B>
  void begin(typename B::Context&, Index, Index, Carry<T, B>& carry) const {
    carry.layer = 0;
  }
  template <class T, class B, class F>
  void forward(typename B::Context& ctx, const Nothing<T, B>& p, In<T, 2, B> x, Carry<T, B>& carry, F&& f,
               Out<T, 2, B> y, Nothing<T, B>& saved) const {
    ++carry.layer;
    Nothing<T, B> none;
    update::Plain::forward(ctx, p, x, none, f, y, saved);
  }
  template <class T, class B, class F>
  void backward(typename B::Context& ctx, const Nothing<T, B>& p, In<T, 2, B> x, const Nothing<T, B>& saved, F&& df,
                In<T, 2, B> dy, Carry<T, B>&, Out<T, 2, B> dx, Nothing<T, B>& grads) const {
    Nothing<T, B> none;
    update::Plain::backward(ctx, p, x, saved, df, dy, none, dx, grads);
  }
};
struct OddState {
  Number step = 0;
  static void each(auto&&, auto&...) {}
};

int main() {
  Cpu::Context ctx;
  Trainer trainer{ctx, Recompute{Residual{Odd{}, OneExpert{Linear{.model_dim = 2}}}}, MeanSquaredError{}, optim::Sgd{},
                  Seed{1}};
  const Tensor<float, 2, Cpu> x(1, 2);
  trainer.step(x, x);
  OddState state;
  optim::for_each_counter([](const Name&, Index) {}, Name{}, state);
}
