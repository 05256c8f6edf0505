#pragma once

// Test policies for features that the policies of the library need: rules that evaluate at a point ahead, evaluate
// twice, count layers or learn; mixings with typed extra inputs and parameters; noisy selection; whole sequences as
// items; a dense plan; experts of different kinds in one layer. They are plain loops, written from the papers'
// equations, and share no code with the library's policies.

#include <cmath>
#include <gatefold/gatefold.hpp>
#include <optional>
#include <tuple>

namespace seams {

using namespace gatefold;

// ---------------------------------------------------------------------------------------------- update rules

/// y = x + γ q', q' = μ q + u(x + a q), the form of robust momentum. The branch is evaluated at a point ahead of x.
struct LookAhead {
  double mu = 0.4, gamma = 0.9, ahead = 0.3;
  template <class T, class B>
  struct Carry {
    Tensor<T, 2, B> q;
    GATEFOLD_PACK(q)
  };
  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> point;
  };
  template <class T, class B>
  void begin(typename B::Context& ctx, Index items, Index dim, Carry<T, B>& c) const {
    c.q.resize(items, dim);
    fill(ctx, c.q.view(), 0);
  }
  template <class T, class B, class F>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, Carry<T, B>& c, F&& f, Out<T, 2, B> y,
               Saved<T, B>& s) const {
    auto mark = ctx.mark();
    auto u = ctx.template scratch<T>(x.extent(0), x.extent(1));
    s.point.resize(x.extent(0), x.extent(1));
    B::for_each(ctx, x.size(), functor::ScaledSum<T>{x.data(), T(ahead), c.q.data(), s.point.data()});
    f(s.point, u, 0);
    B::for_each(ctx, x.size(), functor::HeavyBallStep<T>{T(mu), T(gamma), x.data(), u.data(), c.q.data(), y.data()});
  }
  template <class T, class B, class F>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, const Saved<T, B>& s, F&& df,
                In<T, 2, B> dy, Carry<T, B>& dc, Out<T, 2, B> dx, Nothing<T, B>&) const {
    auto mark = ctx.mark();
    auto du = ctx.template scratch<T>(x.extent(0), x.extent(1)),
         dpoint = ctx.template scratch<T>(x.extent(0), x.extent(1));
    fill(ctx, dpoint, 0);
    B::for_each(ctx, x.size(),
                functor::HeavyBallBackward<T>{T(mu), T(gamma), dy.data(), dc.q.data(), du.data(), dx.data()});
    df(s.point, du, dpoint, 0);
    add(ctx, dpoint, dx);
    add_scaled(ctx, T(ahead), dpoint, dc.q.view());
  }
};

/// A rule that evaluates the branch twice, y = x + u(x + ρ u(x)), like a sharpness-aware rule without normalisation.
struct Twice {
  double rho = 0.3;
  static constexpr int evaluations = 2;
  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> point;
  };
  template <class T, class B, class F>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, Nothing<T, B>&, F&& f, Out<T, 2, B> y,
               Saved<T, B>& s) const {
    auto mark = ctx.mark();
    auto u = ctx.template scratch<T>(x.extent(0), x.extent(1));
    s.point.resize(x.extent(0), x.extent(1));
    f(x, u, 0);
    B::for_each(ctx, x.size(), functor::ScaledSum<T>{x.data(), T(rho), u.data(), s.point.data()});
    f(s.point, y, 1);
    add(ctx, x, y);
  }
  template <class T, class B, class F>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, const Saved<T, B>& s, F&& df,
                In<T, 2, B> dy, Nothing<T, B>&, Out<T, 2, B> dx, Nothing<T, B>&) const {
    auto mark = ctx.mark();
    auto dpoint = ctx.template scratch<T>(x.extent(0), x.extent(1)),
         du = ctx.template scratch<T>(x.extent(0), x.extent(1));
    fill(ctx, dpoint, 0);
    df(s.point, dy, dpoint, 1);
    fill(ctx, du, 0);
    add_scaled(ctx, T(rho), dpoint, du);
    df(x, du, dx, 0);
    add(ctx, dy, dx);
    add(ctx, dpoint, dx);
  }
};

