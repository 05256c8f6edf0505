#pragma once

#include <map>
#include <string>
#include <utility>

#include "gatefold/layer/summary.hpp"
#include "gatefold/policy/options.hpp"
#include "gatefold/train/select_experts.hpp"

/// Makes a mixture of experts from a trained dense model: each expert begins as a copy of the dense branch.
namespace gatefold {

GATEFOLD_FUNCTORS((class T), RepeatExpert);

/// Options of `upcycle`. `noise` is the relative size of random changes, which make the experts different.
struct UpcycleOptions {
  double noise = 0;
};

namespace detail_::upcycling {

template <class C, class D>
class Copies;

inline constexpr std::uint64_t noise_stream = 0x75706379;  // "upcy" in ASCII: a random stream that `init` does not use

}  // namespace detail_::upcycling

/// Returns parameters of a model with mixtures, made from a model that has a dense branch in place of each Mixture.
/// Every expert is a copy of the dense branch, the gates are new, and all other parameters are copied:
///
///     const Stack dense{Residual{rule, OneExpert{Mlp<Gelu>{64, 256}}}, 6};
///     const Stack model{Residual{rule, Mixture{gate, Mlp<Gelu>{64, 256}}}, 6};
///     auto params = upcycle(ctx, model, dense_params, Seed{1});
///
///     expert_e ← branch ⊙ (1 + noise · r_e),   r_e ~ N(0, 1)                                             (1)
///
/// Without noise, a mixture whose weights sum to 1 (TopK with `renormalise`) has the same output as the dense branch,
/// up to rounding. Its experts then get different gradients only because they get different items and weights. Noise
/// makes the experts different from the start.
///
/// Source: Komatsuzaki et al. 2022, "Sparse Upcycling", arXiv:2212.05055. The noise is not taken from a publication.
/// @param model  the model with mixtures; its experts have the same policy as the dense branch
/// @param dense  parameters of the dense model, whose branch is OneExpert{expert}
/// @param seed   seed of the gates and of the noise
/// @throws ArgumentError, with the name of the tensor, if a tensor of one model is missing in the other or has a
///         different shape there; also if the model has no Mixture, or if noise is negative or not finite
template <class C, class M, class D>
auto upcycle(C& ctx, const M& model, const D& dense, Seed seed, UpcycleOptions options = {}) {
  const auto here = ctx.here();
  using T = typename detail_::pack::Of<D>::Element;
  using B = typename C::Backend;
  auto params = init_params<T, B>(detail_::lookup::with_init<T, B>(model), ctx, seed);
  detail_::upcycling::Copies copies(ctx, dense, seed.fork(detail_::upcycling::noise_stream), options.noise, true);
  copies.fill(params);
  return params;
}

/// Copies the state of a run of the dense model to a run of the model with mixtures: parameters, optimizer state with
/// its count of steps, and the count of skipped steps. The gates of `to` and their moments are not changed.
///
///     Trainer trainer{ctx, model, loss, optimizer, Seed{1}};
///     upcycle(dense_trainer, trainer);
///
/// The moments of the gates begin at 0, but the count of steps does not. Therefore the first steps of a gate under
/// AdamW are up to (1 − β₁) / √(1 − β₂) times lr, which is 3.2 times lr for β₁ = 0.9 and β₂ = 0.999. For a new start,
/// use `upcycle` of parameters.
/// @throws ArgumentError under the same conditions as `upcycle` of parameters; `to` is unchanged then
template <class D, class R>
void upcycle(const D& dense, R& to, UpcycleOptions options = {}) {
  auto& ctx = to.context();
  const auto here = ctx.here();
  for (const bool write : {false, true}) {
    detail_::upcycling::Copies params(ctx, dense.params, to.seed.fork(detail_::upcycling::noise_stream), options.noise,
                                      write);
    detail_::upcycling::Copies state(ctx, dense.state, Seed{}, 0, write);
    params.fill(to.params);
    state.fill(to.state);
  }
  optim::copy_counters(dense.state, to.state);
  to.skipped = dense.skipped;
  to.forget();
}

namespace functor {

/// Writes element i of the copies of an expert: to[e, j] = from[j] · (1 + noise · r[e, j]) with r ~ N(0, 1), for e and
/// j with i = e · count + j.
template <class T>
struct RepeatExpert {
  const T* from;
  Index count;  // number of elements of `from`
  T noise;
  Seed seed;
  T* to;
  GATEFOLD_HD void operator()(Index i) const {
    const T value = from[i % count];
    to[i] = noise == 0 ? value : value * (1 + noise * normal<T>(seed, 0, static_cast<std::uint64_t>(i)));
  }
};

}  // namespace functor

namespace detail_::upcycling {

/// Copies the tensors of a dense model into a pack of a model with mixtures of experts. Finds each tensor by its name.
template <class C, class D>
class Copies {
  using B = typename C::Backend;
  using T = typename detail_::pack::Of<D>::Element;

