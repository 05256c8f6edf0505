#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "gatefold/gate/gates.hpp"
#include "gatefold/gate/selection/capacity.hpp"
#include "gatefold/gate/selection/expert_choice.hpp"
#include "gatefold/gate/selection/noisy_top_1.hpp"
#include "gatefold/gate/selection/noisy_top_k.hpp"
#include "gatefold/gate/selection/sigmoid_bias.hpp"
#include "gatefold/gate/selection/top_k.hpp"
#include "gatefold/gatefold.hpp"

// Compiled with -ffast-math, which lets a compiler assume that there is no NaN and no infinity. The picked experts must
// still exist and be the best ones. The test compares only integers, because comparisons of floats in this file cannot
// be trusted either.
#if !defined(__FINITE_MATH_ONLY__) || !__FINITE_MATH_ONLY__
#error "this test says something only when it is compiled with -ffast-math"
#endif

using namespace gatefold;
using B = Cpu;

namespace {

/// Levels stand for ranks: -3 is NaN, -2 is −∞, 100 is ∞, and any other level is the rank itself.
constexpr int kNaN = -3, kLowest = -2, kHighest = 100;
template <class T>
T of_level(int level) {
  volatile T zero = 0;  // hidden from the compiler, which may treat a NaN that it sees as it likes
  using U = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  constexpr U infinity = sizeof(T) == 4 ? U(0x7f800000) : static_cast<U>(0x7ff0000000000000);
  U bits = infinity;
  if (level == kNaN) bits |= U(1) << (sizeof(T) == 4 ? 22 : 51);
  if (level == kLowest) bits |= U(1) << (sizeof(T) * 8 - 1);
  if (level != kNaN && level != kLowest && level != kHighest) return T(level) + zero;
  T value;
  __builtin_memcpy(&value, &bits, sizeof(T));
  return value;
}

/// Returns the levels of items and experts. Every fourth item has only NaN and infinities, the others mostly numbers.
std::vector<int> levels(Index items, Index experts, std::uint64_t seed) {
  std::vector<int> all;
  for (Index i = 0; i < items * experts; ++i) {
    const std::uint64_t h = mix64(seed * 1000003 + static_cast<std::uint64_t>(i));
    const bool wild = (i / experts) % 4 == 3 || h % 11 == 0;
    const int strange[] = {kNaN, kLowest, kHighest, kNaN};
    all.push_back(wild ? strange[(h >> 8) % 4] : static_cast<int>((h >> 16) % 7));
  }
  return all;
}
template <class T>
Tensor<T, 2, B> ranks(const std::vector<int>& of, Index items, Index experts) {
  Tensor<T, 2, B> r(items, experts);
  for (std::size_t i = 0; i < of.size(); ++i) r.data()[i] = of_level<T>(of[i]);
  return r;
}
/// Returns the k best of one row: larger first, NaN last, ties by the lower index.
std::vector<Index> best(const int* row, Index experts, Index k) {
  std::vector<Index> order;
  for (Index e = 0; e < experts; ++e) order.push_back(e);
  std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) { return row[a] > row[b]; });
  order.resize(static_cast<std::size_t>(k));
  return order;
}

