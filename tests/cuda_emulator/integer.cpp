// Integer arithmetic and bit fields.
#include <algorithm>
#include <bit>
#include <limits>
#include <type_traits>

#include "cuda_emulator/arithmetic.hpp"
#include "cuda_emulator/by_type.hpp"
#include "cuda_emulator/lanes.hpp"

namespace gatefold::cuda_emulator {
namespace {

using std::uint32_t;
using std::uint64_t;

/// The type in which T wraps around without undefined behaviour and without promotion to int.
template <class T>
using Wrapping = std::conditional_t<sizeof(T) < 4, uint32_t, std::make_unsigned_t<T>>;

template <class T>
constexpr int width = static_cast<int>(8 * sizeof(T));

template <class Op>
struct Unary {
  template <class T>
  static void run(char* registers, const Instruction& in, uint32_t lanes) {
    map_lanes<T, T>(registers, in, lanes, [](T a) { return Op::template apply<T>(a); });
  }
};
template <class Op>
struct Binary {
  template <class T>
  static void run(char* registers, const Instruction& in, uint32_t lanes) {
    map_lanes<T, T, T>(registers, in, lanes, [](T a, T b) { return Op::template apply<T>(a, b); });
  }
};
template <class Op>
struct Ternary {
  template <class T>
  static void run(char* registers, const Instruction& in, uint32_t lanes) {
    map_lanes<T, T, T, T>(registers, in, lanes, [](T a, T b, T c) { return Op::template apply<T>(a, b, c); });
  }
};
/// Runs an operation whose second operand is a count of 32 bits. T is the type of the result and of the first operand.
template <class Op>
struct Shift {
  template <class T>
  static void run(char* registers, const Instruction& in, uint32_t lanes) {
    map_lanes<T, T, uint32_t>(registers, in, lanes, [](T a, uint32_t b) { return Op::template apply<T>(a, b); });
  }
};
/// Runs an operation whose result has 32 bits. T is the type of the operand.
template <class Op>
struct Count {
  template <class T>
  static void run(char* registers, const Instruction& in, uint32_t lanes) {
    map_lanes<uint32_t, T>(registers, in, lanes, [](T a) { return Op::template apply<T>(a); });
  }
};

struct Add {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(Wrapping<T>(a) + Wrapping<T>(b));
  }
};
struct Subtract {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(Wrapping<T>(a) - Wrapping<T>(b));
  }
};
template <int sign>
struct AddSaturated {  // .s32 only
  template <class T>
  static T apply(T a, T b) {
    const std::int64_t sum = std::int64_t{a} + sign * std::int64_t{b};
    return static_cast<T>(std::clamp<std::int64_t>(sum, std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
  }
};
struct MultiplyLow {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(Wrapping<T>(a) * Wrapping<T>(b));
  }
};
struct MultiplyHigh {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (sizeof(T) == 8) {
      __extension__ using Wide = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
      return static_cast<T>((Wide{a} * b) >> 64);
    } else {
      using Wide = std::conditional_t<std::is_signed_v<T>, std::int64_t, uint64_t>;
      return static_cast<T>((Wide{a} * Wide{b}) >> width<T>);
    }
  }
};
/// Bits [shift, shift + 32) of the product of the low 24 bits.
template <int shift>
struct Multiply24 {
  template <class T>
  static T apply(T a, T b) {
    auto low = [](T v) {
      const auto bits = static_cast<uint32_t>(v) << 8;
      return std::is_signed_v<T> ? std::int64_t{static_cast<std::int32_t>(bits) >> 8} : std::int64_t{bits >> 8};
    };
    return static_cast<T>((low(a) * low(b)) >> shift);
  }
};
template <class Product>
struct MultiplyAdd {
  template <class T>
  static T apply(T a, T b, T c) {
    return Add::apply<T>(Product::template apply<T>(a, b), c);
  }
};
struct Divide {
  template <class T>
  static T apply(T a, T b) {
    if (b == 0) return static_cast<T>(~T{0});  // the result of devices
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return Subtract::apply<T>(0, a);
    return static_cast<T>(a / b);
  }
};
struct Remainder {
  template <class T>
  static T apply(T a, T b) {
    if (b == 0) return a;
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
    return static_cast<T>(a % b);
  }
};
struct Minimum {
  template <class T>
  static T apply(T a, T b) {
    return std::min(a, b);
  }
};
struct Maximum {
  template <class T>
  static T apply(T a, T b) {
    return std::max(a, b);
  }
};
struct Negate {
  template <class T>
  static T apply(T a) {
    return Subtract::apply<T>(0, a);
  }
};
struct Absolute {
  template <class T>
  static T apply(T a) {
    return a < T{0} ? Negate::apply<T>(a) : a;
  }
};
struct SumOfDifferences {
  template <class T>
  static T apply(T a, T b, T c) {
    return Add::apply<T>(c, a < b ? Subtract::apply<T>(b, a) : Subtract::apply<T>(a, b));
  }
};
struct ShiftLeft {
  template <class T>
  static T apply(T a, uint32_t count) {
    return count < width<T> ? static_cast<T>(Wrapping<T>(a) << count) : T{0};
  }
};
struct ShiftRight {
  template <class T>
  static T apply(T a, uint32_t count) {
    if (count < width<T>) return static_cast<T>(a >> count);
    return std::is_signed_v<T> ? static_cast<T>(a >> (width<T> - 1)) : T{0};
  }
};
struct Population {
  template <class T>
  static uint32_t apply(T a) {
    return static_cast<uint32_t>(std::popcount(std::make_unsigned_t<T>(a)));
  }
};
struct LeadingZeros {
  template <class T>
  static uint32_t apply(T a) {
    return static_cast<uint32_t>(std::countl_zero(std::make_unsigned_t<T>(a)));
  }
};
/// Computes the position of the most significant bit that is not a sign bit, or ~0 if there is none. With `as_shift`,
/// computes the left shift that moves this bit to the top instead of its position.
template <bool as_shift>
struct FindBit {
  template <class T>
  static uint32_t apply(T a) {
    const auto bits = static_cast<std::make_unsigned_t<T>>(a < T{0} ? static_cast<T>(~a) : a);
    if (bits == 0) return ~0u;
    const auto zeros = static_cast<uint32_t>(std::countl_zero(bits));
    return as_shift ? zeros : width<T> - 1 - zeros;
  }
};
struct Reverse {
  template <class T>
  static T apply(T a) {
    std::make_unsigned_t<T> from = a, to = 0;
    for (int i = 0; i < width<T>; ++i, from >>= 1) to = static_cast<decltype(to)>(to << 1 | (from & 1));
    return static_cast<T>(to);
  }
};

