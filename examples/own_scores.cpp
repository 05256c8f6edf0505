// Implements your own scores: an item goes to the experts with the nearest centres.
#include <cstdio>
#include <gatefold/check.hpp>
#include <gatefold/gatefold.hpp>
using namespace gatefold;

// clang-format off
// [snippet own-scores]
struct DistanceScores {  // z[n,e] = −½ ‖x[n] − c_e‖²
  Index model_dim = 0, experts = 0;
  template <class T, class B> struct Params {
    Tensor<T, 2, B> centre;  // [E, D]
    GATEFOLD_PACK(centre)
  };
  template <class T, class B> struct Score {
    View<const T, 2, B> x, centre;
    View<T, 2, B> z;
    GATEFOLD_HD void operator()(Index n) const {
      for (Index e = 0; e < centre.extent(0); ++e) {
        T sum = 0;
        for (Index d = 0; d < x.extent(1); ++d) sum += (x(n, d) - centre(e, d)) * (x(n, d) - centre(e, d));
        z(n, e) = -sum / 2;
      }
    }
  };
  template <class T, class B> struct Pull {  // da[i] += Σ_j w (b[j] − a[i]) with w = dz[i,j] or dz[j,i]
    View<const T, 2, B> a, b, dz;
    bool by_row;
    View<T, 2, B> da;
    GATEFOLD_HD void operator()(Index at) const {
      const Index i = at / a.extent(1), d = at % a.extent(1);
      for (Index j = 0; j < b.extent(0); ++j) da(i, d) += (by_row ? dz(i, j) : dz(j, i)) * (b(j, d) - a(i, d));
    }
  };
  DistanceScores with_model_dim(Index width) const { return {width, experts}; }
  template <class T, class B> Params<T, B> init(auto& ctx, Seed seed) const {
    return {uniform_tensor<T>(ctx, seed, 1.0, experts, model_dim)};
  }
  template <class T, class B>
  void forward(auto& ctx, const Params<T, B>& p, In<T, 2, B> x, Out<T, 2, B> z) const {
    B::for_each(ctx, x.extent(0), Score<T, B>{x, p.centre, z});
  }
  template <class T, class B> void backward(auto& ctx, const Params<T, B>& p, In<T, 2, B> x, In<T, 2, B> dz,
                                            Out<T, 2, B> dx, Params<T, B>& grads) const {
    B::for_each(ctx, dx.size(), Pull<T, B>{x, p.centre, dz, true, dx});
    B::for_each(ctx, grads.centre.size(), Pull<T, B>{p.centre, x, dz, false, grads.centre});
  }
};
using NearestTopK = ComposedGate<DistanceScores, Independent, TopK>;
// [/snippet]
// clang-format on

int main() {
  const NearestTopK gate{.scores = {.experts = 4}, .selection = {.k = 2}};
  const auto report = check::conformance<Cpu>(Mixture{gate, Mlp<Gelu>{.model_dim = 5, .hidden_dim = 3}});
  std::printf("DistanceScores %s\n%s\n", report ? "conforms" : "DOES NOT CONFORM", report.str().c_str());
  return report ? 0 : 1;
}
