// Compares selections on CUDA with the naive backend. The given ranks have ties, NaN and infinities, and make experts
// overflow.
#include "support/parity.hpp"

using namespace gatefold;
using namespace gatefold::test;

namespace {

/// Everything that a selection computes on one backend, with q the softmax of rank.
template <class S, class T, class B>
struct SelectionRun {
  typename B::Context& ctx;
  const S& policy;
  Params<S, T, B> params;
  Tensor<T, 2, B> x, rank;
  Tensor<T, 1, B> valid;
  Extra<S, T, B> extra;
  Params<S, T, B> grads;
  Tensor<T, 2, B> q, dx, drank, dq, dvalue, ddeviation;
  SparsePlan<T, B> plan{};
  Saved<S, T, B> saved{};

  SelectionRun(typename B::Context& context, const S& of, const Case& c, Params<S, T, B> p, Tensor<T, 2, B> items,
               Tensor<T, 2, B> ranks, Inputs<T, B> in)
      : ctx(context),
        policy(of),
        params(std::move(p)),
        x(std::move(items)),
        rank(std::move(ranks)),
        valid(std::move(in.valid)),
        extra(with_valid(extra_of<Extra<S, T, B>>(c, in), View<const T, 1, B>(valid))),
        grads(zeros_like(ctx, params)),
        q(rank.extent(0), rank.extent(1)) {
    B::for_rows(ctx, rank.extent(0), functor::Softmax<T, B>{rank, q});
    dx = constant_tensor<T>(ctx, 0, x.extent(0), x.extent(1));
    for (auto* d : {&drank, &dq, &dvalue, &ddeviation}) *d = constant_tensor<T>(ctx, 0, q.extent(0), q.extent(1));
  }
  Candidates<T, B> candidates() const { return {x, rank, q, valid}; }
  void forward() { policy.forward(ctx, params, candidates(), plan, saved, extra); }
  void backward(PlanAdjoint<T, B> d) {
    fill(ctx, dvalue.view(), T(0.5));
    policy.backward(ctx, params, candidates(), plan, saved, d.of(plan),
                    CandidatesGrad<T, B>{dx, drank, dq, {dvalue, ddeviation}}, grads, extra);
  }
};

using Ranks = double (*)(Index item, Index expert);

/// Compares a selection on both backends: the plan, the saved values, the sum of the adjoints of rank and q, and the
/// gradients of the parameters.
template <class T = double, class S>
void expect_same_selection(const S& given, Index items, Index experts, Ranks ranks, const Case& sizes = {}) {
  Backends on;
  Case c = sizes;
  c.items = items;
  const S policy = with_experts(with_model_dim(given, 3), experts);
  auto [params, cuda_params] = params_of<T>(on, policy, c, {.zeros = c.expected.zeros});
  const auto rank_of = [&] {
    Tensor<T, 2, Naive> rank(items, experts);
    for (Index n = 0; n < items; ++n)
      for (Index e = 0; e < experts; ++e) rank(n, e) = static_cast<T>(ranks(n, e));
    return rank;
  };
  const auto x = random_tensor<T>(on, c.seed.fork(1), 1, items, 3);
  SelectionRun<S, T, Cuda> cuda(on.cuda, policy, c, std::move(cuda_params), on_cuda<Tensor<T, 2, Cuda>>(on, x),
                                on_cuda<Tensor<T, 2, Cuda>>(on, rank_of()),
                                on_cuda<Inputs<T, Cuda>>(on, inputs_of<T>(on, c, 3)));
  SelectionRun<S, T, Naive> naive(on.naive, policy, c, std::move(params),
                                  random_tensor<T>(on, c.seed.fork(1), 1, items, 3), rank_of(), inputs_of<T>(on, c, 3));
  naive.forward();
  cuda.forward();
  expect_same(on, "plan", naive.plan, cuda.plan, c.expected);
  expect_same(on, "saved", naive.saved, cuda.saved, c.expected);
  auto dplan = random_adjoint(on, c.seed.fork(4), naive.plan);
  cuda.backward(on_cuda<PlanAdjoint<T, Cuda>>(on, dplan));
  naive.backward(std::move(dplan));
  Tensor<T, 2, Naive> together(items, experts);
  Tensor<T, 2, Cuda> cuda_together(items, experts);
  copy(on.naive, std::as_const(naive.dq).view(), together.view());
  copy(on.cuda, std::as_const(cuda.dq).view(), cuda_together.view());
  add(on.naive, naive.drank, together.view());
  add(on.cuda, cuda.drank, cuda_together.view());
  expect_same(on, "dcandidates", together, cuda_together, c.expected);
  expect_same(on, "grads", naive.grads, cuda.grads, c.expected);
}

double random_rank(Index n, Index e) {
  return 4 * uniform<double>(Seed{11}, 0, static_cast<std::uint64_t>(1000 * n + e)) - 2;
}
double equal_rank(Index, Index) { return 0.5; }
double tied_rank(Index n, Index e) { return static_cast<double>((n + e / 3) % 4); }
double favourite_rank(Index n, Index e) { return e == 2 ? 3 : 0.01 * static_cast<double>((n * 7 + e * 5) % 11); }
double huge_rank(Index n, Index e) { return (n + e) % 3 == 0 ? 1000 : (n + e) % 3 == 1 ? -1000 : 0; }
double strange_rank(Index n, Index e) {
  if (n % 3 == 0) return random_rank(n, e);
  const double values[] = {NAN, INFINITY, -INFINITY, 1, 1, -0.5};
  return values[(n * 5 + e * (n % 4 + 1)) % 6];
}

/// Checks every kind of ranks, with few experts and with more experts than a warp has lanes.
/// @param zeros  the results that are 0
/// @param still  the results that are 0 without noise
template <class T = double, class S>
void expect_same_for_all_ranks(const S& policy, const std::vector<std::string>& zeros,
                               const std::vector<std::string>& still) {
  SUBCASE("random") { expect_same_selection<T>(policy, 40, 7, random_rank, {.expected = {.zeros = zeros}}); }
  SUBCASE("random, padding") {
    expect_same_selection<T>(policy, 21, 40, random_rank, {.padding = true, .expected = {.zeros = zeros}});
  }
  SUBCASE("ties") {
    expect_same_selection<T>(policy, 11, 40, tied_rank, {.noise = false, .expected = {.zeros = still}});
  }
  SUBCASE("all equal") {
    expect_same_selection<T>(policy, 9, 33, equal_rank, {.noise = false, .expected = {.zeros = still}});
  }
  SUBCASE("one favourite") { expect_same_selection<T>(policy, 45, 5, favourite_rank, {.expected = {.zeros = zeros}}); }
  SUBCASE("huge") {
    expect_same_selection<T>(policy, 12, 9, huge_rank, {.noise = false, .expected = {.zeros = still}});
  }
  SUBCASE("NaN and infinities") {
    expect_same_selection<T>(policy, 13, 6, strange_rank, {.noise = false, .expected = {.zeros = still, .nan = true}});
    expect_same_selection<T>(policy, 5, 70, strange_rank, {.noise = false, .expected = {.zeros = still, .nan = true}});
  }
}
template <class T = double, class S>
void expect_same_for_all_ranks(const S& policy, const std::vector<std::string>& zeros = {}) {
  expect_same_for_all_ranks<T>(policy, zeros, zeros);
}

}  // namespace

