#pragma once

#include <type_traits>
#include <utility>

#include "gatefold/backend/lanes.hpp"
#include "gatefold/backend/touched_rows.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/policy/policy.hpp"
#include "gatefold/tensor/pack.hpp"
#include "gatefold/tensor/view.hpp"

/// Elementwise loops that the whole library uses: fill, copy, add. Functors are named structs, so that users of the
/// CUDA backend do not need --extended-lambda. They run on registers (RegisterFunctor in epilogue.hpp), because
/// compilers vectorise few loops at -O2.
namespace gatefold {

namespace functor {

template <class T>
struct Fill {
  using Element = T;
  T value;
  T* x;
  template <class A>
  GATEFOLD_HD void operator()(const A& at, Index i) const {
    at.store(x + i, typename A::Value(value));
  }
};
template <class T>
struct Copy {
  using Element = T;
  const T* from;
  T* to;
  template <class A>
  GATEFOLD_HD void operator()(const A& at, Index i) const {
    at.store(to + i, at.load(from + i));
  }
};
/// x ← scale · x
template <class T>
struct Scale {
  using Element = T;
  T scale;
  T* x;
  template <class A>
  GATEFOLD_HD void operator()(const A& at, Index i) const {
    at.store(x + i, at.load(x + i) * scale);
  }
};
/// to = scale · from
template <class T>
struct CopyScaled {
  using Element = T;
  T scale;
  const T* from;
  T* to;
  template <class A>
  GATEFOLD_HD void operator()(const A& at, Index i) const {
    at.store(to + i, at.load(from + i) * scale);
  }
};
/// y += scale · x
template <class T>
struct AddScaled {
  using Element = T;
  T scale;
  const T* x;
  T* y;
  template <class A>
  GATEFOLD_HD void operator()(const A& at, Index i) const {
    at.store(y + i, at.load(y + i) + scale * at.load(x + i));
  }
};
/// y = a + scale · b
template <class T>
struct ScaledSum {
  using Element = T;
  const T* a;
  T scale;
  const T* b;
  T* y;
  template <class A>
  GATEFOLD_HD void operator()(const A& at, Index i) const {
    at.store(y + i, at.load(a + i) + scale * at.load(b + i));
  }
};
/// A step without effect. for_rows and run_step skip it.
template <class T>
struct NoStep {
  using Element = T;
  template <class A>
  GATEFOLD_HD void operator()(const A&, Index) const {}
};
/// For each element, runs `first` and then `second`. Both are RegisterFunctors.
template <class First, class Second>
struct InTurn {
  using Element = typename First::Element;
  First first;
  Second second;
  template <class A>
  GATEFOLD_HD void operator()(const A& at, Index i) const {
    first(at, i);
    second(at, i);
  }
};
template <class First, class Second>
InTurn(First, Second) -> InTurn<First, Second>;
/// Can be passed as `take` (see for_rows below) if there is no step. Stores at out + i the value that was computed for
/// out[i].
template <class T>
struct ToItsPlace {
  T* out;
  template <class A>
  GATEFOLD_HD void operator()(const A& at, Index i, const typename A::Value& value) const {
    at.store(out + i, value);
  }
};
/// Calls rows(lanes, n), then step(at, i) for each element i of row n.
template <class Rows, class Step>
struct RowWithStep {
  Rows rows;
  Step step;
  Index columns;
  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index n) const {
    rows(lanes, n);
    // a local copy, which no store in the loop can alias
    const Step each = step;
    const Index first = n * columns;
    each_column<typename Step::Element>(lanes, columns, [&](const auto& at, Index j) { each(at, first + j); });
  }
};
/// An accessor that passes all accesses to `at`, except those to `place`: the element (or the neighbours) at `place` is
/// in the register `value`.
template <class T, class A>
struct InRegister {
  using Value = typename A::Value;
  A at;
  T* place;
  Value& value;
  GATEFOLD_HD Value load(const T* p) const {
    Value other = p == place ? Value(T(0)) : at.load(p);
#ifdef __CUDA_ARCH__
    // If the compiler loaded `other` into the register of `value`, the load would have to wait for `value`. The asm
    // prevents this, because it hides from the compiler that both are related.
    if constexpr (std::is_same_v<Value, float>) {
      asm("" : "+f"(other));
    } else if constexpr (!std::is_same_v<Value, T>) {
      for (float& x : other.v) asm("" : "+f"(x));
    }
#endif
    return p == place ? value : other;
  }
  GATEFOLD_HD void store(T* p, const Value& v) const {
    if (p == place)
      value = v;
    else
      at.store(p, v);
  }
};
/// Calls rows(lanes, n, take). `rows` calls take(at, i, value) for each element of `out`, or for each register of
/// neighbouring elements. `take` runs step(at, i) while the value is in a register, and then stores the value.
template <class Rows, class Step, class T>
struct ElementWithStep {
  Rows rows;
  Step step;
  T* out;
  GATEFOLD_HD Index independent_columns() const requires IndependentColumns<Rows> { return rows.independent_columns(); }
  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index n) const {
    rows(lanes, n, [&]<class A>(const A& at, Index i, typename A::Value value) {
      step(InRegister<T, A>{at, out + i, value}, i);
      at.store(out + i, value);
    });
  }
};
/// Returns terms[i]. With this functor, the primitive `reduce` sums an array.
template <class T>
struct Term {
  const T* terms;
  GATEFOLD_HD T operator()(Index i) const { return terms[i]; }
};

