#pragma once

// Calls on_system_call, which a test sets, before each call of write, pwrite, fsync, rename and remove (Linux). The
// functions below replace these functions of the C library. They are weak, so that several sources of a program may
// include this file.

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <string_view>

namespace gatefold::support {

struct SystemCall {
  enum Kind { write, write_at, sync, rename, remove } kind;
  int file = -1;             // the file that is written or synced
  std::string_view bytes{};  // the bytes that are written
  const char *from = "", *to = "";
};
/// False if the address sanitizer is used, because its functions, which are also weak, replace the functions below.
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define GATEFOLD_HEARS_SYSTEM_CALLS false
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define GATEFOLD_HEARS_SYSTEM_CALLS false
#endif
#if !defined(GATEFOLD_HEARS_SYSTEM_CALLS)
#define GATEFOLD_HEARS_SYSTEM_CALLS true
#endif
inline constexpr bool hears_system_calls = GATEFOLD_HEARS_SYSTEM_CALLS;

inline void (*on_system_call)(const SystemCall&) = nullptr;
inline void tell(const SystemCall& call) {
  if (on_system_call) on_system_call(call);
}

}  // namespace gatefold::support

extern "C" {
[[gnu::weak, gnu::used]] ssize_t write(int file, const void* bytes, size_t count) {
  using gatefold::support::SystemCall;
  gatefold::support::tell({SystemCall::write, file, {static_cast<const char*>(bytes), count}});
  return ::syscall(SYS_write, file, bytes, count);
}
[[gnu::weak, gnu::used]] ssize_t pwrite(int file, const void* bytes, size_t count, off_t at) {
  using gatefold::support::SystemCall;
  gatefold::support::tell({SystemCall::write_at, file, {static_cast<const char*>(bytes), count}});
  return ::syscall(SYS_pwrite64, file, bytes, count, at);
}
[[gnu::weak, gnu::used]] int fsync(int file) {
  gatefold::support::tell({gatefold::support::SystemCall::sync, file});
  return static_cast<int>(::syscall(SYS_fsync, file));
}
[[gnu::weak, gnu::used]] int rename(const char* from, const char* to) noexcept {
  using gatefold::support::SystemCall;
  gatefold::support::tell({SystemCall::rename, -1, {}, from, to});
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
[[gnu::weak, gnu::used]] int remove(const char* path) noexcept {
  using gatefold::support::SystemCall;
  gatefold::support::tell({SystemCall::remove, -1, {}, path});
  const auto unlink = [&](int flags) { return static_cast<int>(::syscall(SYS_unlinkat, AT_FDCWD, path, flags)); };
  const int done = unlink(0);
  return done != 0 && errno == EISDIR ? unlink(AT_REMOVEDIR) : done;
}
}
