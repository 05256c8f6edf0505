// expect: gatefold: validate of a branch must be callable as validate\(params, items, extra\) const; see docs/reference/optional_members\.md
// expect: gatefold: infer of a branch must be callable as infer\(ctx, params, x, u, extra, step\) const; see docs/reference/optional_members\.md
// expect: gatefold: forward_overlapping of a branch must be callable as forward_overlapping\(ctx, params, x, u, saved, extra, step, work\) const; see docs/reference/optional_members\.md
// expect: gatefold: backward_overlapping of a branch must be callable as backward_overlapping\(ctx, params, x, saved, du, dx, grads, extra, dextra, work\) const; see docs/reference/optional_members\.md
// Members with the right names that cannot be called with the arguments of their family.
#include <gatefold/gatefold.hpp>

using namespace gatefold;

using Base = OneExpert<Linear>;
struct Odd {
  Base base{};
  template <class T, class B>
  using Params = Base::Params<T, B>;
  template <class T, class B>
  using Saved = gatefold::Saved<Base, T, B>;
  Index in_dim() const { return base.in_dim(); }
  Index out_dim() const { return base.out_dim(); }
  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const { return base.init<T, B>(ctx, seed); }
  template <class T, class B>
  void forward(auto& ctx, const Params<T, B>& p, const auto& x, auto&& u, auto& saved, const auto& extra, const auto& step) const {
    base.forward(ctx, p, x, u, saved, extra, step);
  }
  template <class T, class B>
  void backward(auto& ctx, const Params<T, B>& p, const auto& x, const auto& saved, const auto& du, auto&& dx, auto& grads,
                const auto& extra, auto& dextra) const {
    base.backward(ctx, p, x, saved, du, dx, grads, extra, dextra);
  }
#ifdef GATEFOLD_FAIL
  void validate() const {}
  void infer() const {}
  void forward_overlapping(auto&&, auto&&) const {}
  void backward_overlapping(auto&&...) {}
#endif
};

int main() {
  Cpu::Context ctx;
  Residual{update::Plain{}, Odd{{{.model_dim = 2}}}}.init<float, Cpu>(ctx, Seed{1});
}
