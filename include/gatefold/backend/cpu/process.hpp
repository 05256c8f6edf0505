#pragma once

#if __has_include(<unistd.h>) && !defined(_WIN32)
#define GATEFOLD_POSIX_PROCESS 1
#include <signal.h>  // NOLINT(modernize-deprecated-headers): <csignal> need not declare POSIX signal functions
#include <unistd.h>
#endif

#include "gatefold/backend/cpu/instruction_set.hpp"

namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// Returns a positive number that identifies this process. A child of fork() gets a different number than its parent.
/// On systems without fork() the number is the same in every process.
inline long process_id() {
#ifdef GATEFOLD_POSIX_PROCESS
  return static_cast<long>(getpid());
#else
  return 1;
#endif
}

/// Blocks all signals for the thread that constructs the object, until the object is destroyed. Threads that this
/// thread starts in the meantime never receive signals, because they inherit the signal mask. Does nothing on systems
/// without POSIX signals.
class SignalsBlocked {
 public:
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
#ifdef GATEFOLD_POSIX_PROCESS
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
#else
  SignalsBlocked() {}
  ~SignalsBlocked() {}
#endif
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu

#undef GATEFOLD_POSIX_PROCESS