/// Heavy ball with learned μ and γ; μ also decreases with depth. It has Params, Saved and a carry that counts layers.
struct LearnedFading {
  double mu = 0.7, gamma = 0.9;
  template <class T, class B>
  struct Params {
    Tensor<T, 1, B> mu, gamma;  // [1]
    GATEFOLD_PACK(mu, gamma)
  };
  template <class T, class B>
  struct Carry {
    Tensor<T, 2, B> p;
    Index layer = 0;
    GATEFOLD_PACK(p)
  };
  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> before, after;
    Index layer = 0;
  };
  template <class T, class B>
  struct Step {
    const T *mu, *gamma;
    T fade;
    const T *x, *u;
    T *p, *y;
    void operator()(Index i) const {
      p[i] = *mu * fade * p[i] + u[i];
      y[i] = x[i] + *gamma * p[i];
    }
  };
  template <class T, class B>
  struct StepBackward {
    const T *mu, *gamma;
    T fade;
    const T* dy;
    T *dp, *du;
    void operator()(Index i) const {
      du[i] = *gamma * dy[i] + dp[i];
      dp[i] = *mu * fade * du[i];
    }
  };
  template <class T>
  struct Product {
    const T *a, *b;
    T scale;
    T operator()(Index i) const { return scale * a[i] * b[i]; }
  };
  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed) const {
    return {constant_tensor<T>(ctx, mu, 1), constant_tensor<T>(ctx, gamma, 1)};
  }
  template <class T, class B>
  void begin(typename B::Context& ctx, Index items, Index dim, Carry<T, B>& c) const {
    c.p.resize(items, dim);
    c.layer = 0;
    fill(ctx, c.p.view(), 0);
  }
  template <class T, class B, class F>
  void forward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, Carry<T, B>& c, F&& f, Out<T, 2, B> y,
               Saved<T, B>& s) const {
    auto mark = ctx.mark();
    auto u = ctx.template scratch<T>(x.extent(0), x.extent(1));
    f(x, u, 0);
    s.layer = ++c.layer;
    for (auto* t : {&s.before, &s.after}) t->resize(x.extent(0), x.extent(1));
    copy(ctx, c.p.view(), s.before.view());
    B::for_each(ctx, x.size(),
                Step<T, B>{p.mu.data(), p.gamma.data(), 1 / T(s.layer), x.data(), u.data(), c.p.data(), y.data()});
    copy(ctx, c.p.view(), s.after.view());
  }
  template <class T, class B, class F>
  void backward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, const Saved<T, B>& s, F&& df,
                In<T, 2, B> dy, Carry<T, B>& dc, Out<T, 2, B> dx, Params<T, B>& grads) const {
    auto mark = ctx.mark();
    auto du = ctx.template scratch<T>(x.extent(0), x.extent(1));
    const T fade = 1 / T(s.layer);
    B::for_each(ctx, x.size(),
                StepBackward<T, B>{p.mu.data(), p.gamma.data(), fade, dy.data(), dc.p.data(), du.data()});
    B::template reduce<T>(ctx, x.size(), Product<T>{dy.data(), s.after.data(), 1}, grads.gamma.data());
    B::template reduce<T>(ctx, x.size(), Product<T>{du.data(), s.before.data(), fade}, grads.mu.data());
    add(ctx, dy, dx);
    df(x, du, dx, 0);
  }
};

// ---------------------------------------------------------------------------------------------- mixing

/// Computes q_n = Σ_j weights[n,j] r[g+j] over the L items of n's sequence, which begins at g. Also writes log q.
template <class S, class T, class B>
void mix_row(S& s, Index n, Index L, View<T, 2, B> q) {
  const Index g = n / L * L;
  for (Index e = 0; e < q.extent(1); ++e) {
    q(n, e) = 0;
    for (Index j = 0; j < L; ++j) q(n, e) += s.weights(n, j) * s.r(g + j, e);
    s.log_q(n, e) = std::log(q(n, e));
  }
}
/// The adjoint of mix_row: writes dweight, adds to dr, and returns Σ_j weights[n,j] dweight[j], which the adjoint of
/// the softmax subtracts.
template <class S, class T, class B>
T mix_row_backward(const S& s, Index n, Index L, View<const T, 2, B> q, View<const T, 2, B> drank,
                   View<const T, 2, B> dq, View<T, 2, B> dr, View<T, 1, B> dweight) {
  const Index g = n / L * L;
  T mean = 0;
  for (Index j = 0; j < L; ++j) {
    dweight(j) = 0;
    for (Index e = 0; e < q.extent(1); ++e) {
      const T d = dq(n, e) + drank(n, e) / q(n, e);
      dweight(j) += d * s.r(g + j, e);
      dr(g + j, e) += d * s.weights(n, j);
    }
    mean += s.weights(n, j) * dweight(j);
  }
  return mean;
}

