#pragma once

#include <cstddef>
#include <cstdlib>
#include <ostream>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/core/config.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/tensor/flat_tensor.hpp"
#include "gatefold/tensor/table.hpp"
#include "gatefold/tensor/tensor.hpp"

/// Lists all members of a pack (Params, Carry, State), so that the library can visit them by name:
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

// Repeats GATEFOLD_PACK_MEMBER for up to 64 members.
#define GATEFOLD_PARENTHESES ()
#define GATEFOLD_EXPAND(...) GATEFOLD_EXPAND_16(GATEFOLD_EXPAND_16(GATEFOLD_EXPAND_16(GATEFOLD_EXPAND_16(__VA_ARGS__))))
#define GATEFOLD_EXPAND_16(...) GATEFOLD_EXPAND_4(GATEFOLD_EXPAND_4(GATEFOLD_EXPAND_4(GATEFOLD_EXPAND_4(__VA_ARGS__))))
#define GATEFOLD_EXPAND_4(...) GATEFOLD_EXPAND_1(GATEFOLD_EXPAND_1(GATEFOLD_EXPAND_1(GATEFOLD_EXPAND_1(__VA_ARGS__))))
#define GATEFOLD_EXPAND_1(...) __VA_ARGS__
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

/// A pack without tensors, for a policy without parameters, saved values, carry or extra inputs.
template <class T, class B>
struct Nothing {
  static void each(auto&&, auto&...) {}
};

/// The path of a tensor inside a pack, `layers.0.branch.gate.scores.weight`. It lives on the stack, so visiting
/// allocates nothing unless `str` is called.
struct Name {
  const Name* parent = nullptr;
  std::string_view part{};
  Index index = -1;

  std::string str() const {
    std::string s = parent ? parent->str() : std::string{};
    if (index < 0 && part.empty()) return s;
    if (!s.empty()) s += '.';
    return index >= 0 ? s += std::to_string(index) : s += part;
  }
  bool empty() const { return index < 0 && part.empty() && (!parent || parent->empty()); }
  /// Prints the same as str(), without making a string.
  [[gnu::cold]] friend std::ostream& operator<<(std::ostream& stream, const Name& name) {
    if (name.parent) stream << *name.parent;
    if (name.index < 0 && name.part.empty()) return stream;
    if (name.parent && !name.parent->empty()) stream << '.';
    return name.index >= 0 ? stream << name.index : stream << name.part;
  }
};

/// False for a pack with `static constexpr bool learned = false;`. Its tensors are part of the model (named, copied,
/// saved), but optimizers ignore them. Examples are a frozen router and a load bias.
template <class P>
inline constexpr bool is_learned = !requires {
  requires !P::learned;
};

