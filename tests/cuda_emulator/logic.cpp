// Bitwise logic, on registers and on predicates; moves and selections.
#include "cuda_emulator/arithmetic.hpp"
#include "cuda_emulator/lanes.hpp"

namespace gatefold::cuda_emulator {
namespace {

using std::uint32_t;
using std::uint64_t;

/// Chooses the form for predicates, or for cells of 32 or 64 bits. Narrower values are in cells of 32 bits.
template <class Form>
Instruction::Execute by_width(Type type) {
  if (type.kind == Kind::predicate) return &Form::predicates;
  return type.bits == 64 ? &Form::template run<uint64_t> : &Form::template run<uint32_t>;
}

template <class Op>
struct Logic2 {
  template <class T>
  static void run(char* registers, const Instruction& in, uint32_t lanes) {
    map_lanes<T, T, T>(registers, in, lanes, [](T a, T b) { return Op::apply(a, b); });
  }
  static void predicates(char* registers, const Instruction& in, uint32_t lanes) {
    const uint32_t result = Op::apply(read_predicate(registers, in[1]), read_predicate(registers, in[2]));
    write_predicate(registers, in[0], result, lanes);
  }
};
template <class Op>
struct Logic1 {
  template <class T>
  static void run(char* registers, const Instruction& in, uint32_t lanes) {
    const auto mask = static_cast<T>(~T{0} >> (sizeof(T) < 8 ? 32 - in.type.bits : 0));
    map_lanes<T, T>(registers, in, lanes,
                    [=](T a) { return static_cast<T>(Op::apply(static_cast<T>(a & mask)) & mask); });
  }
  static void predicates(char* registers, const Instruction& in, uint32_t lanes) {
    write_predicate(registers, in[0], Op::apply_bits(read_predicate(registers, in[1])), lanes);
  }
};

struct And {
  template <class T>
  static T apply(T a, T b) {
    return a & b;
  }
};
struct Or {
  template <class T>
  static T apply(T a, T b) {
    return a | b;
  }
};
struct ExclusiveOr {
  template <class T>
  static T apply(T a, T b) {
    return a ^ b;
  }
};
struct Not {
  template <class T>
  static T apply(T a) {
    return ~a;
  }
  static uint32_t apply_bits(uint32_t bits) { return ~bits; }
};
/// The operator `!` of C.
struct LogicalNot {
  template <class T>
  static T apply(T a) {
    return a == 0;
  }
  static uint32_t apply_bits(uint32_t bits) { return ~bits; }
};
struct Copy {
  template <class T>
  static T apply(T a) {
    return a;
  }
  static uint32_t apply_bits(uint32_t bits) { return bits; }
};

/// Computes lop3, bit by bit: the result is bit 4a + 2b + c of the table, for a bit of a, of b and of c.
void lookup3(char* registers, const Instruction& in, uint32_t lanes) {
  map_lanes<uint32_t, uint32_t, uint32_t, uint32_t, uint32_t>(
      registers, in, lanes, [](uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
        uint32_t result = 0;
        for (uint32_t i = 0; i < 8; ++i) {
          const uint32_t minterm = (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
          if (table >> i & 1) result |= minterm;
        }
        return result;
      });
}

struct Select {
  template <class T>
  static void run(char* registers, const Instruction& in, uint32_t lanes) {
    const uint32_t chosen = read_predicate(registers, in[3]);
    for_lanes(lanes, [&](int lane) {
      const Operand& from = chosen >> lane & 1 ? in[1] : in[2];
      write_lane(registers + in[0].row, lane, read_lane<T>(registers + from.row, lane));
    });
  }
  static void predicates(char* registers, const Instruction& in, uint32_t lanes) {
    const uint32_t chosen = read_predicate(registers, in[3]);
    const uint32_t a = read_predicate(registers, in[1]), b = read_predicate(registers, in[2]);
    write_predicate(registers, in[0], (a & chosen) | (b & ~chosen), lanes);
  }
};

}  // namespace

Instruction::Execute select_move(Type type) { return by_width<Logic1<Copy>>(type); }

void pack(char* registers, const Instruction& in, uint32_t lanes) {
  const unsigned part = in.type.bits / in.elements;
  for_lanes(lanes, [&](int lane) {
    uint64_t whole = 0;
    for (unsigned i = 0; i < in.elements; ++i) {
      const uint64_t bits = read_lane<uint32_t>(registers + in[1 + i].row, lane);
      whole |= (bits & (~uint64_t{0} >> (64 - part))) << i * part;
    }
    if (in[0].wide()) {
      write_lane(registers + in[0].row, lane, whole);
    } else {
      write_lane(registers + in[0].row, lane, static_cast<uint32_t>(whole));
    }
  });
}

void unpack(char* registers, const Instruction& in, uint32_t lanes) {
  const unsigned part = in.type.bits / in.elements;
  const Operand& from = in[in.elements];
  for_lanes(lanes, [&](int lane) {
    const uint64_t whole =
        from.wide() ? read_lane<uint64_t>(registers + from.row, lane) : read_lane<uint32_t>(registers + from.row, lane);
    for (unsigned i = 0; i < in.elements; ++i) {
      const auto bits = static_cast<uint32_t>(whole >> i * part & (~uint64_t{0} >> (64 - part)));
      write_lane(registers + in[i].row, lane, bits);
    }
  });
}

std::optional<Arithmetic> select_logic(Mnemonic& mnemonic, Instruction& in) {
  const std::string_view root = mnemonic.root;
  if (root == "and") return Arithmetic{"ttt", by_width<Logic2<And>>(in.type)};
  if (root == "or") return Arithmetic{"ttt", by_width<Logic2<Or>>(in.type)};
  if (root == "xor") return Arithmetic{"ttt", by_width<Logic2<ExclusiveOr>>(in.type)};
  if (root == "not") return Arithmetic{"tt", by_width<Logic1<Not>>(in.type)};
  if (root == "cnot") return Arithmetic{"tt", by_width<Logic1<LogicalNot>>(in.type)};
  if (root == "lop3") return Arithmetic{"44444", &lookup3};
  if (root == "selp") return Arithmetic{"tttp", by_width<Select>(in.type)};
  return std::nullopt;
}

}  // namespace gatefold::cuda_emulator