/// Returns Σ_j a[j] b[j] over a row, summed in the type Sum; every lane gets the same result. If Sum is not T, eight
/// partial sums are computed side by side, so that compilers can vectorise the loop.
template <class Sum, class T, class Lanes>
GATEFOLD_HD Sum inner_product(const Lanes& lanes, Index n, const T* a, const T* b) {
  if constexpr (std::is_same_v<Sum, T>) {
    return sum_columns<T>(lanes, n, [&](const auto& at, Index j) { return at.load(a + j) * at.load(b + j); });
  } else {
    constexpr Index size = 8;
    Sum part[size] = {}, total = 0;
    Index j = lanes.lane * size;
    for (; j + size <= n; j += lanes.size * size)
      for (Index k = 0; k < size; ++k) part[k] += Sum(a[j + k]) * Sum(b[j + k]);
    for (; j < n; ++j) total += Sum(a[j]) * Sum(b[j]);
    for (const Sum v : part) total += v;
    return lanes.sum(total);
  }
}

}  // namespace functor

/// x = value
template <class C, class T, int R, class B>
void fill(C& ctx, View<T, R, B> x, NonDeduced<T> value) {
  B::for_each(ctx, x.size(), functor::Fill<T>{value, x.data()});
}
template <class C, class T, int R, class B>
void fill(C& ctx, Tensor<T, R, B>& x, NonDeduced<T> value) {
  fill(ctx, x.view(), value);
}
/// to = from
template <class C, class T, int R, class B>
void copy(C& ctx, In<T, R, B> from, View<T, R, B> to) {
  B::for_each(ctx, to.size(), functor::Copy<T>{from.data(), to.data()});
}
/// to = scale · from
template <class C, class T, int R, class B>
void copy_scaled(C& ctx, NonDeduced<T> scale, In<T, R, B> from, View<T, R, B> to) {
  B::for_each(ctx, to.size(), functor::CopyScaled<T>{scale, from.data(), to.data()});
}
/// y += x
template <class C, class T, int R, class B>
void add(C& ctx, In<T, R, B> x, View<T, R, B> y) {
  B::for_each(ctx, y.size(), functor::AddScaled<T>{T(1), x.data(), y.data()});
}
/// y += scale · x
template <class C, class T, int R, class B>
void add_scaled(C& ctx, NonDeduced<T> scale, In<T, R, B> x, View<T, R, B> y) {
  B::for_each(ctx, y.size(), functor::AddScaled<T>{scale, x.data(), y.data()});
}

