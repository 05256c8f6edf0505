// The program of docs/tutorials/own_policy.md: writes an expert that multiplies each value by a learned gain.
#include <cstdio>
#include <gatefold/check.hpp>
#include <gatefold/gatefold.hpp>
using namespace gatefold;

// clang-format off
// [snippet own-expert]
struct Gain {
  Index model_dim = 0;
  template <class T, class B> struct Params {
    Tensor<T, 2, B> gain;  // [E, D]: the first extent is the expert
    GATEFOLD_PACK(gain)
  };
  template <class T, class B> struct Apply {  // out[s] = in[row(s)] ⊙ gain[e]
    Groups<B> groups;
    View<const T, 2, B> gain, in;
    View<T, 2, B> out;
    GATEFOLD_HD void operator()(const auto& lanes, Index s) const {
      if (const Index e = groups.expert(s); e >= 0)
        for (Index d = lanes.lane; d < in.extent(1); d += lanes.size) out(s, d) = in(groups.row(s), d) * gain(e, d);
    }
  };
  template <class T, class B> struct GainBackward {  // dgain[e,d] += Σ_s dz[s,d] x[row(s),d]
    Groups<B> groups;
    View<const T, 2, B> x, dz;
    View<T, 2, B> dgain;
    GATEFOLD_HD void operator()(Index i) const {
      const Index e = i / x.extent(1), d = i % x.extent(1);
      for (Index s = groups.offsets(e); s < groups.offsets(e + 1); ++s) dgain(e, d) += dz(s, d) * x(groups.row(s), d);
    }
  };
  Index in_dim() const { return model_dim; }
  Index out_dim() const { return model_dim; }
  template <class T, class B> Params<T, B> init(auto& ctx, Index experts, Seed seed) const {
    return {uniform_tensor<T>(ctx, seed, 1.0, experts, model_dim)};
  }
  template <class T, class B>
  void forward(auto& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x, Out<T, 2, B> z, auto&&) const {
    B::for_rows(ctx, groups.slots, Apply<T, B>{groups, p.gain, x, z});
  }
  template <class T, class B> void backward(auto& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x, auto&&,
                                            In<T, 2, B> dz, Out<T, 2, B> dslots, Params<T, B>& grads) const {
    B::for_rows(ctx, groups.slots, Apply<T, B>{groups.in_slot_order(), p.gain, dz, dslots});
    B::for_each(ctx, grads.gain.size(), GainBackward<T, B>{groups, x, dz, grads.gain});
  }
};
// [/snippet]
// clang-format on

int main() {
  // [snippet check]
  const SoftmaxTopK gate{.scores = {.experts = 4}, .selection = {.k = 2}};
  const auto report = check::conformance<Cpu>(Mixture{gate, Gain{.model_dim = 5}});
  std::printf("Gain %s\n%s\n", report ? "conforms" : "DOES NOT CONFORM", report.str().c_str());
  // [/snippet]
  return report ? 0 : 1;
}
