#pragma once

#include <concepts>
#include <type_traits>

#include "gatefold/core/types.hpp"

namespace gatefold::detail_::policy {

/// Explains a frequent mistake at compile time. No value converts to a Misuse, so a call that needs one does not
/// compile. The error of the compiler, at the line of the caller, contains the text `says`. A Misuse has two uses:
///
/// - as the first parameter of a function overload, to report a call with wrong arguments;
/// - as a member of a struct of options, to report an option that belongs to another struct.
///
/// An overload with a Misuse is not callable with any argument except {}, so concepts and `requires` treat the call as
/// invalid.
///
///     void step(detail_::policy::Misuse<"gatefold: step takes a target too: trainer.step(x, target)">);
///
/// A member needs [[no_unique_address]], and each member of a struct needs a different text. Two empty members of the
/// same type would need two addresses, and therefore memory.
template <detail_::Sentence says>
struct Misuse {
  static constexpr bool is_misuse = true;
  Misuse() = default;
  template <class... V>
  Misuse(const V&...) = delete;
};

/// True for a part of a model with a function `experts()`, which returns the number of experts.
template <class P>
concept HasExperts = requires(const P part) {
  { part.experts() } -> std::convertible_to<Index>;
};
/// True for a gate (ComposedGate) whose number of experts is an option of its scores, the part of a gate that computes
/// a number for each expert. The member `experts` of the gate itself is a Misuse, which reports a wrong use at compile
/// time.
template <class P>
concept HasExpertsOfScores = requires(const P part) {
  part.experts.is_misuse;
  part.scores;
};
/// True for a part or gate that has a number of experts (HasExperts or HasExpertsOfScores). `count_experts`
/// (gate/gate.hpp) returns this number.
template <class P>
concept CountsExperts = HasExperts<P> || HasExpertsOfScores<P>;

}  // namespace gatefold::detail_::policy

// Defines the error messages for calls of a member function of a layer or branch with too few or too many arguments.
// Every layer of the library contains GATEFOLD_LAYER_CALLS, and every branch GATEFOLD_BRANCH_CALLS.
// GATEFOLD_LAYER_PASSES and GATEFOLD_BRANCH_PASSES contain these macros.
#define GATEFOLD_WRONG_COUNT(function, fewest, most, sentence)                                          \
  template <class... A, class = std::enable_if_t<(sizeof...(A) < (fewest)) || (sizeof...(A) > (most))>> \
  void function(::gatefold::detail_::policy::Misuse<sentence>, A&&...) const
#define GATEFOLD_WRONG_INIT                                                                                           \
  template <class T = float, class B = void, class... A>                                                              \
  void init(                                                                                                          \
      ::gatefold::detail_::policy::Misuse<                                                                            \
          "gatefold: init takes the element type and the backend as template arguments: model.init<float, Cpu>(ctx, " \
          "Seed{1}); see docs/reference/functions.md">,                                                               \
      A&&...) const
#define GATEFOLD_LAYER_CALLS                                                                                           \
  GATEFOLD_WRONG_INIT;                                                                                                 \
  GATEFOLD_WRONG_COUNT(begin, 3, 3,                                                                                    \
                       "gatefold: begin of a layer takes (ctx, params, items, carry); items is the number of items; "  \
                       "see docs/reference/functions.md");                                                             \
  GATEFOLD_WRONG_COUNT(                                                                                                \
      forward, 5, 6,                                                                                                   \
      "gatefold: forward of a layer takes (ctx, params, x, carry, y, saved), then extra if the layer has extra "       \
      "inputs; call begin first: Carry<L, T, B> carry; layer.begin(ctx, params, items, carry); see "                   \
      "docs/reference/functions.md");                                                                                  \
  GATEFOLD_WRONG_COUNT(                                                                                                \
      infer, 4, 5,                                                                                                     \
      "gatefold: infer of a layer takes (ctx, params, x, carry, y), then extra if the layer has extra inputs; call "   \
      "begin first: Carry<L, T, B> carry; layer.begin(ctx, params, items, carry); see "                                \
      "docs/reference/functions.md");                                                                                  \
  GATEFOLD_WRONG_COUNT(backward, 9, 9,                                                                                 \
                       "gatefold: the member backward of a layer also takes extra and dextra; without the adjoint of " \
                       "extra inputs call the free function backward(layer, ctx, params, x, saved, dy, dcarry, dx, "   \
                       "grads), with extra last if the layer has extra inputs; see "                                   \
                       "docs/reference/functions.md")
#define GATEFOLD_BRANCH_CALLS                                                                                          \
  GATEFOLD_WRONG_INIT;                                                                                                 \
  GATEFOLD_WRONG_COUNT(forward, 4, 6,                                                                                  \
                       "gatefold: forward of a branch takes (ctx, params, x, u, saved), then extra if the branch has " \
                       "extra inputs, then step if there is one; see "                                                 \
                       "docs/reference/functions.md");                                                                 \
  GATEFOLD_WRONG_COUNT(backward, 8, 8,                                                                                 \
                       "gatefold: the member backward of a branch also takes extra and dextra; without the adjoint "   \
                       "of extra inputs call the free function backward(branch, ctx, params, x, saved, du, dx, "       \
                       "grads), with extra last if the branch has extra inputs; see docs/reference/functions.md")
