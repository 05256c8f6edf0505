#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "descriptors/extras.hpp"
#include "gatefold/gatefold.hpp"

/// Checks which results must have the same bits: on 1, 2, 3 and 8 threads, alone and in any batch, in `infer` and in
/// `forward`. Each test of this folder runs a table of policies through these checks.
namespace gatefold::bitwise {

// Sizes of the small models: rows end inside a register in float and double, and some experts have few rows, some many.
inline constexpr Index dim = 37, experts = 5, few = 23;
inline constexpr Index many = 4096;  // also whole sequences of 16

using Inputs = rows::ExtraOptions;

/// The named numbers of one run.
struct Part {
  std::string name;
  std::vector<double> values;  // floats are converted to double, which is exact
};
struct AddPart {
  std::vector<Part>& parts;
  std::string name;
  void operator()(const Name& inner, const auto& t) const {
    parts.push_back({name + " " + inner.str(), {}});
    if (!t.is_skipped()) parts.back().values.assign(t.data(), t.data() + t.size());
  }
};
/// The results of one run: y, dx, the carry and its adjoint by item; gradients and routing for all items.
struct Outcome {
  std::vector<Part> of_items, of_all;
};

/// Returns where numbers first differ, "" if nowhere. NaN and infinity count as differences, because they would hide
/// others.
inline std::string difference(const std::string& name, const double* a, const double* b, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i)
    if (!std::isfinite(a[i]) || std::memcmp(a + i, b + i, sizeof(double)) != 0)
      return (std::ostringstream() << name << "[" << i << "] is " << a[i] << ", other by " << b[i] - a[i]).str();
  return "";
}
inline std::string difference(const std::vector<Part>& a, const std::vector<Part>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].values.size() != b[i].values.size()) return a[i].name + " has another size";
    const std::string text = difference(a[i].name, a[i].values.data(), b[i].values.data(), a[i].values.size());
    if (!text.empty()) return text;
  }
  return "";
}
inline std::string difference(const Outcome& a, const Outcome& b) {
  const std::string text = difference(a.of_items, b.of_items);
  return text.empty() ? difference(a.of_all, b.of_all) : text;
}
/// Returns where items [first, first + count) of `whole`, which has `items` items, first differ from `part`, which ran
/// without the other items.
inline std::string difference(const std::vector<Part>& whole, Index items, Index first, const std::vector<Part>& part,
                              Index count) {
  for (std::size_t i = 0; i < part.size(); ++i) {
    const std::size_t width = whole[i].values.size() / static_cast<std::size_t>(items),
                      size = width * static_cast<std::size_t>(count);
    if (part[i].values.size() != size) return part[i].name + " has another width";
    const std::string text = difference(part[i].name, whole[i].values.data() + width * static_cast<std::size_t>(first),
                                        part[i].values.data(), size);
    if (!text.empty()) return text;
  }
  return "";
}

/// A layer (or branch, or expert) with parameters and items.
template <class T, class L, class B = Cpu>
class Subject {
 public:
  Subject(const L& part, Index items, const Inputs& inputs = {})
      : layer_(as_layer<T, B>(part)), items_(items), inputs_(inputs), extras_(items, layer_.in_dim()) {
    typename B::Context ctx(1);
    params_ = init_params<T, B>(layer_, ctx, Seed{1});
    x_ = uniform_tensor<T>(ctx, Seed{2}, 1, items, layer_.in_dim());
    dy_ = uniform_tensor<T>(ctx, Seed{3}, 1, items, layer_.out_dim());
  }