/// True for a pack with `static constexpr bool gradient_is_optional = true;`. Backward of its policy then skips each
/// gradient tensor for which is_skipped() is true, and adds to the others as always. Gradients of other packs are never
/// skipped. The constant applies to the tensors that the pack lists itself. Packs inside the pack have their own
/// constants.
template <class P>
inline constexpr bool gradient_is_optional = requires {
  requires P::gradient_is_optional;
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

/// True for a pack of which each process holds only a part (distributed/sharded.hpp). `to.lie_as(from)` gives `to` the
/// same part as `from`.
template <class P>
inline constexpr bool is_sharded = requires {
  requires P::sharded;
};

struct HasSharded {
  void sharded();
};
template <class F>
struct WithSharded : F, HasSharded {};
/// A visitor that takes sharded packs as a whole: it has a member `sharded`, of any signature.
template <class F>
concept SeesSharded = std::is_class_v<F> && !std::is_final_v<F> && !requires {
  &WithSharded<F>::sharded;
};

/// A visitor for checking `each` at compile time.
struct AnyVisitor {
  void operator()(std::string_view, auto&...) const {}
};
template <class P>
inline constexpr bool is_pack = requires(AnyVisitor f, P& p) {
  P::each(f, p, p);
};
/// True if a member of a pack is a tensor, a pack, or a vector or tuple of these.
template <class M>
inline constexpr bool holds_tensors = is_tensor<M> || is_pack<M>;
template <class M>
inline constexpr bool holds_tensors<std::vector<M>> = holds_tensors<M>;
template <class... M>
inline constexpr bool holds_tensors<std::tuple<M...>> = (holds_tensors<M> || ...);

/// Converts to any type; NoTensor converts to any type that holds no tensors. Neither is ever evaluated. The
/// conversions are defined, because clang requires a definition for a type of an anonymous namespace.
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
/// Returns true if an aggregate has at least as many members as the sequence has numbers.
template <class P, std::size_t... At>
constexpr bool has_members(std::index_sequence<At...>) {
  return requires { P{(static_cast<void>(At), Anything{})...}; };
}
template <class P, std::size_t Member, std::size_t... At>
constexpr bool holds_tensors_at(std::index_sequence<At...>) {
  return !requires { P{std::conditional_t<At == Member, NoTensor, Anything>{}...}; };
}
/// Returns the number of members of an aggregate that hold tensors.
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

/// Returns true if P is a pack. If it is not, a static_assert names the missing function.
template <class P>
constexpr bool check() {
  GATEFOLD_REQUIRE(
      is_pack<P>,
      "gatefold: this is neither a tensor nor a pack; a pack (Params, Carry, State) must list its tensors with "
      "GATEFOLD_PACK(weight, bias); see docs/how-to/extending.md#what-all-policies-share");
  if constexpr (requires { P::listed; })
    GATEFOLD_REQUIRE(count_tensor_members<P>() <= P::listed,
                     "gatefold: GATEFOLD_PACK does not list all tensors of this pack; see "
                     "docs/how-to/extending.md#what-all-policies-share");
  return is_pack<P>;
}

/// Calls f(at, tensors...). It is a separate function, so that it is compiled once per type of tensor and not once for
/// each of the many tensors of a model.
template <class F, class... P>
[[gnu::noinline]] void visit_tensor(F& f, const Name& at, P&... tensors) {
  f(at, tensors...);
}

template <bool OnlyLearned, class F, class P, class... Q>
void visit(F& f, const Name& at, P& first, Q&... more);
/// The argument f of `each`. It has one type per visitor; a lambda would have one type per visitor and pack.
template <bool OnlyLearned, class F>
struct Parts {
  F& f;
  const Name& of;
  template <class... P>
  void operator()(std::string_view part, P&... packs) const {
    visit<OnlyLearned>(f, Name{&of, part}, packs...);
  }
};
template <bool OnlyLearned, class F, class P, class... Q>
void visit(F& f, const Name& at, P& first, Q&... more) {
  using Pack = std::remove_const_t<P>;
  if constexpr (is_tensor<Pack>) {
    visit_tensor(f, at, first, more...);
  } else if constexpr (is_vector<Pack>) {
    (expect(more.size() == first.size(), "pack", Joined{at, ".size()"}, first.size(), more.size()), ...);
    for (std::size_t i = 0; i < first.size(); ++i)
      visit<OnlyLearned>(f, Name{&at, {}, static_cast<Index>(i)}, first[i], more[i]...);
  } else if constexpr (is_tuple<Pack>) {
    const auto parts = [&]<std::size_t... At>(std::index_sequence<At...>) {
      auto one = [&]<std::size_t J>() {
        visit<OnlyLearned>(f, Name{&at, {}, static_cast<Index>(J)}, std::get<J>(first), std::get<J>(more)...);
      };
      (one.template operator()<At>(), ...);
    };
    parts(std::make_index_sequence<std::tuple_size_v<Pack>>{});
  } else if constexpr (!OnlyLearned || is_learned<Pack>) {
    // In Flatten, `only_learned` is a member, not the template argument OnlyLearned. A visit of all tensors and a visit
    // of the learned tensors then share their code.
    if constexpr (!is_learned<Pack> && requires { f.only_learned; })
      if (f.only_learned) return;
    if constexpr (is_sharded<Pack> && SeesSharded<std::remove_const_t<F>>) {
      f.sharded(at, first, more...);
    } else if constexpr (check<Pack>()) {
      Pack::each(Parts<OnlyLearned, F>{f, at}, first, more...);
    }
  }
}

}  // namespace detail_::pack

