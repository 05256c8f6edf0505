#pragma once

#include <cstddef>
#include <locale>
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <string>

#include "gatefold/core/config.hpp"

namespace gatefold {

/// Base of all exceptions that the library throws, except std::bad_alloc.
struct GATEFOLD_UNIQUE Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Thrown if a shape or option is not valid, before the policy (for example a gate or an expert) that checks it writes
/// anything. In a larger model, policies that ran earlier have already written their results: in forward their saved
/// values, in backward the gradients of later layers.
struct GATEFOLD_UNIQUE ArgumentError : Error {
  using Error::Error;
};

/// Thrown if a file is missing, truncated or not in the expected format.
struct GATEFOLD_UNIQUE FileError : Error {
  using Error::Error;
};

/// Thrown if a call into a driver or communication library fails.
struct GATEFOLD_UNIQUE DeviceError : Error {
  using Error::Error;
};

/// Thrown if a loss or gradient is NaN or infinite, before the optimizer writes any parameter.
struct GATEFOLD_UNIQUE NotFiniteError : Error {
  using Error::Error;
};

/// Refers to a value of any printable type, to pass it to a function that prints a message. It stores only the address
/// of the value, so the value must outlive it.
class Printed {
 public:
  template <class V>
  Printed(const V& value)
      : value_(&value), print_([](std::ostream& stream, const void* p) { stream << *static_cast<const V*>(p); }) {}
  // String literals of all lengths use this constructor, so that it is compiled only once for them.
  Printed(const char* text)
      : value_(text), print_([](std::ostream& stream, const void* p) { stream << static_cast<const char*>(p); }) {}
  friend std::ostream& operator<<(std::ostream& stream, const Printed& printed) {
    printed.print_(stream, printed.value_);
    return stream;
  }

 private:
  const void* value_;
  void (*print_)(std::ostream&, const void*);
};

/// Pieces of a message, joined when the message is printed: `Joined{"a divisor of ", n}`. Use it for arguments of
/// `expect`, so that a check without an error allocates nothing. It stores only the addresses of its pieces, so the
/// pieces must outlive it.
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

/// Returns a string stream for error messages. It uses the classic locale, so numbers have no thousands separators.
inline std::ostringstream message_stream() {
  std::ostringstream message;
  message.imbue(std::locale::classic());
  return message;
}

/// Throws the ArgumentError of `expect`. A single function serves values of all types, so that messages cost little
/// compile time.
[[noreturn, gnu::cold, gnu::noinline]] inline void throw_unexpected(const char* where, Printed name, Printed expected,
                                                                    Printed got) {
  std::ostringstream message = message_stream();
  message << where << ": " << name << ": expected " << expected << ", got " << got;
  throw ArgumentError(message.str());
}

/// Throws an error unless an option or argument is valid. Example of a message: `TopK: k: expected 1 <= k <= experts =
/// 8, got 9`.
///
/// @param where     the policy or function that checks
/// @param name      the option or argument
/// @param expected  the accepted values
/// @param got       the given value
/// @throws ArgumentError unless `ok` is true
/// @cost   one branch; the message is built only on failure
inline void expect(bool ok, const char* where, Printed name, Printed expected, Printed got) {
  if (!ok) throw_unexpected(where, name, expected, got);
}

}  // namespace gatefold