/// Returns a number whose lowest `count` bits are set.
constexpr uint64_t low_bits(uint32_t count) { return count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1; }

struct ExtractField {
  template <class T>
  static void run(char* registers, const Instruction& in, uint32_t lanes) {
    map_lanes<T, T, uint32_t, uint32_t>(registers, in, lanes, [](T a, uint32_t position, uint32_t length) {
      const uint32_t begin = position & 255, count = length & 255, bits = width<T>;
      const auto value = static_cast<uint64_t>(static_cast<std::make_unsigned_t<T>>(a));
      const uint32_t end = std::min(begin + count, bits);
      const uint64_t field = begin < bits ? (value >> begin) & low_bits(end - begin) : 0;
      const bool sign = std::is_signed_v<T> && count > 0 && (value >> (std::min(begin + count, bits) - 1) & 1);
      if (!sign) return static_cast<T>(field);
      return static_cast<T>(field | ~low_bits(begin < bits ? end - begin : 0));
    });
  }
};
struct InsertField {
  template <class T>
  static void run(char* registers, const Instruction& in, uint32_t lanes) {
    map_lanes<T, T, T, uint32_t, uint32_t>(registers, in, lanes, [](T field, T a, uint32_t position, uint32_t length) {
      const uint32_t begin = position & 255, count = length & 255;
      if (begin >= static_cast<uint32_t>(width<T>)) return a;
      const auto mask = static_cast<T>(low_bits(count) << begin);
      return static_cast<T>((a & ~mask) | (ShiftLeft::apply<T>(field, begin) & mask));
    });
  }
};

enum Carry : std::uint8_t { reads_carry = 1, writes_carry = 2 };