/// q_i = Σ_j S_ij softmax(z_j), S = softmax_j(scale ⟨x_i, x_j⟩) within a sequence. The ranks are log q, and `scale` is
/// learned. Unlike the policy of the library, this policy saves S.
struct Similarity {
  bool causal = true;
  template <class T, class B>
  struct Params {
    Tensor<T, 1, B> scale;  // [1]
    GATEFOLD_PACK(scale)
  };
  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> r, log_q, weights;  // [N, E], [N, E], [N, L]
  };
  template <class T, class B>
  using Extra = Sequence<T, B>;
  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed) const {
    return {constant_tensor<T>(ctx, 0.8, 1)};
  }
  template <class T, class B>
  void validate(const Params<T, B>&, Index items, const Sequence<T, B>& extra) const {
    extra.validate("Similarity", items);
  }
  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, In<T, 2, B> z, Out<T, 2, B> q,
               Saved<T, B>& s, const Sequence<T, B>& extra) const {
    const Index N = z.extent(0), E = z.extent(1), L = extra.of(N);
    for (auto* t : {&s.r, &s.log_q}) t->resize(N, E);
    s.weights.resize(N, L);
    B::for_rows(ctx, N, functor::Softmax<T, B>{z, s.r});
    for (Index n = 0; n < N; ++n) {
      const Index g = n / L * L;
      T total = 0;
      for (Index j = 0; j < L; ++j) {
        T v = 0;
        for (Index d = 0; d < x.extent(1); ++d) v += x(n, d) * x(g + j, d);
        s.weights(n, j) = causal && g + j > n ? T(0) : std::exp(p.scale(0) * v);
        total += s.weights(n, j);
      }
      for (Index j = 0; j < L; ++j) s.weights(n, j) /= total;
      mix_row(s, n, L, q);
    }
  }
  template <class T, class B>
  View<const T, 2, B> rank(View<const T, 2, B>, const Saved<T, B>& s) const {
    return s.log_q;
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, In<T, 2, B>, In<T, 2, B> q,
                const Saved<T, B>& s, In<T, 2, B> drank, In<T, 2, B> dq, Out<T, 2, B> dz, Out<T, 2, B> dx,
                Params<T, B>& grads, const Sequence<T, B>&, Nothing<T, B>&) const {
    const Index N = q.extent(0), E = q.extent(1), L = s.weights.extent(1), D = x.extent(1);
    auto mark = ctx.mark();
    auto dr = ctx.template scratch<T>(N, E);
    fill(ctx, dr, 0);
    for (Index n = 0; n < N; ++n) {
      const Index g = n / L * L;
      auto dweight = ctx.template scratch<T>(L);
      const T mean = mix_row_backward(s, n, L, q, drank, dq, dr, dweight);
      for (Index j = 0; j < L; ++j) {
        const T dlogit = s.weights(n, j) * (dweight(j) - mean);
        for (Index d = 0; d < D; ++d) {
          dx(n, d) += p.scale(0) * dlogit * x(g + j, d);
          dx(g + j, d) += p.scale(0) * dlogit * x(n, d);
          grads.scale(0) += dlogit * x(n, d) * x(g + j, d);
        }
      }
    }
    B::for_rows(ctx, N, functor::SoftmaxBackward<T, B>{s.r, dr, dz});
  }
};

