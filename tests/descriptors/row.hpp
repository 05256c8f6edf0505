#pragma once

#include "gatefold/core/types.hpp"

/// Macros for the descriptor rows, one row for each policy. From the rows, cover.sh makes compositions, in which each
/// policy is checked together with policies of every other family. Scripts (rows.awk) read the rows as well.
namespace gatefold::rows {

/// How large the parts of a composition are. An item is `tokens` tokens of `width` values; most policies take it whole.
struct Size {
  Index width = 2, tokens = 2, hidden = 3, heads = 1, experts = 3, slots = 2;
  Index sequence = 4;  // items that may depend on each other; 0: all

  constexpr Index item() const { return width * tokens; }
};
inline constexpr Size tiny{};  // for finite differences
/// For checks of bits: widths that no register size divides.
inline constexpr Size odd{.width = 15, .tokens = 3, .hidden = 19, .heads = 3, .experts = 5, .sequence = 16};

/// Which outputs may depend on an item: its own, those of its sequence, or those of the batch.
enum class Meets { itself, sequence, batch };

struct Facts {
  /// Rows and families that cannot be in one composition with this one, and why: "load gshard: takes no picks by item".
  const char* cannot_meet = "";
  const char* zero = "";   // gradients that are zero by design, by the end of their name: "carry.p"
  const char* hooks = "";  // optional members that it and its nested types name (check/hooks.hpp): "begin Extra.at"
  Meets meets = Meets::itself;
  bool once = false;      // true for a variant of another row; it meets only some rows of each family
  double moved = 0;       // how far the gradient check moves parameters if those of all experts begin alike
  Index seed = 1;         // of gradient checks; not 1 if routing changes near its values, or differences are too coarse
  double of_doubles = 1;  // factor of the tolerance for doubles on a device, if the policy computes them from floats
};

/// Takes the place of a family that a composition does without.
struct Absent {};

}  // namespace gatefold::rows

/// GATEFOLD_ROW(name, (policy), facts...) defines a row of the family that its header is named after. The policy is
/// made for a Size `s`, with options at which no gradient is nearly zero. The row is a struct and no lambda because of
/// nvcc.
#define GATEFOLD_ROW(name, policy, ...)                                 \
  struct RowOf_##name {                                                 \
    static auto make([[maybe_unused]] const Size& s) { return policy; } \
    static constexpr Facts facts{__VA_ARGS__};                          \
  };                                                                    \
  inline constexpr RowOf_##name name{};
/// Defines a row of a layer around a branch, which is made from a rule (or Absent) and the branch.
#define GATEFOLD_LAYER_ROW(name, layer, ...)                                                                  \
  struct RowOf_##name {                                                                                       \
    static auto make([[maybe_unused]] const Size& s, [[maybe_unused]] const auto& rule, const auto& branch) { \
      return layer;                                                                                           \
    }                                                                                                         \
    static constexpr Facts facts{__VA_ARGS__};                                                                \
  };                                                                                                          \
  inline constexpr RowOf_##name name{};

namespace gatefold::rows {

GATEFOLD_ROW(absent, (Absent{}))

}  // namespace gatefold::rows
