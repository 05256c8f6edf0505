// Where things are while a kernel is decoded: its registers, immediates and special registers in the register file, its
// variables in shared and local memory, and the names of both.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cuda_emulator/decoder.hpp"
#include "cuda_emulator/ptx.hpp"

namespace gatefold::cuda_emulator {

/// Names end with their scope; everything else belongs to the whole kernel.
class Places {
 protected:
  Places(const Module& module, const std::string& kernel);

  struct Register {
    std::uint32_t row;
    std::uint8_t bits;
  };
  /// `.reg .b32 %r<10>;` names %r0 ... %r9.
  struct Range {
    std::string_view prefix;
    std::uint32_t first, count, stride;
    std::uint8_t bits;
  };
  /// A variable of the function: .shared, .local, or .param, be it of the kernel or for a call.
  struct Local {
    Space space;
    std::uint64_t address;
    std::uint32_t bytes;
  };
  struct Scope {
    std::unordered_map<std::string_view, Register> registers;
    std::vector<Range> ranges;
    std::unordered_map<std::string_view, Local> variables;
  };

  /// A row for a register, and one that is filled before the code runs.
  std::uint32_t new_row(int bits);
  std::uint32_t filled(int bits);

  /// The row of an immediate or an address.
  ///
  /// @param after_static_shared  `value` counts from where dynamic shared memory begins
  Operand constant(std::uint64_t value, int bits, bool after_static_shared = false);

  /// The row of a constant with something added to it.
  Operand moved(const Operand& constant_row, std::int64_t offset);

  Operand special(Function::Special which, int bits);
  std::optional<Operand> find_register(std::string_view name) const;
  const Local* find_variable(std::string_view name) const;

  /// The address of a variable as a row. A shared variable of the module takes its place where it is first used.
  std::optional<Operand> address_of(std::string_view name, int bits);

  /// @returns the offset of a new variable
  std::uint64_t place_shared(std::size_t bytes, std::size_t alignment);
  std::uint32_t place_local(std::size_t bytes, std::size_t alignment);

  /// Where results go that nobody reads.
  Operand scratch(int bits);

  /// The carry flag, a predicate of its own.
  Operand carry();

  /// A special register such as %tid.x, or nothing.
  static std::optional<Function::Special> special_named(std::string_view name);

  /// Gives the function its register file, once all rows are known.
  void finish_rows();

  static std::uint32_t row_bytes(int bits);

  const Module& module_;
  std::unique_ptr<Function> function_;
  std::vector<Scope> scopes_;
  std::map<std::string_view, std::uint64_t> module_shared_;  // variables of the module that the kernel uses
  std::uint32_t registers_end_ = 0;

 private:
  std::uint32_t filled_end_ = 0, predicates_ = 0, predicate_chunk_ = 0;
  std::map<std::array<std::uint64_t, 3>, std::uint32_t> constants_;
  std::map<Function::Special, std::uint32_t> specials_;
  std::map<int, std::uint32_t> scratch_;
  std::vector<std::size_t> dynamic_constants_;  // relative to dynamic shared memory
  std::optional<std::uint32_t> carry_;
  std::size_t dynamic_alignment_ = 1;
};

}  // namespace gatefold::cuda_emulator
