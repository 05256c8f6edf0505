#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "gatefold/layer/layer.hpp"

/// Tools for compositions. A composition is a layer or branch that is made of other parts, for example PreNorm{norm,
/// branch}. The macros define the members of a composition that follow from its parts. The functions run the parts.
// Defines the nested types and the functions in_dim() and out_dim() of a composition that contains one layer. The types
// and widths are the ones of the inner layer, except Params, which is only declared. GATEFOLD_AROUND_LAYER also defines
// begin(). `layer` is the name of the data member in the composition and in its Params.
#define GATEFOLD_TYPES_OF_LAYER(LayerT, layer)                \
  template <class T, class B>                                 \
  using Inner = ::gatefold::AsLayer<LayerT, T, B>;            \
  template <class T, class B>                                 \
  struct Params;                                              \
  template <class T, class B>                                 \
  using Carry = ::gatefold::Carry<Inner<T, B>, T, B>;         \
  template <class T, class B>                                 \
  using Extra = ::gatefold::Extra<Inner<T, B>, T, B>;         \
  template <class T, class B>                                 \
  using ExtraGrad = ::gatefold::ExtraGrad<Inner<T, B>, T, B>; \
  ::gatefold::Index in_dim() const { return layer.in_dim(); } \
  ::gatefold::Index out_dim() const { return layer.out_dim(); }
#define GATEFOLD_AROUND_LAYER(LayerT, layer)                                           \
  GATEFOLD_TYPES_OF_LAYER(LayerT, layer)                                               \
  template <class T, class B>                                                          \
  void begin(typename B::Context& ctx, const Params<T, B>& p, ::gatefold::Index items, \
             ::gatefold::NonDeduced<Carry<T, B>>& carry) const {                       \
    ::gatefold::as_layer<T, B>(layer).begin(ctx, p.layer, items, carry);               \
  }
// Defines the nested types and the functions in_dim() and out_dim() of a composition that contains one branch. The
// types and widths are the ones of this branch. `branch` is the name of the data member.
#define GATEFOLD_TYPES_OF_BRANCH(BranchT, branch)              \
  template <class T, class B>                                  \
  using Extra = ::gatefold::Extra<BranchT, T, B>;              \
  template <class T, class B>                                  \
  using ExtraGrad = ::gatefold::ExtraGrad<BranchT, T, B>;      \
  ::gatefold::Index in_dim() const { return branch.in_dim(); } \
  ::gatefold::Index out_dim() const { return branch.out_dim(); }

// Defines Params of a composition whose only parameters are the parameters of its part `part`, with unchanged names.
// The second argument is the type of the part.
#define GATEFOLD_PARAMS_OF(part, ...)                            \
  template <class T, class B>                                    \
  struct Params {                                                \
    ::gatefold::Params<__VA_ARGS__, T, B> part;                  \
    static void each(auto&& f, auto&... p) { f("", p.part...); } \
  };
// Defines Params and Saved of a composition that runs two parts, one after the other. Saved also has the tensor
// `between` [N, …], the output of the part that runs first. For each part, the macro takes the name of the data member
// and an alias template <T, B> of its type.
#define GATEFOLD_TWO_PARTS(first, First, second, Second, between) \
  template <class T, class B>                                     \
  struct Params {                                                 \
    ::gatefold::Params<First<T, B>, T, B> first;                  \
    ::gatefold::Params<Second<T, B>, T, B> second;                \
    GATEFOLD_PACK(first, second)                                  \
  };                                                              \
  template <class T, class B>                                     \
  struct Saved {                                                  \
    ::gatefold::Saved<First<T, B>, T, B> first;                   \
    ::gatefold::Saved<Second<T, B>, T, B> second;                 \
    ::gatefold::Tensor<T, 2, B> between;                          \
    void mixtures(auto&& f) const {                               \
      ::gatefold::for_each_mixture(first, f);                     \
      ::gatefold::for_each_mixture(second, f);                    \
    }                                                             \
  };
// Defines init of a composition. The arguments after `Composition` are the parts, in the order of Params. init checks
// the types of the parts, calls expect_options() if the composition has this function, and then initialises the
// parameters of each part. A single part gets `seed`; part i of several gets seed.fork(i).
#define GATEFOLD_INIT_OF(Composition, ...)                                                      \
  GATEFOLD_INIT(Composition) {                                                                  \
    if constexpr (requires { this->expect_options(); }) this->expect_options();                 \
    return ::gatefold::detail_::passes::init_parts<Params<T, B>, T, B>(ctx, seed, __VA_ARGS__); \
  }
