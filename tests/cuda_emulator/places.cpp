#include "cuda_emulator/places.hpp"

#include <algorithm>
#include <utility>

namespace gatefold::cuda_emulator {
namespace {

/// Rows that are filled before the code runs come after the registers in the register file. The number of registers is
/// known only at the end of decoding; until then, this bit marks the filled rows.
constexpr std::uint32_t filled_row = 0x80000000;

}  // namespace

Places::Places(const Module& module, const std::string& kernel)
    : module_(module), function_(std::make_unique<Function>()) {
  function_->module = &module;
  function_->name = kernel;
}

std::uint32_t Places::row_bytes(int bits) {
  return bits == 1 ? 4 : warp_size * (bits == 64 ? 8 : bits == 128 ? 16 : 4);
}

std::optional<Function::Special> Places::special_named(std::string_view name) {
  using Special = Function::Special;
  static constexpr std::pair<std::string_view, Special> table[] = {
      {"%tid.x", Special::tid_x},
      {"%tid.y", Special::tid_y},
      {"%tid.z", Special::tid_z},
      {"%ntid.x", Special::ntid_x},
      {"%ntid.y", Special::ntid_y},
      {"%ntid.z", Special::ntid_z},
      {"%ctaid.x", Special::ctaid_x},
      {"%ctaid.y", Special::ctaid_y},
      {"%ctaid.z", Special::ctaid_z},
      {"%nctaid.x", Special::nctaid_x},
      {"%nctaid.y", Special::nctaid_y},
      {"%nctaid.z", Special::nctaid_z},
      {"%laneid", Special::laneid},
      {"%warpid", Special::warpid},
      {"%nwarpid", Special::nwarpid},
      {"%smid", Special::smid},
      {"%nsmid", Special::nsmid},
      {"%lanemask_eq", Special::lanemask_eq},
      {"%lanemask_le", Special::lanemask_le},
      {"%lanemask_lt", Special::lanemask_lt},
      {"%lanemask_ge", Special::lanemask_ge},
      {"%lanemask_gt", Special::lanemask_gt},
      {"%dynamic_smem_size", Special::dynamic_smem_size},
      {"%total_smem_size", Special::total_smem_size},
  };
  for (const auto& [text, special] : table) {
    if (text == name) return special;
  }
  return std::nullopt;
}

std::uint32_t Places::new_row(int bits) {
  if (bits == 1) {  // predicates are collected, so that other rows stay aligned
    if (predicates_ % 32 == 0) predicate_chunk_ = std::exchange(registers_end_, registers_end_ + 128);
    return predicate_chunk_ + 4 * (predicates_++ % 32);
  }
  return std::exchange(registers_end_, registers_end_ + row_bytes(bits));
}

std::uint32_t Places::filled(int bits) {
  return std::exchange(filled_end_, filled_end_ + row_bytes(bits)) | filled_row;
}

Operand Places::constant(std::uint64_t value, int bits, bool after_static_shared) {
  if (bits == 1) value = value ? ~std::uint64_t{0} : 0;
  if (bits < 64) value &= 0xffffffff;
  const auto storage = static_cast<std::uint8_t>(bits == 64 ? 64 : bits == 1 ? 1 : 32);
  const auto [known, fresh] = constants_.try_emplace({value, storage, after_static_shared}, 0);
  if (fresh) {
    known->second = filled(storage == 1 ? 32 : storage);
    function_->constants.push_back({known->second, storage, value});
    if (after_static_shared) dynamic_constants_.push_back(function_->constants.size() - 1);
  }
  return {known->second, static_cast<std::uint8_t>(bits)};
}

Operand Places::special(Function::Special which, int bits) {
  const auto [known, fresh] = specials_.try_emplace(which, 0);
  if (fresh) {
    known->second = filled(32);
    function_->specials.push_back({known->second, which});
  }
  return {known->second, static_cast<std::uint8_t>(std::min(bits, 32))};
}

std::optional<Operand> Places::find_register(std::string_view name) const {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    const auto single = scope->registers.find(name);
    if (single != scope->registers.end()) return Operand{single->second.row, single->second.bits};
    const std::size_t digits = name.find_last_not_of("0123456789") + 1;
    if (digits == name.size() || name.size() - digits > 8) continue;
    for (const Range& range : scope->ranges) {
      if (range.prefix != name.substr(0, digits)) continue;
      const auto number = static_cast<std::uint32_t>(std::stoul(std::string(name.substr(digits))));
      if (number < range.count) return Operand{range.first + number * range.stride, range.bits};
    }
  }
  return std::nullopt;
}