/// The posterior of paper 002: q_i = Σ_j AP_ij softmax(z_j), AP_ij ∝ A_ij exp(−‖x_i − m_j‖² / 2σ²). A and m belong to
/// the head with the lowest mean entropy, and are recomputed from the attention trace. A row whose weights are all 0
/// keeps its own probabilities.
struct Posterior {
  double sigma = 1;
  template <class T, class B>
  struct Extra {
    Required<AttentionTrace<const T, B>> trace;
    struct WithoutTrace {};
    static Extra with_trace(const WithoutTrace&, const AttentionTrace<const T, B>& trace) { return {trace}; }
  };
  template <class T, class B>
  struct ExtraGrad {
    AttentionTrace<T, B> trace;
    void set_trace(const AttentionTrace<T, B>& t) { trace = t; }
  };
  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> r, log_q, means;  // [N, E], [N, E], [N, D]
    Tensor<T, 2, B> weights;          // [N, L] (saved here; the library recomputes it)
    Tensor<Index, 1, B> head;         // [sequences]
    void choices(auto&& f) const {
      for (Index g = 0; g < head.size(); ++g) f(head(g));
    }
  };
  template <class T, class B>
  static bool sees(const AttentionTrace<const T, B>& a, Index i, Index j) {
    return !a.causal || j <= i;
  }
  template <class T, class B>
  static T log_attention(const AttentionTrace<const T, B>& a, Index i, Index j, Index h) {
    const Index width = a.q.extent(1) / a.heads();
    T dot = 0;
    for (Index d = h * width; d < (h + 1) * width; ++d) dot += a.q(i, d) * a.k(j, d);
    return T(a.scale) * dot - a.log_sum_exp(i, h);
  }
  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, In<T, 2, B> z, Out<T, 2, B> q,
               Saved<T, B>& s, const Extra<T, B>& extra) const {
    const AttentionTrace<const T, B>& a = extra.trace.value;
    const Index N = z.extent(0), E = z.extent(1), L = a.length, D = x.extent(1), width = D / a.heads();
    for (auto* t : {&s.r, &s.log_q}) t->resize(N, E);
    s.means.resize(N, D);
    s.weights.resize(N, L);
    s.head.resize(N / L);
    B::for_rows(ctx, N, functor::Softmax<T, B>{z, s.r});
    for (Index g = 0; g < N; g += L) {
      T best = 0;
      for (Index h = 0; h < a.heads(); ++h) {
        T entropy = 0;
        for (Index i = g; i < g + L; ++i)
          for (Index j = g; j < g + L; ++j)
            if (sees(a, i, j)) entropy -= std::exp(log_attention(a, i, j, h)) * log_attention(a, i, j, h);
        if (h == 0 || entropy < best) {
          best = entropy;
          s.head(g / L) = h;
        }
      }
    }
    for (Index n = 0; n < N; ++n)
      for (Index d = 0; d < D; ++d) {
        s.means(n, d) = 0;
        const Index h = s.head(n / L);
        for (Index c = h * width; c < (h + 1) * width; ++c) s.means(n, d) += a.v(n, c) * a.output(c, d);
      }
    for (Index n = 0; n < N; ++n) {
      const Index g = n / L * L;
      T total = 0;
      for (Index j = 0; j < L; ++j) {
        T square = 0;
        for (Index d = 0; d < D; ++d) square += (x(n, d) - s.means(g + j, d)) * (x(n, d) - s.means(g + j, d));
        s.weights(n, j) = sees(a, n, g + j)
                              ? std::exp(log_attention(a, n, g + j, s.head(n / L)) - square / T(2 * sigma * sigma))
                              : T(0);
        total += s.weights(n, j);
      }
      for (Index j = 0; j < L; ++j) s.weights(n, j) = total > 0 ? s.weights(n, j) / total : T(g + j == n);
      mix_row(s, n, L, q);
    }
  }
  template <class T, class B>
  View<const T, 2, B> rank(View<const T, 2, B>, const Saved<T, B>& s) const {
    return s.log_q;
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, In<T, 2, B>, In<T, 2, B> q,
                const Saved<T, B>& s, In<T, 2, B> drank, In<T, 2, B> dq, Out<T, 2, B> dz, Out<T, 2, B> dx,
                Nothing<T, B>&, const Extra<T, B>& extra, ExtraGrad<T, B>& dextra) const {
    const AttentionTrace<const T, B>& a = extra.trace.value;
    const AttentionTrace<T, B>& da = dextra.trace;
    const Index N = q.extent(0), E = q.extent(1), L = a.length, D = x.extent(1), width = D / a.heads();
    const T precision = T(1 / (sigma * sigma));
    auto mark = ctx.mark();
    auto dr = ctx.template scratch<T>(N, E), dmeans = ctx.template scratch<T>(N, D);
    fill(ctx, dr, 0);
    fill(ctx, dmeans, 0);
    for (Index n = 0; n < N; ++n) {
      const Index g = n / L * L, h = s.head(n / L);
      auto dweight = ctx.template scratch<T>(L);
      const T mean = mix_row_backward(s, n, L, q, drank, dq, dr, dweight);
      for (Index j = 0; j < L; ++j) {
        if (!sees(a, n, g + j)) continue;
        const T dlog = s.weights(n, j) * (dweight(j) - mean);
        for (Index d = 0; d < D; ++d) {
          const T toward = precision * dlog * (s.means(g + j, d) - x(n, d));
          dx(n, d) += toward;
          dmeans(g + j, d) -= toward;
        }
        for (Index d = h * width; d < (h + 1) * width; ++d) {
          da.q(n, d) += dlog * T(a.scale) * a.k(g + j, d);
          da.k(g + j, d) += dlog * T(a.scale) * a.q(n, d);
        }
        da.log_sum_exp(n, h) -= dlog;
      }
    }
    for (Index n = 0; n < N; ++n)
      for (Index c = s.head(n / L) * width; c < (s.head(n / L) + 1) * width; ++c)
        for (Index d = 0; d < D; ++d) {
          da.v(n, c) += dmeans(n, d) * a.output(c, d);
          da.output(c, d) += a.v(n, c) * dmeans(n, d);
        }
    B::for_rows(ctx, N, functor::SoftmaxBackward<T, B>{s.r, dr, dz});
  }
};