/// Applies add or sub with the carry flag to the values of `left(lane)` and `right(lane)`. A subtraction adds the
/// complement and one, or the flag instead of the one. Afterwards, the flag is set if nothing was borrowed. nvcc's
/// division of 128-bit integers, which uses addc after sub.cc, depends on that.
template <class T, bool subtract, class Left, class Right>
void with_carry(char* registers, const Instruction& in, const Operand& flag, uint32_t lanes, Left left, Right right) {
  using U = std::make_unsigned_t<T>;
  const uint32_t before = read_predicate(registers, flag);
  uint32_t after = 0;
  for_lanes(lanes, [&](int lane) {
    const auto a = static_cast<U>(left(lane)), given = static_cast<U>(right(lane));
    const auto b = static_cast<U>(subtract ? ~given : given);
    const U carry = in.mode & reads_carry ? before >> lane & 1 : subtract;
    const auto first = static_cast<U>(a + b), result = static_cast<U>(first + carry);
    const bool out = first < a || result < first;
    after |= static_cast<uint32_t>(out) << lane;
    write_lane(registers + in[0].row, lane, result);
  });
  if (in.mode & writes_carry) write_predicate(registers, flag, after, lanes);
}

template <bool subtract>
struct SumWithCarry {
  template <class T>
  static void run(char* registers, const Instruction& in, uint32_t lanes) {
    with_carry<T, subtract>(
        registers, in, in[3], lanes, [&](int lane) { return read_lane<T>(registers + in[1].row, lane); },
        [&](int lane) { return read_lane<T>(registers + in[2].row, lane); });
  }
};
template <class Product>
struct ProductWithCarry {
  template <class T>
  static void run(char* registers, const Instruction& in, uint32_t lanes) {
    auto operand = [&](int i, int lane) { return read_lane<T>(registers + in[static_cast<std::size_t>(i)].row, lane); };
    with_carry<T, false>(
        registers, in, in[4], lanes,
        [&](int lane) { return Product::template apply<T>(operand(1, lane), operand(2, lane)); },
        [&](int lane) { return operand(3, lane); });
  }
};

/// Computes .wide: the full product, plus an addend if `adds` is true.
template <bool adds>
struct Wide {
  template <class T>
  static void run(char* registers, const Instruction& in, uint32_t lanes) {
    if constexpr (sizeof(T) < 8) {
      using D = std::conditional_t<sizeof(T) == 2, std::conditional_t<std::is_signed_v<T>, std::int32_t, uint32_t>,
                                   std::conditional_t<std::is_signed_v<T>, std::int64_t, uint64_t>>;
      auto product = [](T a, T b) { return static_cast<D>(D{a} * D{b}); };
      if constexpr (adds) {
        map_lanes<D, T, T, D>(registers, in, lanes, [&](T a, T b, D c) { return Add::apply<D>(product(a, b), c); });
      } else {
        map_lanes<D, T, T>(registers, in, lanes, product);
      }
    }
  }
};

void funnel_left(char* registers, const Instruction& in, uint32_t lanes) {
  const bool wrap = in.mode;
  map_lanes<uint32_t, uint32_t, uint32_t, uint32_t>(registers, in, lanes, [=](uint32_t a, uint32_t b, uint32_t c) {
    const uint64_t both = uint64_t{b} << 32 | a;
    return static_cast<uint32_t>(both << (wrap ? c & 31 : std::min(c, 32u)) >> 32);
  });
}

void funnel_right(char* registers, const Instruction& in, uint32_t lanes) {
  const bool wrap = in.mode;
  map_lanes<uint32_t, uint32_t, uint32_t, uint32_t>(registers, in, lanes, [=](uint32_t a, uint32_t b, uint32_t c) {
    const uint64_t both = uint64_t{b} << 32 | a;
    return static_cast<uint32_t>(both >> (wrap ? c & 31 : std::min(c, 32u)));
  });
}

void bit_mask(char* registers, const Instruction& in, uint32_t lanes) {
  const bool wrap = in.mode;
  map_lanes<uint32_t, uint32_t, uint32_t>(registers, in, lanes, [=](uint32_t a, uint32_t b) {
    const uint32_t begin = wrap ? a & 31 : a, count = wrap ? b & 31 : b;
    return begin < 32 ? static_cast<uint32_t>(low_bits(count) << begin) : 0;
  });
}

template <class A, class B>
void dot_product4(char* registers, const Instruction& in, uint32_t lanes) {
  map_lanes<uint32_t, uint32_t, uint32_t, uint32_t>(registers, in, lanes, [](uint32_t a, uint32_t b, uint32_t c) {
    for (int i = 0; i < 4; ++i) {
      c += static_cast<uint32_t>(int{static_cast<A>(a >> 8 * i)} * int{static_cast<B>(b >> 8 * i)});
    }
    return c;
  });
}

