#pragma once

#include <cstddef>
#include <cstdlib>
#include <limits>
#include <ostream>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/tensor/flat_tensor.hpp"
#include "gatefold/tensor/table.hpp"

/// Lists the members of a pack (a struct of tensors such as Params, Carry or State) that contain tensors, so that the
/// library can visit these members by name:
///
///     template <class T, class B>
///     struct Params {
///       Tensor<T, 2, B> weight;
///       Tensor<T, 1, B> bias;
///       GATEFOLD_PACK(weight, bias)
///     };
///
/// If a tensor is not listed, the program does not compile. Members without tensors, for example a counter, are not
/// listed. The macro defines the following function. Write it yourself if a name should differ from the member:
///
///     static void each(auto&& f, auto&... p) { f("weight", p.weight...); f("bias", p.bias...); }
#define GATEFOLD_PACK(...)                                                                      \
  static void each(auto&& f, auto&... p) { GATEFOLD_EXPAND(GATEFOLD_PACK_MEMBER(__VA_ARGS__)) } \
  static constexpr std::size_t listed = ::gatefold::detail_::pack::count_names(#__VA_ARGS__);
#define GATEFOLD_PACK_MEMBER(member, ...) \
  f(#member, p.member...);                \
  __VA_OPT__(GATEFOLD_PACK_NEXT GATEFOLD_PARENTHESES(__VA_ARGS__))
#define GATEFOLD_PACK_NEXT() GATEFOLD_PACK_MEMBER

namespace gatefold {

namespace detail_::pack {

constexpr std::size_t count_names(std::string_view names) {
  std::size_t count = 1;
  for (const char c : names) count += c == ',';
  return count;
}

}  // namespace detail_::pack

/// A pack (struct of tensors) without tensors. A policy, for example an expert, uses it as the type of its parameters,
/// saved values, carry or extra inputs if it has none.
template <class T, class B>
struct Nothing {
  static void each(auto&&, auto&...) {}
};

/// The path of a tensor inside a pack (a struct of tensors), for example `layers.0.branch.gate.scores.weight`. The
/// parts of the path are on the stack, so that a visit of a pack allocates nothing unless `str` is called.
struct Name {
  const Name* parent = nullptr;
  std::string_view part{};
  Index index = -1;

  Name() = default;
  GATEFOLD_INLINE Name(const Name* of, std::string_view name) : parent(of), part(name) {}
  GATEFOLD_INLINE Name(const Name* of, Index number) : parent(of), index(number) {}

  std::string str() const {
    std::string s = parent ? parent->str() : std::string{};
    if (index < 0 && part.empty()) return s;
    if (!s.empty()) s += '.';
    return index >= 0 ? s += std::to_string(index) : s += part;
  }
  bool empty() const { return index < 0 && part.empty() && (!parent || parent->empty()); }
  /// Prints the path as returned by str(), but makes no string.
  [[gnu::cold]] friend std::ostream& operator<<(std::ostream& stream, const Name& name) {
    if (name.parent) stream << *name.parent;
    if (name.index < 0 && name.part.empty()) return stream;
    if (name.parent && !name.parent->empty()) stream << '.';
    return name.index >= 0 ? stream << name.index : stream << name.part;
  }
};

/// False for a pack (a struct of tensors) that declares `static constexpr bool learned = false;`. Its tensors are part
/// of the model (named, copied, saved), but optimizers ignore them. Examples are the weights of a fixed router and a
/// bias that balances the load of experts.
template <class P>
inline constexpr bool is_learned = !requires {
  requires !P::learned;
};

/// True for a pack (a struct of tensors) that declares `static constexpr bool gradient_is_optional = true;`. The
/// backward pass then computes no gradient for the tensors of the pack whose gradient tensor is marked by Tensor.skip.
/// It adds to all other gradients as always. The declaration applies to the tensors that the pack lists itself; packs
/// inside the pack have their own declarations.
template <class P>
inline constexpr bool gradient_is_optional = requires {
  requires P::gradient_is_optional;
};

/// True for a pack (a struct of tensors) that declares `static constexpr bool only_multiplied = true;`. Only grouped
/// products read the weights [E, rows, columns] that the pack lists itself. Such weights need no elements if the
/// products have a packed copy (FreezeOptions::keep_plain in layer/frozen.hpp).
template <class P>
inline constexpr bool only_multiplied = requires {
  requires P::only_multiplied;
};

namespace detail_::pack {

template <class>
inline constexpr bool is_tensor = false;
template <class T, int Rank, class B>
inline constexpr bool is_tensor<Tensor<T, Rank, B>> = true;
template <class T, class B>
inline constexpr bool is_tensor<Table<T, B>> = true;
template <class T, class B>
inline constexpr bool is_tensor<FlatTensor<T, B>> = true;
template <class>
inline constexpr bool is_vector = false;
template <class T>
inline constexpr bool is_vector<std::vector<T>> = true;
template <class>
inline constexpr bool is_tuple = false;
template <class... T>
inline constexpr bool is_tuple<std::tuple<T...>> = true;

/// True for a pack (a struct of tensors) of which each process holds only a part (distributed/sharded.hpp). Its member
/// function `to.lie_as(from)` gives `to` the same part as `from`.
template <class P>
inline constexpr bool is_sharded = requires {
  requires P::sharded;
};

struct HasSharded {
  void sharded();
};
template <class F>
struct WithSharded : F, HasSharded {};
/// True for a visitor that handles a sharded pack (a pack divided between processes) as a whole instead of tensor by
/// tensor. Such a visitor has a member `sharded`, of any signature.
template <class F>
concept SeesSharded = std::is_class_v<F> && !std::is_final_v<F> && !requires {
  &WithSharded<F>::sharded;
};

/// A visitor that does nothing. It is used to test at compile time whether a type has the function `each` of a pack.
struct AnyVisitor {
  void operator()(std::string_view, auto&...) const {}
};
template <class P>
inline constexpr bool is_pack = requires(AnyVisitor f, P& p) {
  P::each(f, p, p);
};
/// True if M, the type of a member of a pack, contains tensors: M is a tensor, a pack, or a vector or tuple of these.
template <class M>
inline constexpr bool holds_tensors = is_tensor<M> || is_pack<M>;
template <class M>
inline constexpr bool holds_tensors<std::vector<M>> = holds_tensors<M>;
template <class... M>
inline constexpr bool holds_tensors<std::tuple<M...>> = (holds_tensors<M> || ...);

/// Two types that help to count the members of a struct at compile time. Anything converts to any type, and NoTensor
/// converts to any type without tensors. A member contains tensors if the struct cannot be initialised with a NoTensor
/// in the place of this member and with Anything for all others. The conversions are never executed. They are defined,
/// because clang requires a definition for a type of an anonymous namespace.
struct Anything {
  template <class M>
  operator M() const {
    std::abort();
  }
};
struct NoTensor {
  template <class M, class = std::enable_if_t<!holds_tensors<M>>>
  operator M() const {
    std::abort();
  }
};
/// Returns true if the struct P (an aggregate) has at least as many members as the index sequence has numbers.
template <class P, std::size_t... At>
constexpr bool has_members(std::index_sequence<At...>) {
  return requires { P{(static_cast<void>(At), Anything{})...}; };
}
template <class P, std::size_t Member, std::size_t... At>
constexpr bool holds_tensors_at(std::index_sequence<At...>) {
  return !requires { P{std::conditional_t<At == Member, NoTensor, Anything>{}...}; };
}
/// Returns how many members of the struct P (an aggregate) contain tensors.
template <class P, std::size_t Members = 1>
constexpr std::size_t count_tensor_members() {
  if constexpr (has_members<P>(std::make_index_sequence<Members>{})) {
    return count_tensor_members<P, Members + 1>();
  } else {
    constexpr auto all = std::make_index_sequence<Members - 1>{};
    return [&]<std::size_t... At>(std::index_sequence<At...>) {
      return (std::size_t(holds_tensors_at<P, At>(all)) + ... + 0);
    }
    (all);
  }
}

/// Returns true if P is a pack: a struct that lists all its tensors with GATEFOLD_PACK, or a vector or tuple. Otherwise
/// a static_assert describes the mistake.
template <class P>
constexpr bool check() {
  constexpr bool fits = is_vector<P> || is_tuple<P> || is_pack<P>;
  GATEFOLD_REQUIRE(
      fits,
      "gatefold: this is neither a tensor nor a pack; a pack (Params, Carry, State) must list its tensors with "
      "GATEFOLD_PACK(weight, bias); see docs/how-to/extending.md#what-all-policies-share");
  if constexpr (requires { P::listed; })
    GATEFOLD_REQUIRE(count_tensor_members<P>() <= P::listed,
                     "gatefold: GATEFOLD_PACK does not list all tensors of this pack; see "
                     "docs/how-to/extending.md#what-all-policies-share");
  return fits;
}

/// Calls f(part, element…) for each element of a vector, a tuple or a pack. With several packs of the same structure, f
/// gets the corresponding element of each; vectors must have the same length. `part` is the name or the number of the
/// element, the second argument of a constructor of Name.
template <class F, class P, class... Q>
void each_part(const F& f, P& first, Q&... more) {
  using Pack = std::remove_const_t<P>;
  if constexpr (is_vector<Pack>) {
    for (std::size_t i = 0; i < first.size(); ++i) f(static_cast<Index>(i), first[i], more[i]...);
  } else if constexpr (is_tuple<Pack>) {
    const auto parts = [&]<std::size_t... At>(std::index_sequence<At...>) {
      const auto one = [&]<std::size_t J>() { f(static_cast<Index>(J), std::get<J>(first), std::get<J>(more)...); };
      (one.template operator()<At>(), ...);
    };
    parts(std::make_index_sequence<std::tuple_size_v<Pack>>{});
  } else {
    Pack::each(f, first, more...);
  }
}

/// Calls the visitor f with the name `at` of a tensor and with this tensor of each pack. It is a separate function, so
/// that it is compiled once per type of tensor and not for each of the many tensors of a model.
template <class F, class... P>
[[gnu::noinline]] void visit_tensor(F& f, const Name& at, P&... tensors) {
  f(at, tensors...);
}

template <bool OnlyLearned, class F, class P, class... Q>
void visit(F& f, const Name& at, P& first, Q&... more);
/// The functor that is passed to each_part. Its type depends only on the visitor. The type of a lambda would also
/// depend on the packs, so that more code would be compiled.
template <bool OnlyLearned, class F>
struct Parts {
  F& f;
  const Name& of;
  template <class... P>
  void operator()(auto part, P&... packs) const {
    visit<OnlyLearned>(f, Name{&of, part}, packs...);
  }
};
template <bool OnlyLearned, class F, class P, class... Q>
void visit(F& f, const Name& at, P& first, Q&... more) {
  using Pack = std::remove_const_t<P>;
  if constexpr (is_tensor<Pack>) {
    visit_tensor(f, at, first, more...);
  } else if constexpr (!OnlyLearned || is_learned<Pack>) {
    if constexpr (is_vector<Pack>)
      (expect(more.size() == first.size(), "pack", Joined{at, ".size()"}, first.size(), more.size()), ...);
    // The visitor Flatten has a member `only_learned`, by which it chooses at run time to visit only the tensors that
    // optimizers update. Visits of all tensors and visits of only these tensors then share their compiled code. With
    // the template argument OnlyLearned instead, they would not share it.
    if constexpr (!is_learned<Pack> && requires { f.only_learned; })
      if (f.only_learned) return;
    if constexpr (is_sharded<Pack> && SeesSharded<std::remove_const_t<F>>) {
      f.sharded(at, first, more...);
    } else if constexpr (check<Pack>()) {
      each_part(Parts<OnlyLearned, F>{f, at}, first, more...);
    }
  }
}

}  // namespace detail_::pack

/// Calls f(name, tensor...) for every tensor of one pack, or of several packs of the same structure in parallel.
/// @throws ArgumentError if the packs have vectors of different length
///
/// A pack is a struct that lists its members once, with GATEFOLD_PACK(weight, bias). Vectors and tuples of packs are
/// packs. If this process holds only a part of a pack (sharded) and f has a member `sharded`, f.sharded(name, pack...)
/// is called once for this pack. f is then not called for the tensors of this pack.
template <class F, class... P>
void for_each_tensor(F&& f, P&... packs) {
  detail_::pack::visit<false>(f, Name{}, packs...);
}
namespace detail_::pack {

/// A visitor that passes on each tensor of a pack as an AnyTensor (a reference that does not depend on rank and element
/// type). All functions that need AnyTensors use this visitor, so that the visit of a pack is compiled once.
/// Check::tensor<T>() stops the compilation if a tensor's type is not supported.
template <class Check>
struct Flatten {
  void* to;
  void (*tensor)(void* to, const Name& at, const AnyTensor* of_each_pack);
  bool only_learned;
  // For each pack, true if the pack is const. The visit casts const away, so only this array records it.
  const bool* constant;

  template <class... T>
  void operator()(const Name& at, T&... tensors) const {
    (Check::template tensor<std::remove_const_t<T>>(), ...);
    const bool* of = constant;
    const AnyTensor of_each_pack[]{AnyTensor(const_cast<std::remove_const_t<T>&>(tensors), *of++)...};
    tensor(to, at, of_each_pack);
  }
};
struct NoCheck {
  template <class>
  static constexpr void tensor() {}
};
/// Visits the tensors of several packs of the same structure together. Calls f(name, any) once for every tensor name;
/// any[i] refers to the tensor of pack i as an AnyTensor, a type-erased reference that does not record constness.
template <class Check = NoCheck, class F, class... P>
void visit_any(const F& f, const Name& at, bool only_learned, P&... packs) {
  static constexpr bool constant[]{std::is_const_v<P>...};
  const Flatten<Check> flatten{const_cast<F*>(&f),
                               [](void* to, const Name& name, const AnyTensor* of_each_pack) {
                                 (*static_cast<const F*>(to))(name, of_each_pack);
                               },
                               only_learned, constant};
  visit<false>(flatten, at, const_cast<std::remove_const_t<P>&>(packs)...);
}
/// The FlatTensor type (elements and extents, for any rank) for the tensors of the pack P. Its elements are const if P
/// is const.
template <class P, class T = typename Of<std::remove_const_t<P>>::Element>
using FlatOf =
    FlatTensor<std::conditional_t<std::is_const_v<P>, const T, T>, typename Of<std::remove_const_t<P>>::Backend>;
template <class... P, class F, std::size_t... At>
void visit_flat(F& f, const Name& at, const AnyTensor* of_each_pack, std::index_sequence<At...>) {
  if ((of_each_pack[At].skipped || ...)) return;
  const auto lvalues = [&](FlatOf<P>... tensors) { f(at, tensors...); };
  lvalues(FlatOf<P>(of_each_pack[At])...);
}
/// A visitor that calls f(name, tensors...) with each tensor of a pack as a FlatTensor (elements and extents, for any
/// rank). It is for packs whose element type cannot be read from their template arguments. It leaves out tensors that
/// are marked by Tensor.skip.
template <class F>
struct FlattenEach {
  F& f;
  void operator()(const Name& at, auto&... tensors) const {
    if ((tensors.is_skipped() || ...)) return;
    const auto lvalues = [&](auto... flat) { f(at, flat...); };
    lvalues(FlatTensor(tensors)...);
  }
};

}  // namespace detail_::pack

/// Calls f(name, tensor...) for every tensor that an optimizer updates, of one pack or of several packs of the same
/// structure in parallel. It leaves out packs that declare `learned = false`, and tensors that are marked by
/// Tensor.skip in at least one of the packs. Each tensor is a FlatTensor: elements and extents, for any rank. If f has
/// a member `sharded`, f.sharded is called once for each pack that is divided between processes, instead of f for each
/// of its tensors (see for_each_tensor). In this case, every other tensor has its own type instead of FlatTensor, and
/// skipped tensors are visited too.
template <class F, class... P>
void for_each_learned(F&& f, P&... packs) {
  if constexpr (detail_::pack::SeesSharded<std::remove_cvref_t<F>>) {
    detail_::pack::visit<true>(f, Name{}, packs...);
  } else if constexpr ((detail_::pack::Of<std::remove_const_t<P>>::known && ...)) {
    const auto each = [&f](const Name& at, const AnyTensor* of_each_pack) {
      detail_::pack::visit_flat<P...>(f, at, of_each_pack, std::index_sequence_for<P...>{});
    };
    detail_::pack::visit_any(each, Name{}, true, packs...);
  } else {
    detail_::pack::FlattenEach<std::remove_reference_t<F>> flatten{f};
    detail_::pack::visit<true>(flatten, Name{}, packs...);
  }
}

namespace detail_::pack {

/// The extents of a tensor, printed as [2, 4].
struct Extents {
  Index of[4];
  int rank;
  template <class V>
  explicit Extents(const V& v) : of{}, rank(V::rank) {
    for (int d = 0; d < rank; ++d) of[d] = v.extent(d);
  }
  friend bool operator==(const Extents&, const Extents&) = default;
  friend std::ostream& operator<<(std::ostream& stream, const Extents& extents) {
    stream << '[';
    for (int d = 0; d < extents.rank; ++d) stream << (d ? ", " : "") << extents.of[d];
    return stream << ']';
  }
};

template <class P>
[[gnu::noinline]] void expect_tensor_like(const char* where, const Name& at, const P& like, const P& other) {
  if (other.is_skipped()) return;
  const Extents expected(like), got(other);
  expect(got == expected, where, at, expected, got);
}
template <class P>
void expect_like(const char* where, const Name& at, const P& like, const P& other) {
  if constexpr (is_tensor<P>) {
    expect_tensor_like(where, at, like, other);
  } else {
    if constexpr (is_vector<P>)
      expect(other.size() == like.size(), where, Joined{at, ".size()"}, like.size(), other.size());
    if constexpr (check<P>())
      each_part([&](auto part, auto& a, auto& b) { expect_like(where, Name{&at, part}, a, b); }, like, other);
  }
}

}  // namespace detail_::pack

/// Requires that the pack `other` (gradients or optimizer moments) has the same parts and shapes as the pack `like`
/// (the parameters). Tensors of `other` that are marked by Tensor.skip are not compared. Example of a message:
///
///     AdamW.step: grads.expert.up: expected [8, 32, 64], got [2, 32, 64]
///
/// @throws ArgumentError if a shape or the size of a vector differs
/// @cost   a comparison per extent; the message is built only on failure
template <class P>
void expect_like(const char* where, std::string_view name, const P& like, const P& other) {
  detail_::pack::expect_like(where, Name{nullptr, name}, like, other);
}

namespace detail_::pack {

/// Calls leaf(to, from) for a tensor of two packs. It is a separate function, so that it is compiled once per type of
/// tensor.
template <class P, class Q, class Leaf>
[[gnu::noinline]] void visit_leaf(P& to, const Q& from, const Leaf& leaf) {
  leaf(to, from);
}
/// Gives the pack `to` the same structure as the pack `from`: vectors get the same size, and `to.lie_as(from)` is
/// called for packs that have this member. Calls leaf(a, b) for every tensor a of `to` and the corresponding tensor b
/// of `from`.
template <class P, class Q, class Leaf>
void structure_like(P& to, const Q& from, const Leaf& leaf) {
  if constexpr (is_tensor<P>) {
    visit_leaf(to, from, leaf);
  } else {
    if constexpr (is_vector<P>) to.resize(from.size());
    if constexpr (is_sharded<P> || requires { to.lie_as(from); }) to.lie_as(from);
    if constexpr (check<P>())
      each_part([&](auto, auto& a, auto& b) { structure_like(a, std::as_const(b), leaf); }, to, from);
  }
}
/// Resizes each tensor for shape_like. It is a struct and not a lambda, because a lambda would have a different type
/// for each pack. With one type, equal parts of two models are compiled once. Other visitors in this file are structs
/// for the same reason.
struct ResizeLike {
  void operator()(auto& a, const auto& b) const { a.resize_like(b); }
};

}  // namespace detail_::pack

/// Gives the pack `to` the tensors and shapes of the pack `from`, which can be on a different backend. The contents of
/// `to` are lost.
template <class P, class Q>
void shape_like(P& to, const Q& from) {
  detail_::pack::structure_like(to, from, detail_::pack::ResizeLike{});
}

/// Returns the first Table (a matrix for the weights of an embedding) with elements of type T in a pack, or null if
/// there is none. In a model, this table belongs to the embedding at the start.
template <class T, class B, class P>
auto* first_table(P& pack) {
  using Found = std::conditional_t<std::is_const_v<P>, const Table<T, B>, Table<T, B>>;
  Found* found = nullptr;
  const auto look = [&](const Name&, const AnyTensor* t) {
    if (!found && t->table && t->type == AnyTensor::type_of<T>()) found = static_cast<Found*>(t->table);
  };
  detail_::pack::visit_any(look, Name{}, false, pack);
  return found;
}

/// Returns the number of tensors in a pack.
std::size_t count_tensors(const auto& p) {
  std::size_t n = 0;
  detail_::pack::visit_any([&](const Name&, const AnyTensor*) { ++n; }, Name{}, false, p);
  return n;
}
namespace detail_::pack {

struct FindSharded {
  bool& found;
  void operator()(const Name&, const auto&) const {}
  void sharded(const Name&, const auto&) const { found = true; }
};

}  // namespace detail_::pack

/// Returns true if the pack is sharded: this process holds only a part of some of its tensors.
bool holds_sharded(const auto& p) {
  bool found = false;
  for_each_tensor(detail_::pack::FindSharded{found}, p);
  return found;
}

/// Returns the number of values in packs: the elements of all their tensors.
/// @throws ArgumentError if there are 2^63 values or more, which is possible only on the backend Shapes
template <class... P>
Index count_values(const P&... packs) {
  Index n = 0;
  [[maybe_unused]] const auto add = [&](const Name&, const AnyTensor* t) {
    expect(t->size <= std::numeric_limits<Index>::max() - n, "count_values", "values", "less than 2^63", "more");
    n += t->size;
  };
  (detail_::pack::visit_any(add, Name{}, false, packs), ...);
  return n;
}

}  // namespace gatefold