/// Runs step(at, i) for every element i of `out`. Does nothing if `step` is NoStep.
template <class C, class T, class B, class Step>
void run_step(C& ctx, View<T, 2, B> out, const Step& step) {
  if constexpr (!std::is_same_v<Step, functor::NoStep<T>>) B::for_each(ctx, out.size(), step);
}
/// Calls rows(lanes, n) for each row n of `out`, and runs `step` for each element of `out`. If `step` is a
/// RegisterFunctor, both happen in one pass over `out`. On a host, `step` runs after each row, while the row is in the
/// cache. On a device, `step` runs before each element, or each register of neighbours, is stored: `rows` then gets a
/// last argument `take` and calls take(at, i, value) for out[i]. `take` runs `step` and stores the value at out + i. It
/// computes this address from i, as a step computes its addresses. The compiler can therefore find out once, for all
/// elements, which of these addresses are equal.
template <class C, class Rows, class T, class B, class Step>
void for_rows(C& ctx, View<T, 2, B> out, const Rows& rows, const Step& step) {
  if constexpr (!RegisterFunctor<Step> || std::is_same_v<Step, functor::NoStep<T>>) {
    B::for_rows(ctx, out.extent(0), rows);
    run_step(ctx, out, step);
  } else if constexpr (B::is_host) {
    B::for_rows(ctx, out.extent(0), functor::RowWithStep<Rows, Step>{rows, step, out.extent(1)});
  } else {
    B::for_rows(ctx, out.extent(0), functor::ElementWithStep<Rows, Step, T>{rows, step, out.data()});
  }
}

/// x ← 0
template <class C, class T, int R, class B>
void zero(C& ctx, Tensor<T, R, B>& x) {
  fill(ctx, x, 0);
}
namespace detail_::pack {

template <class C>
struct Zero {
  C& ctx;
  void operator()(const Name&, auto& t) const { zero(ctx, t); }
};
template <class C>
struct DeferZeros {
  C& ctx;
  void operator()(const Name&, auto& t) const { zero(ctx, t); }
  template <class T, class B>
  void operator()(const Name&, Tensor<T, 3, B>& t) const {
    t.defer_zeros(ctx);
  }
};
struct WriteZeros {
  void operator()(const Name&, auto&) const {}
  template <class T, class B>
  void operator()(const Name&, Tensor<T, 3, B>& t) const {
    t.data();
  }
};
template <class C>
struct Copy {
  C& ctx;
  void operator()(const Name&, const auto& a, auto& b) const { copy(ctx, a.view(), b.view()); }
};
struct ExpectSameExtents {
  void operator()(const Name& name, const auto& a, const auto& b) const {
    for (int d = 0; d < a.rank; ++d)
      expect(a.extent(d) == b.extent(d), "copy_pack", Joined{name, ".extent(", d, ")"}, a.extent(d), b.extent(d));
  }
};

}  // namespace detail_::pack

/// Zeroes every tensor of a pack, or a single tensor. In a Table, only the touched rows are written, that is, the rows
/// that a backward pass wrote. The other rows are already 0.
template <class C, class P>
void set_zero(C& ctx, P& pack) {
  constexpr bool is_view = detail_::shape::HasRank<P> && !detail_::pack::is_tensor<P>;
  GATEFOLD_REQUIRE(!is_view,
                   "gatefold: set_zero(ctx, pack) takes a pack or a tensor; for a view use fill(ctx, view, 0)");
  if constexpr (!is_view) for_each_tensor(detail_::pack::Zero<C>{ctx}, pack);
}
/// Zeroes a pack like set_zero, but defers the zeros of tensors of rank 3 (the weights of experts) until the first
/// access to their elements. A backward pass that stores the whole gradient of these weights (add_weight_gradient)
/// saves writing and reading the zeros.
/// @param ctx  the context that writes the zeros; it must live until they are written
template <class C, class P>
void set_zero_later(C& ctx, P& pack) {
  for_each_tensor(detail_::pack::DeferZeros<C>{ctx}, pack);
}
/// Writes the zeros that set_zero_later deferred, unless they are already written.
template <class P>
void write_zeros(P& pack) {
  for_each_tensor(detail_::pack::WriteZeros{}, pack);
}
/// Returns a zeroed pack with the shapes of `like`, for example for gradients and optimizer moments.
template <class C, class P>
P zeros_like(C& ctx, const P& like) {
  const auto here = ctx.here();
  P p;
  shape_like(p, like);
  set_zero(ctx, p);
  return p;
}
/// Copies every tensor of a pack to another pack of the same structure. To copy parameters to a new pack, make the new
/// pack with zeros_like.
/// @throws ArgumentError if any shapes differ. `to` has not changed then
template <class C, class P, class Q>
void copy_pack(C& ctx, const P& from, Q& to) {
  const auto here = ctx.here();
  for_each_tensor(detail_::pack::ExpectSameExtents{}, from, to);
  for_each_tensor(detail_::pack::Copy<C>{ctx}, from, to);
}

}  // namespace gatefold
