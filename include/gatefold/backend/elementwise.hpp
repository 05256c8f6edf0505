#pragma once

#include <type_traits>
#include <utility>

#include "gatefold/backend/touched_rows.hpp"
#include "gatefold/policy/policy.hpp"

/// Elementwise loops over tensors: fill, copy, add. The functors are named structs and not lambdas, so that users of
/// the CUDA backend do not need the nvcc option --extended-lambda. On the CPU, the functors process whole SIMD
/// registers (RegisterFunctor in epilogue.hpp), because compilers vectorise few loops at -O2.
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
  GATEFOLD_HD void operator()(const auto& at, Index i) const { at.store(to + i, at.load(from + i)); }
};
/// Multiplies an array by a number: x ← scale · x.
template <class T>
struct Scale {
  using Element = T;
  T scale;
  T* x;
  GATEFOLD_HD void operator()(const auto& at, Index i) const { at.store(x + i, at.load(x + i) * scale); }
};
/// Writes to = scale · from.
template <class T>
struct CopyScaled {
  using Element = T;
  T scale;
  const T* from;
  T* to;
  GATEFOLD_HD void operator()(const auto& at, Index i) const { at.store(to + i, at.load(from + i) * scale); }
};
/// Adds scale · x to y.
template <class T>
struct AddScaled {
  using Element = T;
  T scale;
  const T* x;
  T* y;
  GATEFOLD_HD void operator()(const auto& at, Index i) const {
    at.store(y + i, at.load(y + i) + scale * at.load(x + i));
  }
};
/// Writes y = a + scale · b.
template <class T>
struct ScaledSum {
  using Element = T;
  const T* a;
  T scale;
  const T* b;
  T* y;
  GATEFOLD_HD void operator()(const auto& at, Index i) const {
    at.store(y + i, at.load(a + i) + scale * at.load(b + i));
  }
};
/// Writes to[n, to_column + j] = from[n, from_column + j] for 0 <= j < count, that is, copies `count` columns of a
/// matrix. If `accumulate` is true, adds the values of `from` to the values of `to` instead.
template <class T, class B>
struct MoveColumns {
  Index count;
  View<const T, 2, B> from;
  Index from_column;
  View<T, 2, B> to;
  Index to_column;
  bool accumulate;
  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const T* source = from.data() + n * from.extent(1) + from_column;
    T* target = to.data() + n * to.extent(1) + to_column;
    each_column<T>(lanes, count, [&](auto at, Index j) {
      at.store(target + j, accumulate ? at.load(target + j) + at.load(source + j) : at.load(source + j));
    });
  }
};
/// The step that does nothing. (A step is a functor that runs for each element of a result right after the element is
/// computed.) for_rows and run_step do not call it.
template <class T>
struct NoStep {
  using Element = T;
  GATEFOLD_HD void operator()(const auto&, Index) const {}
};
/// Runs two functors of elements one after the other: calls first(at, i) and then second(at, i) for element i. Both
/// must be RegisterFunctors, that is, support SIMD registers of elements.
template <class First, class Second>
struct InTurn {
  using Element = typename First::Element;
  First first;
  Second second;
  GATEFOLD_HD void operator()(const auto& at, Index i) const {
    first(at, i);
    second(at, i);
  }
};
template <class First, class Second>
InTurn(First, Second) -> InTurn<First, Second>;
/// Stores element i of a result in out[i]. Some functors pass each result to an argument `take` instead of storing it
/// (see for_rows below). They get this functor as `take` if the results only need to be stored.
template <class T>
struct ToItsPlace {
  T* out;
  template <class A>
  GATEFOLD_HD void operator()(const A& at, Index i, const typename A::Value& value) const {
    at.store(out + i, value);
  }
};
/// Computes row n of a matrix with rows(lanes, n), and then runs step(at, i) for each element i of this row.
template <class Rows, class Step>
struct RowWithStep {
  Rows rows;
  Step step;
  Index columns;
  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    rows(lanes, n);
    // A local copy of the functor `step`. Compilers can keep its members in registers, because stores in the loop
    // cannot change it.
    const Step each = step;
    const Index first = n * columns;
    each_column<typename Step::Element>(lanes, columns, [&](const auto& at, Index j) { each(at, first + j); });
  }
};
/// An accessor (it loads and stores elements for a functor) that keeps the element at address `place` in the register
/// `value`. All other accesses go to the accessor `at`. If `value` has several neighbouring elements, `place` is the
/// address of the first.
template <class T, class A>
struct InRegister {
  using Value = typename A::Value;
  A at;
  T* place;
  Value& value;
  GATEFOLD_HD Value load(const T* p) const {
    Value other = p == place ? Value(T(0)) : at.load(p);
#ifdef __CUDA_ARCH__
    // Without the empty asm, the compiler can load `other` into the same register as `value`. The load could then start
    // only after `value` has been computed. The asm uses `other`, so the compiler must load it before it selects one of
    // the two values.
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
/// Computes row n of `out` with rows(lanes, n, take). The functor `rows` calls take(at, i, value) for each element i,
/// or for each register of neighbouring elements. `take` runs step(at, i) while the value is in a register, and then
/// stores the value in out[i].
template <class Rows, class Step, class T>
struct ElementWithStep {
  Rows rows;
  Step step;
  T* out;
  GATEFOLD_HD Index independent_columns() const requires IndependentColumns<Rows> { return rows.independent_columns(); }
  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    rows(lanes, n, [&]<class A>(const A& at, Index i, typename A::Value value) {
      step(InRegister<T, A>{at, out + i, value}, i);
      at.store(out + i, value);
    });
  }
};
/// Returns element i of the array `terms`. With this functor, the primitive `reduce` (a sum over i) sums an array.
template <class T>
struct Term {
  const T* terms;
  GATEFOLD_HD T operator()(Index i) const { return terms[i]; }
};

/// Returns the inner product Σ_j a[j] b[j] of two rows with n elements of type T, summed in the type Sum. Every lane
/// (thread that shares the row) gets the same result. If Sum is not T, the loop computes eight partial sums at once, so
/// that compilers can vectorise it.
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

/// Sets all elements of x to `value`.
template <class C, class T, int R, class B>
void fill(C& ctx, View<T, R, B> x, NonDeduced<T> value) {
  B::for_each(ctx, x.size(), functor::Fill<T>{value, x.data()});
}
template <class C, class T, int R, class B>
void fill(C& ctx, Tensor<T, R, B>& x, NonDeduced<T> value) {
  fill(ctx, x.view(), value);
}
/// Copies the elements of `from` to `to`.
template <class C, class T, int R, class B>
void copy(C& ctx, In<T, R, B> from, View<T, R, B> to) {
  B::for_each(ctx, to.size(), functor::Copy<T>{from.data(), to.data()});
}
/// Writes to = scale · from.
template <class C, class T, int R, class B>
void copy_scaled(C& ctx, NonDeduced<T> scale, In<T, R, B> from, View<T, R, B> to) {
  B::for_each(ctx, to.size(), functor::CopyScaled<T>{scale, from.data(), to.data()});
}
/// Adds x to y, element by element.
template <class C, class T, int R, class B>
void add(C& ctx, In<T, R, B> x, View<T, R, B> y) {
  B::for_each(ctx, y.size(), functor::AddScaled<T>{T(1), x.data(), y.data()});
}
/// Adds scale · x to y, element by element.
template <class C, class T, int R, class B>
void add_scaled(C& ctx, NonDeduced<T> scale, In<T, R, B> x, View<T, R, B> y) {
  B::for_each(ctx, y.size(), functor::AddScaled<T>{scale, x.data(), y.data()});
}
/// Copies `count` columns of a matrix: to[n, to_column + j] = from[n, from_column + j] for 0 <= j < count.
template <class C, class T, class B>
void copy_columns(C& ctx, Index count, In<T, 2, B> from, Index from_column, View<T, 2, B> to, Index to_column) {
  B::for_rows(ctx, to.extent(0), functor::MoveColumns<T, B>{count, from, from_column, to, to_column, false});
}
/// Adds `count` columns of a matrix: to[n, to_column + j] += from[n, from_column + j] for 0 <= j < count.
template <class C, class T, class B>
void add_columns(C& ctx, Index count, In<T, 2, B> from, Index from_column, View<T, 2, B> to, Index to_column) {
  B::for_rows(ctx, to.extent(0), functor::MoveColumns<T, B>{count, from, from_column, to, to_column, true});
}

/// Runs the functor `step` for every element of the matrix `out`. Does nothing if `step` is NoStep.
template <class C, class T, class B, class Step>
void run_step(C& ctx, View<T, 2, B> out, const Step& step) {
  if constexpr (!std::is_same_v<Step, functor::NoStep<T>>) B::for_each(ctx, out.size(), step);
}
/// Computes each row n of the matrix `out` with the functor rows(lanes, n), and runs the functor `step` for each
/// element. If `step` is a RegisterFunctor, both happen in one pass over `out`:
/// - On a host, `step` runs after each row, while the row is in the cache.
/// - On a device, `rows` gets a third argument `take`, and calls take(at, i, value) instead of storing out[i]. `take`
///   runs `step` and then stores the value at out + i. If `step` loads or stores element i of `out`, it uses the
///   register (InRegister). InRegister compares addresses to detect this. Both addresses are a pointer plus i, so that
///   the compiler can compare the pointers once instead of comparing the addresses of every element.
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

/// Sets all elements of a tensor to 0.
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

/// Sets every tensor of a pack (a struct of named tensors), or a single tensor, to 0. In a Table (a matrix that records
/// which rows a backward pass has written), only these rows are written, because the others are already 0.
template <class C, class P>
void set_zero(C& ctx, P& pack) {
  constexpr bool is_view = detail_::shape::HasRank<P> && !detail_::pack::is_tensor<P>;
  GATEFOLD_REQUIRE(!is_view,
                   "gatefold: set_zero(ctx, pack) takes a pack or a tensor; for a view use fill(ctx, view, 0)");
  if constexpr (!is_view) for_each_tensor(detail_::pack::Zero<C>{ctx}, pack);
}
/// Sets every tensor of a pack (a struct of named tensors) to 0. The zeros of tensors of rank 3 (the weights of
/// experts) are written only at the first non-const access to their elements. If a backward pass stores the whole
/// gradient of such weights (add_weight_gradient), these zeros are never written or read, which saves time. Call
/// write_zeros before you read the pack: a const access to zeros that are not yet written throws Error.
/// @param ctx  the context that writes the zeros; it must live until they are written
template <class C, class P>
void set_zero_later(C& ctx, P& pack) {
  for_each_tensor(detail_::pack::DeferZeros<C>{ctx}, pack);
}
/// Writes the zeros of a pack that set_zero_later has deferred, unless they are already written.
void write_zeros(auto& pack) { for_each_tensor(detail_::pack::WriteZeros{}, pack); }
/// Returns a new pack (a struct of named tensors) with the shapes of `like` and all elements 0, for example for
/// gradients and optimizer moments.
template <class C, class P>
P zeros_like(C& ctx, const P& like) {
  const auto here = ctx.here();
  P p;
  shape_like(p, like);
  set_zero(ctx, p);
  return p;
}
/// Copies every tensor of the pack `from` (a struct of named tensors) to the pack `to`, which must have the same
/// structure and shapes. To make a copy in a new pack, make the new pack with zeros_like first.
/// @throws ArgumentError if any shapes differ; `to` is then unchanged
template <class C, class P, class Q>
void copy_pack(C& ctx, const P& from, Q& to) {
  const auto here = ctx.here();
  for_each_tensor(detail_::pack::ExpectSameExtents{}, from, to);
  for_each_tensor(detail_::pack::Copy<C>{ctx}, from, to);
}

}  // namespace gatefold
