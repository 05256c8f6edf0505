#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/attention/attention_trace.hpp"
#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/groups.hpp"
#include "gatefold/backend/softmax.hpp"
#include "gatefold/gate/selection/capacity.hpp"
#include "gatefold/gate/selection/noisy_top_k.hpp"
#include "gatefold/gate/selection/top_k.hpp"
#include "gatefold/routing/dense_plan.hpp"
#include "gatefold/routing/sequence.hpp"
#include "gatefold/routing/sparse_plan.hpp"
#include "support/tables.hpp"

// Tests routing with random shapes, uneven loads, dropped picks and empty experts, with 1 to 8 threads, in float and
// double. Integers are compared with loops over vectors. Sums are compared with loops in long double and may differ by
// (terms + 8) · u · Σ |a b|, with u the unit roundoff. Every number of threads must give the bits of one thread.

using namespace gatefold;
using B = Cpu;

namespace {

using Wide = long double;

struct Draw {
  std::mt19937_64 generator;
  explicit Draw(std::uint64_t seed) : generator(seed) {}
  Index upto(Index most) { return static_cast<Index>(generator() % static_cast<std::uint64_t>(most + 1)); }
  bool one_in(Index n) { return upto(n - 1) == 0; }
  double uniform() { return static_cast<double>(generator() >> 11) * 0x1p-53; }
  template <class T>
  T value() {
    return static_cast<T>(2 * uniform() - 1);
  }
  /// Returns small numbers more often than large ones.
  Index size(Index most) { return one_in(12) ? 0 : static_cast<Index>(std::pow(static_cast<double>(most), uniform())); }
  template <class T>
  Tensor<T, 2, B> matrix(Index rows, Index columns) {
    Tensor<T, 2, B> m(rows, columns);
    for (Index i = 0; i < m.size(); ++i) m.data()[i] = value<T>();
    return m;
  }
  /// Draws an expert from the distribution with the number `skew`.
  Index expert(Index experts, int skew) {
    const double u = uniform();
    const double at = skew == 0   ? u
                      : skew == 1 ? u * u * u * u
                      : skew == 2 ? 0.5 + u * 1e-9
                                  : 0.3 + u * 0.4;  // 0: uniform; 1: first experts; 2: one expert; 3: the middle
    return std::min(static_cast<Index>(at * static_cast<double>(experts)), experts - 1);
  }
};

/// All results of a run, for comparing bit by bit.
struct Bits {
  std::vector<unsigned char> bytes{};
  template <class T>
  void add(const T* data, Index count) {
    const std::size_t at = bytes.size(), more = static_cast<std::size_t>(count) * sizeof(T);
    bytes.resize(at + more);
    if (more > 0) std::memcpy(bytes.data() + at, data, more);
  }
  template <class V>
  void add(const V& v) {
    add(v.data(), v.size());
  }
};

template <class T>
constexpr Wide unit = std::numeric_limits<T>::epsilon() / 2;
/// Returns whether `got`, a sum of `terms` products, differs from `exact` by at most the bound above. `absolute` is the
/// sum of the absolute values of the products.
template <class T>
bool near(T got, Wide exact, Wide absolute, Index terms) {
  const Wide bound = static_cast<Wide>(terms + 8) * unit<T> * absolute;
  return std::abs(static_cast<Wide>(got) - exact) <= bound;  // false for NaN
}

template <class T>
constexpr T nan = std::numeric_limits<T>::quiet_NaN();

/// A plan built by its definition.
struct NaivePlan {
  std::vector<std::vector<Index>> of_expert;  // picks in order
  std::vector<Index> slots, slot_of;          // slot → pick, pick → slot or −1
  NaivePlan(const std::vector<Index>& expert, Index experts)
      : of_expert(static_cast<std::size_t>(experts)), slot_of(expert.size(), -1) {
    for (std::size_t p = 0; p < expert.size(); ++p)
      if (expert[p] >= 0) of_expert[static_cast<std::size_t>(expert[p])].push_back(static_cast<Index>(p));
    for (const auto& picks : of_expert)
      for (const Index p : picks) {
        slot_of[static_cast<std::size_t>(p)] = static_cast<Index>(slots.size());
        slots.push_back(p);
      }
  }
};

/// Doubles y after the combination: y = 2 · y.
template <class T>
struct Twice {
  using Element = T;
  T* y;
  template <class A>
  void operator()(const A& at, Index i) const {
    at.store(y + i, at.load(y + i) * T(2));
  }
};
/// Doubles y like Twice, but only one element per call.
template <class T>
struct TwiceOneByOne {
  T* y;
  void operator()(Index i) const { y[i] *= T(2); }
};

template <class T>
struct Case {
  Index items, experts, each, columns;  // each: picks of each item, or 0 if items can have different numbers of picks
  std::vector<Index> item{}, expert{};
  std::vector<T> weight{};
};

template <class T>
Case<T> random_case(Draw& draw, Index least_items, Index most_items) {
  Case<T> c{std::max(draw.size(most_items), least_items), 1 + draw.size(draw.one_in(8) ? 300 : 24), 0,
            1 + draw.size(70)};
  const int skew = static_cast<int>(draw.upto(3));
  const auto add = [&](Index n, Index e) {
    c.item.push_back(n);
    c.expert.push_back(e);
    c.weight.push_back(draw.value<T>());
  };
  if (draw.one_in(2)) {  // complete: each item's picks have distinct experts and stand side by side
    c.each = 1 + draw.upto(std::min<Index>(c.experts, 6) - 1);
    for (Index n = 0; n < c.items; ++n) {
      std::vector<Index> taken;
      while (static_cast<Index>(taken.size()) < c.each) {
        const Index e = (draw.expert(c.experts, skew) + static_cast<Index>(taken.size())) % c.experts;
        Index other = e;
        while (std::find(taken.begin(), taken.end(), other) != taken.end()) other = (other + 1) % c.experts;
        taken.push_back(other);
        add(n, other);
      }
    }
    return c;
  }
  const Index picks = c.items == 0 ? 0 : std::max(draw.size(2 * most_items), least_items);
  const bool drops = draw.one_in(2);
  for (Index p = 0; p < picks; ++p) {
    const Index e = draw.expert(c.experts, skew), n = draw.upto(c.items - 1);
    const bool dropped = drops && draw.one_in(3);
    add(dropped && draw.one_in(4) ? Index(-1) : n, !dropped ? e : draw.one_in(2) ? ~e : no_pick);
  }
  return c;
}

template <class T>
SparsePlan<T, B> plan_of(Cpu::Context& ctx, const Case<T>& c, bool complete) {
  SparsePlan<T, B> plan;
  plan.resize(c.items, c.experts, static_cast<Index>(c.item.size()));
  std::copy(c.item.begin(), c.item.end(), plan.item.data());
  std::copy(c.expert.begin(), c.expert.end(), plan.expert.data());
  std::copy(c.weight.begin(), c.weight.end(), plan.weight.data());
  for (auto* t : {&plan.offsets, &plan.pick, &plan.rows, &plan.item_offsets, &plan.item_slots})
    std::fill(t->data(), t->data() + t->size(), Index(-77));
  if (complete) {
    plan.build_complete(ctx);
  } else {
    plan.build(ctx);
  }
  return plan;
}

/// The inputs z, dout and dslots of the calls of a plan, and the values of dx before the calls.
template <class T>
struct Inputs {
  Tensor<T, 2, B> z, dout, dslots, dx;
};
template <class T>
struct Outcome {
  SparsePlan<T, B> plan;
  Tensor<T, 2, B> out, stepped, one_by_one, dz, dx;
  std::vector<T> dweight, slot_weight, of_slots;  // of_slots: dweight if slot s has the adjoint s + 1
  Bits bits() const {
    Bits b;
    const Index kept = plan.offsets(plan.experts());
    b.add(plan.offsets);
    b.add(plan.pick.data(), kept);
    b.add(plan.rows);
    b.add(plan.item_offsets);
    b.add(plan.item_slots.data(), kept);
    for (const auto* t : {&out, &stepped, &one_by_one, &dz, &dx}) b.add(*t);
    b.add(dweight.data(), static_cast<Index>(dweight.size()));
    return b;
  }
};
template <class T>
Outcome<T> outcome(const Case<T>& c, const Inputs<T>& in, int threads, bool eager) {
  Cpu::Context ctx(threads, eager);
  Outcome<T> o{plan_of(ctx, c, c.each > 0), {}, {}, {}, {}, {}, {}, {}, {}};
  for (auto* t : {&o.out, &o.stepped, &o.one_by_one}) {
    t->resize(c.items, c.columns);
    fill(ctx, t->view(), nan<T>);
  }
  auto mark = ctx.mark();
  o.plan.combine(ctx, in.z, o.out);
  o.plan.combine(ctx, in.z, o.stepped, Twice<T>{o.stepped.data()});
  o.plan.combine(ctx, in.z, o.one_by_one, TwiceOneByOne<T>{o.one_by_one.data()});
  o.dz.resize(in.z.extent(0), c.columns);
  fill(ctx, o.dz.view(), T(77));
  auto d = o.plan.grad(ctx);
  o.plan.combine_backward(ctx, in.z, in.dout, o.dz, d);
  o.dweight.assign(d.weight.data(), d.weight.data() + d.weight.size());
  o.dx.resize_like(in.dx);
  copy(ctx, in.dx, o.dx.view());
  o.plan.dispatch_backward(ctx, in.dout, in.dslots, o.dx, d);
  auto of_slots = o.plan.grad(ctx);
  const SlotWeights<T, B> weights = o.plan.slot_weights(of_slots);
  for (Index s = 0; s < o.plan.offsets(o.plan.experts()); ++s) {
    o.slot_weight.push_back(weights(s));
    weights.set_adjoint(s, static_cast<T>(s + 1));
  }
  o.of_slots.assign(of_slots.weight.data(), of_slots.weight.data() + of_slots.weight.size());
  return o;
}

template <class T>
void check_sparse(std::uint64_t seed, Index most_items, Index least_items = 0) {
  Draw draw(seed);
  const Case<T> c = random_case<T>(draw, least_items, most_items);
  const Index picks = static_cast<Index>(c.item.size());
  const NaivePlan naive(c.expert, c.experts);
  const Index kept = static_cast<Index>(naive.slots.size());
  Inputs<T> in{draw.matrix<T>(picks, c.columns), draw.matrix<T>(c.items, c.columns), draw.matrix<T>(picks, c.columns),
               draw.matrix<T>(c.items, c.columns)};
  for (Index s = kept; s < picks; ++s)  // never read
    for (Index j = 0; j < c.columns; ++j) in.z(s, j) = in.dslots(s, j) = nan<T>;

  CAPTURE(seed);
  CAPTURE(c.items);
  CAPTURE(c.experts);
  CAPTURE(picks);
  CAPTURE(c.columns);
  const Outcome<T> one = outcome(c, in, 1, false);
  const auto& plan = one.plan;
  Index wrong = plan.items() != c.items || plan.experts() != c.experts || plan.groups().slots != picks;
  for (Index e = 0, s = 0; e < c.experts; ++e) {
    wrong += plan.offsets(e) != s;
    s += static_cast<Index>(naive.of_expert[static_cast<std::size_t>(e)].size());
    wrong += plan.offsets(e + 1) != s;
  }
  for (Index s = 0; s < picks; ++s) {
    const Index p = s < kept ? naive.slots[static_cast<std::size_t>(s)] : -1;
    wrong += s < kept ? plan.pick(s) != p || plan.rows(s) != c.item[static_cast<std::size_t>(p)] : plan.rows(s) != -1;
    wrong += plan.groups().expert(s) != (p < 0 ? Index(-1) : c.expert[static_cast<std::size_t>(p)]);
    wrong += s < kept && plan.groups().row(s) != c.item[static_cast<std::size_t>(p)];
    wrong += plan.groups().in_slot_order().row(s) != s;
  }
  std::vector<std::vector<Index>> of_item(static_cast<std::size_t>(c.items));
  for (Index s = 0; s < kept; ++s)
    of_item[static_cast<std::size_t>(c.item[static_cast<std::size_t>(naive.slots[static_cast<std::size_t>(s)])])]
        .push_back(s);
  Index at = 0;
  for (Index n = 0; n < c.items; ++n) {
    wrong += plan.item_offsets(n) != at;
    for (const Index s : of_item[static_cast<std::size_t>(n)]) wrong += plan.item_slots(at++) != s;
  }
  wrong += plan.item_offsets(c.items) != at;
  REQUIRE(wrong == 0);
  const Index first = draw.upto(c.experts - 1);  // a range of experts
  const auto part = plan.groups().experts(first, c.experts - first);
  for (Index s = 0; s < kept; ++s) {
    const Index e = plan.groups().expert(s);
    wrong += part.expert(s) != (e < first ? Index(-1) : e - first);
  }
  const Dispatched<T, B> dispatched = plan.dispatched(in.dout);
  wrong += dispatched.x.data() != in.dout.data() || dispatched.groups.rows.data() != plan.rows.data();

  const auto weight_of = [&](Index s) {
    return c.weight[static_cast<std::size_t>(naive.slots[static_cast<std::size_t>(s)])];
  };
  for (Index n = 0; n < c.items; ++n) {
    const auto& slots = of_item[static_cast<std::size_t>(n)];
    const Index terms = static_cast<Index>(slots.size());
    for (Index j = 0; j < c.columns; ++j) {
      Wide sum = 0, absolute = 0, dx = in.dx(n, j), dx_absolute = std::abs(dx);
      for (const Index s : slots) {
        const Wide product = Wide(weight_of(s)) * Wide(in.z(s, j));
        sum += product;
        absolute += std::abs(product);
        dx += Wide(in.dslots(s, j));
        dx_absolute += std::abs(Wide(in.dslots(s, j)));
      }
      wrong += !near(one.out(n, j), sum, absolute, terms);
      wrong += !near(one.dx(n, j), dx, dx_absolute, terms);
      wrong += one.stepped(n, j) != 2 * one.out(n, j) || one.one_by_one(n, j) != 2 * one.out(n, j);
    }
  }
  for (Index s = 0; s < picks; ++s) {
    const Index p = s < kept ? naive.slots[static_cast<std::size_t>(s)] : -1,
                n = p < 0 ? 0 : c.item[static_cast<std::size_t>(p)];
    Wide dot = 0, absolute = 0;
    for (Index j = 0; j < c.columns; ++j) {
      const T expected = p < 0 ? T(77) : c.weight[static_cast<std::size_t>(p)] * in.dout(n, j);  // rounded once
      wrong += one.dz(s, j) != expected;
      if (p < 0) continue;
      dot += Wide(in.dout(n, j)) * Wide(in.z(s, j));
      absolute += std::abs(Wide(in.dout(n, j)) * Wide(in.z(s, j)));
    }
    if (p >= 0) wrong += !near(one.dweight[static_cast<std::size_t>(p)], dot, absolute, c.columns);
  }
  for (std::size_t p = 0; p < c.item.size(); ++p)
    wrong += c.expert[p] < 0 && (one.dweight[p] != 0 || one.of_slots[p] != 0);
  for (Index s = 0; s < kept; ++s) {
    const auto p = static_cast<std::size_t>(naive.slots[static_cast<std::size_t>(s)]);
    wrong += one.slot_weight[static_cast<std::size_t>(s)] != c.weight[p] || one.of_slots[p] != static_cast<T>(s + 1);
  }
  CHECK(wrong == 0);

  const auto expected = one.bits().bytes;
  const int threads = 2 + static_cast<int>(draw.upto(6));
  CAPTURE(threads);
  CHECK(outcome(c, in, threads, draw.one_in(2)).bits().bytes == expected);
  if (c.each > 0) {  // both ways of building the plan
    Cpu::Context ctx(threads);
    const auto general = plan_of(ctx, c, false);
    const auto same = [](const auto& a, const auto& b) { return std::equal(a.data(), a.data() + a.size(), b.data()); };
    CHECK((same(general.offsets, plan.offsets) && same(general.pick, plan.pick) && same(general.rows, plan.rows) &&
           same(general.item_offsets, plan.item_offsets) && same(general.item_slots, plan.item_slots)));
  }
}

void check_table(std::uint64_t seed) {
  Draw draw(seed);
  const Index columns = 1 + draw.size(20);
  const test::KeyTable t = test::table(draw.size(600), columns, 1 + draw.size(300), static_cast<int>(draw.upto(2)));
  const auto expected = test::defined(t);
  for (const int threads : {1, 2 + static_cast<int>(draw.upto(6))}) {
    Cpu::Context ctx(threads, draw.one_in(2));
    test::TablePlan p(t, -7);
    const auto view = [](std::vector<Index>& v) { return View<Index, 1, B>(v); };
    B::group_table(ctx, View<const Index, 2, B>(t.keys.data(), t.rows, t.columns), view(p.offsets), view(p.order),
                   view(p.rows), view(p.row_offsets), view(p.row_slots));
    CHECK(p == expected);
  }
}

/// Drops picks as Capacity documents. First choices come first, then second choices, and so on. Within a choice, items
/// with larger `surety` come first if batch_priority is true, and otherwise earlier items.
template <class T, class S>
std::vector<Index> with_room(const Capacity<S>& policy, const std::vector<Index>& chosen, Index items, Index k,
                             Index experts, const std::vector<T>& surety, const std::vector<T>& valid) {
  std::vector<Index> expert = chosen;
  const Index size = policy.group > 0 ? policy.group : items;
  for (Index first = 0; first < items; first += size) {
    std::vector<Index> members;
    for (Index n = first; n < std::min(first + size, items); ++n)
      if (valid.empty() || valid[static_cast<std::size_t>(n)] != 0) members.push_back(n);
    Wide room = static_cast<Wide>(policy.slots);
    if (policy.slots == 0 && !members.empty()) {  // the factors are multiples of 1/2, so the numerator is exact
      room = std::min(std::ceil(Wide(members.size()) * Wide(k) * Wide(policy.factor) / Wide(experts) * (1 - 0x1p-50L)),
                      Wide(members.size()));
      while (std::fmod(room, Wide(policy.multiple_of)) != 0) room += 1;
    }
    if (policy.batch_priority)
      std::stable_sort(members.begin(), members.end(), [&](Index a, Index b) {
        return surety[static_cast<std::size_t>(a)] > surety[static_cast<std::size_t>(b)];
      });
    std::map<Index, Wide> used;
    for (Index j = 0; j < k; ++j)
      for (const Index n : members) {
        Index& e = expert[static_cast<std::size_t>(n * k + j)];
        if (e >= 0 && ++used[e] > room) e = ~e;
      }
  }
  for (Index n = 0; n < items; ++n)  // padding uses no capacity and keeps its picks
    if (!valid.empty() && valid[static_cast<std::size_t>(n)] == 0)
      for (Index j = 0; j < k; ++j)
        expert[static_cast<std::size_t>(n * k + j)] = chosen[static_cast<std::size_t>(n * k + j)];
  return expert;
}

template <class T, class S>
void check_capacity(std::uint64_t seed, const S& selection) {
  Draw draw(seed);
  const Index items = draw.size(200), experts = selection.k + draw.size(20), k = selection.k;
  Capacity<S> policy{selection};
  policy.factor =
      draw.one_in(5) ? std::numeric_limits<double>::infinity() : 0.5 * static_cast<double>(1 + draw.upto(5));
  policy.multiple_of = 1 + draw.upto(4);
  policy.slots = draw.one_in(4) ? 1 + draw.upto(6) : 0;
  policy.group = draw.one_in(2) ? 1 + draw.upto(items) : 0;
  policy.batch_priority = draw.one_in(2);
  policy = with_experts(with_model_dim(policy, 3), experts);
  const bool shows_noise = requires { selection.learned; };
  const Noise noise = shows_noise && draw.one_in(2) ? Noise{Random{Seed{seed}, 3}} : Noise{};
  auto rank = draw.matrix<T>(items, experts);
  const int skew = static_cast<int>(draw.upto(2));
  for (Index n = 0; n < items; ++n)
    for (Index e = 0; e < experts; ++e) {
      if (skew > 0) rank(n, e) -= T(skew) * T(e) / T(experts);
      if (skew == 2) rank(n, e) = std::round(rank(n, e) * 4) / 4;  // many ties
    }
  std::vector<T> valid;
  if (draw.one_in(2))
    for (Index n = 0; n < items; ++n) valid.push_back(draw.one_in(4) ? T(0) : T(1));
  Tensor<T, 2, B> q(items, experts);
  const auto x = draw.matrix<T>(items, 3);

  CAPTURE(seed);
  CAPTURE(items);
  CAPTURE(experts);
  CAPTURE(policy.group);
  CAPTURE(policy.slots);
  CAPTURE(policy.factor);
  CAPTURE(policy.batch_priority);
  std::vector<unsigned char> expected;
  for (const int threads : {1, 2 + static_cast<int>(draw.upto(6))}) {
    Cpu::Context ctx(threads, draw.one_in(2));
    B::for_rows(ctx, items, functor::Softmax<T, B>{rank, q});
    Candidates<T, B> c{x, rank, q};
    c.valid = valid;
    const auto params = init_params<T, B>(policy, ctx, Seed{1});
    policy.validate(params, items, Extra<Capacity<S>, T, B>{});
    Extra<Capacity<S>, T, B> extra{};
    if constexpr (requires { selection.learned; }) extra = noise;
    SparsePlan<T, B> plan, dense;
    Saved<Capacity<S>, T, B> saved;
    Saved<S, T, B> saved_dense;
    policy.selection.forward(ctx, params, c, dense, saved_dense, extra);
    policy.forward(ctx, params, c, plan, saved, extra);

    const std::vector<Index> chosen(dense.expert.data(), dense.expert.data() + dense.expert.size());
    std::vector<T> surety(static_cast<std::size_t>(items));
    Tensor<T, 2, B> seen(items, experts);
    copy(ctx, q, seen.view());
    if constexpr (requires { selection.learned; })
      if (const auto noisy = policy.noisy(saved); noisy.value.data())
        B::for_rows(ctx, items, functor::Softmax<T, B>{noisy.value, seen});
    for (Index n = 0; n < items; ++n) surety[static_cast<std::size_t>(n)] = seen(n, dense.expert(n * k));
    const auto kept = with_room(policy, chosen, items, k, experts, surety, valid);
    CHECK(std::equal(kept.begin(), kept.end(), plan.expert.data()));
    const NaivePlan naive(kept, experts);
    Index wrong = plan.offsets(experts) != static_cast<Index>(naive.slots.size());
    for (Index p = 0; p < plan.expert.size(); ++p) wrong += plan.weight(p) != dense.weight(p) || plan.item(p) != p / k;
    for (std::size_t s = 0; wrong == 0 && s < naive.slots.size(); ++s)
      wrong += plan.pick(static_cast<Index>(s)) != naive.slots[s];
    CHECK(wrong == 0);

    // Capacity has the same adjoint as its selection.
    auto mark = ctx.mark();
    auto dplan = plan.grad(ctx);
    for (Index p = 0; p < dplan.weight.size(); ++p) dplan.weight(p) = plan.expert(p) < 0 ? T(0) : T(p % 7) - 3;
    std::array<Tensor<T, 2, B>, 6> d;
    for (std::size_t i = 0; i < 6; ++i) {
      d[i].resize(items, i % 3 == 0 ? Index(3) : experts);
      set_zero(ctx, d[i]);
    }
    auto grads = zeros_like(ctx, params), grads_dense = zeros_like(ctx, params);
    policy.backward(ctx, params, c, plan, saved, dplan, {d[0], d[1], d[2]}, grads, extra);
    policy.selection.backward(ctx, params, c, plan, saved.selection, dplan, {d[3], d[4], d[5]}, grads_dense, extra);
    Bits bits, one, two;
    for (std::size_t i = 0; i < 3; ++i) {
      one.add(d[i]);
      two.add(d[i + 3]);
    }
    CHECK(one.bytes == two.bytes);
    bits = one;
    bits.add(plan.expert);
    bits.add(plan.weight);
    bits.add(plan.offsets);
    for_each_tensor([&](const Name&, const auto& g) { bits.add(g); }, grads);
    if (threads == 1) expected = bits.bytes;
    CHECK(bits.bytes == expected);
  }
}

template <class T>
void check_dense(std::uint64_t seed) {
  Draw draw(seed);
  const Index sequences = draw.one_in(2) ? 1 : draw.size(6), length = 1 + draw.size(40), experts = 1 + draw.size(8),
              each = 1 + draw.upto(2), columns = 1 + draw.size(40), items = sequences * length,
              slots = sequences * experts * each;
  std::vector<T> mask;
  if (draw.one_in(2))
    for (Index n = 0; n < items; ++n) mask.push_back(draw.one_in(4) ? T(0) : T(1));
  const bool own_inputs = draw.one_in(2);
  const Sequence<T, B> sequence{draw.one_in(4) && sequences == 1 ? Index(0) : length, {}};
  const auto x = draw.matrix<T>(items, columns), other = draw.matrix<T>(items, columns),
             z = draw.matrix<T>(slots, columns), dout = draw.matrix<T>(items, columns),
             dslots = draw.matrix<T>(slots, columns), dispatch = draw.matrix<T>(slots, length),
             combine = draw.matrix<T>(items, experts * each), before = draw.matrix<T>(items, columns);
  const auto is_item = [&](Index n) { return mask.empty() || mask[static_cast<std::size_t>(n)] != 0; };
  const auto row_of = [&](Index e, Index g, Index p) { return (g * experts + e) * each + p; };
  const auto slot_of = [&](Index e, Index g, Index p) { return (e * sequences + g) * each + p; };

  CAPTURE(seed);
  CAPTURE(sequences);
  CAPTURE(length);
  CAPTURE(experts);
  CAPTURE(columns);
  std::vector<unsigned char> expected;
  for (const int threads : {1, 2 + static_cast<int>(draw.upto(6))}) {
    Cpu::Context ctx(threads, draw.one_in(2));
    DensePlan<T, B> plan;
    const auto with_mask = sequence.with_valid(mask);
    with_mask.validate("test", items);
    plan.resize(ctx, items, experts, each, with_mask);
    REQUIRE(plan.items() == items);
    REQUIRE(plan.experts() == experts);
    if (items > 0) REQUIRE(plan.sequences() == sequences);
    if (items == 0) return;
    copy(ctx, dispatch, plan.dispatch_weight.view());
    copy(ctx, combine, plan.combine_weight.view());
    for (Index n = 0; n < items; ++n)  // a gate writes 0 for padding
      for (Index r = 0; !is_item(n) && r < experts * each; ++r)
        plan.combine_weight(n, r) = plan.dispatch_weight(n / length * experts * each + r, n % length) = 0;
    if (own_inputs) {
      plan.inputs.resize(items, columns);
      copy(ctx, other, plan.inputs.view());
    }
    Tensor<T, 2, B> wild(items, columns);  // padding is never read
    copy(ctx, x, wild.view());
    for (Index n = 0; n < items; ++n)
      for (Index j = 0; !is_item(n) && j < columns; ++j) wild(n, j) = nan<T>;
    auto mark = ctx.mark();
    const auto in = plan.dispatch(ctx, wild);
    Tensor<T, 2, B> out(items, columns), dz(slots, columns), dx(items, columns);
    plan.combine(ctx, z, out);
    auto d = plan.grad(ctx);
    plan.combine_backward(ctx, z, dout, dz, d);
    copy(ctx, before, dx.view());
    plan.dispatch_backward(ctx, wild, dslots, dx, d);

    const auto source = [&](Index n, Index j) {
      return own_inputs ? Wide(other(n, j)) : is_item(n) ? Wide(x(n, j)) : Wide(0);
    };
    const auto kept = [&](Index n, Index j) { return is_item(n) ? Wide(dout(n, j)) : Wide(0); };
    const auto dispatched = [&](Index row, Index n) { return Wide(plan.dispatch_weight(row, n % length)); };
    Index wrong = 0;
    const auto check = [&](T got, const auto& term, Index terms, Wide start = 0) {
      Wide sum = start, absolute = std::abs(start);
      for (Index i = 0; i < terms; ++i) {
        const Wide t = term(i);
        sum += t;
        absolute += std::abs(t);
      }
      wrong += !near(got, sum, absolute, terms);
    };
    for (Index e = 0; e < experts; ++e)
      for (Index g = 0; g < sequences; ++g)
        for (Index p = 0; p < each; ++p) {
          const Index s = slot_of(e, g, p), row = row_of(e, g, p), first = g * length, r = e * each + p;
          wrong += in.groups.row(s) != row || in.groups.expert(s) != e;
          for (Index j = 0; j < columns; ++j) {
            check(
                in.x(row, j), [&](Index i) { return dispatched(row, i) * source(first + i, j); }, length);
            check(
                dz(s, j), [&](Index i) { return Wide(plan.combine_weight(first + i, r)) * kept(first + i, j); },
                length);
          }
          for (Index i = 0; i < length; ++i) {
            check(
                d.dispatch_weight(row, i), [&](Index j) { return Wide(dslots(s, j)) * source(first + i, j); }, columns);
            check(
                d.combine_weight(first + i, r), [&](Index j) { return kept(first + i, j) * Wide(z(s, j)); }, columns);
          }
        }
    for (Index n = 0; n < items; ++n)
      for (Index j = 0; j < columns; ++j) {
        const Index g = n / length;
        const auto slot = [&](Index r) { return slot_of(r / each, g, r % each); };
        if (is_item(n)) {
          check(
              out(n, j), [&](Index r) { return Wide(plan.combine_weight(n, r)) * Wide(z(slot(r), j)); },
              experts * each);
        } else {
          wrong += out(n, j) != 0;
        }
        const auto back = [&](Index r) { return dispatched(g * experts * each + r, n) * Wide(dslots(slot(r), j)); };
        check(own_inputs ? d.inputs(n, j) : dx(n, j), back, experts * each, own_inputs ? Wide(0) : Wide(before(n, j)));
        if (own_inputs) wrong += dx(n, j) != before(n, j);
      }
    CHECK(wrong == 0);
    Bits bits;
    bits.add(in.x);
    for (const auto* t : {&out, &dz, &dx}) bits.add(*t);
    bits.add(d.dispatch_weight);
    bits.add(d.combine_weight);
    bits.add(d.inputs);
    if (threads == 1) expected = bits.bytes;
    CHECK(bits.bytes == expected);
  }
}

/// Checks that AttentionTrace::rows returns the same rows of each tensor that has one row for each item.
template <class T>
void check_trace(std::uint64_t seed) {
  Draw draw(seed);
  const Index length = 1 + draw.upto(5), sequences = 1 + draw.upto(3), heads = 1 + draw.upto(2),
              items = length * sequences, width = heads * 2, first = draw.upto(sequences - 1),
              count = 1 + draw.upto(sequences - first - 1);
  const auto q = draw.matrix<T>(items, width), k = draw.matrix<T>(items, width), v = draw.matrix<T>(items, width),
             sums = draw.matrix<T>(items, heads), output = draw.matrix<T>(width, width),
             entropy = draw.matrix<T>(items, heads);
  const std::vector<T> valid(static_cast<std::size_t>(items), T(1));
  AttentionTrace<const T, B> trace{q, k, v, sums, output, length};
  if (draw.one_in(2)) trace.valid = valid;
  if (draw.one_in(2)) trace.entropy = entropy;
  const auto part = trace.rows(first * length, count * length);
  CHECK(part.heads() == heads);
  CHECK(part.length == length);
  CHECK(part.output.data() == output.data());
  const auto begins = [&](const auto& of, const auto& whole, Index columns) {
    return of.extent(0) == count * length && of.data() == whole.data() + first * length * columns;
  };
  CHECK((begins(part.q, q, width) && begins(part.k, k, width) && begins(part.v, v, width) &&
         begins(part.log_sum_exp, sums, heads)));
  CHECK((trace.valid.data() ? begins(part.valid, valid, 1) : part.valid.empty()));
  CHECK((trace.entropy.data() ? begins(part.entropy, entropy, heads) : part.entropy.empty()));
}

void run(std::uint64_t from, std::uint64_t to, Index most_items) {
  for (std::uint64_t seed = from; seed < to; ++seed) {
    check_sparse<float>(seed, most_items);
    check_sparse<double>(seed + 1, most_items);
    check_table(seed);
    check_capacity<float>(seed, TopK{.k = 1 + static_cast<Index>(seed % 3)});
    check_capacity<double>(seed, NoisyTopK<>{.k = 1 + static_cast<Index>(seed % 2), .learned = seed % 4 < 2});
    check_dense<float>(seed);
    check_dense<double>(seed + 1);
    check_trace<double>(seed);
  }
}

/// Extra inputs that accept a trace, and their part without the trace. The test also uses it as an adjoint.
struct WithTrace {
  struct WithoutTrace {
    int own = 0;
  };
  int own = 0;
  Index heads = -1;
  static WithTrace with_trace(const WithoutTrace& rest, const AttentionTrace<const float, B>& t) {
    return {rest.own, t.heads()};
  }
  void set_trace(const AttentionTrace<const float, B>& t) { heads = t.heads(); }
};

}  // namespace

