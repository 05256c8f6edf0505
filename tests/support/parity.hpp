#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/gatefold.cuh"
#include "support/members.hpp"
#include "support/naive_backend.hpp"

/// One text run by the naive backend and by CUDA, and what came out of both compared.
namespace gatefold::test {

/// How far the two may differ, each element by itself, for sums of at most n terms, u half an epsilon:
///
///     |a − b| <= n u · (the largest |a| of that tensor) + (r − n u) |a|                                     (1)
///
/// Another order moves a sum by n u of its terms; where those cancel, the largest element says how large they may be.
/// What is relative are other roundings of exp and log.
template <class T>
inline constexpr double relative_tolerance = std::is_same_v<T, double> ? 1e-12 : 2e-5;  // r
template <class T>
inline constexpr double summation_tolerance = 256 * 0.5 * std::numeric_limits<T>::epsilon();  // n u

/// What a case knows of its outcome beyond that both backends agree.
struct Expected {
  double scale = 1;                  // times (1), where a policy loses digits
  double of_doubles = 1;             // times that, of double tensors which a policy computes from floats
  std::vector<std::string> zeros{};  // names of tensors that are 0 all over: these and what is inside, and no others
  bool any_zeros = false;            // whatever is 0 may be
  double rounding = 0;               // what counts as 0 there: of sums whose terms cancel
  bool nan = false;                  // NaN equals NaN
  Index slots = -1, used = 0;  // of a tensor with `slots` rows, or so many each, `used` are defined: dropped picks

  bool zero(const std::string& name) const {
    return std::any_of(zeros.begin(), zeros.end(), [&](const std::string& z) {
      return name.compare(0, z.size(), z) == 0 && (name.size() == z.size() || name[z.size()] == '.');
    });
  }
};

struct Backends {
  Naive::Context naive;
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

/// A pack (a tensor is one) on CUDA with the values of one of the naive backend.
template <class Q, class P>
Q on_cuda(Backends& on, const P& from) {
  Q to;
  transfer(on.cuda, from, to);
  return to;
}

/// Check that two views hold the same numbers: integers exactly, others within the tolerance.
/// @param to  compare the first `to` elements only
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
    if (finite(naive.data()[i]) && finite(copied(i))) largest = std::max(largest, std::abs(Number(naive.data()[i])));
  const double scale = std::is_same_v<T, double> ? expected.scale * expected.of_doubles : expected.scale;
  double over = 0;  // how much the worst element is above (1)
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
           zero == expected.zero(name)));  // zeros show nothing, unless the case is about them
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
  const bool partly = expected.slots > 0 && naive.extent(0) % expected.slots == 0;  // also positions of slots
  expect_same<T, R>(on, name, naive.view(), cuda.view(), expected,
                    partly ? naive.size() / expected.slots * expected.used : -1);
}

/// The plan as far as it is defined: what lies past the last slot of an expert is not.
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
  const Index slots = naive.offsets(naive.experts());
  compare("pick", naive.pick, cuda.pick, slots);
  compare("item_slots", naive.item_slots, cuda.item_slots, slots);
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

/// Everything a pack, a Saved or a plan holds.
template <class P, class Q>
void expect_same(Backends& on, const std::string& name, const P& naive, const Q& cuda, const Expected& expected) {
  const auto inside = [&](const auto& part) {
    std::ostringstream path;
    path << name << "." << part;
    return path.str();
  };
  if constexpr (pack::is_vector<P>) {
    REQUIRE(naive.size() == cuda.size());
    for (std::size_t i = 0; i < naive.size(); ++i) expect_same(on, inside(i), naive[i], cuda[i], expected);
  } else if constexpr (pack::is_tuple<P>) {
    const auto parts = [&]<std::size_t... I>(std::index_sequence<I...>) {
      (expect_same(on, inside(I), std::get<I>(naive), std::get<I>(cuda), expected), ...);
    };
    parts(std::make_index_sequence<std::tuple_size_v<P>>{});
  } else if constexpr (requires { P::each(Ignore{}, naive, cuda); }) {
    P::each([&](std::string_view part, const auto& a, const auto& b) { expect_same(on, inside(part), a, b, expected); },
            naive, cuda);
  } else if constexpr (requires { naive.plan.groups(), naive.z; }) {
    CHECK(naive.plan.offsets.size() == cuda.plan.offsets.size());
    if (naive.plan.offsets.size() == 0) return;  // of a layer that keeps nothing
    Expected of_slots = expected;
    const auto groups = naive.plan.groups();
    of_slots.slots = groups.slots, of_slots.used = groups.offsets(groups.experts());
    expect_same(on, name + ".plan", naive.plan, cuda.plan, expected);
    expect_same(on, name + ".gate", naive.gate, cuda.gate, expected);
    // Kinds of experts keep rows for all slots and write those of their own experts: z and gradients show them.
    if constexpr (!requires { naive.expert.kinds; })
      expect_same(on, name + ".expert", naive.expert, cuda.expert, of_slots);
    expect_same(on, name + ".z", naive.z, cuda.z, of_slots);
  } else if constexpr (std::is_class_v<P>) {
    for_each_member([&](int i, const auto& a, const auto& b) { expect_same(on, inside(i), a, b, expected); }, naive,
                    cuda);
  }
}

