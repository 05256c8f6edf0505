// The name of an instruction, split into parts: `ld.relaxed.gpu.global.v2.f32` has the root `ld`, modifiers and types.
#pragma once

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda_emulator/ptx.hpp"

namespace gatefold::cuda_emulator {

/// @returns nothing if `name` (without its dot) is not a type
std::optional<Type> type_named(std::string_view name);

/// A mnemonic. Functions remove the modifiers that they handle; a modifier that is left makes the instruction unknown.
struct Mnemonic {
  std::string_view text, root;
  std::vector<std::string_view> modifiers;
  std::vector<Type> types;

  explicit Mnemonic(std::string_view text);

  /// Removes the modifier. @returns whether it was there
  bool take(std::string_view modifier);

  /// Removes any modifier that begins with `prefix`.
  void drop(std::string_view prefix);

  /// Removes the modifier that is in the table, if there is one.
  template <class T, std::size_t n>
  std::optional<T> choose(const std::pair<std::string_view, T> (&table)[n]) {
    for (const auto& [name, value] : table) {
      if (take(name)) return value;
    }
    return std::nullopt;
  }

  Type type(std::size_t i = 0) const { return i < types.size() ? types[i] : Type{}; }
};

}  // namespace gatefold::cuda_emulator
