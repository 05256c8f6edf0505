// Implements your own loss: quadratic near the target, linear far from it.
#include <cstdio>
#include <gatefold/check.hpp>
#include <gatefold/gatefold.hpp>
using namespace gatefold;

// clang-format off
// [snippet own-loss]
struct Huber {  // (1 / N·D) Σ h(y − t),   h(r) = r² / 2 if |r| <= δ, else δ (|r| − δ / 2)
  double delta = 1;
  template <class T, class B> using Target = View<const T, 2, B>;
  template <class T> struct Value {
    T delta;
    const T *y, *target;
    GATEFOLD_HD T operator()(Index i) const {
      const T r = y[i] - target[i], size = r < 0 ? -r : r;
      return size <= delta ? r * r / 2 : delta * (size - delta / 2);
    }
  };
  template <class T> struct Slope {
    T delta, share;
    const T *y, *target;
    T* dy;
    GATEFOLD_HD void operator()(Index i) const {
      const T r = y[i] - target[i];
      dy[i] = share * (r > delta ? delta : r < -delta ? -delta : r);
    }
  };
  template <class T, class B> void validate(In<T, 2, B> y, In<T, 2, B> target) const {
    expect(delta > 0, "Huber", "delta", "more than 0", delta);
    expect_shape("Huber", "target", target, {y.extent(0), y.extent(1)});
  }
  template <class T, class B> void forward(auto& ctx, In<T, 2, B> y, In<T, 2, B> target, Out<T, 1, B> value) const {
    validate<T, B>(y, target);
    mean_loss<T, B>(ctx, y.size(), {y.size()}, Value<T>{T(delta), y.data(), target.data()}, value);
  }
  template <class T, class B> void backward(auto& ctx, In<T, 2, B> y, In<T, 2, B> target, Out<T, 2, B> dy) const {
    validate<T, B>(y, target);
    B::for_each(ctx, y.size(), Slope<T>{T(delta), 1 / T(y.size()), y.data(), target.data(), dy.data()});
  }
};
// [/snippet]
// clang-format on

int main() {
  Cpu::Context ctx(1);
  auto y = uniform_tensor<double>(ctx, Seed{1}, 2.0, 6, 3);
  const auto target = uniform_tensor<double>(ctx, Seed{2}, 2.0, 6, 3);
  const auto report = check::loss_gradients(ctx, Huber{.delta = 0.7}, y, target);
  std::printf("gradients of Huber: %s\n", report.str().c_str());

  const Mixture model{SoftmaxTopK{.scores = {.experts = 4}, .selection = {.k = 2}}, Linear{3, 3}};
  Trainer trainer{ctx, model, Huber{}, optim::AdamW{.lr = 1e-2}, Seed{1}, Element<double>{}};
  double first = 0, last = 0;
  for (int step = 0; step < 100; ++step) (step ? last : first) = trainer.step(y, target);
  std::printf("loss %.3f before, %.3f after 100 steps\n", first, last);
  return report && last < first ? 0 : 1;
}
