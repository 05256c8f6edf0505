// setp and testp: comparisons, and tests for classes of numbers.
#include <cmath>

#include "cuda_emulator/arithmetic.hpp"
#include "cuda_emulator/by_type.hpp"
#include "cuda_emulator/lanes.hpp"
#include "cuda_emulator/real.hpp"

namespace gatefold::cuda_emulator {
namespace {

using std::uint32_t;

enum class Combination : std::uint8_t { none, conjunction, disjunction, exclusive };

constexpr int combination_shift = 4;  // above the relations in Instruction::mode

template <class T>
Relation relation(T a, T b) {
  return a < b ? less : a == b ? equal : a > b ? greater : unordered;
}

/// Computes p = (a cmp b) op c and q = !(a cmp b) op c.
void combine(char* registers, const Instruction& in, uint32_t result, uint32_t lanes) {
  const uint32_t c = read_predicate(registers, in[4]);
  auto with_c = [&](uint32_t bits) {
    switch (static_cast<Combination>(in.mode >> combination_shift)) {
      case Combination::conjunction:
        return bits & c;
      case Combination::disjunction:
        return bits | c;
      case Combination::exclusive:
        return bits ^ c;
      default:
        return bits;
    }
  };
  const uint32_t first = with_c(result), second = with_c(~result);
  write_predicate(registers, in[0], first, lanes);
  write_predicate(registers, in[1], second, lanes);
}

struct Compare {
  template <class T>
  static void run(char* registers, const Instruction& in, uint32_t lanes) {
    const uint32_t wanted = in.mode & 15;
    const bool flush = in.flush;
    const uint32_t result = select_lanes<T, T>(registers, in, 2, lanes, [=](T a, T b) {
      if constexpr (std::is_integral_v<T>) {
        return (relation(a, b) & wanted) != 0;
      } else {
        return (relation(computed(a, flush), computed(b, flush)) & wanted) != 0;
      }
    });
    combine(registers, in, result, lanes);
  }
};

enum class Class : std::uint8_t { finite, infinite, number, not_a_number, normal, subnormal };

struct Classify {
  template <class T>
  static void run(char* registers, const Instruction& in, uint32_t lanes) {
    const auto wanted = static_cast<Class>(in.mode);
    const uint32_t result = select_lanes<T>(registers, in, 1, lanes, [=](T value) {
      const auto x = computed(value, false);
      switch (wanted) {
        case Class::finite:
          return std::isfinite(x);
        case Class::infinite:
          return std::isinf(x);
        case Class::number:
          return !std::isnan(x);
        case Class::not_a_number:
          return std::isnan(x);
        case Class::normal:
          return std::isnormal(x);
        default:
          return std::fpclassify(x) == FP_SUBNORMAL;
      }
    });
    write_predicate(registers, in[0], result, lanes);
  }
};

Arithmetic select_setp(Mnemonic& mnemonic, Instruction& in) {
  static constexpr std::pair<std::string_view, int> comparisons[] = {
      {"eq", equal},
      {"ne", less | greater},
      {"lt", less},
      {"le", less | equal},
      {"gt", greater},
      {"ge", greater | equal},
      {"lo", less},
      {"ls", less | equal},
      {"hi", greater},
      {"hs", greater | equal},
      {"equ", equal | unordered},
      {"neu", less | greater | unordered},
      {"ltu", less | unordered},
      {"leu", less | equal | unordered},
      {"gtu", greater | unordered},
      {"geu", greater | equal | unordered},
      {"num", less | equal | greater},
      {"nan", unordered},
  };
  static constexpr std::pair<std::string_view, Combination> combinations[] = {
      {"and", Combination::conjunction}, {"or", Combination::disjunction}, {"xor", Combination::exclusive}};
  const int wanted = mnemonic.choose(comparisons).value_or(0);
  const Combination combination = mnemonic.choose(combinations).value_or(Combination::none);
  in.mode = static_cast<std::uint8_t>(wanted | static_cast<int>(combination) << combination_shift);
  in.flush = mnemonic.take("ftz");
  if (wanted == 0) return {};
  return {"pqtto", in.type.floating() ? by_scalar_real<Compare>(in.type) : by_integer<Compare>(in.type)};
}

Arithmetic select_testp(Mnemonic& mnemonic, Instruction& in) {
  static constexpr std::pair<std::string_view, Class> classes[] = {
      {"finite", Class::finite},           {"infinite", Class::infinite}, {"number", Class::number},
      {"notanumber", Class::not_a_number}, {"normal", Class::normal},     {"subnormal", Class::subnormal}};
  const auto wanted = mnemonic.choose(classes);
  if (!wanted) return {};
  in.mode = static_cast<std::uint8_t>(*wanted);
  return {"pt", by_scalar_real<Classify>(in.type)};
}

}  // namespace

std::optional<Arithmetic> select_comparison(Mnemonic& mnemonic, Instruction& in) {
  if (mnemonic.root == "setp") return select_setp(mnemonic, in);
  if (mnemonic.root == "testp") return select_testp(mnemonic, in);
  return std::nullopt;
}

}  // namespace gatefold::cuda_emulator
