// expect: gatefold: Params of a policy must be a nested template <class T, class B>; see docs/reference/optional_members\.md
// expect: gatefold: Saved of a policy must be a nested template <class T, class B>; see docs/reference/optional_members\.md
// expect: gatefold: Carry of a policy must be a nested template <class T, class B>; see docs/reference/optional_members\.md
// expect: gatefold: Extra of a policy must be a nested template <class T, class B>; see docs/reference/optional_members\.md
// expect: gatefold: ExtraGrad of a policy must be a nested template <class T, class B>; see docs/reference/optional_members\.md
// expect: gatefold: Items of a policy must be a nested template <class T, class B>; see docs/reference/optional_members\.md
// expect: gatefold: Plan of a policy must be a nested template <class T, class B>; see docs/reference/optional_members\.md
// expect: gatefold: adapt of Params must be callable as adapt\(ctx, grads\); see docs/reference/optional_members\.md
// expect: gatefold: mixtures of a Saved must be callable as mixtures\(f\) const; see docs/reference/optional_members\.md
// expect: gatefold: the member `pass` of a Carry must have the type update::Pass; see docs/reference/optional_members\.md
// Members with the right names, of which some are not templates with parameters T and B, some cannot be called with
// the arguments that the library passes, and one has a wrong type.
#include <gatefold/gatefold.hpp>

using namespace gatefold;

struct Odd {
#ifdef GATEFOLD_FAIL
  struct Params {};
  struct Saved {};
  struct Carry {};
  template <class T>
  struct Extra {};
  Index ExtraGrad = 0;
  Index Items = 0;
  using Plan = int;
#endif
};
template <class T, class B>
struct Pack {
#ifdef GATEFOLD_FAIL
  void adapt() {}
  void mixtures() const {}
  bool pass = false;
#endif
  static void each(auto&&, auto&...) {}
};

int main() {
  Cpu::Context ctx;
  [[maybe_unused]] Params<Odd, float, Cpu> params;
  [[maybe_unused]] Saved<Odd, float, Cpu> saved;
  [[maybe_unused]] Carry<Odd, float, Cpu> carry;
  [[maybe_unused]] Extra<Odd, float, Cpu> extra;
  [[maybe_unused]] ExtraGrad<Odd, float, Cpu> extra_grad;
  [[maybe_unused]] Items<Odd, float, Cpu> items;
  [[maybe_unused]] Plan<Odd, float, Cpu> plan;
  Pack<float, Cpu> pack;
  adapt_params(ctx, pack, pack);
  for_each_mixture(pack, [](const auto&) {});
  update::begin_pass(pack);
}
