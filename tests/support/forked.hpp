#pragma once

#if !defined(_WIN32)
#include <sys/wait.h>
#include <unistd.h>
#endif

#include <exception>
#include <string>

namespace gatefold::support {

/// True if a child process of a program with threads may start threads. False under ThreadSanitizer, under qemu-user,
/// which stops at an internal assertion, and on Windows, which has no fork.
#if defined(_WIN32) || defined(__SANITIZE_THREAD__) || defined(GATEFOLD_TESTS_EMULATED)
inline constexpr bool may_fork = false;
#elif defined(__has_feature)
inline constexpr bool may_fork = !__has_feature(thread_sanitizer);
#else
inline constexpr bool may_fork = true;
#endif

/// True if a test may limit the address space of a program. AddressSanitizer needs all address space.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool may_limit_memory = false;
#elif defined(__has_feature)
inline constexpr bool may_limit_memory = !__has_feature(address_sanitizer);
#else
inline constexpr bool may_limit_memory = true;
#endif

/// Runs f in a child process for at most twenty seconds. Returns the result of f(), or the message of its exception.
template <class F>
std::string in_child([[maybe_unused]] const F& f) {
#if defined(_WIN32)
  return "no fork";
#else
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    std::string said;
    try {
      said = f();
    } catch (const std::exception& error) {
      said = error.what();
    }
    _exit(write(ends[1], said.data(), said.size()) == static_cast<ssize_t>(said.size()) ? 0 : 1);
  }
  close(ends[1]);
  std::string said;
  char buffer[4096];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;) said.append(buffer, static_cast<std::size_t>(n));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) said += " (killed by signal " + std::to_string(WTERMSIG(status)) + ")";
  return said;
#endif
}

}  // namespace gatefold::support
