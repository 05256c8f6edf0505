#pragma once

#include <chrono>
#include <thread>

namespace gatefold::dist {

using Seconds = std::chrono::duration<double>;

/// Polls until done() returns true or the time is up. Use it for events without a blocking call that can be cancelled.
/// It first polls without a pause, because many events happen within microseconds. It then pauses between two polls, so
/// that other processes can use the processor.
///
/// @param done  called repeatedly, and once more after the limit has passed
/// @return whether done() was true
bool wait_until(Seconds limit, auto done) {
  // The number of polls without a pause. 1000 was tried: with four processes on two processors, small messages then
  // took 1.7 times as long.
  constexpr int busy = 200;
  constexpr std::chrono::microseconds rest{50};
  const auto begin = std::chrono::steady_clock::now();
  for (int asked = 0;; ++asked) {
    const bool late = std::chrono::steady_clock::now() - begin >= limit;
    if (done()) return true;
    if (late) return false;
    if (asked < busy)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(rest);
  }
}

}  // namespace gatefold::dist