/// Runs a selection on ranks, checks its plan and passes the plan to f. Experts must exist, and every pick that is not
/// dropped must have one slot.
template <class T, class S, class F>
void for_plans(const S& policy, const F& f, const Noise& noise = {},
               const std::vector<Index>& numbers = {1, 2, 7, 16, 40}) {
  for (const Index experts : numbers) {
    for (const int threads : {1, 3}) {
      Cpu::Context ctx(threads, true);
      const Index items = 50;
      const auto of = levels(items, experts, static_cast<std::uint64_t>(experts));
      const auto rank = ranks<T>(of, items, experts);
      Tensor<T, 2, B> q(items, experts), x(items, 3);
      fill(ctx, x.view(), T(1));
      B::for_rows(ctx, items, functor::Softmax<T, B>{rank, q});
      const S filled = with_experts(with_model_dim(policy, 3), experts);
      const auto params = init_params<T, B>(filled, ctx, Seed{1});
      SparsePlan<T, B> plan;
      Saved<S, T, B> saved;
      Extra<S, T, B> extra{};
      if constexpr (std::is_same_v<Extra<S, T, B>, Noise>) extra = noise;
      filled.forward(ctx, params, {x, rank, q}, plan, saved, extra);

      CAPTURE(experts);
      CAPTURE(threads);
      Index wrong = 0, kept = 0;
      for (Index p = 0; p < plan.expert.size(); ++p) {
        const Index e = plan.expert(p);
        wrong += functor::chosen(e) < 0 || functor::chosen(e) >= experts || plan.item(p) < 0 || plan.item(p) >= items;
        kept += e >= 0;
      }
      REQUIRE(wrong == 0);
      REQUIRE(plan.offsets(experts) == kept);
      std::set<Index> seen;
      for (Index s = 0; s < kept; ++s) {
        seen.insert(plan.pick(s));
        wrong += plan.rows(s) != plan.item(plan.pick(s)) || plan.groups().expert(s) != plan.expert(plan.pick(s));
      }
      CHECK(wrong == 0);
      CHECK(static_cast<Index>(seen.size()) == kept);
      CHECK(plan.item_offsets(items) == kept);
      f(plan, of, experts);
    }
  }
}

}  // namespace

TEST_CASE_TEMPLATE("fast math: the best experts are picked for any ranks", T, float, double) {
  const auto one = [](const auto& plan, const std::vector<int>& of, Index experts) {
    Index wrong = 0;
    for (Index n = 0; n < plan.items(); ++n) wrong += plan.expert(n) != best(of.data() + n * experts, experts, 1)[0];
    CHECK(wrong == 0);
  };
  for_plans<T>(TopK{.k = 1}, one);
  for_plans<T>(NoisyTop1<>{}, one);
  for_plans<T>(TopK{.k = 5},
               [](const auto& plan, const std::vector<int>& of, Index experts) {
                 Index wrong = 0;
                 for (Index n = 0; n < plan.items(); ++n) {
                   const auto expected = best(of.data() + n * experts, experts, 5);
                   wrong += !std::equal(expected.begin(), expected.end(), plan.expert.data() + n * 5);
                 }
                 CHECK(wrong == 0);
               },
               {}, {7, 16, 40});
  for_plans<T>(TopK{.k = 7},
               [](const auto& plan, const std::vector<int>& of, Index experts) {  // K = E
                 Index wrong = 0;
                 for (Index n = 0; n < plan.items(); ++n) {
                   const auto expected = best(of.data() + n * experts, experts, 7);
                   wrong += !std::equal(expected.begin(), expected.end(), plan.expert.data() + n * 7);
                 }
                 CHECK(wrong == 0);
               },
               {}, {7});
}

TEST_CASE_TEMPLATE("fast math: selections give valid plans for any ranks", T, float, double) {
  const auto nothing_more = [](const auto&...) {};
  const Noise noise{Random{Seed{4}, 1}};
  for_plans<T>(NoisyTop1<>{}, nothing_more, noise);
  for_plans<T>(NoisyTopK<>{.k = 2}, nothing_more, noise, {2, 7, 40});
  for_plans<T>(SigmoidBias{.k = 2}, nothing_more, {}, {2, 7, 40});
  for_plans<T>(ExpertChoice{}, nothing_more);
  for_plans<T>(Capacity{TopK{.k = 2}, 0.5}, nothing_more, {}, {2, 7, 40});
  Capacity<TopK> by_surety{TopK{.k = 2}, 0.5};
  by_surety.batch_priority = true;
  for_plans<T>(by_surety, nothing_more, {}, {2, 7, 40});
}