TEST_CASE("TopK: matches the naive backend") { expect_same_for_all_ranks(TopK{.k = 3}); }
TEST_CASE("TopK, float: matches the naive backend") { expect_same_for_all_ranks<float>(TopK{.k = 3}); }
TEST_CASE("TopK, not renormalised: matches the naive backend") {
  expect_same_for_all_ranks(TopK{.k = 2, .renormalise = false});
}
TEST_CASE("TopK: one renormalised expert has no gradient") {
  expect_same_selection(TopK{.k = 1}, 12, 6, random_rank, {.expected = {.zeros = {"dcandidates"}}});
}
TEST_CASE("ScheduledTopK: matches the naive backend") { expect_same_for_all_ranks(ScheduledTopK{.k = 2}); }
TEST_CASE("ScheduledTopK: takes k from the call") {
  for (const Index k : {3, 6}) expect_same_selection(ScheduledTopK{.k = 2}, 12, 6, random_rank, {.k = k});
  // With k = 1, the only weight is renormalised to 1, so the ranks have no gradient. With larger k they have one.
  expect_same_selection(ScheduledTopK{.k = 2}, 12, 6, random_rank, {.k = 1, .expected = {.zeros = {"dcandidates"}}});
}
TEST_CASE("Dense: matches the naive backend") { expect_same_for_all_ranks(Dense{}); }
TEST_CASE("NoisyTop1, uniform noise: matches the naive backend") { expect_same_for_all_ranks(NoisyTop1<>{.scale = 3}); }
TEST_CASE("NoisyTop1, Gaussian noise: matches the naive backend") {
  expect_same_for_all_ranks(NoisyTop1<GaussianNoise>{});
}
TEST_CASE("NoisyTop1, Gumbel noise as weight: matches the naive backend") {
  expect_same_for_all_ranks(NoisyTop1<GumbelNoise>::reference());
}
TEST_CASE("NoisyTopK: matches the naive backend") {
  expect_same_for_all_ranks(NoisyTopK<>::reference({.k = 3}), {}, {"grads.noise"});
}
TEST_CASE("NoisyTopK, fixed noise: matches the naive backend") {
  expect_same_for_all_ranks(NoisyTopK<>::vmoe({.k = 3}));
}
TEST_CASE("SigmoidBias: matches the naive backend") {
  expect_same_for_all_ranks(SigmoidBias{.k = 3, .scale = 2.5}, {"grads.speed"});
}
TEST_CASE("SigmoidBias, softmax: matches the naive backend") {
  expect_same_for_all_ranks(SigmoidBias{.k = 3, .scale = 2.5, .score = RouterScore::softmax}, {"grads.speed"});
}
TEST_CASE("SigmoidBias, softmax as weight: matches the naive backend") {
  expect_same_for_all_ranks(SigmoidBias{.k = 3, .renormalise = false, .score = RouterScore::softmax}, {"grads.speed"});
}
TEST_CASE("ReluRouting: matches the naive backend") {
  expect_same_for_all_ranks(ReluRouting{.coefficient = 0.3}, {"grads.rate"});
}
TEST_CASE("ReluRouting: with a limit, matches the naive backend") {
  expect_same_for_all_ranks<float>(ReluRouting{.k = 2, .most = 3, .coefficient = 0.3, .balanced = false},
                                   {"grads.rate"});
}
TEST_CASE("SigmoidBias: adapts its bias like the naive backend") {
  for (const bool centred : {false, true}) {
    CAPTURE(centred);
    Backends on;
    using P = SigmoidBias::Params<double, Naive>;
    P params{random_tensor<double>(on, {1}, 1, 40), constant_tensor<double>(on.naive, 0.25, 1), centred};
    P grads{random_tensor<double>(on, {2}, 1, 40), constant_tensor<double>(on.naive, 1, 1)};
    grads.bias(7) = 0;
    using Q = SigmoidBias::Params<double, Cuda>;
    Q cuda = on_cuda<Q>(on, params), cuda_grads = on_cuda<Q>(on, grads);
    adapt_params(on.naive, params, grads);
    adapt_params(on.cuda, cuda, cuda_grads);
    expect_same(on, "params", params, cuda, {});
  }
}

