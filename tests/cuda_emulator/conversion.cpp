// cvt: from any type to any other.
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "cuda_emulator/arithmetic.hpp"
#include "cuda_emulator/lanes.hpp"
#include "cuda_emulator/real.hpp"

namespace gatefold::cuda_emulator {
namespace {

using std::int64_t;
using std::uint32_t;
using std::uint64_t;

template <class T>
inline constexpr bool is_real = !std::is_integral_v<T>;

double integral(double x, Rounding rounding) {
  switch (rounding) {
    case Rounding::nearest:
      return std::nearbyint(x);
    case Rounding::zero:
      return std::trunc(x);
    case Rounding::down:
      return std::floor(x);
    default:
      return std::ceil(x);
  }
}

/// Converts to an integer. A value out of range gives the nearest number of the type. NaN gives 0, or only the top bit
/// if one of the types has 64 bits.
template <class D, class S>
D to_integer(double x, Rounding rounding) {
  if (std::isnan(x)) {
    constexpr bool wide = sizeof(S) == 8 || sizeof(D) == 8;
    return wide ? static_cast<D>(std::make_unsigned_t<D>{1} << (8 * sizeof(D) - 1)) : D{0};
  }
  using Limits = std::numeric_limits<D>;
  x = integral(x, rounding);
  if (x < static_cast<double>(Limits::min())) return Limits::min();
  if (x >= std::ldexp(1.0, Limits::digits)) return Limits::max();
  return static_cast<D>(x);
}

template <class D, class S>
D integer_to_integer(S value, bool saturate) {
  using Limits = std::numeric_limits<D>;
  if (saturate) {
    if (std::cmp_less(value, Limits::min())) return Limits::min();
    if (std::cmp_greater(value, Limits::max())) return Limits::max();
  }
  return static_cast<D>(value);
}

template <class D, class S>
D real_to_real(S value, const Instruction& in) {
  auto x = computed(value, in.flush);
  if (in.integral) x = static_cast<decltype(x)>(integral(x, in.rounding));
  if constexpr (sizeof(D) == 2) {
    if (in.saturate) x = x > 0 ? std::min<decltype(x)>(x, 1) : 0;
    return D::rounded(x, in.rounding);
  } else {
    return finished<D>(static_cast<D>(x), in.flush, in.saturate);
  }
}

template <class D, class S>
D integer_to_real(S value, const Instruction& in) {
  if constexpr (sizeof(D) > 2) {
    return finished<D>(static_cast<D>(value), in.flush, in.saturate);
  } else {
    // An integer that does not fit a double is rounded to odd. A second rounding, to 16 bits, is then correct.
    if constexpr (sizeof(S) == 8) {
      constexpr S low = 0x7ff;
      const bool fits =
          std::cmp_less_equal(value, int64_t{1} << 53) && std::cmp_greater_equal(value, -(int64_t{1} << 53));
      if (!fits && (value & low) != 0) value = static_cast<S>((value & ~low) | (low + 1));
    }
    return finished<D>(static_cast<double>(value), in.flush, in.saturate);
  }
}

template <class D, class S>
D convert(S value, const Instruction& in) {
  if constexpr (is_real<S> && is_real<D>) {
    return real_to_real<D>(value, in);
  } else if constexpr (is_real<S>) {
    return to_integer<D, S>(computed(value, in.flush), in.rounding);
  } else if constexpr (is_real<D>) {
    return integer_to_real<D>(value, in);
  } else {
    return integer_to_integer<D>(value, in.saturate);
  }
}

/// Returns the bits that a register holds for a result. Signed integers are sign-extended.
template <class D>
uint64_t extended(D value) {
  if constexpr (std::is_integral_v<D>) {
    return static_cast<uint64_t>(static_cast<int64_t>(value));
  } else if constexpr (sizeof(D) == 2) {
    return value.bits;
  } else if constexpr (sizeof(D) == 4) {
    return std::bit_cast<uint32_t>(value);
  } else {
    return std::bit_cast<uint64_t>(value);
  }
}

template <class D, class S>
void run(char* registers, const Instruction& in, uint32_t lanes) {
  // The rounding mode of the host rounds to .f32 and .f64. Rounding to an integral value uses separate functions.
  const RoundingMode mode(in.integral || sizeof(D) == 2 ? Rounding::nearest : in.rounding);
  const std::size_t stride = in[1].wide() ? 8 : 4;
  for_lanes(lanes, [&](int lane) {
    const uint64_t bits = extended(convert<D>(read_lane<S>(registers + in[1].row, lane, stride), in));
    if (in[0].wide()) {
      write_lane(registers + in[0].row, lane, bits);
    } else {
      write_lane(registers + in[0].row, lane, static_cast<uint32_t>(bits));
    }
  });
}

/// Computes d = {high: a, low: b}.
template <class T>
void run_packed(char* registers, const Instruction& in, uint32_t lanes) {
  map_lanes<Pair<T>, float, float>(registers, in, lanes, [&](float a, float b) {
    return Pair<T>{T::rounded(b, in.rounding), T::rounded(a, in.rounding)};
  });
}

template <class D>
Instruction::Execute from(Type type) {
  switch (type.kind) {
    case Kind::bfloat:
      return &run<D, BFloat>;
    case Kind::real:
      return type.bits == 16 ? &run<D, Half> : type.bits == 32 ? &run<D, float> : &run<D, double>;
    case Kind::signed_integer:
      return type.bits == 8    ? &run<D, std::int8_t>
             : type.bits == 16 ? &run<D, std::int16_t>
             : type.bits == 32 ? &run<D, std::int32_t>
                               : &run<D, int64_t>;
    case Kind::unsigned_integer:
      return type.bits == 8    ? &run<D, std::uint8_t>
             : type.bits == 16 ? &run<D, std::uint16_t>
             : type.bits == 32 ? &run<D, uint32_t>
                               : &run<D, uint64_t>;
    default:
      return nullptr;
  }
}

Instruction::Execute select(Type to, Type type) {
  switch (to.kind) {
    case Kind::bfloat:
      return from<BFloat>(type);
    case Kind::real:
      return to.bits == 16 ? from<Half>(type) : to.bits == 32 ? from<float>(type) : from<double>(type);
    case Kind::signed_integer:
      return to.bits == 8    ? from<std::int8_t>(type)
             : to.bits == 16 ? from<std::int16_t>(type)
             : to.bits == 32 ? from<std::int32_t>(type)
                             : from<int64_t>(type);
    case Kind::unsigned_integer:
      return to.bits == 8    ? from<std::uint8_t>(type)
             : to.bits == 16 ? from<std::uint16_t>(type)
             : to.bits == 32 ? from<uint32_t>(type)
                             : from<uint64_t>(type);
    default:
      return nullptr;
  }
}

}  // namespace

std::optional<Arithmetic> select_conversion(Mnemonic& mnemonic, Instruction& in) {
  static constexpr std::pair<std::string_view, Rounding> roundings[] = {
      {"rn", Rounding::nearest}, {"rz", Rounding::zero}, {"rm", Rounding::down}, {"rp", Rounding::up}};
  static constexpr std::pair<std::string_view, Rounding> integral_roundings[] = {
      {"rni", Rounding::nearest}, {"rzi", Rounding::zero}, {"rmi", Rounding::down}, {"rpi", Rounding::up}};
  if (mnemonic.root != "cvt") return std::nullopt;
  in.from = mnemonic.type(1);
  in.flush = mnemonic.take("ftz");
  in.saturate = mnemonic.take("sat");
  in.rounding = mnemonic.choose(roundings).value_or(Rounding::nearest);
  if (const auto rounding = mnemonic.choose(integral_roundings)) {
    in.rounding = *rounding;
    in.integral = true;
  }
  if (in.type.packed) {
    if (in.from != Type{Kind::real, 32} || in.saturate) return Arithmetic{};
    return Arithmetic{"444", in.type.kind == Kind::bfloat ? &run_packed<BFloat> : &run_packed<Half>};
  }
  if (in.from.packed) return Arithmetic{};
  return Arithmetic{"aa", select(in.type, in.from)};
}

std::optional<Arithmetic> select_arithmetic(Mnemonic& mnemonic, Instruction& in) {
  for (const auto select : {select_integer, select_real, select_logic, select_comparison, select_conversion}) {
    if (auto chosen = select(mnemonic, in)) return chosen;
  }
  return std::nullopt;
}

}  // namespace gatefold::cuda_emulator