Instruction::Execute select_dot_product4(Type a, Type b) {
  const bool signed_a = a.kind == Kind::signed_integer, signed_b = b.kind == Kind::signed_integer;
  using S = std::int8_t;
  using U = std::uint8_t;
  if (signed_a) return signed_b ? &dot_product4<S, S> : &dot_product4<S, U>;
  return signed_b ? &dot_product4<U, S> : &dot_product4<U, U>;
}

/// Returns one byte of prmt. The low three bits of the selector choose a byte of {b, a}. If bit 3 is set, the result
/// repeats the sign of this byte.
uint32_t permuted_byte(uint64_t bytes, uint32_t selector) {
  const auto byte = static_cast<uint32_t>(bytes >> 8 * (selector & 7)) & 255;
  return selector & 8 ? (byte & 128 ? 255 : 0) : byte;
}

enum class Permutation : std::uint8_t {
  generic,
  forward_4_extract,
  backward_4_extract,
  replicate_8,
  edge_clamp_left,
  edge_clamp_right,
  replicate_16,
};

/// Returns the selector with which the generic mode has the effect of `mode` with a control of 0 to 3 (table of the PTX
/// ISA). The lowest four bits choose the lowest byte of the result.
uint32_t permutation_selector(Permutation mode, uint32_t control) {
  const uint32_t s = control & 3;
  uint32_t selector = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    uint32_t byte = 0;
    switch (mode) {
      case Permutation::generic:
        return control;
      case Permutation::forward_4_extract:
        byte = s + i;
        break;
      case Permutation::backward_4_extract:
        byte = (s - i) & 7;
        break;
      case Permutation::replicate_8:
        byte = s;
        break;
      case Permutation::edge_clamp_left:
        byte = std::max(s, i);
        break;
      case Permutation::edge_clamp_right:
        byte = std::min(s, i);
        break;
      case Permutation::replicate_16:
        byte = 2 * (s & 1) + (i & 1);
        break;
    }
    selector |= byte << 4 * i;
  }
  return selector;
}

void permute(char* registers, const Instruction& in, uint32_t lanes) {
  const auto mode = static_cast<Permutation>(in.mode);
  map_lanes<uint32_t, uint32_t, uint32_t, uint32_t>(registers, in, lanes, [=](uint32_t a, uint32_t b, uint32_t c) {
    const uint64_t bytes = uint64_t{b} << 32 | a;
    const uint32_t selector = permutation_selector(mode, c);
    uint32_t result = 0;
    for (int i = 0; i < 4; ++i) result |= permuted_byte(bytes, selector >> 4 * i & 15) << 8 * i;
    return result;
  });
}

/// Reads the carry modifiers: addc, madc ... read the carry flag, and .cc writes it. @returns whether the flag is used
bool take_carry(Mnemonic& mnemonic, Instruction& in) {
  const bool reads = mnemonic.root.ends_with("c"), writes = mnemonic.take("cc");
  in.mode = static_cast<std::uint8_t>((reads ? reads_carry : 0) | (writes ? writes_carry : 0));
  return reads || writes;
}

/// Chooses the function for add and sub: with carry flag, saturated or plain.
template <bool subtract>
Arithmetic select_sum(Mnemonic& mnemonic, Instruction& in) {
  using Plain = std::conditional_t<subtract, Subtract, Add>;
  if (take_carry(mnemonic, in)) {
    return {"tttc", by_integer<SumWithCarry<subtract>>(in.type)};
  }
  if (mnemonic.take("sat")) {
    const bool fits = in.type == Type{Kind::signed_integer, 32};
    return {"ttt", fits ? &Binary<AddSaturated<subtract ? -1 : 1>>::template run<std::int32_t> : nullptr};
  }
  return {"ttt", by_integer<Binary<Plain>>(in.type)};
}