/// A case: sizes, and what the extra inputs of policies are to be.
struct Case {
  Index items = 37;
  Index length = 0;      // items per sequence, for policies that know sequences; 0: all are one
  bool padding = false;  // every fifth item, and what it holds is NaN
  bool causal = true;    // of the attention that a gate follows
  bool noise = true;     // for policies that draw some
  bool auxiliary = true;
  Index past = 0;               // items remembered before each sequence
  Index k = 0;                  // picks of an item in this call, for selections that take it; 0: the option
  std::optional<double> tau{};  // of similarity in this call; empty: the option
  Seed seed{1};
  double spread = 1;  // items are uniform in ±spread, but for those that `edit` changes
  std::function<double(Index item, Index column, double value)> edit{};
  Expected expected{};
};

/// Random numbers, the same for both backends: drawn by the naive one.
template <class T, class... I>
auto random_tensor(Backends& on, Seed seed, double bound, I... extents) {
  return uniform_tensor<T>(on.naive, seed, bound, extents...);
}
template <class V>
bool all_zero(const V& t) {
  return std::all_of(t.data(), t.data() + t.size(), [](auto v) { return v == 0; });
}
/// Fill the tensors of real numbers that hold zeros alone: parameters and carries that begin so would hide mistakes. A
/// visitor with a name, so that parts which policies have in common are compiled once.
struct FillZeros {
  Backends& on;
  Seed seed;
  void operator()(const Name&, auto& t) {
    if constexpr (std::is_floating_point_v<std::remove_cvref_t<decltype(*t.data())>>)
      if (all_zero(t)) fill_uniform(on.naive, seed = seed.fork(1), -0.5, 0.5, t);
  }
};
template <class T>
Tensor<T, 2, Naive> items_of(Backends& on, const Case& c, Index width) {
  auto x = random_tensor<T>(on, c.seed.fork(1), c.spread, c.items, width);
  for (Index n = 0; n < c.items; ++n)
    for (Index d = 0; d < width; ++d) {
      if (c.padding && n % 5 == 3) x(n, d) = std::numeric_limits<T>::quiet_NaN();
      if (c.edit) x(n, d) = static_cast<T>(c.edit(n, d, x(n, d)));
    }
  return x;
}

/// What extra inputs point to.
template <class T, class B>
struct Inputs {
  Tensor<T, 1, B> valid, attended;               // [N] or [0] without padding: masks of a gate and of attention
  Tensor<Index, 1, B> ids;                       // [N]
  Tensor<T, 2, B> q, k, v, log_sum_exp, output;  // of an attention with two heads
  Tensor<T, 3, B> past;                          // [1, sequences · past, width]

