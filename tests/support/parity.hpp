#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/gatefold.cuh"
#include "support/larger.hpp"
#include "support/layer_run.hpp"
#include "support/members.hpp"

/// Runs the same code on the naive backend and on CUDA, and compares the results.
namespace gatefold::test {

struct Backends : HostSide {
  Cuda::Context cuda;

  template <class B>
  auto& of() {
    if constexpr (std::is_same_v<B, Naive>) {
      return naive;
    } else {
      return cuda;
    }
  }
};

/// Copies a pack or tensor of the naive backend to CUDA.
template <class Q, class P>
Q on_cuda(Backends& on, const P& from) {
  Q to;
  transfer(on.cuda, from, to);
  return to;
}

/// Checks that two views hold the same numbers: integers exactly, other numbers within the tolerance.
/// @param to  number of elements to compare, from the first; -1: all
template <class T, int R>
void expect_same(Backends& on, const std::string& name, View<const T, R, Naive> naive, View<const T, R, Cuda> cuda,
                 const Expected& expected, Index to = -1) {
  using Number = std::conditional_t<std::is_floating_point_v<T>, double, Index>;
  CAPTURE(name);
  for (int d = 0; d < R; ++d) REQUIRE(cuda.extent(d) == naive.extent(d));
  Tensor<T, 1, Naive> copied(cuda.size());
  Cuda::to_host(on.cuda, cuda.size(), cuda.data(), copied.data());
  const Index count = to < 0 ? naive.size() : to;
  const auto finite = [](Number v) { return std::isfinite(static_cast<double>(v)); };
  Number largest = 0, worst = 0;
  for (Index i = 0; i < count; ++i)
    if (finite(naive.data()[i]) && finite(copied(i)))
      largest = support::larger(largest, std::abs(Number(naive.data()[i])));
  const double scale = std::is_same_v<T, double> ? expected.scale * expected.of_doubles : expected.scale;
  double over = 0;  // how much the worst element exceeds (1) of layer_run.hpp
  Index at = 0, strange = 0, not_finite = 0;
  for (Index i = 0; i < count; ++i) {
    const Number a = naive.data()[i], b = copied(i), apart = std::abs(a - b);
    if (finite(a) && finite(b)) {
      worst = std::max(worst, apart);
      double allowed = 0;
      if constexpr (std::is_floating_point_v<T>)
        allowed = summation_tolerance<T> * largest + std::abs(a) * (relative_tolerance<T> - summation_tolerance<T>);
      const double above = static_cast<double>(apart) - scale * allowed;
      if (strange == 0 && above > over) at = i;
      over = std::max(over, above);
    } else {
      ++not_finite;
      if (a != b && !(expected.nan && a != a && b != b) && strange++ == 0) at = i;
    }
  }
  if constexpr (std::is_floating_point_v<T>) {
    const bool zero = not_finite == 0 && std::max(largest, worst) <= expected.rounding;
    CHECK((count == 0 || expected.any_zeros ||
           zero == expected.zero(name)));  // zeros would hide mistakes, so only expected ones may occur
    if (zero) return;
  }
  const bool same = strange == 0 && over <= 0;
  if (same) {
    CHECK(same);
  } else {
    std::ostringstream message;
    message.precision(17);
    message << name << "[" << at << "] of " << count << ": expected " << naive.data()[at] << ", got " << copied(at)
            << "; largest " << largest << ", most apart " << worst << ", not comparable " << strange;
    FAIL_CHECK(message.str());
  }
}

template <class T, int R>
void expect_same(Backends& on, const std::string& name, const Tensor<T, R, Naive>& naive,
                 const Tensor<T, R, Cuda>& cuda, const Expected& expected) {
  const bool partly =
      expected.slots > 0 && naive.extent(0) % expected.slots == 0;  // a tensor can have several rows per slot
  expect_same<T, R>(on, name, naive.view(), cuda.view(), expected,
                    partly ? naive.size() / expected.slots * expected.used : -1);
}

/// Compares the elements of two tables. A gradient has elements that are not 0 only in rows that are marked.
template <class T>
void expect_same(Backends& on, const std::string& name, const Table<T, Naive>& naive, const Table<T, Cuda>& cuda,
                 const Expected& expected) {
  expect_same<T, 2>(on, name, naive.view(), cuda.view(), expected);
}

/// Compares the defined part of two plans. The entries after the last slot of the last expert are undefined.
template <class T>
void expect_same(Backends& on, const std::string& name, const SparsePlan<T, Naive>& naive,
                 const SparsePlan<T, Cuda>& cuda, const Expected& expected) {
  const auto compare = [&](const char* part, const auto& a, const auto& b, Index to = -1) {
    using V = typename std::remove_cvref_t<decltype(a.view())>::Element;
    expect_same<V, 1>(on, name + "." + part, a.view(), b.view(), expected, to);
  };
  compare("item", naive.item, cuda.item);
  compare("expert", naive.expert, cuda.expert);
  compare("weight", naive.weight, cuda.weight);
  compare("offsets", naive.offsets, cuda.offsets);
  compare("item_offsets", naive.item_offsets, cuda.item_offsets);
  compare("rows", naive.rows, cuda.rows);
  const Index slots = naive.offsets.size() > 0 ? naive.offsets(naive.experts()) : 0;  // no plan was written
  compare("pick", naive.pick, cuda.pick, slots);
  compare("item_slots", naive.item_slots, cuda.item_slots, slots);
}

template <class T>
void expect_same(Backends& on, const std::string& name, const WeightedInputPlan<T, Naive>& naive,
                 const WeightedInputPlan<T, Cuda>& cuda, const Expected& expected) {
  const SparsePlan<T, Naive>& picks = naive;
  const SparsePlan<T, Cuda>& picks_on_device = cuda;
  expect_same(on, name, picks, picks_on_device, expected);
  expect_same<T, 2>(on, name + ".inputs", naive.inputs.view(), cuda.inputs.view(), expected,
                    naive.offsets(naive.experts()) * naive.inputs.extent(1));
}

template <class T>
void expect_same(Backends& on, const std::string& name, const DensePlan<T, Naive>& naive,
                 const DensePlan<T, Cuda>& cuda, const Expected& expected) {
  expect_same(on, name + ".dispatch_weight", naive.dispatch_weight, cuda.dispatch_weight, expected);
  expect_same(on, name + ".combine_weight", naive.combine_weight, cuda.combine_weight, expected);
  expect_same(on, name + ".inputs", naive.inputs, cuda.inputs, expected);
  expect_same(on, name + ".valid", naive.valid, cuda.valid, expected);
  expect_same(on, name + ".offsets", naive.offsets, cuda.offsets, expected);
  expect_same(on, name + ".rows", naive.rows, cuda.rows, expected);
  expect_same(on, name + ".item_offsets", naive.item_offsets, cuda.item_offsets, expected);
  expect_same(on, name + ".slot_offsets", naive.slot_offsets, cuda.slot_offsets, expected);
}

/// A visitor of packs that does nothing. (nvcc takes no lambda inside a requires-expression.)
struct Ignore {
  template <class... A>
  void operator()(const A&...) const {}
};

/// Compares everything in a pack, a Saved or a plan.
template <class P, class Q>
void expect_same(Backends& on, const std::string& name, const P& naive, const Q& cuda, const Expected& expected) {
  const auto inside = [&](const auto& part) {
    std::ostringstream path;
    path << name << "." << part;
    return path.str();
  };
  if constexpr (detail_::pack::is_vector<P>) {
    REQUIRE(naive.size() == cuda.size());
    for (std::size_t i = 0; i < naive.size(); ++i) expect_same(on, inside(i), naive[i], cuda[i], expected);
  } else if constexpr (detail_::pack::is_tuple<P>) {
    const auto parts = [&]<std::size_t... I>(std::index_sequence<I...>) {
      (expect_same(on, inside(I), std::get<I>(naive), std::get<I>(cuda), expected), ...);
    };
    parts(std::make_index_sequence<std::tuple_size_v<P>>{});
  } else if constexpr (requires { P::each(Ignore{}, naive, cuda); }) {
    P::each([&](std::string_view part, const auto& a, const auto& b) { expect_same(on, inside(part), a, b, expected); },
            naive, cuda);
  } else if constexpr (requires { naive.plan.groups(), naive.z; }) {
    CHECK(naive.plan.offsets.size() == cuda.plan.offsets.size());
    if (naive.plan.offsets.size() == 0) return;  // the layer keeps nothing
    Expected of_slots = expected;
    const auto groups = naive.plan.groups();
    of_slots.slots = groups.slots, of_slots.used = groups.offsets(groups.experts());
    expect_same(on, name + ".plan", naive.plan, cuda.plan, expected);
    if constexpr (requires { naive.gate; }) expect_same(on, name + ".gate", naive.gate, cuda.gate, expected);
    if constexpr (requires { naive.tasks, naive.weight; }) {  // MultiGate
      expect_same(on, name + ".tasks", naive.tasks, cuda.tasks, expected);
      expect_same(on, name + ".weight", naive.weight, cuda.weight, expected);
    }
    // Each kind in `Experts` keeps rows for all slots, but writes only the rows of its own slots. Its saved values are
    // therefore not compared. The comparisons of z and of the gradients check these experts.
    if constexpr (!requires { naive.expert.kinds; })
      expect_same(on, name + ".expert", naive.expert, cuda.expert, of_slots);
    expect_same(on, name + ".z", naive.z, cuda.z, of_slots);
  } else if constexpr (std::is_class_v<P>) {
    for_each_member([&](int i, const auto& a, const auto& b) { expect_same(on, inside(i), a, b, expected); }, naive,
                    cuda);
  }
}

struct ExpectSameInit {
  Backends& on;
  Expected expected;
  void operator()(const Name& name, const auto& a, const auto& b) {
    if (all_zero(a)) expected.zeros.push_back("init." + name.str());
    expect_same(on, "init." + name.str(), a, b, expected);
  }
};
/// Initialises parameters on both backends and compares them. Then fills tensors that hold only zeros with random
/// values, the same on both backends.
template <class T, class P>
auto params_of(Backends& on, const P& policy, const Case& c, const Expected& expected = {}) {
  auto naive = init_params<T, Naive>(policy, on.naive, c.seed);
  auto cuda = init_params<T, Cuda>(policy, on.cuda, c.seed);
  for_each_tensor(ExpectSameInit{on, expected}, naive, cuda);
  for_each_tensor(FillZeros{on, c.seed.fork(3)}, naive);
  transfer(on.cuda, naive, cuda);
  return std::pair{std::move(naive), std::move(cuda)};
}

/// Memory for the gradient of the loss with respect to a plan, either a SparsePlan or a DensePlan.
template <class T, class B>
struct PlanAdjoint {
  Tensor<T, 1, B> weight;
  Tensor<T, 2, B> dispatch_weight, combine_weight, inputs;

