// Floating-point arithmetic. Compile with -frounding-math if the compiler has this option.
#include "cuda_emulator/real.hpp"

#include <bit>
#include <cmath>
#include <limits>

#include "cuda_emulator/arithmetic.hpp"
#include "cuda_emulator/by_type.hpp"
#include "cuda_emulator/lanes.hpp"

namespace gatefold::cuda_emulator {
namespace {

using std::uint32_t;

/// Computes Op::apply on numbers of type T, in the type that `computed` returns. Packed pairs are computed number by
/// number.
template <class Op, class T>
struct Apply {
  bool flush, saturate;
  template <class... S>
  T operator()(S... s) const {
    return finished<T>(Op::template apply<T>(computed(s, flush)...), flush, saturate);
  }
};
template <class Op, class T>
struct Apply<Op, Pair<T>> {
  bool flush, saturate;
  template <class... S>
  Pair<T> operator()(S... s) const {
    const Apply<Op, T> element{flush, saturate};
    return {element(s.low...), element(s.high...)};
  }
};

template <class Op, int count>
struct Compute {
  template <class T>
  static void run(char* registers, const Instruction& in, uint32_t lanes) {
    const RoundingMode mode(in.rounding);
    // Two loops, so that the compiler can vectorise the common one.
    if (in.flush || in.saturate) {
      apply<T>(registers, in, lanes, Apply<Op, T>{in.flush, in.saturate});
    } else {
      apply<T>(registers, in, lanes, Apply<Op, T>{false, false});
    }
  }

