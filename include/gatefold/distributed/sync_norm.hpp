#pragma once

#include <cmath>
#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/distributed/sharded.hpp"
#include "gatefold/optim/normalized_gd.hpp"
#include "gatefold/update/sharpness_aware.hpp"
#include "gatefold/update/update.hpp"

namespace gatefold::dist {

/// Wraps an update rule (which combines a branch's input and output) that uses a norm over the items of a batch, or an
/// optimizer that uses a norm of gradients. The norm is then taken over all shards.
///
///     Residual{dist::SyncNorm{update::SharpnessAware{.norm = update::Norm::batch}, &shard}, branch}
///
///     ‖u‖² = Σ_j ‖u_j‖²,   ⟨n, dz⟩ = Σ_j ⟨n_j, dz_j⟩   over the shards j                                (1)
///
/// u_j, n_j and dz_j are the rows of shard j; n = u/‖u‖, and dz is the gradient of the point z of SharpnessAware.
/// SyncBatchNorm of PyTorch does the same for the means of a batch. All shards call it together, also shards without
/// items. Forward, infer and backward each sum one number over the shards. With norms of single items, no exchange is
/// needed.
/// @tparam RuleT  a rule without parameters and carry. The last argument of its functions is a functor that sums values
///         over all parts of a batch; the default of this argument is WholeBatch
/// @throws the errors of the rule; ArgumentError if `shard` is null
/// @order  the order of Shard::sum. The values equal the values of one process up to rounding; the bits depend on the
///         number of shards
template <class RuleT, class ShardT>
struct SyncNorm {
  static constexpr bool takes_norm = requires(RuleT r) { requires std::is_same_v<decltype(r.norm), update::Norm>; };
  GATEFOLD_REQUIRE(
      takes_norm,
      "gatefold: SyncNorm takes a rule or optimizer with a norm over a batch: update::SharpnessAware{.norm = "
      "update::Norm::batch}, or optim::NormalizedGd; see docs/how-to/distributed.md");
  RuleT rule;
  ShardT* shard;

  static constexpr int evaluations = detail_::hook::rule::evaluations<RuleT>();

  template <class T, class B>
  using Saved = gatefold::Saved<RuleT, T, B>;
  template <class T, class B>
  void validate(const Nothing<T, B>& params, Index items, Index dim, const Nothing<T, B>& carry) const {
    expect(shard != nullptr, "SyncNorm", "shard", "the address of a shard of dist::run", "null");
    if constexpr (detail_::hook::rule::validate<RuleT, T, B>()) rule.validate(params, items, dim, carry);
  }

  template <class T, class B, class F>
  void forward(typename B::Context& ctx, const Nothing<T, B>& p, In<T, 2, B> x, Nothing<T, B>& carry, F&& f,
               Out<T, 2, B> y, Saved<T, B>& saved) const {
    rule.forward(ctx, p, x, carry, f, y, saved, sum());
  }
  template <class T, class B, class F>
  void infer(typename B::Context& ctx, const Nothing<T, B>& p, In<T, 2, B> x, Nothing<T, B>& carry, F&& f,
             Out<T, 2, B> y) const {
    rule.infer(ctx, p, x, carry, f, y, sum());
  }
  template <class T, class B, class F>
  void backward(typename B::Context& ctx, const Nothing<T, B>& p, In<T, 2, B> x, const Saved<T, B>& saved, F&& df,
                In<T, 2, B> dy, Nothing<T, B>& dcarry, Out<T, 2, B> dx, Nothing<T, B>& grads) const {
    rule.backward(ctx, p, x, saved, df, dy, dcarry, dx, grads, sum());
  }

 private:
  struct OverShards {
    ShardT& shard;
    template <class C, class T>
    void operator()(C& ctx, T* values, Index n) const {
      shard.sum(ctx, values, n);
    }
  };
  OverShards sum() const { return {*shard}; }
};
template <class R, class S>
SyncNorm(R, S*) -> SyncNorm<R, S>;

}  // namespace gatefold::dist

namespace gatefold {

namespace functor {

/// Adds to sums[e] the squared norm of the gradient of expert e in one tensor, which is the sum of `each` elements of
/// `squares`. If `root` is true, adds the norm instead.
struct AddNorm {
  Index each;
  const double* squares;
  bool root;
  double* sums;
  GATEFOLD_HD void operator()(Index e) const {
    double sum = 0;
    for (Index i = 0; i < each; ++i) sum += squares[e * each + i];
    sums[e] += root ? std::sqrt(sum) : sum;
  }
};

}  // namespace functor

namespace dist {

/// The optimizer NormalizedGd (steps of fixed length for each expert) for a model on several shards, inside
/// DataParallel:
///
///     DataParallel{InGroups{is_expert, SyncNorm{optim::NormalizedGd{.lr = 0.1}, &shard}, optim::Sgd{}}, &shard}
///
///     ‖G_e‖² = Σ_t ‖G_t,e‖²   over the slices e of all tensors t, whichever shards hold them             (2)
///
/// Slice e of a tensor is the gradient G_t,e of expert e. With per_expert = false, there is one norm over all gradients
/// of all shards. All shards call it together.
/// @throws the errors of NormalizedGd, on all shards
/// @cost   the cost of NormalizedGd, an exchange of one number for each tensor, and a Shard::sum of one number for each
///         expert of each tensor
/// @order  the norms of slices are summed expert by expert within a tensor, then tensor by tensor, independent of the
///         placement. With per_expert, the results have the same bits as in one process with the same gradients;
///         otherwise they are equal up to rounding
template <class ShardT>
struct SyncNorm<optim::NormalizedGd, ShardT> {
  using IsOptimizer = void;
  optim::NormalizedGd optimizer;
  ShardT* shard;