  GATEFOLD_PACK(weight, dispatch_weight, combine_weight, inputs)
  typename SparsePlan<T, B>::Grad of(const SparsePlan<T, B>&) { return {weight}; }
  typename DensePlan<T, B>::Grad of(const DensePlan<T, B>&) { return {dispatch_weight, combine_weight, inputs}; }
};
template <class T>
PlanAdjoint<T, Naive> random_adjoint(Backends& on, Seed seed, const SparsePlan<T, Naive>& plan) {
  PlanAdjoint<T, Naive> d{random_tensor<T>(on, seed, 1, plan.weight.size()), {}, {}, {}};
  for (Index p = 0; p < plan.expert.size(); ++p)
    if (plan.expert(p) < 0) d.weight(p) = 0;  // a dropped pick has no effect
  return d;
}
template <class T>
PlanAdjoint<T, Naive> random_adjoint(Backends& on, Seed seed, const DensePlan<T, Naive>& plan) {
  const auto like = [&](const Tensor<T, 2, Naive>& t) {
    return random_tensor<T>(on, seed = seed.fork(1), 1, t.extent(0), t.extent(1));
  };
  return {{}, like(plan.dispatch_weight), like(plan.combine_weight), like(plan.inputs)};
}

/// The adjoint of an attention trace, initially 0.
template <class T, class B>
struct TraceAdjoint {
  Tensor<T, 2, B> q, k, v, log_sum_exp, output;

