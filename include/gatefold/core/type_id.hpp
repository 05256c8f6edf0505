#pragma once

#include "gatefold/core/config.hpp"

namespace gatefold::detail_ {

template <class T>
GATEFOLD_UNIQUE_OF_TYPE inline char type_mark = 0;  // not const, because linkers can merge constants (see type_id)

/// Returns the identity of a type at run time, without RTTI: two identities are equal if and only if their types are.
///
/// It is the address of a variable that stays writable. Linkers merge identical read-only data and identical functions
/// (link.exe /OPT:ICF, lld --icf=all --ignore-data-address-equality, gold --icf=all), so the address of a constant or
/// of a function identifies nothing. No linker merges writable variables.
///
/// Shared objects of one process agree on the identity of a type unless the type itself is hidden in them.
template <class T>
const void* type_id() {
  return &type_mark<T>;
}

}  // namespace gatefold::detail_
