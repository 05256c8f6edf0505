#pragma once

#include <cstddef>
#include <gatefold/gatefold.hpp>
#include <list>
#include <utility>
#include <vector>

#include "chains.hpp"

/// Wrappers of policies. A wrapper is faster on the CPU for the shapes of these studies, because it reads each item
/// once. It gives the same bits as the policy that it wraps, so the studies could also run without the wrappers.
namespace studies::expert_count {

/// Wraps a PatchMlp or PatchCnn. The wrapper is faster only if the expert has no bias, one output and eight filters.
/// Otherwise it calls the functions of the expert.
template <template <class> class ExpertT, class Act>
struct Streamed : ExpertT<Act> {
  using Expert = ExpertT<Act>;
  static constexpr bool apart = requires(const Expert& e) { e.equal_patches; };  // true: separate weights per patch
  static constexpr Index kFilters = 8;

  template <class T, class B>
  void forward(typename B::Context& ctx, const typename Expert::template Params<T, B>& p, Groups<B> groups,
               In<T, 2, B> x, Out<T, 2, B> z, typename Expert::template Saved<T, B>& saved) const {
    if (!fits()) return Expert::template forward<T, B>(ctx, p, groups, x, z, saved);
    saved.pre.resize(groups.slots * this->patches, kFilters);
    for (Index e = 0; e < groups.experts(); ++e) {
      const Range<B> own = range(groups, e);
      in_steps<8, 4, 1>(own.count, [&]<int R>(Index i) {
        forward_some<R>(p.weight.data(), own, own.first + i, x, z, saved.pre.view());
      });
    }
  }

  template <class T, class B>
  void backward(typename B::Context& ctx, const typename Expert::template Params<T, B>& p, Groups<B> groups,
                In<T, 2, B> x, const typename Expert::template Saved<T, B>& saved, In<T, 2, B> dz, Out<T, 2, B> dslots,
                typename Expert::template Params<T, B>& grads) const {
    if (!fits() || dslots.size() > 0)
      return Expert::template backward<T, B>(ctx, p, groups, x, saved, dz, dslots, grads);
    const Index dim = this->model_dim, parts = apart ? this->patches : 1, inner = this->patches / parts;
    std::vector<const T*> rows;
    std::vector<T> dpre;
    Tensor<T, 2, B> turned(kFilters, dim);
    for (Index e = 0; e < groups.experts(); ++e) {
      const Range<B> own = range(groups, e);
      for (Index part = 0; part < parts && own.count > 0; ++part) {
        rows.clear();
        dpre.clear();
        for (Index s = own.first; s < own.first + own.count; ++s)
          for (Index l = part; l < part + inner; ++l) {
            rows.push_back(patch(x, groups, s, l));
            const T* pre = &saved.pre(own.position(s, l, this->patches), 0);
            for (Index j = 0; j < kFilters; ++j) dpre.push_back(dz(s, 0) * Act::slope(pre[j]));
          }
        const View<T, 2, B> to(grads.weight.data() + (e * parts + part) * dim * kFilters, dim, kFilters);
        for (Index i = 0; i < to.size(); ++i) turned(i % kFilters, i / kFilters) = to.data()[i];
        outer_sum(own.count * inner, rows.data(), dim, dpre.data(), kFilters, turned.data());
        for (Index i = 0; i < to.size(); ++i) to.data()[i] = turned(i % kFilters, i / kFilters);
      }
    }
  }

 private:
  /// The slots of one expert.
  template <class B>
  struct Range {
    const Groups<B>& groups;
    Index expert, first, count;
    /// Returns the row of `saved.pre` for patch l of slot s. The rows have the order of Positions
    /// (expert/positions.hpp).
    Index position(Index s, Index l, Index patches) const {
      return apart ? first * patches + l * count + s - first : s * patches + l;
    }
  };
  template <class B>
  static Range<B> range(const Groups<B>& groups, Index e) {
    return {groups, e, groups.offsets(e), groups.offsets(e + 1) - groups.offsets(e)};
  }
  bool fits() const { return !this->bias && this->outputs == 1 && this->filters == kFilters; }