  GATEFOLD_PACK(q, k, v, log_sum_exp, output)
  TraceAdjoint(typename B::Context& ctx, const Inputs<T, B>& in) {
    const auto zeros = [&](Tensor<T, 2, B>& to, const Tensor<T, 2, B>& like) {
      to.resize_like(like);
      fill(ctx, to.view(), 0);
    };
    zeros(q, in.q), zeros(k, in.k), zeros(v, in.v), zeros(log_sum_exp, in.log_sum_exp), zeros(output, in.output);
  }
  AttentionTrace<T, B> view() { return {q, k, v, log_sum_exp, output}; }
};

/// Runs all functions of a gate on one backend and holds their results.
template <class G, class T, class B>
struct GateRun {
  typename B::Context& ctx;
  const G& gate;
  Params<G, T, B> params;
  Tensor<T, 2, B> x;
  Inputs<T, B> in;
  Extra<G, T, B> extra;
  Params<G, T, B> grads;
  Tensor<T, 2, B> dx;
  TraceAdjoint<T, B> dtrace;
  Plan<G, T, B> plan{}, inferred{};
  Saved<G, T, B> saved{};

  GateRun(typename B::Context& context, const G& of, const Case& c, Params<G, T, B> p, Tensor<T, 2, B> items,
          Inputs<T, B> inputs)
      : ctx(context),
        gate(of),
        params(std::move(p)),
        x(std::move(items)),
        in(std::move(inputs)),
        extra(extra_of<Extra<G, T, B>>(c, in)),
        grads(zeros_like(ctx, params)),
        dx(constant_tensor<T>(ctx, 0, x.extent(0), x.extent(1))),
        dtrace(ctx, in) {}

