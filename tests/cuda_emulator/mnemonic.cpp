#include "cuda_emulator/mnemonic.hpp"

#include <algorithm>

namespace gatefold::cuda_emulator {

std::optional<Type> type_named(std::string_view name) {
  static constexpr std::pair<std::string_view, Type> table[] = {
      {"b8", {Kind::bits, 8}},
      {"b16", {Kind::bits, 16}},
      {"b32", {Kind::bits, 32}},
      {"b64", {Kind::bits, 64}},
      {"b128", {Kind::bits, 128}},
      {"u8", {Kind::unsigned_integer, 8}},
      {"u16", {Kind::unsigned_integer, 16}},
      {"u32", {Kind::unsigned_integer, 32}},
      {"u64", {Kind::unsigned_integer, 64}},
      {"s8", {Kind::signed_integer, 8}},
      {"s16", {Kind::signed_integer, 16}},
      {"s32", {Kind::signed_integer, 32}},
      {"s64", {Kind::signed_integer, 64}},
      {"f16", {Kind::real, 16}},
      {"f16x2", {Kind::real, 16, true}},
      {"f32", {Kind::real, 32}},
      {"f64", {Kind::real, 64}},
      {"bf16", {Kind::bfloat, 16}},
      {"bf16x2", {Kind::bfloat, 16, true}},
      {"pred", {Kind::predicate, 1}},
  };
  for (const auto& [text, type] : table) {
    if (text == name) return type;
  }
  return std::nullopt;
}

Mnemonic::Mnemonic(std::string_view whole) : text(whole) {
  std::size_t dot = whole.find('.');
  root = whole.substr(0, dot);
  while (dot != std::string_view::npos) {
    const std::size_t next = whole.find('.', dot + 1);
    const std::string_view part = whole.substr(dot + 1, next - dot - 1);
    if (const auto type = type_named(part)) {
      types.push_back(*type);
    } else {
      modifiers.push_back(part);
    }
    dot = next;
  }
}

bool Mnemonic::take(std::string_view modifier) {
  const auto found = std::find(modifiers.begin(), modifiers.end(), modifier);
  if (found == modifiers.end()) return false;
  modifiers.erase(found);
  return true;
}

void Mnemonic::drop(std::string_view prefix) {
  std::erase_if(modifiers, [&](std::string_view modifier) { return modifier.starts_with(prefix); });
}

}  // namespace gatefold::cuda_emulator