// ---------------------------------------------------------------------------------------------- selection

/// Picks the expert with the largest rank + noise, and weights it by tanh(rank + x·a). Like Shazeer's noisy top-K, it
/// has noise, parameters, and gradients of x, of the ranks and of its own parameters.
struct NoisyPick {
  struct Noise {
    std::optional<Random> random{};  // empty: no noise
    Noise at(Index layer) const { return random ? Noise{random->at(layer)} : Noise{}; }
  };
  Index model_dim = 0;
  template <class T, class B>
  using Extra = Noise;
  template <class T, class B>
  struct Params {
    Tensor<T, 1, B> a;  // [D]
    GATEFOLD_PACK(a)
  };
  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    return {uniform_tensor<T>(ctx, seed, 1, model_dim)};
  }
  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, const Candidates<T, B>& c, SparsePlan<T, B>& plan,
               Nothing<T, B>&, const Noise& noise) const {
    const Index N = c.q.extent(0), E = c.q.extent(1);
    plan.resize(N, E, N);
    for (Index n = 0; n < N; ++n) {
      Index best = 0;
      T top = 0;
      for (Index e = 0; e < E; ++e) {
        const T v = c.rank(n, e) + (noise.random ? uniform<T>(noise.random->seed, noise.random->step,
                                                              static_cast<std::uint64_t>(n * E + e))
                                                 : T(0));
        if (e == 0 || v > top) {
          top = v;
          best = e;
        }
      }
      T dot = 0;
      for (Index d = 0; d < model_dim; ++d) dot += c.x(n, d) * p.a(d);
      plan.item(n) = n;
      plan.expert(n) = best;
      plan.weight(n) = std::tanh(c.rank(n, best) + dot);
    }
    plan.build(ctx);
  }
  template <class T, class B>
  void backward(typename B::Context&, const Params<T, B>& p, const Candidates<T, B>& c, const SparsePlan<T, B>& plan,
                const Nothing<T, B>&, const typename SparsePlan<T, B>::Grad& dplan, const CandidatesGrad<T, B>& d,
                Params<T, B>& grads, const Noise&) const {
    for (Index n = 0; n < c.q.extent(0); ++n) {
      const T g = dplan.weight(n) * (1 - plan.weight(n) * plan.weight(n));
      d.rank(n, plan.expert(n)) += g;
      for (Index i = 0; i < model_dim; ++i) {
        d.x(n, i) += g * p.a(i);
        grads.a(i) += g * c.x(n, i);
      }
    }
  }
};

// ---------------------------------------------------------------------------------------------- a dense plan