  template <class T, class B>
  const T* patch(View<const T, 2, B> x, const Groups<B>& groups, Index s, Index l) const {
    return x.data() + (groups.row(s) * this->patches + l) * this->model_dim;
  }

  /// Computes slots s to s + R − 1.
  template <int R, class T, class B>
  void forward_some(const T* weight, const Range<B>& own, Index s, View<const T, 2, B> x, View<T, 2, B> z,
                    View<T, 2, B> pre) const {
    using V = cpu::Register<T>;
    constexpr int all = (kFilters + V::size - 1) / V::size;
    T sum[R] = {};
    for (Index l = 0; l < this->patches; ++l) {
      const T* from[R];
      for (int r = 0; r < R; ++r) {
        from[r] = patch(x, own.groups, s + r, l);
        const Index next = s + R + r;
        if (next < own.first + own.count) prefetch_range(patch(x, own.groups, next, l), this->model_dim);
      }
      V v[R][all];
      const Index matrix = apart ? own.expert * this->patches + l : own.expert;
      row_chains<R, all, T>(from, this->model_dim, weight + matrix * this->model_dim * kFilters, kFilters, kFilters, v);
      T hidden[R][all * V::size];
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int c = 0; c < all; ++c) {
          v[r][c].store(&pre(own.position(s + r, l, this->patches), c * V::size), in_register<T>(kFilters, c));
          Act::value(v[r][c]).store(hidden[r] + c * V::size);
        }
      for (Index j = 0; j < kFilters; ++j)
        for (int r = 0; r < R; ++r) sum[r] += hidden[r][j];
    }
    for (int r = 0; r < R; ++r) z(s + r, 0) = sum[r];
  }
};
template <template <class> class ExpertT, class Act>
Streamed(ExpertT<Act>) -> Streamed<ExpertT, Act>;

/// Holds the sums over the patches of each item. They are computed once for each array of items, which must not change
/// or move while this object exists.
template <class T>
class PatchSums {
 public:
  View<const T, 2, Cpu> operator()(Cpu::Context& ctx, View<const T, 2, Cpu> x, Index dim) {
    for (const auto& [from, sums] : known_)
      if (from.data() == x.data() && from.extent(0) == x.extent(0)) return sums;
    known_.emplace_back(x, Tensor<T, 2, Cpu>(x.extent(0), dim));
    Tensor<T, 2, Cpu>& sums = known_.back().second;
    Cpu::for_rows(ctx, x.extent(0), functor::SumPositions<T, Cpu>{x.extent(1) / dim, 1, x, sums});
    return std::as_const(sums);
  }

 private:
  std::list<std::pair<View<const T, 2, Cpu>, Tensor<T, 2, Cpu>>> known_;
};

/// Wraps PatchScores, or LinearScores without bias. LinearScores needs `sums`, which holds the sums over patches. With
/// PatchScores, `sums` is null.
template <class ScoresT>
struct StreamedScores : ScoresT {
  PatchSums<float>* sums = nullptr;

  StreamedScores with_model_dim(Index width) const { return {ScoresT::with_model_dim(width), sums}; }

  template <class T, class B, class F>
  void forward_rows(typename B::Context& ctx, const typename ScoresT::template Params<T, B>& p, In<T, 2, B> x,
                    Out<T, 2, B> z, const F& rows) const {
    if (!z.data()) return ScoresT::template forward_rows<T, B>(ctx, p, x, z, rows);
    const View<const T, 2, B> items = read(ctx, x);
    constexpr Index some = 48;
    const T* at[some];
    for (Index n = 0; n < items.extent(0); n += some) {
      const Index count = std::min(some, items.extent(0) - n);
      for (Index i = 0; i < count; ++i) at[i] = &items(n + i, 0);
      product_of_rows(count, at, items.extent(1), p.weight.data(), z.extent(1), &z(n, 0));
      for (Index i = n; i < n + count; ++i) rows(cpu::RowLanes{}, i, &z(i, 0));
    }
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const typename ScoresT::template Params<T, B>& p, In<T, 2, B> x,
                In<T, 2, B> dz, Out<T, 2, B> dx, typename ScoresT::template Params<T, B>& grads) const {
    if (dx.size() > 0) return ScoresT::template backward<T, B>(ctx, p, x, dz, dx, grads);
    const View<const T, 2, B> items = read(ctx, x);
    const Index width = items.extent(1), experts = dz.extent(1);
    std::vector<const T*> at;
    for (Index n = 0; n < items.extent(0); ++n) at.push_back(&items(n, 0));
    Tensor<T, 2, B> turned(experts, width);
    T* to = grads.weight.data();
    for (Index i = 0; i < width * experts; ++i) turned(i % experts, i / experts) = to[i];
    outer_sum(items.extent(0), at.data(), width, dz.data(), experts, turned.data());
    for (Index i = 0; i < width * experts; ++i) to[i] = turned(i % experts, i / experts);
  }

