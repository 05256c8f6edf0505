// Instructions that use only registers. Chooses the function that executes an instruction, by its name and type.
#pragma once

#include <optional>
#include <string_view>

#include "cuda_emulator/mnemonic.hpp"
#include "cuda_emulator/ptx.hpp"

namespace gatefold::cuda_emulator {

/// An instruction that computes on registers. A letter describes each operand:
///
///     t  of the type of the instruction        4  of 32 bits         p  predicate, `!` allowed
///     w  of twice its width                    8  of 64 bits         q  predicate that may follow a `|`
///     a  of any width                          c  the carry flag, not in the text
///     o  predicate that may be left out
struct Arithmetic {
  std::string_view operands;
  Instruction::Execute execute = nullptr;  // nullptr if the instruction does not support the type
};

/// Each function removes the modifiers that it handles from the mnemonic and stores their meaning in the instruction.
///
/// @returns nothing if the function does not handle the root of the mnemonic
std::optional<Arithmetic> select_integer(Mnemonic& mnemonic, Instruction& in);
std::optional<Arithmetic> select_real(Mnemonic& mnemonic, Instruction& in);
std::optional<Arithmetic> select_logic(Mnemonic& mnemonic, Instruction& in);
std::optional<Arithmetic> select_comparison(Mnemonic& mnemonic, Instruction& in);
std::optional<Arithmetic> select_conversion(Mnemonic& mnemonic, Instruction& in);

/// Tries all functions above.
std::optional<Arithmetic> select_arithmetic(Mnemonic& mnemonic, Instruction& in);

/// select_move() returns the function for `mov d, a` without vectors. If `a` is a vector, pack() executes the mov. If
/// `d` is a vector, unpack() does. Each register of a vector has `bits / elements` bits.
Instruction::Execute select_move(Type type);
void pack(char* registers, const Instruction& in, std::uint32_t lanes);
void unpack(char* registers, const Instruction& in, std::uint32_t lanes);

/// The bits of a comparison. Each bit stands for a relation of the operands for which the comparison is true.
enum Relation : std::uint8_t { less = 1, equal = 2, greater = 4, unordered = 8 };

}  // namespace gatefold::cuda_emulator
