// The places of values while a kernel is decoded: registers, immediates and special registers in the register file, and
// variables in shared and local memory. Also finds registers and variables by their names.
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

/// Names are forgotten at the end of their scope. All other data belongs to the whole kernel.
class Places {
 protected:
  Places(const Module& module, const std::string& kernel);

  struct Register {
    std::uint32_t row;
    std::uint8_t bits;
  };
  /// A declaration of registers: `.reg .b32 %r<10>;` declares %r0 ... %r9.
  struct Range {
    std::string_view prefix;
    std::uint32_t first, count, stride;
    std::uint8_t bits;
  };
  /// A variable of the function: .shared, .local, or .param (of the kernel or of a call).
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

  /// Adds a row for a register. filled() adds one that is filled before the code runs.
  std::uint32_t new_row(int bits);
  std::uint32_t filled(int bits);

  /// Returns the row of an immediate or an address.
  ///
  /// @param after_static_shared  true if `value` counts from the beginning of dynamic shared memory
  Operand constant(std::uint64_t value, int bits, bool after_static_shared = false);

  /// Returns the row of a constant plus an offset.
  Operand moved(const Operand& constant_row, std::int64_t offset);

  Operand special(Function::Special which, int bits);
  std::optional<Operand> find_register(std::string_view name) const;
  const Local* find_variable(std::string_view name) const;

  /// Returns the row with the address of a variable. A shared variable of the module gets its place at its first use.
  std::optional<Operand> address_of(std::string_view name, int bits);

  /// @returns the offset of a new variable
  std::uint64_t place_shared(std::size_t bytes, std::size_t alignment);
  std::uint32_t place_local(std::size_t bytes, std::size_t alignment);

  /// Returns a row for results that are not read.
  Operand scratch(int bits);

  /// Returns the carry flag, a separate predicate.
  Operand carry();

  /// Returns a special register such as %tid.x, or nothing.
  static std::optional<Function::Special> special_named(std::string_view name);

  /// Gives the function its register file when all rows are known.
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