/// Calls f(name, tensor...) for every tensor of one pack, or of several packs of the same structure in parallel.
/// @throws ArgumentError if the packs have vectors of different length
///
/// A pack is a struct that lists its members once, with GATEFOLD_PACK(weight, bias). Vectors and tuples of packs are
/// packs. If this process holds only a part of a pack (sharded) and f has a member `sharded`, f.sharded(name, pack...)
/// gets the pack as a whole, and f is not called for its tensors.
template <class F, class... P>
void for_each_tensor(F&& f, P&... packs) {
  detail_::pack::visit<false>(f, Name{}, packs...);
}
namespace detail_::pack {

/// The only visitor type for AnyTensors, so that the visit of a pack is compiled once. Check::tensor<T>() stops the
/// compilation if a tensor's type is not supported.
template <class Check>
struct Flatten {
  void* to;
  void (*tensor)(void* to, const Name& at, const AnyTensor* of_each_pack);
  bool only_learned;
  const bool* constant;  // for each pack: true if it is const; the visit itself ignores const

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
/// Calls f(name, any) for every tensor, where any[i] is the tensor of pack i. AnyTensor does not record constness.
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
/// The FlatTensor type for tensors of pack P.
template <class P, class T = typename Of<std::remove_const_t<P>>::Element>
using FlatOf =
    FlatTensor<std::conditional_t<std::is_const_v<P>, const T, T>, typename Of<std::remove_const_t<P>>::Backend>;
template <class... P, class F, std::size_t... At>
void visit_flat(F& f, const Name& at, const AnyTensor* of_each_pack, std::index_sequence<At...>) {
  if ((of_each_pack[At].skipped || ...)) return;
  const auto lvalues = [&](FlatOf<P>... tensors) { f(at, tensors...); };
  lvalues(FlatOf<P>(of_each_pack[At])...);
}
/// A visitor that passes each tensor to f(name, flat...) as a FlatTensor, for packs whose element type Of<P> does not
/// know. Leaves out skipped tensors.
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

/// Calls f(name, tensor...) for every tensor that an optimizer updates, of one pack or of several in parallel. These
/// are the tensors of learned packs. A tensor is left out if it is skipped (Tensor.skip) in at least one of the packs.
/// Each tensor is a FlatTensor: elements and extents, for any rank. If f has a member `sharded`, it gets a sharded pack
/// as a whole instead of its tensors, see for_each_tensor. Then f gets every other tensor with the tensor's own type,
/// and also skipped tensors.
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
  } else if constexpr (is_vector<P>) {
    expect(other.size() == like.size(), where, Joined{at, ".size()"}, like.size(), other.size());
    for (std::size_t i = 0; i < like.size(); ++i)
      expect_like(where, Name{&at, {}, static_cast<Index>(i)}, like[i], other[i]);
  } else if constexpr (is_tuple<P>) {
    const auto parts = [&]<std::size_t... At>(std::index_sequence<At...>) {
      (expect_like(where, Name{&at, {}, static_cast<Index>(At)}, std::get<At>(like), std::get<At>(other)), ...);
    };
    parts(std::make_index_sequence<std::tuple_size_v<P>>{});
  } else if constexpr (check<P>()) {
    P::each([&](std::string_view part, auto& a, auto& b) { expect_like(where, Name{&at, part}, a, b); }, like, other);
  }
}

}  // namespace detail_::pack

/// Requires that `other` (gradients or moments) has the same parts and shapes as `like` (the parameters), except for
/// skipped tensors (Tensor.skip). Example of a message:
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

/// Calls leaf(a, b). It is a separate function, so that it is compiled once per type of tensor.
template <class P, class Q, class Leaf>
[[gnu::noinline]] void visit_leaf(P& to, const Q& from, const Leaf& leaf) {
  leaf(to, from);
}
/// Gives `to` the same parts as `from`, and calls `to.lie_as(from)` for packs that have this member. Calls leaf(a, b)
/// for every tensor a of `to` and b of `from`.
template <class P, class Q, class Leaf>
void structure_like(P& to, const Q& from, const Leaf& leaf) {
  if constexpr (is_tensor<P>) {
    visit_leaf(to, from, leaf);
  } else if constexpr (is_vector<P>) {
    to.resize(from.size());
    for (std::size_t i = 0; i < from.size(); ++i) structure_like(to[i], from[i], leaf);
  } else if constexpr (is_tuple<P>) {
    const auto parts = [&]<std::size_t... At>(std::index_sequence<At...>) {
      (structure_like(std::get<At>(to), std::get<At>(from), leaf), ...);
    };
    parts(std::make_index_sequence<std::tuple_size_v<P>>{});
  } else if constexpr (check<P>()) {
    if constexpr (is_sharded<P> || requires { to.lie_as(from); }) to.lie_as(from);
    P::each([&](std::string_view, auto& a, auto& b) { structure_like(a, std::as_const(b), leaf); }, to, from);
  }
}
/// The visitor of shape_like. A lambda would have a different type for each pack. With this type, equal parts of two
/// models are compiled once. Other visitors here have names for the same reason.
struct ResizeLike {
  void operator()(auto& a, const auto& b) const { a.resize_like(b); }
};

}  // namespace detail_::pack

/// Gives `to` the tensors and shapes of `from`, which can be on a different backend. The contents of `to` are lost.
template <class P, class Q>
void shape_like(P& to, const Q& from) {
  detail_::pack::structure_like(to, from, detail_::pack::ResizeLike{});
}

/// Returns the first Table of a pack, or null if there is none. In a model, this table holds the weights of the
/// embedding at the start.
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
template <class P>
std::size_t count_tensors(const P& p) {
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
template <class P>
bool holds_sharded(const P& p) {
  bool found = false;
  for_each_tensor(detail_::pack::FindSharded{found}, p);
  return found;
}

/// Returns the number of values in a pack.
template <class P>
Index count_values(const P& p) {
  Index n = 0;
  detail_::pack::visit_any([&](const Name&, const AnyTensor* t) { n += t->size; }, Name{}, false, p);
  return n;
}

}  // namespace gatefold