 private:
  template <class T, class B>
  View<const T, 2, B> read(auto& ctx, View<const T, 2, B> x) const {
    return sums ? (*sums)(ctx, x, this->model_dim) : x;
  }
};

/// A NoisyTop1 that draws less noise. An expert can win if its score plus the largest noise reaches the best score. If
/// only one expert can win, no noise is drawn. Otherwise, noise is drawn only for those groups of PhiloxRun::size
/// consecutive experts that contain an expert that can win.
struct FewDraws : NoisyTop1<> {
  template <class T, class B>
  struct Pick : functor::PickNoisyTop1<UniformNoise, T, B> {
    using Base = functor::PickNoisyTop1<UniformNoise, T, B>;

    template <class Lanes>
    void choose(const Lanes& lanes, Index n) const {
      choose(lanes, n, &this->rank(n, 0));
    }
    template <class Lanes>
    void choose(const Lanes& lanes, Index n, const T* row) const {
      constexpr Index run = cpu::PhiloxRun::size;
      const Index experts = this->rank.extent(1);
      if (!this->noise.noisy || this->noisy_weight) return Base::choose(lanes, n, row);
      // The score plus noise of the winner is at least the largest score, because noise is never negative.
      const T least = functor::top<T>(lanes, experts, row);
      const auto rivals = [&](Index first, Index count) {
        return sum_columns<T>(lanes, count, [&](auto at, Index e) {
          using functor::math::where_positive;
          using V = typename decltype(at)::Value;
          return where_positive(V(least) - (at.load(row + first + e) + this->scale), V(T(0)), V(T(1)));
        });
      };
      Index best = -1;
      T top{};
      const bool alone = rivals(0, experts) == 1;
      for (Index first = 0; first < experts; first += run) {
        const Index count = std::min(run, experts - first);
        if (rivals(first, count) == 0) continue;
        if (alone) {
          for (Index e = first; e < first + count; ++e)
            if (row[e] == least) best = e;
          break;
        }
        this->noise.each(lanes, n * experts + first, count, [&](Index e, T drawn) {
          const T value = row[first + e] + this->scale * drawn;
          if (best >= 0 && !functor::ranks_before(value, first + e, top, best)) return;
          best = first + e;
          top = value;
        });
      }
      if (best < 0) return Base::choose(lanes, n, row);
      this->item(n) = n;
      this->expert(n) = best;
    }
  };
  template <class T, class B>
  struct PickBackward : functor::PickTop1Backward<T, B> {
    template <class Lanes>
    void operator()(const Lanes&, Index n) const {
      functor::PickTop1Backward<T, B>::operator()(n);
    }
  };

  template <class T, class B>
  Pick<T, B> rows(const Candidates<T, B>& c, SparsePlan<T, B>& plan, const Noise& noise) const {
    return {NoisyTop1<>::rows<T, B>(c, plan, noise)};
  }
  template <class T, class B>
  PickBackward<T, B> rows_backward(const Candidates<T, B>&, const SparsePlan<T, B>& plan,
                                   const typename SparsePlan<T, B>::Grad& dplan, Out<T, 2, B> dq, const Noise&) const {
    return {plan.expert, dplan.weight, dq};
  }
};

}  // namespace studies::expert_count