  /// Runs forward and backward of items [first, first + count).
  /// @param skipped  for each tensor, whether its gradient is left out of backward and outcome; empty: none is left out
  Outcome trained(typename B::Context& ctx, Index first, Index count, const std::vector<bool>& skipped = {}) const {
    const auto x = x_.view().rows(first, count), dy = dy_.view().rows(first, count);
    Tensor<T, 2, B> y(count, layer_.out_dim()), dx(count, layer_.in_dim());
    set_zero(ctx, dx);
    auto grads = zeros_like(ctx, params_);
    if (!skipped.empty()) {
      detail_::gradient_memory::shape(grads, params_, uses_of_all(), skipped);
      set_zero(ctx, grads);
    }
    if (ctx.threads() > 1) {  // zeros that are written later must give the same bits
      for_each_tensor(
          [&](const Name&, auto& t) {
            if (!t.is_skipped()) fill(ctx, t.view(), std::numeric_limits<T>::quiet_NaN());
          },
          grads);
      set_zero_later(ctx, grads);
    }
    Carry<Layer, T, B> carry, dcarry;
    Saved<Layer, T, B> saved;
    layer_.begin(ctx, params_, count, carry);
    layer_.forward(ctx, params_, x, carry, y, saved, extra(first, count));
    Outcome o{items(y, carry), {}};
    for_each_mixture(saved, [&](const auto& mixture) { add_routing(o.of_all, mixture); });

    layer_.begin(ctx, params_, count, dcarry);
    for_each_tensor([&](const Name&, auto& d) { randomise(d, first, count); }, dcarry);
    gatefold::backward(layer_, ctx, params_, x, saved, dy, dcarry, dx, grads, extra(first, count));
    write_zeros(grads);
    add(o.of_items, "dx", dx);
    add(o.of_items, "dcarry", dcarry);
    add(o.of_all, "grads", grads);
    return o;
  }
  /// Returns the number of tensors of the parameters.
  std::size_t tensors() const { return count_tensors(params_); }
  /// Returns for each tensor of the parameters which code reads its gradient. Assumes that backward can skip every one.
  detail_::gradient_memory::Uses uses_of_all() const {
    return detail_::gradient_memory::uses<typename B::Context>(params_);
  }
  /// Returns y and carry of `infer`.
  std::vector<Part> inferred(typename B::Context& ctx, Index first, Index count) const {
    Tensor<T, 2, B> y(count, layer_.out_dim());
    Carry<Layer, T, B> carry;
    layer_.begin(ctx, params_, count, carry);
    infer<T, B>(layer_, ctx, params_, x_.view().rows(first, count), carry, y, extra(first, count));
    return items(y, carry);
  }

 private:
  using Layer = AsLayer<L, T, B>;
  using ExtraT = Extra<Layer, T, B>;

  ExtraT extra(Index first, Index count) const { return extras_.template of<ExtraT>(inputs_, first, count); }
  template <class P>
  static void add(std::vector<Part>& parts, const std::string& name, const P& pack) {
    for_each_tensor(AddPart{parts, name}, pack);
  }
  template <class C>
  static std::vector<Part> items(const Tensor<T, 2, B>& y, const C& carry) {
    std::vector<Part> parts;
    add(parts, "y", y);
    add(parts, "carry", carry);
    return parts;
  }
  template <class M>
  static void add_routing(std::vector<Part>& parts, const M& mixture) {
    const auto& plan = mixture.plan;
    add(parts, "plan.offsets", plan.offsets);
    if constexpr (requires { plan.pick; }) {
      add(parts, "plan.item", plan.item);
      add(parts, "plan.expert", plan.expert);
      add(parts, "plan.weight", plan.weight);
      add(parts, "plan.rows", plan.rows);
      add(parts, "plan.item_offsets", plan.item_offsets);
    } else {
      add(parts, "plan.dispatch_weight", plan.dispatch_weight);
      add(parts, "plan.combine_weight", plan.combine_weight);
    }
    if constexpr (requires { mixture.gate.probabilities; }) {
      add(parts, "gate.logits", mixture.gate.logits);
      add(parts, "gate.probabilities", mixture.gate.probabilities);
      add(parts, "gate.auxiliary", mixture.gate.auxiliary);
    }
  }
  /// Gives every item its own random numbers, whatever the batch.
  template <int Rank>
  void randomise(Tensor<T, Rank, B>& d, Index first, Index count) const {
    if (count == 0) return;
    typename B::Context ctx(1);
    const Index width = d.size() / count;
    const auto whole = uniform_tensor<T>(ctx, Seed{4}, 1, items_, width);
    copy(ctx, whole.view().rows(first, count).as(d.size()), d.view().as(d.size()));
  }
  template <class Other>
  void randomise(Other&, Index, Index) const {}

  Layer layer_;
  Index items_;
  Inputs inputs_;
  Params<Layer, T, B> params_;
  Tensor<T, 2, B> x_, dy_;
  rows::Extras<T, B> extras_;
};

