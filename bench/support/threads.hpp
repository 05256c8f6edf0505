#pragma once

#include <gatefold/gatefold.hpp>

namespace bench {

/// Returns the thread pool that all contexts and measurements share. If there were a second pool while threads of the
/// first pool still spin, a thread could wait ten milliseconds behind the thread that woke it. Both pools would then
/// seem half as fast.
inline gatefold::cpu::Workers& workers() {
  static gatefold::cpu::Workers all(gatefold::cpu::available_threads());
  return all;
}
/// Returns a context that uses the shared thread pool.
/// @param threads  number of threads; 0: as many as available
template <class B = gatefold::Cpu>
typename B::Context context(int threads = 0) {
  return typename B::Context(workers(), threads > 0 ? threads : gatefold::cpu::available_threads());
}

}  // namespace bench
