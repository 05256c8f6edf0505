#pragma once

#include <cstddef>
#include <locale>
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <string>

#include "gatefold/core/config.hpp"

namespace gatefold {

/// Base of everything the library throws, std::bad_alloc apart.
struct GATEFOLD_UNIQUE Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A shape or option that does not fit. Thrown by a policy before it writes anything; where it stands in others, those
/// that ran before it have written what is theirs (a forward its saved, a backward gradients of later layers).
struct GATEFOLD_UNIQUE ArgumentError : Error {
  using Error::Error;
};

/// A file that is missing, truncated or not what it claims to be.
struct GATEFOLD_UNIQUE FileError : Error {
  using Error::Error;
};

/// A call into a driver or communication library that failed.
struct GATEFOLD_UNIQUE DeviceError : Error {
  using Error::Error;
};

/// A loss or gradient that is NaN or infinite. Thrown before a parameter is written.
struct GATEFOLD_UNIQUE NotFiniteError : Error {
  using Error::Error;
};

/// A value that a message prints, its type erased: two pointers, which its owner must outlive.
class Printed {
 public:
  template <class V>
  Printed(const V& value)
      : value_(&value), print_([](std::ostream& stream, const void* p) { stream << *static_cast<const V*>(p); }) {}
  Printed(const char* text)  // one function for any length
      : value_(text), print_([](std::ostream& stream, const void* p) { stream << static_cast<const char*>(p); }) {}
  friend std::ostream& operator<<(std::ostream& stream, const Printed& printed) {
    printed.print_(stream, printed.value_);
    return stream;
  }

 private:
  const void* value_;
  void (*print_)(std::ostream&, const void*);
};

/// Pieces of a message, joined when it is printed: `Joined{"a divisor of ", n}`. For arguments of `expect`, so that
/// what is right allocates nothing; as Printed, it refers to them.
template <std::size_t Count>
struct Joined {
  Printed pieces[Count];
  friend std::ostream& operator<<(std::ostream& stream, const Joined& joined) {
    for (const Printed& piece : joined.pieces) stream << piece;
    return stream;
  }
};
template <class... P>
Joined(const P&...) -> Joined<sizeof...(P)>;

/// For a message: numbers without marks between thousands, whatever the program's locale.
inline std::ostringstream message_stream() {
  std::ostringstream message;
  message.imbue(std::locale::classic());
  return message;
}

/// What `expect` throws: one function for whatever is expected, so that messages cost little to compile.
[[noreturn, gnu::cold, gnu::noinline]] inline void throw_unexpected(const char* where, Printed name, Printed expected,
                                                                    Printed got) {
  std::ostringstream message = message_stream();
  message << where << ": " << name << ": expected " << expected << ", got " << got;
  throw ArgumentError(message.str());
}

/// Require an option: `TopK: k: expected 1 <= k <= experts = 8, got 9`.
///
/// @param where     the policy or function that asks
/// @param name      the option or argument
/// @param expected  what would be accepted
/// @throws ArgumentError unless ok
/// @cost   one branch; the message is built on failure only
inline void expect(bool ok, const char* where, Printed name, Printed expected, Printed got) {
  if (!ok) throw_unexpected(where, name, expected, got);
}

}  // namespace gatefold