/// Checks that forward, backward and infer give the bits of one thread on 1, 2, 3 and 8 threads. Long loops are divided
/// among threads; with `eager`, all loops are.
template <class T, class B = Cpu, class L>
void on_any_threads(const L& part, Index items, bool eager, const Inputs& inputs = {}) {
  const Subject<T, L, B> subject(part, items, inputs);
  typename B::Context one(1);
  const Outcome expected = subject.trained(one, 0, items);
  for (const int threads : {1, 2, 3, 8}) {
    CAPTURE(threads);
    typename B::Context ctx(threads, eager);
    CHECK(difference(expected, subject.trained(ctx, 0, items)) == "");
    CHECK(difference(expected.of_items, items, 0, subject.inferred(ctx, 0, items), items) == "");
    CHECK(difference(expected.of_items, items, 0, subject.inferred(ctx, 0, items), items) == "");
  }
}

/// Runs backward without any gradients of parameters, then without the gradients of every second tensor. Adjoints
/// and the other gradients must have the bits of a full backward pass, and the skipped gradients must have no memory.
template <class T, class B = Cpu, class L>
void without_gradients(const L& part, Index items, const Inputs& inputs = {}) {
  const Subject<T, L, B> subject(part, items, inputs);
  typename B::Context ctx(1);
  const Outcome all = subject.trained(ctx, 0, items);
  const std::size_t tensors = subject.tensors();
  const auto uses = subject.uses_of_all().of_tensors;
  for (const auto& use : uses) CHECK(use.optional);
  for (const int half : {-1, 0, 1}) {
    CAPTURE(half);
    std::vector<bool> skipped(tensors);
    for (std::size_t i = 0; i < tensors; ++i) skipped[i] = half < 0 || static_cast<int>(i % 2) == half;
    const Outcome some = subject.trained(ctx, 0, items, skipped);
    CHECK(difference(all.of_items, some.of_items) == "");
    REQUIRE(some.of_all.size() == all.of_all.size());
    const std::size_t grads = some.of_all.size() - tensors;
    for (std::size_t i = 0; i < some.of_all.size(); ++i) {
      CAPTURE(all.of_all[i].name);
      if (i >= grads && (skipped[i - grads] || !(uses[i - grads].learned || uses[i - grads].adapts)))
        CHECK(some.of_all[i].values.empty());
      else
        CHECK(difference({all.of_all[i]}, {some.of_all[i]}) == "");
    }
  }
}

/// Checks that y, carry, dx and dcarry have the same bits for one unit of items, for seven units and for the whole
/// batch. A unit is `unit` items (1, or the length of a sequence).
/// @param firsts  numbers of the units at which the parts of one and of seven units begin
template <class T, class B = Cpu, class L>
void in_any_batch(const L& part, const Inputs& inputs = {}, Index unit = 1,
                  std::initializer_list<Index> firsts = {0, 5, 100}, Index items = many) {
  Inputs without = inputs;
  without.auxiliary = false;  // an auxiliary loss depends on the batch
  const Subject<T, L, B> subject(part, items, without);
  typename B::Context ctx(3), other(1);
  const Outcome whole = subject.trained(ctx, 0, items);
  for (const Index count : {unit, 7 * unit})
    for (Index first : firsts) {
      first *= unit;
      CAPTURE(count);
      CAPTURE(first);
      CHECK(difference(whole.of_items, items, first, subject.trained(other, first, count).of_items, count) == "");
      CHECK(difference(whole.of_items, items, first, subject.inferred(ctx, first, count), count) == "");
    }
  CHECK(difference(whole.of_items, items, 0, subject.inferred(ctx, 0, items), items) == "");
}

/// For causal layers: checks that y and carry of the first items do not depend on the later ones.
template <class T, class L>
void without_later_items(const L& part, const Inputs& inputs = {}) {
  const Index items = 300;
  const Subject<T, L> subject(part, items, inputs);
  Cpu::Context ctx(2);
  const auto whole = subject.inferred(ctx, 0, items);
  for (const Index count : {1, 7, 64, 100, 257}) {
    CAPTURE(count);
    CHECK(difference(whole, items, 0, subject.inferred(ctx, 0, count), count) == "");
  }
}

/// Returns a mixture of small linear experts behind a gate, with a carry.
template <class G>
auto layer_of(const G& gate) {
  return Residual{update::HeavyBall{}, Mixture{gate, Linear{.model_dim = dim}}};
}
inline constexpr SoftmaxTopK top_2{
    .scores = {.experts = experts}, .mixing = {}, .selection = {.k = 2}, .auxiliary = {}};

}  // namespace gatefold::bitwise
