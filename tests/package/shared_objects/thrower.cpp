// The first shared object. It hides all names except its interface.
#include <gatefold/gatefold.hpp>

#include "interface.hpp"

namespace thrower {

void throw_error(int number) {
  switch (number) {
    case 0:
      throw gatefold::Error("base");
    case 1:
      gatefold::expect(false, "where", "name", 1, 2);  // throws ArgumentError
    case 2:
      throw gatefold::FileError("file");
    case 3:
      throw gatefold::DeviceError("device");
    default:
      gatefold::throw_not_finite("where", "loss");  // throws NotFiniteError
  }
}
void throw_pointer(std::exception_ptr& to) {
  try {
    throw_error(1);
  } catch (...) {
    to = std::current_exception();
  }
}

Identities identities() {
  return {gatefold::AnyTensor::type_of<float>(), gatefold::AnyTensor::type_of<double>(),
          gatefold::AnyTensor::type_of<gatefold::Index>(), gatefold::AnyTensor::type_of<gatefold::Bfloat16>(),
          &gatefold::detail_::writing_zeros};
}
std::uint64_t next_stamp() { return gatefold::CopyStamp::next(); }

}  // namespace thrower