// Defines trace of a composition: it returns the attention trace (the tensors of an attention that a gate can read) of
// the member `branch`. The function exists only if the branch has a trace. `kept` is an expression for the values that
// forward of the branch has saved, for example `saved.branch`.
#define GATEFOLD_TRACE_OF_BRANCH(BranchT, kept)                                       \
  template <class T, class B, class Of = BranchT>                                     \
  auto trace(const Params<T, B>& p, const ::gatefold::NonDeduced<Saved<T, B>>& saved) \
      const->decltype(std::declval<const Of&>().trace(p.branch, kept)) {              \
    return branch.trace(p.branch, kept);                                              \
  }

// Lets a composition around Part call the private functions run and run_backward of Part. The composition calls run and
// run_backward instead of forward, infer and backward, because it has already checked the arguments.
#define GATEFOLD_CHECKED_HERE(Part) \
  using CheckedHere = Part;         \
  friend struct ::gatefold::detail_::passes::Inside;

// GATEFOLD_BRANCH_PASSES and GATEFOLD_LAYER_PASSES define the functions forward, infer and backward of a branch or
// layer, and overloads that report calls with a wrong number of arguments (policy/misuse.hpp). The functions check
// their arguments. Then forward and infer call run<T, B>(ctx, params, x, [carry,] y, keep, extra, [step]), and backward
// calls run_backward<T, B> with its own arguments; the branch or layer must define run and run_backward
// (GATEFOLD_RUN_BRANCH, GATEFOLD_RUN_LAYER). The argument `keep` is &saved in forward and nullptr in infer. `run`
// passes `keep` on to keep_or_scratch, part_of, run_branch and run_layer.
#define GATEFOLD_BRANCH_PASSES(Branch)                                                                            \
  GATEFOLD_BRANCH_CALLS;                                                                                          \
  GATEFOLD_CHECKED_HERE(Branch)                                                                                   \
  template <class T, class B, class Step = ::gatefold::functor::NoStep<T>>                                        \
  void forward(typename B::Context& ctx, const Params<T, B>& p,                                                   \
               ::gatefold::NonDeduced<::gatefold::Items<Branch, T, B>> x, ::gatefold::Out<T, 2, B> u,             \
               ::gatefold::NonDeduced<Saved<T, B>>& saved, const ::gatefold::NonDeduced<Extra<T, B>>& extra = {}, \
               const Step& step = {}) const {                                                                     \
    const auto here = ctx.here();                                                                                 \
    ::gatefold::expect_forward(#Branch ".forward", *this, p, x, "u", u, extra);                                   \
    run<T, B>(ctx, p, x, u, &saved, extra, step);                                                                 \
  }                                                                                                               \
  template <class T, class B, class Step = ::gatefold::functor::NoStep<T>>                                        \
  void infer(typename B::Context& ctx, const Params<T, B>& p,                                                     \
             ::gatefold::NonDeduced<::gatefold::Items<Branch, T, B>> x, ::gatefold::Out<T, 2, B> u,               \
             const ::gatefold::NonDeduced<Extra<T, B>>& extra = {}, const Step& step = {}) const {                \
    const auto here = ctx.here();                                                                                 \
    ::gatefold::expect_forward(#Branch ".forward", *this, p, x, "u", u, extra);                                   \
    run<T, B>(ctx, p, x, u, nullptr, extra, step);                                                                \
  }                                                                                                               \
  template <class T, class B>                                                                                     \
  void backward(typename B::Context& ctx, const Params<T, B>& p,                                                  \
                ::gatefold::NonDeduced<::gatefold::Items<Branch, T, B>> x,                                        \
                const ::gatefold::NonDeduced<Saved<T, B>>& saved, ::gatefold::In<T, 2, B> du,                     \
                ::gatefold::NonDeduced<::gatefold::ItemsGrad<Branch, T, B>> dx, Params<T, B>& grads,              \
                const ::gatefold::NonDeduced<Extra<T, B>>& extra,                                                 \
                ::gatefold::NonDeduced<::gatefold::ExtraGrad<Branch, T, B>>& dextra) const {                      \
    const auto here = ctx.here();                                                                                 \
    ::gatefold::expect_backward(#Branch ".backward", *this, p, x, du, dx, grads, extra);                          \
    run_backward<T, B>(ctx, p, x, saved, du, dx, grads, extra, dextra);                                           \
  }
// Each of the next four macros (GATEFOLD_RUN_…) is the head of a function run or run_backward; write the function body
// after the macro.
// `run` of a branch has the parameters ctx, p, x, u, keep, extra and step. `run` of a layer has ctx, p, x, carry, y,
// keep and extra. run_backward has the parameters of backward. x and dx are matrices of rows, unless the inputs are
// ids. Then x is the ids, and dx is Nothing.
#define GATEFOLD_RUN_BRANCH                                                                                \
  template <class T, class B, class Keep, class Step>                                                      \
  void run(typename B::Context& ctx, const Params<T, B>& p, auto x, ::gatefold::Out<T, 2, B> u, Keep keep, \
           [[maybe_unused]] const auto& extra, const Step& step) const
#define GATEFOLD_RUN_BRANCH_BACKWARD                                                                              \
  template <class T, class B>                                                                                     \
  void run_backward(typename B::Context& ctx, const Params<T, B>& p, auto x, const Saved<T, B>& saved,            \
                    ::gatefold::In<T, 2, B> du, auto dx, Params<T, B>& grads, [[maybe_unused]] const auto& extra, \
                    [[maybe_unused]] auto& dextra) const
#define GATEFOLD_RUN_LAYER                                                                        \
  template <class T, class B, class Keep>                                                         \
  void run(typename B::Context& ctx, const Params<T, B>& p, auto x, [[maybe_unused]] auto& carry, \
           ::gatefold::Out<T, 2, B> y, Keep keep, const auto& extra) const
#define GATEFOLD_RUN_LAYER_BACKWARD                                                                          \
  template <class T, class B>                                                                                \
  void run_backward(typename B::Context& ctx, const Params<T, B>& p, auto x, const Saved<T, B>& saved,       \
                    ::gatefold::In<T, 2, B> dy, [[maybe_unused]] auto& dcarry, auto dx, Params<T, B>& grads, \
                    const auto& extra, auto& dextra) const
// Declares the functions run and run_backward of a branch, for branches that define these functions after the class.
#define GATEFOLD_DECLARE_RUN                                                                                       \
  template <class T, class B, class Keep, class Step>                                                              \
  void run(typename B::Context& ctx, const Params<T, B>& p, ::gatefold::In<T, 2, B> x, ::gatefold::Out<T, 2, B> u, \
           Keep keep, const Extra<T, B>& extra, const Step& step) const;                                           \
  template <class T, class B>                                                                                      \
  void run_backward(typename B::Context& ctx, const Params<T, B>& p, ::gatefold::In<T, 2, B> x,                    \
                    const Saved<T, B>& saved, ::gatefold::In<T, 2, B> du, ::gatefold::Out<T, 2, B> dx,             \
                    Params<T, B>& grads, const Extra<T, B>& extra, ::gatefold::Nothing<T, B>&) const;
#define GATEFOLD_LAYER_PASSES(Layer)                                                                             \
  GATEFOLD_LAYER_CALLS;                                                                                          \
  GATEFOLD_CHECKED_HERE(Layer)                                                                                   \
  template <class T, class B>                                                                                    \
  void forward(                                                                                                  \
      typename B::Context& ctx, const Params<T, B>& p, ::gatefold::NonDeduced<::gatefold::Items<Layer, T, B>> x, \
      ::gatefold::NonDeduced<::gatefold::Carry<Layer, T, B>>& carry, ::gatefold::Out<T, 2, B> y,                 \
      ::gatefold::NonDeduced<Saved<T, B>>& saved, const ::gatefold::NonDeduced<Extra<T, B>>& extra = {}) const { \
    const auto here = ctx.here();                                                                                \
    ::gatefold::expect_forward(#Layer ".forward", *this, p, x, "y", y, carry, extra);                            \
    run<T, B>(ctx, p, x, carry, y, &saved, extra);                                                               \
  }                                                                                                              \
  template <class T, class B>                                                                                    \
  void infer(typename B::Context& ctx, const Params<T, B>& p,                                                    \
             ::gatefold::NonDeduced<::gatefold::Items<Layer, T, B>> x,                                           \
             ::gatefold::NonDeduced<::gatefold::Carry<Layer, T, B>>& carry, ::gatefold::Out<T, 2, B> y,          \
             const ::gatefold::NonDeduced<Extra<T, B>>& extra = {}) const {                                      \
    const auto here = ctx.here();                                                                                \
    ::gatefold::expect_forward(#Layer ".forward", *this, p, x, "y", y, carry, extra);                            \
    run<T, B>(ctx, p, x, carry, y, nullptr, extra);                                                              \
  }                                                                                                              \
  template <class T, class B>                                                                                    \
  void backward(typename B::Context& ctx, const Params<T, B>& p,                                                 \
                ::gatefold::NonDeduced<::gatefold::Items<Layer, T, B>> x,                                        \
                const ::gatefold::NonDeduced<Saved<T, B>>& saved, ::gatefold::In<T, 2, B> dy,                    \
                ::gatefold::NonDeduced<::gatefold::Carry<Layer, T, B>>& dcarry,                                  \
                ::gatefold::NonDeduced<::gatefold::ItemsGrad<Layer, T, B>> dx, Params<T, B>& grads,              \
                const ::gatefold::NonDeduced<Extra<T, B>>& extra,                                                \
                ::gatefold::NonDeduced<::gatefold::ExtraGrad<Layer, T, B>>& dextra) const {                      \
    const auto here = ctx.here();                                                                                \
    ::gatefold::expect_backward(#Layer ".backward", *this, p, x, dy, dx, grads, dcarry, extra);                  \
    run_backward<T, B>(ctx, p, x, saved, dy, dcarry, dx, grads, extra, dextra);                                  \
  }

namespace gatefold {

namespace detail_::passes {

/// Initialises the parameters of each part of a composition, and returns P, the parameters of the composition. A single
/// part gets `seed`; part i of several gets seed.fork(i).
template <class P, class T, class B, class... Part>
P init_parts(typename B::Context& ctx, Seed seed, const Part&... part) {
  [[maybe_unused]] std::uint64_t next = 0;
  return {init_params<T, B>(part, ctx, sizeof...(Part) > 1 ? seed.fork(next++) : seed)...};
}
/// Calls the private functions run and run_backward of a composition that is part of another one. These functions do
/// not check their arguments, because the outermost composition has checked the arguments of all its parts
/// (`validate`).
struct Inside {
  template <class T, class B>
  static void run(const auto& part, auto&... arguments) {
    part.template run<T, B>(arguments...);
  }
  template <class T, class B>
  static void run_backward(const auto& part, auto&... arguments) {
    part.template run_backward<T, B>(arguments...);
  }
};
/// True for a branch or layer that contains GATEFOLD_CHECKED_HERE, for example through GATEFOLD_BRANCH_PASSES or
/// GATEFOLD_LAYER_PASSES. False for a class that is derived from such a branch or layer, because the derived class can
/// define other functions.
template <class L>
concept ChecksHere = requires {
  requires std::is_same_v<typename L::CheckedHere, L>;
};
/// Extra inputs of a branch around an expert E: Noise if the expert draws random numbers, otherwise none.
template <class E, class T, class B>
using NoiseOf = std::conditional_t<detail_::hook::expert::with_noise<E>(), Noise, Nothing<T, B>>;
/// Returns the expert with the noise of one call. An expert that draws no random numbers is returned unchanged.
template <class E>
E drawing(const E& expert, const auto& noise) {
  if constexpr (detail_::hook::expert::with_noise<E>()) {
    return with_noise(expert, noise);
  } else {
    return expert;
  }
}

}  // namespace detail_::passes

/// Returns memory [rows, columns] for an intermediate value of a forward pass. If `keep` points to saved values for
/// backward, the memory is their tensor `member`. If keep is nullptr (inference), the memory is scratch memory of the
/// context.
template <class T, class B, class S>
View<T, 2, B> keep_or_scratch(typename B::Context&, S* keep, Tensor<T, 2, B> S::*member, Index rows, Index columns) {
  (keep->*member).resize(rows, columns);
  return (keep->*member).view();
}
template <class T, class B, class M>
View<T, 2, B> keep_or_scratch(typename B::Context& ctx, std::nullptr_t, M, Index rows, Index columns) {
  return ctx.template scratch<T>(rows, columns);
}
/// Returns the address of a member of *keep, for example the saved values of one part of a composition. Returns nullptr
/// if keep is nullptr (inference).
template <class S, class M>
M* part_of(S* keep, M S::*member) {
  return &(keep->*member);
}
std::nullptr_t part_of(std::nullptr_t, auto) { return nullptr; }

/// Runs a branch. Saves the values for backward in *keep. If keep is nullptr, saves no values (inference).
template <class T, class B, class L, class Keep, class Step = functor::NoStep<T>>
void run_branch(const L& branch, typename B::Context& ctx, const Params<L, T, B>& p, NonDeduced<Items<L, T, B>> x,
                Out<T, 2, B> u, Keep keep, const Extra<L, T, B>& extra, const Step& step = {}) {
  if constexpr (detail_::passes::ChecksHere<L>) {
    detail_::passes::Inside::run<T, B>(branch, ctx, p, x, u, keep, extra, step);
  } else if constexpr (std::is_null_pointer_v<Keep>) {
    infer_branch<T, B>(branch, ctx, p, x, u, extra, step);
  } else {
    branch.forward(ctx, p, x, u, *keep, extra, step);
  }
}
template <class T, class B, class L>
void run_branch_backward(const L& branch, typename B::Context& ctx, const Params<L, T, B>& p,
                         NonDeduced<Items<L, T, B>> x, const Saved<L, T, B>& saved, In<T, 2, B> du,
                         NonDeduced<ItemsGrad<L, T, B>> dx, Params<L, T, B>& grads, const Extra<L, T, B>& extra,
                         ExtraGrad<L, T, B>& dextra) {
  if constexpr (detail_::passes::ChecksHere<L>) {
    detail_::passes::Inside::run_backward<T, B>(branch, ctx, p, x, saved, du, dx, grads, extra, dextra);
  } else {
    branch.backward(ctx, p, x, saved, du, dx, grads, extra, dextra);
  }
}
/// Runs a layer. Saves the values for backward in *keep. If keep is nullptr, saves no values (inference).
template <class T, class B, class L, class Keep>
void run_layer(const L& layer, typename B::Context& ctx, const Params<L, T, B>& p, NonDeduced<Items<L, T, B>> x,
               Carry<L, T, B>& carry, Out<T, 2, B> y, Keep keep, const Extra<L, T, B>& extra) {
  if constexpr (detail_::passes::ChecksHere<L>) {
    detail_::passes::Inside::run<T, B>(layer, ctx, p, x, carry, y, keep, extra);
  } else if constexpr (std::is_null_pointer_v<Keep>) {
    infer<T, B>(layer, ctx, p, x, carry, y, extra);
  } else {
    layer.forward(ctx, p, x, carry, y, *keep, extra);
  }
}
template <class T, class B, class L>
void run_layer_backward(const L& layer, typename B::Context& ctx, const Params<L, T, B>& p,
                        NonDeduced<Items<L, T, B>> x, const Saved<L, T, B>& saved, In<T, 2, B> dy,
                        Carry<L, T, B>& dcarry, NonDeduced<ItemsGrad<L, T, B>> dx, Params<L, T, B>& grads,
                        const Extra<L, T, B>& extra, ExtraGrad<L, T, B>& dextra) {
  if constexpr (detail_::passes::ChecksHere<L>) {
    detail_::passes::Inside::run_backward<T, B>(layer, ctx, p, x, saved, dy, dcarry, dx, grads, extra, dextra);
  } else {
    layer.backward(ctx, p, x, saved, dy, dcarry, dx, grads, extra, dextra);
  }
}
/// Runs an expert. Saves the values for backward in *keep. If keep is nullptr, saves no values (inference).
template <class T, class B, class E, class Keep>
void run_expert(const E& expert, typename B::Context& ctx, const Params<E, T, B>& p, const Groups<B>& groups,
                In<T, 2, B> x, Out<T, 2, B> z, Keep keep) {
  if constexpr (std::is_null_pointer_v<Keep>) {
    infer_expert<T, B>(expert, ctx, p, groups, x, z);
  } else {
    expert.forward(ctx, p, groups, x, z, *keep);
  }
}

}  // namespace gatefold