 public:
  /// Prepares copies from a dense model to a model with mixtures.
  /// @param write  if false, `fill` only checks the names and shapes of the tensors, and copies nothing
  Copies(C& ctx, const D& dense, Seed seed, double noise, bool write)
      : ctx_(ctx), seed_(seed), noise_(noise), write_(write) {
    expect(noise >= 0, where, "noise", "at least 0", noise);
    expect_finite(where, "noise", noise);
    const auto add = [&](const Name& at, const AnyTensor* tensor) { dense_.emplace(at.str(), Source{*tensor}); };
    detail_::pack::visit_any(add, Name{}, false, dense);
  }

  void fill(auto& to) {
    part(Name{}, to);
    expect(mixtures_ > 0, where, "model", "a model with a Mixture", "no Mixture");
    for (const auto& [name, source] : dense_)
      expect(source.used, where, "dense", "only tensors of the model that do not belong to a gate", name);
  }

 private:
  static constexpr const char* where = "upcycle";
  struct Source {
    AnyTensor tensor;
    bool used = false;
  };
  struct FillBank {
    Copies& copies;
    void operator()(const Name& at, auto& to) const { copies.tensor(at, to, true); }
  };

  template <class P>
  void part(const Name& at, P& to) {
    if constexpr (detail_::pack::is_tensor<P>) {
      tensor(at, to, false);
    } else if constexpr (detail_::select::OfMixture<P>) {
      ++mixtures_;
      const FillBank fill{*this};
      // In the dense model, the names of these tensors lack the part `expert`.
      detail_::pack::visit<false>(fill, at, to.expert);
    } else if constexpr (detail_::pack::is_sharded<P>) {
      GATEFOLD_REQUIRE(!detail_::pack::is_sharded<P>,
                       "gatefold: upcycle works in one process, on a model that holds all its "
                       "experts; save the result and load it into the model on shards");
    } else {
      detail_::pack::each_part([&](auto name, auto& of) { part(Name{&at, name}, of); }, to);
    }
  }
  template <class Of>
  void tensor(const Name& at, Of& to, bool of_experts) {
    const auto found = dense_.find(at.str());
    expect(found != dense_.end(), where, "dense", Joined{"a tensor ", at}, "none");
    found->second.used = true;
    const AnyTensor& from = found->second.tensor;
    const AnyTensor is(to, true);
    bool alike = from.rank == is.rank, one = of_experts && alike && from.extents[0] == 1;
    for (int d = 0; d < is.rank; ++d) {
      alike = alike && from.extents[d] == is.extents[d];
      one = one && (d == 0 || from.extents[d] == is.extents[d]);
    }
    detail_::pack::Extents wanted(to), got(to);
    if (of_experts) wanted.of[0] = 1;
    got.rank = from.rank;
    for (int d = 0; d < from.rank; ++d) got.of[d] = from.extents[d];
    expect(alike || one, where, Joined{"dense: ", at}, wanted, got);
    const std::uint64_t number = tensors_++;
    if (!write_ || is.size == 0) return;
    const FlatTensor<T, B> source(from);
    FlatTensor<T, B> target{AnyTensor(to)};
    B::for_each(ctx_, is.size,
                functor::RepeatExpert<T>{std::as_const(source).data(), from.size,
                                         static_cast<T>(of_experts ? noise_ : 0), seed_.fork(number), target.data()});
  }

  C& ctx_;
  Seed seed_;
  double noise_;
  bool write_;
  std::map<std::string, Source> dense_{};
  Index mixtures_ = 0;
  std::uint64_t tensors_ = 0;
};

}  // namespace detail_::upcycling

}  // namespace gatefold
