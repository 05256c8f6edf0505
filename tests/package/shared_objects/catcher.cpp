// The second shared object. It hides its names. It catches the errors of the first shared object by their types.
#include <cstdio>
#include <gatefold/gatefold.hpp>

#include "interface.hpp"

namespace catcher {
namespace {

int failures = 0;
void expect(bool ok, const char* sentence) {
  if (ok) return;
  std::printf("%s\n", sentence);
  ++failures;
}

template <class E>
bool caught(int number) {
  try {
    thrower::throw_error(number);
  } catch (const E&) {
    return true;
  } catch (...) {
  }
  return false;
}

}  // namespace

int check() {
  using namespace gatefold;
  expect(caught<Error>(0), "Error is not caught by its type");
  expect(caught<ArgumentError>(1), "ArgumentError is not caught by its type");
  expect(caught<FileError>(2), "FileError is not caught by its type");
  expect(caught<DeviceError>(3), "DeviceError is not caught by its type");
  expect(caught<NotFiniteError>(4), "NotFiniteError is not caught by its type");
  expect(caught<Error>(1), "ArgumentError is not caught as an Error");
  expect(!caught<FileError>(1), "ArgumentError is caught as a FileError");
  std::exception_ptr pointer;
  thrower::throw_pointer(pointer);
  bool caught_again = false;
  try {
    std::rethrow_exception(pointer);
  } catch (const ArgumentError&) {
    caught_again = true;
  } catch (...) {
  }
  expect(caught_again, "ArgumentError is not caught after std::rethrow_exception");

  const thrower::Identities here{AnyTensor::type_of<float>(), AnyTensor::type_of<double>(), AnyTensor::type_of<Index>(),
                                 AnyTensor::type_of<Bfloat16>(), &gatefold::detail_::writing_zeros};
  expect(here == thrower::identities(), "shared objects disagree on the identity of a type or on a mutex");
  const std::uint64_t first = thrower::next_stamp();
  expect(CopyStamp::next() == first + 1 && thrower::next_stamp() == first + 2, "shared objects count stamps apart");
  return failures;
}

}  // namespace catcher