TEST_CASE("ExpertChoice: matches the naive backend") { expect_same_for_all_ranks(ExpertChoice{.factor = 1.5}); }
TEST_CASE("ExpertChoice, sequences: matches the naive backend") {
  expect_same_selection(ExpertChoice{}, 36, 5, random_rank, {.length = 12, .padding = true});
}
TEST_CASE("Capacity, drops overflow: matches the naive backend") {
  expect_same_for_all_ranks(Capacity{TopK{.k = 2}, 0.8});
}
TEST_CASE("Capacity, one slot per expert: matches the naive backend") {
  expect_same_for_all_ranks(Capacity<TopK>{.selection = {.k = 2}, .slots = 1, .group = 8});
}
TEST_CASE("Capacity, renormalised: matches the naive backend") {
  expect_same_for_all_ranks(Capacity<TopK>{.selection = {.k = 2}, .slots = 3, .group = 8, .renormalise = true});
}
TEST_CASE("Capacity, most confident first: matches the naive backend") {
  expect_same_for_all_ranks(
      Capacity<NoisyTopK<>>{
          .selection = NoisyTopK<>::reference({.k = 2}), .factor = 0.6, .multiple_of = 1, .batch_priority = true},
      {}, {"grads.noise"});
}
TEST_CASE("selections: edge cases match the naive backend") {
  expect_same_selection(TopK{.k = 2}, 0, 5, random_rank);
  expect_same_selection(TopK{.k = 2}, 1, 5, random_rank);
  expect_same_selection(TopK{.k = 1, .renormalise = false}, 6, 1, random_rank);
  expect_same_selection(TopK{.k = 6}, 7, 6, random_rank);
  expect_same_selection(TopK{.k = 3}, 3, 257, random_rank);
  expect_same_selection(ExpertChoice{}, 0, 5, random_rank);
  expect_same_selection(ExpertChoice{}, 1, 5, random_rank);
  expect_same_selection(ExpertChoice{}, 40, 1, random_rank);
  expect_same_selection(Capacity{TopK{.k = 2}, 0.5}, 0, 5, random_rank);
  expect_same_selection(Capacity{TopK{.k = 2}, 0.5}, 1, 5, random_rank);
  expect_same_selection(SigmoidBias{.k = 2}, 0, 5, random_rank, {.expected = {.zeros = {"grads"}}});
}

