#pragma once

#include <cmath>
#include <vector>

#include "gatefold/backend/groups.hpp"
#include "support/pass.hpp"

namespace gatefold::support {

/// An activation as a user would write it. It computes single numbers (`scalar_only`), because there is no vector tanh.
struct Tanh {
  static constexpr bool scalar_only = true;
  template <class V>
  static V value(V v) {
    return std::tanh(v);
  }
  template <class V>
  static V slope(V v) {
    return 1 - std::tanh(v) * std::tanh(v);
  }
};

/// A bank of experts with any number of slots per expert, without a gate: inputs, outputs and gradients of forward and
/// backward.
template <class T, class E>
struct Bank {
  Cpu::Context& ctx;
  E expert;
  std::vector<Index> offsets{0}, rows;
  Params<E, T, Cpu> params, grads;
  Saved<E, T, Cpu> saved;
  Tensor<T, 2, Cpu> x, z, dz, dslots;
  static constexpr double sentinel = 777;

  /// @param counts  number of slots of each expert
  /// @param spare  number of slots after those of the last expert, which experts must not touch
  Bank(Cpu::Context& context, const E& e, const std::vector<Index>& counts, Index items, Index spare = 0)
      : ctx(context),
        expert(e),
        params(expert.template init<T, Cpu>(ctx, static_cast<Index>(counts.size()), Seed{1})),
        grads(zeros_like(ctx, params)) {
    for (const Index count : counts) offsets.push_back(offsets.back() + count);
    const Index slots = offsets.back() + spare;
    for (Index s = 0; s < slots; ++s) rows.push_back(s < offsets.back() ? (7 * s + 3) % items : -1);
    x = uniform_tensor<T>(ctx, Seed{2}, 1, items, expert.in_dim());
    z = constant_tensor<T>(ctx, sentinel, slots, expert.out_dim());
    dz = uniform_tensor<T>(ctx, Seed{3}, 1, slots, expert.out_dim());
    dslots = constant_tensor<T>(ctx, sentinel, slots, expert.in_dim());
  }
  Index used() const { return offsets.back(); }
  Groups<Cpu> groups() const { return {offsets, rows, static_cast<Index>(rows.size())}; }
  void forward() { expert.forward(ctx, params, groups(), x, z, saved); }
  void backward() { expert.backward(ctx, params, groups(), x, saved, dz, dslots, grads); }

  /// Returns the expected rows of z: for every used slot in order, the row that f(expert, item) returns.
  template <class F>
  std::vector<double> expected(F&& f) const {
    std::vector<double> all;
    for (Index e = 0; e + 1 < static_cast<Index>(offsets.size()); ++e)
      for (Index s = offsets[std::size_t(e)]; s < offsets[std::size_t(e) + 1]; ++s) {
        std::vector<double> item;
        for (Index d = 0; d < x.extent(1); ++d) item.push_back(double(x(rows[std::size_t(s)], d)));
        const std::vector<double> row = f(e, item);
        all.insert(all.end(), row.begin(), row.end());
      }
    return all;
  }
  /// Returns the used rows of a tensor in slot order.
  std::vector<double> of_slots(const Tensor<T, 2, Cpu>& t) const {
    auto all = values(t);
    all.resize(static_cast<std::size_t>(used() * t.extent(1)));
    return all;
  }
  /// Returns true if the rows after the last slot still hold the sentinel.
  bool spare_untouched(const Tensor<T, 2, Cpu>& t) const {
    for (Index i = used() * t.extent(1); i < t.size(); ++i)
      if (t.data()[i] != T(sentinel)) return false;
    return true;
  }
  void poison(Tensor<T, 2, Cpu>& t) {
    for (Index i = used() * t.extent(1); i < t.size(); ++i) t.data()[i] = T(quiet_nan);
  }
};

/// Returns numbers of slots per expert that every expert must support: some experts without slots, all slots on one
/// expert, a single slot, no slots, and many experts with few items (CUTLASS #2547, DeepGEMM #20).
inline std::vector<std::vector<Index>> uneven_counts() {
  std::vector<Index> many(257, 0);
  for (const std::size_t e : {0, 1, 100, 255, 256}) many[e] = static_cast<Index>(1 + e % 3);
  return {{3, 0, 5, 1}, {0, 0, 40, 0}, {0, 1, 0}, {0, 0, 0}, {9}, many};
}

/// Checks that an expert ignores spare slots, adds to its gradients, and handles gradients whose zeros are not written
/// yet. Returns a sentence for each failure.
/// @param poison_saved  called as poison_saved(bank); overwrites the saved values of the spare slots with NaN
template <class T, class E, class F>
std::vector<std::string> broken_promises(const E& expert, F&& poison_saved) {
  std::vector<std::string> broken;
  Cpu::Context ctx(1);
  const std::vector<Index> counts{2, 0, 3};
  Bank<T, E> clean(ctx, expert, counts, 6), poisoned(ctx, expert, counts, 6, 4);
  clean.forward();
  poisoned.poison(poisoned.dz);
  {
    auto mark = ctx.mark();  // writes NaN to memory that scratch will use again
    fill(ctx, ctx.scratch<T>(1 << 14), T(quiet_nan));
  }
  poisoned.forward();
  if (!same_bits(clean.of_slots(clean.z), poisoned.of_slots(poisoned.z))) broken.push_back("forward: spare slots leak");
  if (!poisoned.spare_untouched(poisoned.z)) broken.push_back("forward: writes spare slots");
  poison_saved(poisoned);
  clean.backward();
  poisoned.backward();
  if (!same_bits(values(clean.grads), values(poisoned.grads)))
    broken.push_back("backward: spare slots leak into gradients");
  if (!same_bits(clean.of_slots(clean.dslots), poisoned.of_slots(poisoned.dslots)))
    broken.push_back("backward: spare slots leak");
  if (!poisoned.spare_untouched(poisoned.dslots)) broken.push_back("backward: writes spare slots");
  const auto once = values(clean.grads);
  if constexpr (detail_::hook::any::items_adjoint_is_optional<E>()) {
    auto grads = zeros_like(ctx, clean.params);
    clean.expert.backward(ctx, clean.params, clean.groups(), clean.x, clean.saved, clean.dz, {}, grads);
    if (!same_bits(values(grads), once)) broken.push_back("backward: without dslots the gradients are others");
  }
  {
    auto grads = zeros_like(ctx, clean.params);
    for_each_tensor([&](const Name&, auto& t) { fill(ctx, t.view(), T(quiet_nan)); }, grads);
    set_zero_later(ctx, grads);
    clean.expert.backward(ctx, clean.params, clean.groups(), clean.x, clean.saved, clean.dz, clean.dslots, grads);
    write_zeros(grads);
    if (!same_bits(values(grads), once))
      broken.push_back("backward: where zeros are deferred the gradients are others");
  }
  clean.backward();
  auto twice = values(clean.grads);
  for (double& v : twice) v /= 2;
  if (difference(twice, once) > (sizeof(T) == 4 ? 1e-6 : 1e-14))
    broken.push_back("backward does not add to its gradients");
  // The second expert has no slots, so the gradients of its parameters are 0.
  for_each_tensor(
      [&](const Name& name, const auto& t) {
        const Index part = t.size() / 3;
        for (Index i = part; i < 2 * part; ++i)
          if (t.data()[i] != 0) {
            broken.push_back("an expert without items has a gradient: " + name.str());
            break;
          }
      },
      clean.grads);
  return broken;
}

}  // namespace gatefold::support