/// The plan of Soft MoE, for one sequence: every slot is a mixture of items, and every output a mixture of slots.
template <class T, class B>
struct DensePlan {
  Tensor<T, 2, B> dispatch_weight, combine_weight;  // [N, S]
  Tensor<T, 2, B> slots;                            // [S, D]
  Tensor<Index, 1, B> offsets;                      // [E + 1]
  struct Grad {
    View<T, 2, B> dispatch_weight, combine_weight;
  };
  Groups<B> groups() const { return {offsets, {}, combine_weight.extent(1)}; }
  Dispatched<T, B> dispatch(typename B::Context& ctx, In<T, 2, B> x) {
    slots.resize(groups().slots, x.extent(1));
    B::gemm(ctx, std::as_const(dispatch_weight).view(), true, x, false, false, slots.view(), functor::Store{});
    return dispatched(x);
  }
  Dispatched<T, B> dispatched(In<T, 2, B>) const { return {groups(), slots}; }
  template <class Step = functor::NoStep<T>>
  void combine(typename B::Context& ctx, In<T, 2, B> z, Out<T, 2, B> out, const Step& step = {}) const {
    B::gemm(ctx, combine_weight.view(), false, z, false, false, out, functor::Store{});
    run_step(ctx, out, step);
  }
  Grad grad(typename B::Context& ctx) const {
    return {ctx.template scratch<T>(combine_weight.extent(0), combine_weight.extent(1)),
            ctx.template scratch<T>(combine_weight.extent(0), combine_weight.extent(1))};
  }
  void combine_backward(typename B::Context& ctx, In<T, 2, B> z, In<T, 2, B> dout, Out<T, 2, B> dz, Grad& d) const {
    B::gemm(ctx, combine_weight.view(), true, dout, false, false, dz, functor::Store{});
    B::gemm(ctx, dout, false, z, true, false, d.combine_weight, functor::Store{});
  }
  void dispatch_backward(typename B::Context& ctx, In<T, 2, B> x, In<T, 2, B> dslots, Out<T, 2, B> dx, Grad& d) const {
    B::gemm(ctx, x, false, dslots, true, false, d.dispatch_weight, functor::Store{});
    B::gemm(ctx, dispatch_weight.view(), false, dslots, false, true, dx, functor::Store{});
  }
};

/// Computes Z = x Φ. The dispatch weights are its softmax over items, the combine weights its softmax over slots.
struct SoftSlots {
  Index model_dim = 0, count = 0, slots_per_expert = 1;
  template <class T, class B>
  using Plan = DensePlan<T, B>;
  template <class T, class B>
  struct Params {
    Tensor<T, 2, B> phi;  // [D, S]
    GATEFOLD_PACK(phi)
  };
  Index experts() const { return count; }
  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    return {uniform_tensor<T>(ctx, seed, 1, model_dim, count * slots_per_expert)};
  }
  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, Plan<T, B>& plan, auto&&...) const {
    const Index N = x.extent(0), S = count * slots_per_expert;
    for (auto* t : {&plan.dispatch_weight, &plan.combine_weight}) t->resize(N, S);
    plan.offsets.resize(count + 1);
    for (Index e = 0; e <= count; ++e) plan.offsets(e) = e * slots_per_expert;
    auto mark = ctx.mark();
    auto z = ctx.template scratch<T>(N, S);
    B::gemm(ctx, x, false, p.phi.view(), false, false, z, functor::Store{});
    B::for_rows(ctx, N, functor::Softmax<T, B>{z, plan.combine_weight});
    for (Index s = 0; s < S; ++s) {
      T total = 0;
      for (Index n = 0; n < N; ++n) total += plan.dispatch_weight(n, s) = std::exp(z(n, s));
      for (Index n = 0; n < N; ++n) plan.dispatch_weight(n, s) /= total;
    }
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, const Plan<T, B>& plan, auto&&,
                const typename Plan<T, B>::Grad& d, Out<T, 2, B> dx, Params<T, B>& grads, auto&&...) const {
    const Index N = x.extent(0), S = count * slots_per_expert;
    auto mark = ctx.mark();
    auto dz = ctx.template scratch<T>(N, S);
    B::for_rows(ctx, N, functor::SoftmaxBackward<T, B>{plan.combine_weight, d.combine_weight, dz});
    for (Index s = 0; s < S; ++s) {
      T mean = 0;
      for (Index n = 0; n < N; ++n) mean += plan.dispatch_weight(n, s) * d.dispatch_weight(n, s);
      for (Index n = 0; n < N; ++n) dz(n, s) += plan.dispatch_weight(n, s) * (d.dispatch_weight(n, s) - mean);
    }
    B::gemm(ctx, View<const T, 2, B>(dz), false, p.phi.view(), true, true, dx, functor::Store{});
    B::gemm(ctx, x, true, View<const T, 2, B>(dz), false, true, grads.phi.view(), functor::Store{});
  }
};

