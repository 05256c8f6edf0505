// expect: gatefold: forward of this branch takes any number of arguments \(auto&&\.\.\.\), so it would drop the step, its last argument: declare const auto& step and end with run_step\(ctx, u, step\); see docs/how-to/extending\.md#branch
#include <gatefold/gatefold.hpp>

using namespace gatefold;

struct Copied {
  Index in_dim() const { return 2; }
  Index out_dim() const { return 2; }
  template <class T, class B>
#ifdef GATEFOLD_FAIL
  void forward(auto& ctx, const Nothing<T, B>&, In<T, 2, B> x, Out<T, 2, B> u, auto&&...) const {
    copy(ctx, x, u);
  }
#else
  void forward(auto& ctx, const Nothing<T, B>&, In<T, 2, B> x, Out<T, 2, B> u, auto&, const auto&,
               const auto& step) const {
    copy(ctx, x, u);
    run_step(ctx, u, step);
  }
#endif
  template <class T, class B>
  void backward(auto& ctx, const Nothing<T, B>&, In<T, 2, B>, const Nothing<T, B>&, In<T, 2, B> du, Out<T, 2, B> dx,
                auto&&...) const {
    add(ctx, du, dx);
  }
};

int main() {
  Cpu::Context ctx;
  Residual{update::Plain{}, Copied{}}.init<float, Cpu>(ctx, Seed{1});
}
