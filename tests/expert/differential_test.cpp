// Compares experts on random routings with plain loops in double. Also checks that forward, infer, infer with packed
// weights, and backward give the same bits on any number of threads.

#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/expert/gated_mlp.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/layer/frozen.hpp"
#include "gatefold/tensor/pack.hpp"
#include "support/engine_cases.hpp"

using namespace gatefold;
using namespace gatefold::engine_cases;

namespace {

#if defined(__OPTIMIZE__)
constexpr std::uint64_t cases = 250;
#else
constexpr std::uint64_t cases = 8;
#endif

double gelu(double v) { return v * 0.5 * std::erfc(-v / std::sqrt(2.0)); }
double gelu_slope(double v) {
  return 0.5 * std::erfc(-v / std::sqrt(2.0)) + v * std::exp(-v * v / 2) / std::sqrt(2 * std::acos(-1.0));
}
double silu(double v) { return v / (1 + std::exp(-v)); }
double silu_slope(double v) {
  const double s = 1 / (1 + std::exp(-v));
  return s * (1 + v * (1 - s));
}

template <class T>
double at(const Tensor<T, 3, Cpu>& t, Index e, Index i, Index j) {
  return double(t(e, i, j));
}
template <class T>
Bounded times(Bounded a, Bounded b) {
  return {a.value * b.value, std::abs(a.value) * b.error + a.error * std::abs(b.value) + a.error * b.error +
                                 4 * unit_roundoff<T> * std::abs(a.value * b.value)};
}

/// The exact results for one slot, each with the error that a result in T may have.
template <class T>
struct Slot {
  std::vector<Bounded> hidden, z, dslot;
  std::vector<std::vector<Bounded>> dpre;  // gradients of the pre-activations, one for each matrix that multiplies x
};

template <class T>
std::vector<Bounded> product(const std::vector<Bounded>& x, const Tensor<T, 3, Cpu>& w, Index e, bool transposed,
                             const T* bias = nullptr) {
  std::vector<Bounded> y;
  for (Index j = 0; j < w.extent(transposed ? 1 : 2); ++j) {
    BoundedSum<T> sum;
    for (std::size_t k = 0; k < x.size(); ++k)
      sum.add(x[k], {transposed ? at(w, e, j, Index(k)) : at(w, e, Index(k), j), 0});
    if (bias) sum.add(double(bias[j]), 1);
    y.push_back(sum.result());
  }
  return y;
}

template <class T>
Slot<T> loops(const Mlp<Gelu>&, const Params<Mlp<Gelu>, T, Cpu>& p, Index e, const std::vector<Bounded>& x,
              const std::vector<Bounded>& dz) {
  const auto pre = product(x, p.up, e, false, &p.up_bias(e, 0));
  const auto dhidden = product(dz, p.down, e, true);
  Slot<T> s;
  s.dpre.resize(1);
  for (std::size_t j = 0; j < pre.size(); ++j) {
    s.hidden.push_back(apply<T>(gelu(pre[j].value), pre[j]));
    s.dpre[0].push_back(times<T>(dhidden[j], apply<T>(gelu_slope(pre[j].value), pre[j])));
  }
  s.z = product(s.hidden, p.down, e, false, &p.down_bias(e, 0));
  s.dslot = product(s.dpre[0], p.up, e, true);
  return s;
}
template <class T>
Slot<T> loops(const GatedMlp<Silu>&, const Params<GatedMlp<Silu>, T, Cpu>& p, Index e, const std::vector<Bounded>& x,
              const std::vector<Bounded>& dz) {
  const auto gate = product(x, p.gate, e, false), up = product(x, p.up, e, false),
             dhidden = product(dz, p.down, e, true);
  Slot<T> s;
  s.dpre.resize(2);
  for (std::size_t j = 0; j < gate.size(); ++j) {
    const Bounded active = apply<T>(silu(gate[j].value), gate[j]), slope = apply<T>(silu_slope(gate[j].value), gate[j]);
    s.hidden.push_back(times<T>(active, up[j]));
    s.dpre[0].push_back(times<T>(times<T>(dhidden[j], up[j]), slope));
    s.dpre[1].push_back(times<T>(dhidden[j], active));
  }
  s.z = product(s.hidden, p.down, e, false);
  s.dslot = product(s.dpre[0], p.gate, e, true);
  const auto from_up = product(s.dpre[1], p.up, e, true);
  for (std::size_t d = 0; d < s.dslot.size(); ++d) {
    const Bounded a = s.dslot[d], b = from_up[d];
    s.dslot[d] = {a.value + b.value,
                  a.error + b.error + 2 * unit_roundoff<T> * (std::abs(a.value) + std::abs(b.value))};
  }
  return s;
}
template <class T>
Slot<T> loops(const Linear&, const Params<Linear, T, Cpu>& p, Index e, const std::vector<Bounded>& x,
              const std::vector<Bounded>& dz) {
  return {{},
          product(x, p.weight, e, false, p.bias.extent(1) > 0 ? &p.bias(e, 0) : nullptr),
          product(dz, p.weight, e, true),
          {dz}};
}

/// Checks 40 random entries of the weight gradient of expert e, Σ_s a_s b_sᵀ over its slots, and returns how many are
/// wrong.
template <class T, class Row>
Index wrong_entries(Choice& choose, const Tensor<T, 3, Cpu>& dw, Index e, const std::vector<std::vector<Bounded>>& a,
                    Row&& b) {
  Index wrong = 0;
  for (int n = 0; n < 40; ++n) {
    const Index i = choose.below(dw.extent(1)), j = choose.below(dw.extent(2));
    BoundedSum<T> sum;
    sum.add(1, 1);  // every gradient begins as 1
    for (std::size_t s = 0; s < a.size(); ++s) sum.add(a[s][std::size_t(i)], b(s)[std::size_t(j)]);
    wrong += !within(dw(e, i, j), sum.result());
  }
  return wrong;
}
template <class T, class Row>
Index wrong_sums(const Tensor<T, 2, Cpu>& db, Index e, std::size_t count, Row&& b) {
  Index wrong = 0;
  for (Index j = 0; j < db.extent(1); ++j) {
    BoundedSum<T> sum;
    sum.add(1, 1);
    for (std::size_t s = 0; s < count; ++s) sum.add(b(s)[std::size_t(j)], {1, 0});
    wrong += !within(db(e, j), sum.result());
  }
  return wrong;
}

template <class T>
Index wrong_gradients(Choice& c, const Params<Mlp<Gelu>, T, Cpu>& g, Index e,
                      const std::vector<std::vector<Bounded>>& x, const std::vector<std::vector<Bounded>>& dz,
                      const std::vector<Slot<T>>& slots) {
  std::vector<std::vector<Bounded>> hidden;
  for (const Slot<T>& s : slots) hidden.push_back(s.hidden);
  const auto of_z = [&](std::size_t s) -> const auto& { return dz[s]; };
  const auto of_pre = [&](std::size_t s) -> const auto& { return slots[s].dpre[0]; };
  return wrong_entries(c, g.down, e, hidden, of_z) + wrong_entries(c, g.up, e, x, of_pre) +
         wrong_sums(g.down_bias, e, slots.size(), of_z) + wrong_sums(g.up_bias, e, slots.size(), of_pre);
}
template <class T>
Index wrong_gradients(Choice& c, const Params<GatedMlp<Silu>, T, Cpu>& g, Index e,
                      const std::vector<std::vector<Bounded>>& x, const std::vector<std::vector<Bounded>>& dz,
                      const std::vector<Slot<T>>& slots) {
  std::vector<std::vector<Bounded>> hidden;
  for (const Slot<T>& s : slots) hidden.push_back(s.hidden);
  return wrong_entries(
             c, g.down, e, hidden, [&](std::size_t s) -> const auto& { return dz[s]; }) +
         wrong_entries(
             c, g.gate, e, x, [&](std::size_t s) -> const auto& { return slots[s].dpre[0]; }) +
         wrong_entries(
             c, g.up, e, x, [&](std::size_t s) -> const auto& { return slots[s].dpre[1]; });
}
template <class T>
Index wrong_gradients(Choice& c, const Params<Linear, T, Cpu>& g, Index e, const std::vector<std::vector<Bounded>>& x,
                      const std::vector<std::vector<Bounded>>& dz, const std::vector<Slot<T>>& slots) {
  const auto of_z = [&](std::size_t s) -> const auto& { return dz[s]; };
  return wrong_entries(c, g.weight, e, x, of_z) +
         (g.bias.extent(1) > 0 ? wrong_sums(g.bias, e, slots.size(), of_z) : 0);
}

template <class T>
bool same_pack(const auto& a, const auto& b) {
  bool same = true;
  for_each_tensor([&](const Name&, const auto& s, const auto& t) { same = same && same_bits(s, t); }, a, b);
  return same;
}

template <class T, class E>
struct Result {
  Tensor<T, 2, Cpu> z, inferred, frozen, dslots;
  Params<E, T, Cpu> grads;
};

template <class T, class E>
void check(std::uint64_t seed, E expert, const Slots& slots, Choice& choose) {
  CAPTURE(seed);
  const Index S = slots.count(), all = S + slots.spare, items = slots.items;
  Cpu::Context one(1);
  auto params = expert.template init<T, Cpu>(one, slots.experts(), Seed{seed});
  for_each_tensor(
      [&](const Name&, auto& t) {
        const auto n = choose.template numbers<T>(t.size());
        std::copy(n.begin(), n.end(), t.data());
      },
      params);
  const auto x = choose.numbers<T>(items * expert.in_dim()), dz = choose.numbers<T>(all * expert.out_dim());
  const View<const T, 2, Cpu> of_items(x.data(), items, expert.in_dim()), of_z(dz.data(), all, expert.out_dim());
  cpu::PackedWeights packed;
  for_each_tensor(
      [&](const Name&, const auto& t) {
        if constexpr (std::remove_cvref_t<decltype(t)>::rank == 3) Cpu::pack(one, t.view(), Weights::unchanged, packed);
      },
      std::as_const(params));

  const auto run = [&](int threads) {
    Cpu::Context ctx(threads);
    Result<T, E> r{Tensor<T, 2, Cpu>(all, expert.out_dim()), Tensor<T, 2, Cpu>(all, expert.out_dim()),
                   Tensor<T, 2, Cpu>(all, expert.out_dim()), Tensor<T, 2, Cpu>(all, expert.in_dim()),
                   zeros_like(ctx, params)};
    for_each_tensor([&](const Name&, auto& t) { std::fill_n(t.data(), t.size(), T(1)); }, r.grads);
    Saved<E, T, Cpu> saved;
    expert.forward(ctx, params, slots.groups(), of_items, r.z.view(), saved);
    const auto infer = [&](Tensor<T, 2, Cpu>& z) {
      if constexpr (requires { expert.infer(ctx, params, slots.groups(), of_items, z.view()); }) {
        expert.infer(ctx, params, slots.groups(), of_items, z.view());
      } else {
        expert.forward(ctx, params, slots.groups(), of_items, z.view(), saved);
      }
    };
    infer(r.inferred);
    {
      const auto scope = ctx.use(packed);
      infer(r.frozen);
    }
    expert.backward(ctx, params, slots.groups(), of_items, saved, of_z, r.dslots.view(), r.grads);
    return r;
  };
  const auto first = run(1);
  for (const int threads : {2, static_cast<int>(choose.from(3, 8))}) {
    CAPTURE(threads);
    const auto r = run(threads);
    CHECK(same_bits(r.z.data(), first.z.data(), S * expert.out_dim()));
    CHECK(same_bits(r.inferred.data(), first.z.data(), S * expert.out_dim()));
    CHECK(same_bits(r.frozen.data(), first.z.data(), S * expert.out_dim()));
    CHECK(same_bits(r.dslots.data(), first.dslots.data(), S * expert.in_dim()));
    CHECK(same_pack<T>(r.grads, first.grads));
  }

  const auto row = [](const View<const T, 2, Cpu>& m, Index r) {
    std::vector<Bounded> values;
    for (Index d = 0; d < m.extent(1); ++d) values.push_back({double(m(r, d)), 0});
    return values;
  };
  const auto slot = [&](Index e, Index s) {
    return loops<T>(expert, params, e, row(of_items, slots.rows[std::size_t(s)]), row(of_z, s));
  };
  Index fewest = S + 1, smallest = -1;
  for (Index e = 0; e < slots.experts(); ++e) {
    const Index begin = slots.offsets[std::size_t(e)], count = slots.rows_of(e);
    if (count > 0 && count < fewest) {
      fewest = count;
      smallest = e;
    }
    if (count == 0 && expert.in_dim() > 0) continue;
    const Index s = begin + choose.below(count);
    const Slot<T> expected = slot(e, s);
    Index wrong = 0;
    for (std::size_t j = 0; j < expected.z.size(); ++j) wrong += !within(first.z(s, Index(j)), expected.z[j]);
    for (std::size_t j = 0; j < expected.dslot.size(); ++j)
      wrong += !within(first.dslots(s, Index(j)), expected.dslot[j]);
    CHECK(wrong == 0);
  }
  if (smallest < 0 || fewest > 40) return;
  std::vector<std::vector<Bounded>> of_x, of_dz;
  std::vector<Slot<T>> of_slots;
  for (Index s = slots.offsets[std::size_t(smallest)]; s < slots.offsets[std::size_t(smallest) + 1]; ++s) {
    of_x.push_back(row(of_items, slots.rows[std::size_t(s)]));
    of_dz.push_back(row(of_z, s));
    of_slots.push_back(slot(smallest, s));
  }
  CHECK(wrong_gradients<T>(choose, first.grads, smallest, of_x, of_dz, of_slots) == 0);
}

template <class T>
void check_case(std::uint64_t seed) {
  Choice choose(seed);
  const Slots slots(choose, choose.one_in(4) ? 400 : 60);
  const Index most = slots.experts() > 9 ? 100 : choose.one_in(4) ? 280 : 140;
  const Index model = choose.one_in(4) ? 128 : choose.from(1, most),
              hidden = choose.one_in(4) ? 128 : choose.from(1, most);
  switch (choose.below(3)) {
    case 0:
      return check<T>(seed, Mlp<Gelu>{.model_dim = model, .hidden_dim = hidden}, slots, choose);
    case 1:
      return check<T>(seed, GatedMlp<Silu>{.model_dim = model, .hidden_dim = hidden}, slots, choose);
    default:
      return check<T>(seed, Linear{.model_dim = model, .output_dim = hidden}, slots, choose);
  }
}

}  // namespace

TEST_CASE_TEMPLATE("experts: random routings equal loops on any number of threads", T, float, double) {
  for (std::uint64_t seed = 1; seed <= cases; ++seed) check_case<T>(seed);
}

TEST_CASE("experts: routings equal loops for GATEFOLD_DIFFERENTIAL_SECONDS" * doctest::skip()) {
  const char* text = std::getenv("GATEFOLD_DIFFERENTIAL_SECONDS");
  const double seconds = text ? std::atof(text) : 60;
  const auto begin = std::chrono::steady_clock::now();
  for (std::uint64_t seed = 1'000'000;
       std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < seconds; ++seed) {
    check_case<float>(seed);
    check_case<double>(seed);
  }
}