Arithmetic select_product(Mnemonic& mnemonic, Instruction& in) {
  const bool adds = mnemonic.root.starts_with("mad");
  if (mnemonic.take("wide")) {
    if (in.type.bits == 64) return {};
    return adds ? Arithmetic{"wttw", by_integer<Wide<true>>(in.type)}
                : Arithmetic{"wtt", by_integer<Wide<false>>(in.type)};
  }
  const bool high = mnemonic.take("hi");
  if (!high) mnemonic.take("lo");
  if (mnemonic.root.ends_with("24")) {
    if (in.type.bits != 32) return {};
    if (adds) {
      return {"tttt", high ? by_integer<Ternary<MultiplyAdd<Multiply24<16>>>>(in.type)
                           : by_integer<Ternary<MultiplyAdd<Multiply24<0>>>>(in.type)};
    }
    return {"ttt", high ? by_integer<Binary<Multiply24<16>>>(in.type) : by_integer<Binary<Multiply24<0>>>(in.type)};
  }
  if (adds && take_carry(mnemonic, in)) {
    return {"ttttc", high ? by_integer<ProductWithCarry<MultiplyHigh>>(in.type)
                          : by_integer<ProductWithCarry<MultiplyLow>>(in.type)};
  }
  if (adds) {
    return {"tttt", high ? by_integer<Ternary<MultiplyAdd<MultiplyHigh>>>(in.type)
                         : by_integer<Ternary<MultiplyAdd<MultiplyLow>>>(in.type)};
  }
  return {"ttt", high ? by_integer<Binary<MultiplyHigh>>(in.type) : by_integer<Binary<MultiplyLow>>(in.type)};
}

}  // namespace

std::optional<Arithmetic> select_integer(Mnemonic& mnemonic, Instruction& in) {
  const std::string_view root = mnemonic.root;
  const Type type = in.type;
  if (root == "shf") {
    const bool left = mnemonic.take("l");
    if (!left) mnemonic.take("r");
    in.mode = mnemonic.take("wrap");
    mnemonic.take("clamp");
    return Arithmetic{"4444", left ? &funnel_left : &funnel_right};
  }
  if (root == "bmsk") {
    in.mode = mnemonic.take("wrap");
    mnemonic.take("clamp");
    return Arithmetic{"444", &bit_mask};
  }
  if (root == "prmt") {
    static constexpr std::pair<std::string_view, Permutation> modes[] = {
        {"f4e", Permutation::forward_4_extract}, {"b4e", Permutation::backward_4_extract},
        {"rc8", Permutation::replicate_8},       {"ecl", Permutation::edge_clamp_left},
        {"ecr", Permutation::edge_clamp_right},  {"rc16", Permutation::replicate_16},
    };
    in.mode = static_cast<std::uint8_t>(mnemonic.choose(modes).value_or(Permutation::generic));
    return Arithmetic{"4444", &permute};
  }
  if (root == "dp4a") return Arithmetic{"4444", select_dot_product4(type, mnemonic.type(1))};
  if (type.floating()) return std::nullopt;
  if (root == "add" || root == "addc") return select_sum<false>(mnemonic, in);
  if (root == "sub" || root == "subc") return select_sum<true>(mnemonic, in);
  if (root == "mul" || root == "mad" || root == "madc" || root == "mul24" || root == "mad24")
    return select_product(mnemonic, in);
  if (root == "div") return Arithmetic{"ttt", by_integer<Binary<Divide>>(type)};
  if (root == "rem") return Arithmetic{"ttt", by_integer<Binary<Remainder>>(type)};
  if (root == "min") return Arithmetic{"ttt", by_integer<Binary<Minimum>>(type)};
  if (root == "max") return Arithmetic{"ttt", by_integer<Binary<Maximum>>(type)};
  if (root == "neg") return Arithmetic{"tt", by_integer<Unary<Negate>>(type)};
  if (root == "abs") return Arithmetic{"tt", by_integer<Unary<Absolute>>(type)};
  if (root == "sad") return Arithmetic{"tttt", by_integer<Ternary<SumOfDifferences>>(type)};
  if (root == "shl") return Arithmetic{"tt4", by_integer<Shift<ShiftLeft>>(type)};
  if (root == "shr") return Arithmetic{"tt4", by_integer<Shift<ShiftRight>>(type)};
  if (root == "popc") return Arithmetic{"4t", by_integer<Count<Population>>(type)};
  if (root == "clz") return Arithmetic{"4t", by_integer<Count<LeadingZeros>>(type)};
  if (root == "bfind") {
    const bool shift = mnemonic.take("shiftamt");
    return Arithmetic{"4t", shift ? by_integer<Count<FindBit<true>>>(type) : by_integer<Count<FindBit<false>>>(type)};
  }
  if (root == "brev") return Arithmetic{"tt", by_integer<Unary<Reverse>>(type)};
  if (root == "bfe") return Arithmetic{"tt44", by_integer<ExtractField>(type)};
  if (root == "bfi") return Arithmetic{"ttt44", by_integer<InsertField>(type)};
  return std::nullopt;
}

}  // namespace gatefold::cuda_emulator