// ---------------------------------------------------------------------------------------------- experts

/// An expert on whole sequences: f(X) = Σ_l ⟨w_e, X_l⟩ · tanh(⟨w_e, X_(l+1)⟩), one number for an item [L·D].
struct PairExpert {
  Index model_dim = 0, length = 1;
  template <class T, class B>
  struct Params {
    Tensor<T, 2, B> w;  // [E, D]
    GATEFOLD_PACK(w)
  };
  Index in_dim() const { return length * model_dim; }
  Index out_dim() const { return 1; }
  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Index experts, Seed seed) const {
    return {uniform_tensor<T>(ctx, seed, 1, experts, model_dim)};
  }
  template <class T, class B>
  T dot(const Params<T, B>& p, View<const T, 2, B> x, Index e, Index n, Index l) const {
    T v = 0;
    for (Index d = 0; d < model_dim; ++d) v += p.w(e, d) * x(n, l % length * model_dim + d);
    return v;
  }
  template <class T, class B>
  void forward(typename B::Context&, const Params<T, B>& p, Groups<B> g, In<T, 2, B> x, Out<T, 2, B> z,
               Nothing<T, B>&) const {
    for (Index e = 0; e < g.experts(); ++e)
      for (Index s = g.offsets(e); s < g.offsets(e + 1); ++s) {
        z(s, 0) = 0;
        for (Index l = 0; l < length; ++l)
          z(s, 0) += dot(p, x, e, g.row(s), l) * std::tanh(dot(p, x, e, g.row(s), l + 1));
      }
  }
  template <class T, class B>
  void backward(typename B::Context&, const Params<T, B>& p, Groups<B> g, In<T, 2, B> x, const Nothing<T, B>&,
                In<T, 2, B> dz, Out<T, 2, B> dslots, Params<T, B>& grads) const {
    for (Index e = 0; e < g.experts(); ++e)
      for (Index s = g.offsets(e); s < g.offsets(e + 1); ++s) {
        const Index n = g.row(s);
        for (Index c = 0; c < in_dim(); ++c) dslots(s, c) = 0;
        for (Index l = 0; l < length; ++l) {
          const T t = std::tanh(dot(p, x, e, n, l + 1));
          const T first = dz(s, 0) * t, second = dz(s, 0) * dot(p, x, e, n, l) * (1 - t * t);
          for (Index d = 0; d < model_dim; ++d) {
            const Index a = l * model_dim + d, b = (l + 1) % length * model_dim + d;
            dslots(s, a) += first * p.w(e, d);
            dslots(s, b) += second * p.w(e, d);
            grads.w(e, d) += first * x(n, a) + second * x(n, b);
          }
        }
      }
  }
};

/// A layer with two kinds of experts: the first `split` experts are of kind A, the rest of kind Z.
template <class A, class Z>
struct TwoKinds {
  Index split = 1, total = 2;
  A first{};
  Z second{};
  template <class T, class B>
  struct Params {
    gatefold::Params<A, T, B> first;
    gatefold::Params<Z, T, B> second;
    GATEFOLD_PACK(first, second)
  };
  template <class T, class B>
  struct Saved {
    gatefold::Saved<A, T, B> first;
    gatefold::Saved<Z, T, B> second;
  };
  Index in_dim() const { return first.in_dim(); }
  Index out_dim() const { return first.out_dim(); }
  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Index experts, Seed seed) const {
    expect(experts == total, "TwoKinds", "experts", total, experts);
    return {first.template init<T, B>(ctx, split, seed.fork(0)),
            second.template init<T, B>(ctx, total - split, seed.fork(1))};
  }
  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> g, In<T, 2, B> x, Out<T, 2, B> z,
               Saved<T, B>& s) const {
    first.forward(ctx, p.first, g.experts(0, split), x, z, s.first);
    second.forward(ctx, p.second, g.experts(split, total - split), x, z, s.second);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> g, In<T, 2, B> x, const Saved<T, B>& s,
                In<T, 2, B> dz, Out<T, 2, B> dslots, Params<T, B>& grads) const {
    first.backward(ctx, p.first, g.experts(0, split), x, s.first, dz, dslots, grads.first);
    second.backward(ctx, p.second, g.experts(split, total - split), x, s.second, dz, dslots, grads.second);
  }
};

}  // namespace seams