  static void each(auto&& f, auto&... p) {
    f("past", p.past...);
    f("valid", p.valid...);
    f("attended", p.attended...);
    f("ids", p.ids...);
    f("q", p.q...);
    f("k", p.k...);
    f("v", p.v...);
    f("log_sum_exp", p.log_sum_exp...);
    f("output", p.output...);
  }
};
template <class T>
Inputs<T, Naive> inputs_of(Backends& on, const Case& c, Index width) {
  const auto random = [&](std::uint64_t stream, Index rows, Index columns) {
    return random_tensor<T>(on, c.seed.fork(20 + stream), 1, rows, columns);
  };
  const Index masked = c.padding ? c.items : 0, past = c.past * (c.length > 0 ? c.items / c.length : 1);
  Inputs<T, Naive> in{Tensor<T, 1, Naive>(masked),
                      Tensor<T, 1, Naive>(masked),
                      Tensor<Index, 1, Naive>(c.items),
                      random(0, c.items, width),
                      random(1, c.items, width),
                      random(2, c.items, width),
                      random(3, c.items, 2),
                      random(4, width, width),
                      random_tensor<T>(on, c.seed.fork(25), 1, 1, past, width)};
  for (Index n = 0; n < masked; ++n) {
    in.valid(n) = n % 5 == 3 ? 0 : 1;
    in.attended(n) = n % 7 == 5 ? 0 : 1;
  }
  for (Index n = 0; n < c.items; ++n) in.ids(n) = n % 7 == 6 ? -1 : 1000 * n + 7;
  return in;
}

