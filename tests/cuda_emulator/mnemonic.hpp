// The name of an instruction, taken apart: `ld.relaxed.gpu.global.v2.f32` is the root `ld`, modifiers and types.
#pragma once

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda_emulator/ptx.hpp"

namespace gatefold::cuda_emulator {

/// @returns nothing where `name` (without its dot) is no type
std::optional<Type> type_named(std::string_view name);

/// Modifiers are taken by whoever knows them; one that nobody took makes the instruction unknown.
struct Mnemonic {
  std::string_view text, root;
  std::vector<std::string_view> modifiers;
  std::vector<Type> types;

  explicit Mnemonic(std::string_view text);

  /// Whether the modifier is there; if so, it is taken.
  bool take(std::string_view modifier);

  /// Takes any modifier that begins with `prefix`.
  void drop(std::string_view prefix);

  /// Takes the one modifier of a table that is there.
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
