// Implements your own gate: item n goes to expert n mod E, with a learned weight for each of E experts.
#include <cstdio>
#include <gatefold/check.hpp>
#include <gatefold/gatefold.hpp>
using namespace gatefold;

// clang-format off
// [snippet own-gate]
struct RoundRobin {
  Index count = 0;
  template <class T, class B> using Plan = SparsePlan<T, B>;
  template <class T, class B> struct Params {
    Tensor<T, 1, B> scale;  // [E]
    GATEFOLD_PACK(scale)
  };
  template <class T, class B> struct Pick {  // functors are named structs, so that they run on a device too
    View<const T, 1, B> scale;
    View<Index, 1, B> item, expert;
    View<T, 1, B> weight;
    GATEFOLD_HD void operator()(Index n) const {
      item(n) = n, expert(n) = n % scale.size(), weight(n) = scale(expert(n));
    }
  };
  template <class T, class B> struct PickBackward {  // the items of expert e are e, e + E, e + 2E, …
    View<const T, 1, B> dweight;
    View<T, 1, B> dscale;
    GATEFOLD_HD void operator()(Index e) const {
      for (Index n = e; n < dweight.size(); n += dscale.size()) dscale(e) += dweight(n);
    }
  };
  Index experts() const { return count; }
  template <class T, class B> Params<T, B> init(auto& ctx, Seed seed) const {
    return {uniform_tensor<T>(ctx, seed, 1.0, count)};
  }
  template <class T, class B>
  void forward(auto& ctx, const Params<T, B>& p, In<T, 2, B> x, SparsePlan<T, B>& plan, auto&&...) const {
    plan.resize(x.extent(0), count, x.extent(0));  // items, experts, picks
    B::for_each(ctx, x.extent(0), Pick<T, B>{p.scale, plan.item, plan.expert, plan.weight});
    plan.build(ctx);
  }
  template <class T, class B>
  void backward(auto& ctx, const Params<T, B>&, In<T, 2, B>, const SparsePlan<T, B>&, auto&&, const auto& dplan,
                Out<T, 2, B>, Params<T, B>& grads, auto&&...) const {
    B::for_each(ctx, count, PickBackward<T, B>{dplan.weight, grads.scale});
  }
};
// [/snippet]
// clang-format on

int main() {
  const auto report =
      check::conformance<Cpu>(Mixture{RoundRobin{.count = 4}, Mlp<Gelu>{.model_dim = 5, .hidden_dim = 6}});
  std::printf("RoundRobin %s\n%s\n", report ? "conforms" : "DOES NOT CONFORM", report.str().c_str());
  return report ? 0 : 1;
}
