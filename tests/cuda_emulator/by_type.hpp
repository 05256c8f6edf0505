// Turns a type that is known at run time into a template argument.
//
// `Form` has a member template `run<T>` of the signature of Instruction::Execute.
#pragma once

#include <cstdint>

#include "cuda_emulator/ptx.hpp"
#include "cuda_emulator/real16.hpp"

namespace gatefold::cuda_emulator {

/// Returns Form::run for an integer type of 16, 32 or 64 bits, otherwise nullptr. `.b` types count as unsigned.
template <class Form>
Instruction::Execute by_integer(Type type) {
  if (type.floating() || type.packed) return nullptr;
  const bool is_signed = type.kind == Kind::signed_integer;
  switch (type.bits) {
    case 16:
      return is_signed ? &Form::template run<std::int16_t> : &Form::template run<std::uint16_t>;
    case 32:
      return is_signed ? &Form::template run<std::int32_t> : &Form::template run<std::uint32_t>;
    case 64:
      return is_signed ? &Form::template run<std::int64_t> : &Form::template run<std::uint64_t>;
    default:
      return nullptr;
  }
}

/// Returns Form::run for a floating-point type with one number in a register, otherwise nullptr.
template <class Form>
Instruction::Execute by_scalar_real(Type type) {
  if (type.packed) return nullptr;
  if (type.kind == Kind::bfloat) return &Form::template run<BFloat>;
  switch (type.kind == Kind::real ? type.bits : 0) {
    case 16:
      return &Form::template run<Half>;
    case 32:
      return &Form::template run<float>;
    case 64:
      return &Form::template run<double>;
    default:
      return nullptr;
  }
}

/// Like by_scalar_real(), but also for packed floating-point types.
template <class Form>
Instruction::Execute by_real(Type type) {
  if (!type.packed) return by_scalar_real<Form>(type);
  return type.kind == Kind::bfloat ? &Form::template run<Pair<BFloat>> : &Form::template run<Pair<Half>>;
}

}  // namespace gatefold::cuda_emulator
