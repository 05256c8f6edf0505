#pragma once

#include <gatefold/gatefold.hpp>

namespace bench {

/// The threads of every context and measurement of a program. Those of a second pool, woken while the first one's still
/// spin, can wait for ten milliseconds behind the thread that woke them: both pools then seem half as fast.
inline gatefold::cpu::Workers& workers() {
  static gatefold::cpu::Workers all(gatefold::cpu::available_threads());
  return all;
}
/// @param threads  0: as many as there are
template <class B = gatefold::Cpu>
typename B::Context context(int threads = 0) {
  return typename B::Context(workers(), threads > 0 ? threads : gatefold::cpu::available_threads());
}

}  // namespace bench