/// The extra inputs of any policy, of the case and what it points to.
template <class E, class T, class B>
E extra_of(const Case& c, const Inputs<T, B>& in) {
  if constexpr (requires(E e) { e.scores, e.mixing, e.selection; }) {
    return {extra_of<decltype(E::scores)>(c, in), extra_of<decltype(E::mixing)>(c, in),
            extra_of<decltype(E::selection)>(c, in), in.valid, c.auxiliary};
  } else if constexpr (std::is_same_v<E, Noise>) {
    return c.noise ? Noise{Random{c.seed.fork(2), 3}} : Noise{};
  } else if constexpr (std::is_same_v<E, Sequence<T, B>>) {
    return {c.length, in.valid};
  } else if constexpr (requires(E e) { e.tau; }) {
    return {c.length, {}, c.tau};
  } else if constexpr (requires(E e) { e.k; }) {
    return {c.k};
  } else if constexpr (requires(E e) { e.trace; }) {
    return {AttentionTrace<const T, B>{in.q, in.k, in.v, in.log_sum_exp, in.output, c.length > 0 ? c.length : c.items,
                                       0.7, c.causal, in.attended},
            {}};
  } else if constexpr (requires(E e) { e.ids; }) {
    return {View<const Index, 1, B>(in.ids)};
  } else if constexpr (requires(E e) { e.noise, e.branch; }) {
    return {extra_of<decltype(E::noise)>(c, in), extra_of<decltype(E::branch)>(c, in)};
  } else if constexpr (requires(E e) { e.relative, e.memory; }) {
    return {.length = c.length, .valid = in.valid, .memory = {in.past, {}}, .noise = extra_of<Noise>(c, in)};
  } else if constexpr (requires(E e) { e.attention, e.layer; }) {
    return {extra_of<decltype(E::attention)>(c, in), extra_of<decltype(E::layer)>(c, in)};
  } else if constexpr (requires(E e) { e.layers; }) {
    return [&]<class... Part>(std::type_identity<std::tuple<Part...>>) {
      return E{{extra_of<Part>(c, in)...}};
    }(std::type_identity<decltype(E::layers)>{});
  } else {
    return {};
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
/// Parameters drawn by both backends and compared; what begins as 0 then gets random values, the same on both.
template <class T, class P>
auto params_of(Backends& on, const P& policy, const Case& c, const Expected& expected = {}) {
  auto naive = init_params<T, Naive>(policy, on.naive, c.seed);
  auto cuda = init_params<T, Cuda>(policy, on.cuda, c.seed);
  for_each_tensor(ExpectSameInit{on, expected}, naive, cuda);
  for_each_tensor(FillZeros{on, c.seed.fork(3)}, naive);
  transfer(on.cuda, naive, cuda);
  return std::pair{std::move(naive), std::move(cuda)};
}

/// The adjoint of a plan of any kind.
template <class T, class B>
struct PlanAdjoint {
  Tensor<T, 1, B> weight;
  Tensor<T, 2, B> dispatch_weight, combine_weight, inputs;

  static void each(auto&& f, auto&... p) {
    f("weight", p.weight...);
    f("dispatch_weight", p.dispatch_weight...);
    f("combine_weight", p.combine_weight...);
    f("inputs", p.inputs...);
  }
  typename SparsePlan<T, B>::Grad of(const SparsePlan<T, B>&) { return {weight}; }
  typename DensePlan<T, B>::Grad of(const DensePlan<T, B>&) { return {dispatch_weight, combine_weight, inputs}; }
};
template <class T>
PlanAdjoint<T, Naive> random_adjoint(Backends& on, Seed seed, const SparsePlan<T, Naive>& plan) {
  PlanAdjoint<T, Naive> d{random_tensor<T>(on, seed, 1, plan.weight.size()), {}, {}, {}};
  for (Index p = 0; p < plan.expert.size(); ++p)
    if (plan.expert(p) < 0) d.weight(p) = 0;  // nobody sees a dropped pick
  return d;
}
template <class T>
PlanAdjoint<T, Naive> random_adjoint(Backends& on, Seed seed, const DensePlan<T, Naive>& plan) {
  const auto like = [&](const Tensor<T, 2, Naive>& t) {
    return random_tensor<T>(on, seed = seed.fork(1), 1, t.extent(0), t.extent(1));
  };
  return {{}, like(plan.dispatch_weight), like(plan.combine_weight), like(plan.inputs)};
}

/// The adjoint of an attention trace, 0 at first.
template <class T, class B>
struct TraceAdjoint {
  Tensor<T, 2, B> q, k, v, log_sum_exp, output;

  static void each(auto&& f, auto&... p) {
    f("q", p.q...);
    f("k", p.k...);
    f("v", p.v...);
    f("log_sum_exp", p.log_sum_exp...);
    f("output", p.output...);
  }
  TraceAdjoint(typename B::Context& ctx, const Inputs<T, B>& in) {
    const auto zeros = [&](Tensor<T, 2, B>& to, const Tensor<T, 2, B>& like) {
      to.resize_like(like);
      fill(ctx, to.view(), 0);
    };
    zeros(q, in.q), zeros(k, in.k), zeros(v, in.v), zeros(log_sum_exp, in.log_sum_exp), zeros(output, in.output);
  }
  AttentionTrace<T, B> view() { return {q, k, v, log_sum_exp, output}; }
};

/// All a gate does on one backend.
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

/// A gate on both backends: initial parameters, the plan of forward and of infer, what forward keeps, and every
/// gradient for random adjoints of the plan.
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

/// All a layer does on one backend.
template <class L, class T, class B>
struct LayerRun {
  typename B::Context& ctx;
  AsLayer<L, T, B> layer;
  using Layer = AsLayer<L, T, B>;
  Params<Layer, T, B> params;
  Tensor<T, 2, B> x;
  Inputs<T, B> in;
  Extra<Layer, T, B> extra;
  Params<Layer, T, B> grads;
  Tensor<T, 2, B> dx, y, inferred;
  Carry<Layer, T, B> carry{}, inferred_carry{}, dcarry{};
  Saved<Layer, T, B> saved{};

  LayerRun(typename B::Context& context, const L& part, const Case& c, Params<Layer, T, B> p, Tensor<T, 2, B> items,
           Inputs<T, B> inputs)
      : ctx(context),
        layer(as_layer<T, B>(part)),
        params(std::move(p)),
        x(std::move(items)),
        in(std::move(inputs)),
        extra(extra_of<Extra<Layer, T, B>>(c, in)),
        grads(zeros_like(ctx, params)),
        dx(constant_tensor<T>(ctx, 0, x.extent(0), layer.in_dim())),
        y(x.extent(0), layer.out_dim()),
        inferred(x.extent(0), layer.out_dim()) {
    for (auto* of : {&carry, &inferred_carry, &dcarry}) layer.begin(ctx, params, x.extent(0), *of);
  }
  void forward() {
    layer.forward(ctx, params, x, carry, y, saved, extra);
    infer<T, B>(layer, ctx, params, x, inferred_carry, inferred, extra);
  }
  void backward(const Tensor<T, 2, B>& dy) {
    gatefold::backward(layer, ctx, params, x, saved, dy, dcarry, dx, grads, extra);
  }
};

/// A layer, branch, stack or expert on both backends: initial parameters, forward and infer with what travels in depth,
/// what forward keeps, and every gradient for random adjoints.
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