TEST_CASE("random routing: results equal loops and one thread") { run(1, 121, 120); }

TEST_CASE("random routing: large sizes, which split every loop, equal loops") {
  for (std::uint64_t seed = 5000; seed < 5004; ++seed) {
    check_sparse<float>(seed, 12000, 9000);
    check_sparse<double>(seed, 10000, 9000);
  }
}

TEST_CASE("random routing: results equal loops and one thread, 12,000 seeds" * doctest::skip()) {
  run(10000, 22000, 400);
  for (std::uint64_t seed = 6000; seed < 6400; ++seed) check_sparse<float>(seed, 20000, 9000);
}

TEST_CASE("with_trace: a trace reaches the gates that accept it") {
  const float none[4] = {};
  AttentionTrace<const float, B> trace{};
  trace.log_sum_exp = {none, Index(2), Index(2)};
  const WithTrace joined = with_trace<WithTrace>(WithTrace::WithoutTrace{7}, trace);
  CHECK((joined.own == 7 && joined.heads == 2));
  CHECK(with_trace<int>(7, trace) == 7);
  WithTrace adjoint;
  set_trace(adjoint, trace);
  CHECK(adjoint.heads == 2);
  int other = 3;
  set_trace(other, trace);
  CHECK(other == 3);
  static_assert(std::is_same_v<WithoutTrace<WithTrace>, decltype(detail_::lookup::without_trace<WithTrace>())::type>);
  static_cast<void>(detail_::lookup::without_trace<WithTrace>());
  static_cast<void>(detail_::lookup::without_trace<int>());
}