 private:
  template <class T, class F>
  static void apply(char* registers, const Instruction& in, uint32_t lanes, F f) {
    if constexpr (count == 1) {
      map_lanes<T, T>(registers, in, lanes, f);
    } else if constexpr (count == 2) {
      map_lanes<T, T, T>(registers, in, lanes, f);
    } else {
      map_lanes<T, T, T, T>(registers, in, lanes, f);
    }
  }
};

struct Add {
  template <class T, class C>
  static C apply(C a, C b) {
    return a + b;
  }
};
struct Subtract {
  template <class T, class C>
  static C apply(C a, C b) {
    return a - b;
  }
};
struct Multiply {
  template <class T, class C>
  static C apply(C a, C b) {
    return a * b;
  }
};
struct Divide {
  template <class T, class C>
  static C apply(C a, C b) {
    return a / b;
  }
};
struct FusedMultiplyAdd {
  template <class T, class C>
  static C apply(C a, C b, C c) {
    if constexpr (sizeof(T) > 2) {
      return std::fma(a, b, c);
    } else {
      // The product is exact in double. The sum is rounded to odd, so that a second rounding, to 16 bits, is correct.
      const double product = a * b, sum = product + c, part = sum - product;
      const double error = (product - (sum - part)) + (c - part);
      if (error == 0 || !std::isfinite(sum) || (std::bit_cast<std::uint64_t>(sum) & 1) != 0) return sum;
      return std::nextafter(sum, error > 0 ? INFINITY : -INFINITY);
    }
  }
};

/// Computes max or min. If one number is NaN, the result is the other number; -0 is less than +0.
template <bool greatest>
struct Extreme {
  template <class T, class C>
  static C apply(C a, C b) {
    if (a != a) return b;
    if (b != b) return a;
    if (a == b) return std::signbit(a) == greatest ? b : a;
    return (a < b) == greatest ? b : a;
  }
};
template <bool greatest>
struct ExtremeOrNan {
  template <class T, class C>
  static C apply(C a, C b) {
    return a != a || b != b ? std::numeric_limits<C>::quiet_NaN() : Extreme<greatest>::template apply<T>(a, b);
  }
};

struct SquareRoot {
  template <class T, class C>
  static C apply(C a) {
    return std::sqrt(a);
  }
};
struct Reciprocal {
  template <class T, class C>
  static C apply(C a) {
    return C(1) / a;
  }
};

/// Computes the approximate functions in double and rounds the result, which is more exact than any device.
template <double (*f)(double)>
struct Approximate {
  template <class T, class C>
  static C apply(C a) {
    return static_cast<C>(f(a));
  }
};
double reciprocal_root(double a) { return 1 / std::sqrt(a); }

/// neg and abs change only the sign bit, also of a NaN.
template <class T>
using Bits =
    std::conditional_t<sizeof(T) == 2, std::uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, std::uint64_t>>;

template <class T>
constexpr Bits<T> sign_bits() {
  constexpr bool is_pair = std::is_same_v<T, Pair<Half>> || std::is_same_v<T, Pair<BFloat>>;
  return is_pair ? static_cast<Bits<T>>(0x80008000) : static_cast<Bits<T>>(Bits<T>{1} << (8 * sizeof(T) - 1));
}

struct Negate {
  template <class T>
  static void run(char* registers, const Instruction& in, uint32_t lanes) {
    map_lanes<Bits<T>, Bits<T>>(registers, in, lanes,
                                [](Bits<T> a) { return static_cast<Bits<T>>(a ^ sign_bits<T>()); });
  }
};
struct Absolute {
  template <class T>
  static void run(char* registers, const Instruction& in, uint32_t lanes) {
    map_lanes<Bits<T>, Bits<T>>(registers, in, lanes,
                                [](Bits<T> a) { return static_cast<Bits<T>>(a & ~sign_bits<T>()); });
  }
};
/// Combines the sign of a with the other bits of b.
struct CopySign {
  template <class T>
  static void run(char* registers, const Instruction& in, uint32_t lanes) {
    map_lanes<Bits<T>, Bits<T>, Bits<T>>(registers, in, lanes, [](Bits<T> a, Bits<T> b) {
      return static_cast<Bits<T>>((a & sign_bits<T>()) | (b & ~sign_bits<T>()));
    });
  }
};

}  // namespace

std::optional<Arithmetic> select_real(Mnemonic& mnemonic, Instruction& in) {
  static constexpr std::pair<std::string_view, Rounding> roundings[] = {
      {"rn", Rounding::nearest}, {"rz", Rounding::zero}, {"rm", Rounding::down}, {"rp", Rounding::up}};
  const std::string_view root = mnemonic.root;
  const Type type = in.type;
  if (!type.floating()) return std::nullopt;
  if (root == "neg" || root == "abs") {
    // .ftz would also flush subnormal numbers, which is not modelled.
    in.flush = mnemonic.take("ftz");
    if (in.flush) return Arithmetic{};
    return Arithmetic{"tt", root == "neg" ? by_real<Negate>(type) : by_real<Absolute>(type)};
  }
  if (root == "copysign") return Arithmetic{"ttt", by_real<CopySign>(type)};

  auto chosen = [&]() -> std::optional<Arithmetic> {
    if (root == "add") return Arithmetic{"ttt", by_real<Compute<Add, 2>>(type)};
    if (root == "sub") return Arithmetic{"ttt", by_real<Compute<Subtract, 2>>(type)};
    if (root == "mul") return Arithmetic{"ttt", by_real<Compute<Multiply, 2>>(type)};
    if (root == "div") return Arithmetic{"ttt", by_real<Compute<Divide, 2>>(type)};
    if (root == "fma" || root == "mad") return Arithmetic{"tttt", by_real<Compute<FusedMultiplyAdd, 3>>(type)};
    if (root == "min") {
      return Arithmetic{"ttt", mnemonic.take("NaN") ? by_real<Compute<ExtremeOrNan<false>, 2>>(type)
                                                    : by_real<Compute<Extreme<false>, 2>>(type)};
    }
    if (root == "max") {
      return Arithmetic{"ttt", mnemonic.take("NaN") ? by_real<Compute<ExtremeOrNan<true>, 2>>(type)
                                                    : by_real<Compute<Extreme<true>, 2>>(type)};
    }
    if (root == "sqrt") return Arithmetic{"tt", by_real<Compute<SquareRoot, 1>>(type)};
    if (root == "rcp") return Arithmetic{"tt", by_real<Compute<Reciprocal, 1>>(type)};
    if (root == "rsqrt") return Arithmetic{"tt", by_real<Compute<Approximate<reciprocal_root>, 1>>(type)};
    if (root == "ex2") return Arithmetic{"tt", by_real<Compute<Approximate<std::exp2>, 1>>(type)};
    if (root == "lg2") return Arithmetic{"tt", by_real<Compute<Approximate<std::log2>, 1>>(type)};
    if (root == "sin") return Arithmetic{"tt", by_real<Compute<Approximate<std::sin>, 1>>(type)};
    if (root == "cos") return Arithmetic{"tt", by_real<Compute<Approximate<std::cos>, 1>>(type)};
    if (root == "tanh") return Arithmetic{"tt", by_real<Compute<Approximate<std::tanh>, 1>>(type)};
    return std::nullopt;
  }();
  if (!chosen) return std::nullopt;
  in.flush = mnemonic.take("ftz");
  in.saturate = mnemonic.take("sat");
  in.rounding = mnemonic.choose(roundings).value_or(Rounding::nearest);
  if (!mnemonic.take("approx")) mnemonic.take("full");
  if (type.bits == 16 && in.rounding != Rounding::nearest) return Arithmetic{};
  return chosen;
}

}  // namespace gatefold::cuda_emulator