  void forward() {
    gate.forward(ctx, params, x, plan, saved, extra);
    infer_gate<T, B>(gate, ctx, params, x, inferred, extra);
  }
  void backward(PlanAdjoint<T, B> d) {
    ExtraGrad<G, T, B> dextra{};
    set_trace(dextra, dtrace.view());
    gate.backward(ctx, params, x, plan, saved, d.of(plan), dx, grads, extra, dextra);
  }
};

/// Compares a gate on both backends: the initial parameters, the plan of forward and of infer, the saved values, and
/// every gradient for random adjoints of the plan.
template <class T, class G>
void expect_same_gate(Backends& on, const G& given, Index width, const Case& c = {}) {
  const G gate = with_model_dim(given, width);
  auto [params, cuda_params] = params_of<T>(on, gate, c, {.scale = c.expected.scale});
  const auto x = items_of<T>(on, c, width);
  const auto in = inputs_of<T>(on, c, width);
  GateRun<G, T, Cuda> cuda(on.cuda, gate, c, std::move(cuda_params), on_cuda<Tensor<T, 2, Cuda>>(on, x),
                           on_cuda<Inputs<T, Cuda>>(on, in));
  GateRun<G, T, Naive> naive(on.naive, gate, c, std::move(params), items_of<T>(on, c, width),
                             inputs_of<T>(on, c, width));
  naive.forward();
  cuda.forward();
  expect_same(on, "plan", naive.plan, cuda.plan, c.expected);
  expect_same(on, "inferred", naive.inferred, cuda.inferred, c.expected);
  expect_same(on, "saved", naive.saved, cuda.saved, c.expected);

  auto dplan = random_adjoint(on, c.seed.fork(4), naive.plan);
  cuda.backward(on_cuda<PlanAdjoint<T, Cuda>>(on, dplan));
  naive.backward(std::move(dplan));
  expect_same(on, "dx", naive.dx, cuda.dx, c.expected);
  expect_same(on, "grads", naive.grads, cuda.grads, c.expected);
  if constexpr (requires(Extra<G, T, Naive> e) { e.mixing.trace; })
    expect_same(on, "dtrace", naive.dtrace, cuda.dtrace, c.expected);
}

/// Compares a layer, branch, stack or expert on both backends: the initial parameters, forward and infer with the
/// carry, the saved values, and every gradient for random adjoints.
template <class T, class L>
void expect_same_layer(Backends& on, const L& part, const Case& c = {}) {
  const auto layer = as_layer<T, Naive>(part);
  auto [params, cuda_params] = params_of<T>(on, layer, c, {.scale = c.expected.scale});
  const Index width = layer.in_dim();
  LayerRun<L, T, Cuda> cuda(on.cuda, part, c, std::move(cuda_params),
                            on_cuda<Tensor<T, 2, Cuda>>(on, items_of<T>(on, c, width)),
                            on_cuda<Inputs<T, Cuda>>(on, inputs_of<T>(on, c, width)));
  LayerRun<L, T, Naive> naive(on.naive, part, c, std::move(params), items_of<T>(on, c, width),
                              inputs_of<T>(on, c, width));
  naive.forward();
  cuda.forward();
  expect_same(on, "y", naive.y, cuda.y, c.expected);
  expect_same(on, "inferred", naive.inferred, cuda.inferred, c.expected);
  expect_same(on, "carry", naive.carry, cuda.carry, c.expected);
  expect_same(on, "inferred_carry", naive.inferred_carry, cuda.inferred_carry, c.expected);
  expect_same(on, "saved", naive.saved, cuda.saved, c.expected);

  const auto dy = random_tensor<T>(on, c.seed.fork(4), 1, c.items, layer.out_dim());
  for_each_tensor(FillZeros{on, c.seed.fork(5)}, naive.dcarry);
  transfer(on.cuda, naive.dcarry, cuda.dcarry);
  naive.backward(dy);
  cuda.backward(on_cuda<Tensor<T, 2, Cuda>>(on, dy));
  expect_same(on, "dx", naive.dx, cuda.dx, c.expected);
  expect_same(on, "grads", naive.grads, cuda.grads, c.expected);
  expect_same(on, "dcarry", naive.dcarry, cuda.dcarry, c.expected);
}

}  // namespace gatefold::test