TEST_CASE("with_valid: masks reach extra inputs; wrong sequences throw") {
  const std::vector<float> mask{1, 0, 1, 1}, own{0, 1, 1, 1};
  const Sequence<float, B> sequence{2, {}}, with_own{2, own};
  CHECK(with_valid(sequence, View<const float, 1, B>(mask)).valid.data() == mask.data());
  CHECK(with_valid(with_own, View<const float, 1, B>(mask)).valid.data() == own.data());
  CHECK(with_valid(5, View<const float, 1, B>(mask)) == 5);
  with_own.validate("f", 4);
  CHECK_THROWS_WITH_AS(with_own.validate("f", 5),
                       "f: sequence.length: expected a divisor of the number of items 5, got 2", ArgumentError);
  CHECK_THROWS_WITH_AS(with_own.validate("f", 6), "f: sequence.valid: expected [6], got [4]", ArgumentError);
  CHECK_THROWS_WITH_AS((Sequence<float, B>{-1, {}}.validate("f", 5)), "f: sequence.length: expected at least 0, got -1",
                       ArgumentError);
}

TEST_CASE("routing: impossible plans and capacities are refused") {
  Cpu::Context ctx(1);
  SparsePlan<float, B> plan;
  CHECK_THROWS_AS(plan.resize(-1, 1, 1), ArgumentError);
  CHECK_THROWS_AS(plan.resize(1, -1, 1), ArgumentError);
  CHECK_THROWS_AS(plan.resize(1, 1, -1), ArgumentError);
  plan.resize(2, 2, 3);  // two items cannot have the same number of picks if there are three
  CHECK_THROWS_AS(plan.build_complete(ctx), ArgumentError);
  for (const auto& [item, expert] : {std::pair<Index, Index>{-1, 0}, {2, 0}, {0, 2}}) {
    plan.resize(2, 2, 1);
    plan.item(0) = item, plan.expert(0) = expert;
    CHECK_THROWS_AS(plan.build(ctx), ArgumentError);
  }
  plan.resize(1, 2, 1);
  plan.item(0) = 0, plan.expert(0) = -1;
  CHECK_THROWS_AS(plan.build_complete(ctx), ArgumentError);
  for (auto wrong :
       {Capacity<>{.factor = 0}, {.multiple_of = 0}, {.slots = -1}, {.group = -1}, {.selection = {.k = 3}}})
    CHECK_THROWS_AS(wrong.validate_options(2), ArgumentError);
  Capacity<> policy{.factor = 1.25, .multiple_of = 8};
  CHECK(policy.room(100, 2, 10) == 32);  // 25, rounded up to a multiple of 8
}
