// What an instruction computes on registers alone: chooses, by name and type, the function that executes it.
#pragma once

#include <optional>
#include <string_view>

#include "cuda_emulator/mnemonic.hpp"
#include "cuda_emulator/ptx.hpp"

namespace gatefold::cuda_emulator {

/// An instruction that computes on registers. Its operands, one letter each:
///
///     t  of the type of the instruction        4  of 32 bits         p  predicate, `!` allowed
///     w  of twice its width                    8  of 64 bits         q  predicate that may follow a `|`
///     a  of any width                          c  the carry flag, not in the text
///     o  predicate that may be left out
struct Arithmetic {
  std::string_view operands;
  Instruction::Execute execute = nullptr;  // nullptr: the type is not one of the instruction's
};

/// Takes the modifiers it knows from the mnemonic and puts what they mean into the instruction.
///
/// @returns nothing where the root is none of the family
std::optional<Arithmetic> select_integer(Mnemonic& mnemonic, Instruction& in);
std::optional<Arithmetic> select_real(Mnemonic& mnemonic, Instruction& in);
std::optional<Arithmetic> select_logic(Mnemonic& mnemonic, Instruction& in);
std::optional<Arithmetic> select_comparison(Mnemonic& mnemonic, Instruction& in);
std::optional<Arithmetic> select_conversion(Mnemonic& mnemonic, Instruction& in);

/// All of the above.
std::optional<Arithmetic> select_arithmetic(Mnemonic& mnemonic, Instruction& in);

/// `mov d, a`; with `d` or `a` a vector, unpacks or packs registers of `bits / elements`.
Instruction::Execute select_move(Type type);
void pack(char* registers, const Instruction& in, std::uint32_t lanes);
void unpack(char* registers, const Instruction& in, std::uint32_t lanes);

/// The bits of a comparison: which relations satisfy it.
enum Relation : std::uint8_t { less = 1, equal = 2, greater = 4, unordered = 8 };

}  // namespace gatefold::cuda_emulator