  template <class Pack>
  using State = optim::StepCount<Pack>;
  void validate() const {
    expect(shard != nullptr, "SyncNorm", "shard", "the address of a shard of dist::run", "null");
    optim::validate_options(optimizer);
  }
  template <class C, class Pack>
  State<Pack> begin(C& ctx, const Pack& params) const {
    validate();
    return optimizer.begin(ctx, params);
  }
  template <class C, class Pack>
  void step(C& ctx, Pack& params, Pack& grads, State<Pack>& state) const {
    const auto here = ctx.here();
    validate();
    expect_like("NormalizedGd.step", "grads", params, grads);
    const Terms terms = terms_of(grads);
    auto mark = ctx.mark();
    const double* sums = norms(ctx, grads, terms);
    ++state.step;
    each(
        [&](const Name&, auto& p, const DealtRows& rows, const auto& g) {
          if (g.size() == 0) return;
          const auto* from = g.data();
          auto* to = p.data();
          const auto step = [&](Index slices, Index slice, const double* of) {
            optimizer.step_slices(ctx, slices, slice, from, of, to);
            from += slices * slice;
            to += slices * slice;
          };
          if (!optimizer.per_expert || !rows.deal) return step(terms.slices, p.size() / terms.slices, sums);
          for (const Index e : rows.of(shard->index())) step(1, p.size() / p.extent(0), sums + e);
        },
        params, std::as_const(grads));
  }

 private:
  /// The layout of an array of sums of squares, from which the norms are computed. A tensor has one sum for each slice
  /// (expert). With per_expert = false, a tensor that all shards hold has one sum in total.
  struct Terms {
    std::vector<Range> of{};  // [tensors] range of a tensor's sums; empty if the tensor is empty on all shards
    Index slices = 0, count = 0;
  };

  /// Calls f(name, tensor, rows, tensors of the other packs) for each learned tensor. `rows` says which shard holds
  /// which row of distributed experts.
  template <class F, class... P>
  static void each(const F& f, P&... packs) {
    for_each_learned(sharded::Visitor<true, const F>{f}, packs...);
  }
  template <class Pack>
  Terms terms_of(const Pack& grads) const {
    std::vector<Index> mine;
    std::vector<DealtRows> dealt;
    std::vector<std::string> names;
    each(
        [&](const Name& at, const auto& g, const DealtRows& rows) {
          mine.push_back(g.size() > 0 ? g.extent(0) : 0);
          dealt.push_back(rows);
          names.push_back(at.str());
        },
        grads);
    const HeldRows held(*shard, mine);
    Terms terms{{}, optimizer.per_expert ? 0 : 1, 0};
    for (std::size_t i = 0; i < mine.size(); ++i) {
      held.expect_dealt("NormalizedGd.step", names[i], i, dealt[i]);
      const Index extent = held.count(i) == 0 ? 0 : dealt[i].deal ? dealt[i].experts.count : mine[i];
      if (extent > 0 && optimizer.per_expert) {
        if (terms.slices == 0) terms.slices = extent;
        expect(extent == terms.slices, "NormalizedGd.step", names[i],
               Joined{"a first extent of ", terms.slices, " experts"}, extent);
      }
      terms.of.push_back({terms.count, extent > 0 && !optimizer.per_expert && !dealt[i].deal ? 1 : extent});
      terms.count += terms.of.back().count;
    }
    return terms;
  }
  /// Returns for each expert the sum of the squares of its gradients in all tensors. If sum_of_norms is true, returns
  /// for each expert the sum of the norms of its gradients, one norm for each tensor. With per_expert = false, returns
  /// one value for all tensors.
  template <class C, class Pack>
  const double* norms(C& ctx, const Pack& grads, const Terms& terms) const {
    const auto squares = ctx.template scratch<double>(terms.count), sums = ctx.template scratch<double>(terms.slices);
    fill(ctx, squares, 0);
    fill(ctx, sums, 0);
    std::size_t next = 0;
    each(
        [&](const Name&, const auto& g, const DealtRows& rows) {
          const Range& of = terms.of[next++];
          if (g.size() == 0 || (!rows.deal && shard->index() > 0)) return;  // shard 0 counts shared tensors
          const auto* from = g.data();
          const auto add = [&](Index slices, Index slice, Index first) {
            using T = std::remove_cvref_t<decltype(*from)>;
            C::Backend::for_rows(ctx, slices,
                                 functor::SliceNorm<T>{from, slice, false, squares.data() + of.first + first});
            from += slices * slice;
          };
          if (!rows.deal) return add(of.count, g.size() / of.count, 0);
          for (const Index e : rows.of(shard->index())) add(1, g.size() / g.extent(0), e);
        },
        grads);
    shard->sum(ctx, squares.data(), terms.count);
    for (const Range& of : terms.of)
      if (of.count > 0)
        C::Backend::for_each(
            ctx, terms.slices,
            functor::AddNorm{of.count / terms.slices, squares.data() + of.first, optimizer.sum_of_norms, sums.data()});
    return sums.data();
  }
};

}  // namespace dist
}  // namespace gatefold