const Places::Local* Places::find_variable(std::string_view name) const {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    const auto found = scope->variables.find(name);
    if (found != scope->variables.end()) return &found->second;
  }
  return nullptr;
}

std::optional<Operand> Places::address_of(std::string_view name, int bits) {
  if (const Local* local = find_variable(name)) return constant(local->address, bits);
  const auto variable = module_.variables.find(std::string(name));
  if (variable != module_.variables.end()) return constant(variable->second.address, bits);
  const auto shared = module_.text->shared.find(name);
  if (shared == module_.text->shared.end()) return std::nullopt;
  if (shared->second.dynamic) {
    dynamic_alignment_ = std::max(dynamic_alignment_, shared->second.alignment);
    return constant(0, bits, true);
  }
  const std::uint64_t address = place_shared(shared->second.size, shared->second.alignment);
  scopes_.front().variables[shared->first] = {Space::shared, address, 0};
  module_shared_[shared->first] = address;
  return constant(address, bits);
}

std::uint64_t Places::place_shared(std::size_t bytes, std::size_t alignment) {
  const std::size_t address = aligned(function_->shared_bytes, alignment);
  function_->shared_bytes = address + bytes;
  return address;
}

std::uint32_t Places::place_local(std::size_t bytes, std::size_t alignment) {
  const std::size_t address = aligned(function_->local_bytes, alignment);
  function_->local_bytes = address + bytes;
  return static_cast<std::uint32_t>(address);
}

Operand Places::scratch(int bits) {
  const int storage = bits == 1 ? 1 : 64;
  const auto [known, fresh] = scratch_.try_emplace(storage, 0);
  if (fresh) known->second = new_row(storage);
  return {known->second, static_cast<std::uint8_t>(bits == 0 ? 32 : bits)};
}

Operand Places::carry() {
  if (!carry_) carry_ = new_row(1);
  return {*carry_, 1};
}

Operand Places::moved(const Operand& constant_row, std::int64_t offset) {
  if (offset == 0) return constant_row;
  for (std::size_t i = 0; i < function_->constants.size(); ++i) {
    const Function::Constant known = function_->constants[i];
    if (known.row != constant_row.row) continue;
    const bool dynamic = std::count(dynamic_constants_.begin(), dynamic_constants_.end(), i) > 0;
    return constant(known.value + static_cast<std::uint64_t>(offset), constant_row.bits, dynamic);
  }
  return constant_row;
}

void Places::finish_rows() {
  Function& f = *function_;
  // Dynamic shared memory comes after the static variables.
  const std::uint64_t dynamic = aligned(f.shared_bytes, std::max<std::size_t>(dynamic_alignment_, 16));
  for (const std::size_t i : dynamic_constants_) f.constants[i].value += dynamic;
  f.dynamic_shared = dynamic;
  f.local_bytes = aligned(f.local_bytes, 16);

  f.registers_bytes = registers_end_;
  f.file_bytes = registers_end_ + filled_end_;
  auto rebase = [&](std::uint32_t& row) {
    if (row != Operand::none && (row & filled_row) != 0) row = (row & ~filled_row) + registers_end_;
  };
  for (Instruction& in : f.code) {
    for (std::size_t i = 0; i < in.count; ++i) rebase(const_cast<Operand&>(in.operands[i]).row);
  }
  for (auto& constant : f.constants) rebase(constant.row);
  for (auto& special : f.specials) rebase(special.row);
}

}  // namespace gatefold::cuda_emulator
