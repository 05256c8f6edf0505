#pragma once

#include <type_traits>

#include "gatefold/policy/misuse.hpp"

// Defines the error messages for calls of a member function of a layer or branch with too few or too many arguments.
// Every layer of the library contains the line GATEFOLD_LAYER_CALLS, and every branch the line GATEFOLD_BRANCH_CALLS.
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