TEST_CASE("selections: ties go to the lower expert, picks are distinct") {
  Cuda::Context ctx;
  Naive::Context host;
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const Index experts = 40;
  Tensor<double, 2, Naive> rank(4, experts);
  for (Index e = 0; e < experts; ++e) {
    rank(0, e) = 1;
    rank(1, e) = e == 35 ? infinity : e == 34 ? nan : e % 2;
    rank(2, e) = nan;
    rank(3, e) = -infinity;
  }
  const auto on_device = [&] {
    Tensor<double, 2, Cuda> t;
    transfer(ctx, rank, t);
    return t;
  }();
  SparsePlan<double, Cuda> plan;
  const TopK top{.k = 3};
  Nothing<double, Cuda> none;
  top.forward(ctx, none, Candidates<double, Cuda>{on_device, on_device, on_device}, plan, none, none);
  Tensor<Index, 1, Naive> expert;
  transfer(ctx, plan.expert, expert);
  const Index expected[] = {0, 1, 2, 35, 1, 3, 0, 1, 2, 0, 1, 2};
  for (Index p = 0; p < 12; ++p) CHECK(expert(p) == expected[p]);
}

#ifdef GATEFOLD_SLOW_TESTS
TEST_CASE_TEMPLATE("selections, float: match the naive backend", S, ScheduledTopK, Dense, NoisyTop1<>,
                   NoisyTop1<GaussianNoise>, ExpertChoice, Capacity<TopK>) {
  expect_same_for_all_ranks<float>(S{});
}
TEST_CASE("NoisyTop1, Gumbel noise, float: matches the naive backend") {
  expect_same_for_all_ranks<float>(NoisyTop1<GumbelNoise>::reference());
}
TEST_CASE("NoisyTopK, float: matches the naive backend") {
  expect_same_for_all_ranks<float>(NoisyTopK<>::reference({.k = 3}), {}, {"grads.noise"});
}
TEST_CASE("SigmoidBias, float: matches the naive backend") {
  expect_same_for_all_ranks<float>(SigmoidBias{.k = 3}, {"grads.speed"});
}
#endif
