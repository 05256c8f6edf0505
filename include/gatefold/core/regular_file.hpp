#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "gatefold/core/error.hpp"

#if defined(__unix__) || defined(__APPLE__)
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#else
#include <fstream>
#include <ios>
#endif

namespace gatefold {

/// A regular file open for reading. The constructor throws FileError for pipes, devices, sockets and folders, and never
/// blocks on them.
class RegularFile {
 public:
  /// Opens the file for reading.
  /// @throws FileError with path and reason if this fails or the file is not a regular file
  explicit RegularFile(const std::filesystem::path& where) : path_(where.string()) { open(where); }
  RegularFile(const RegularFile&) = delete;
  RegularFile& operator=(const RegularFile&) = delete;
  ~RegularFile() { close(); }

  const std::string& path() const { return path_; }
  /// Returns the size in bytes that the file had when it was opened.
  std::uint64_t size() const { return size_; }

  [[noreturn]] void fail(const std::string& reason) const { throw FileError(path_ + ": " + reason); }
  [[noreturn]] void fail(std::uint64_t offset, const std::string& reason) const {
    fail("offset " + std::to_string(offset) + ": " + reason);
  }

  /// Reads `count` bytes of the file from byte `offset` on, or fewer if the file ends earlier.
  /// @return the number of bytes read
  /// @throws FileError if the system cannot read them
  std::uint64_t read_some(void* to, std::uint64_t count, std::uint64_t offset);

  /// Reads exactly `count` bytes of the file from byte `offset` on.
  /// @throws FileError if the system cannot read them, or if the file ends earlier
  void read(void* to, std::uint64_t count, std::uint64_t offset) {
    const std::uint64_t got = read_some(to, count, offset);
    if (got < count) fail(offset + got, "truncated: expected " + std::to_string(count - got) + " more bytes");
  }

  /// Returns memory that holds all bytes of the file. Its address is a multiple of 64. On POSIX systems it is a private
  /// mapping (mmap): the system reads a page when it is first used, and processes share the page. A write to the memory
  /// copies the page and does not change the file. If the system cannot map the file, the function reads it.
  ///
  /// The memory stays valid after this object is destroyed and after the file is deleted. While the memory is in use,
  /// no program may truncate or overwrite the file, but a program may replace the file by a rename. Two threads must
  /// not call this function at the same time.
  /// @throws FileError if the file has become shorter since it was opened
  std::shared_ptr<std::byte> map();

 private:
  void open(const std::filesystem::path& where);
  void close();
  /// Maps the file and returns the mapping, or null if the system cannot map the file.
  /// @throws FileError if the file has become shorter since it was opened
  std::shared_ptr<std::byte> mapping();

  static std::string text(int reason) { return std::generic_category().message(reason); }
  [[noreturn]] void not_regular() const { fail("cannot open: not a regular file"); }

  std::string path_;
  std::uint64_t size_ = 0;
  std::shared_ptr<std::byte> mapped_{};  // the memory that map() has returned, or null
#if defined(__unix__) || defined(__APPLE__)
  int file_ = -1;
#else
  std::filebuf file_{};
#endif
};

inline std::shared_ptr<std::byte> RegularFile::map() {
  if (!mapped_) mapped_ = mapping();
  if (mapped_) return mapped_;
  if (!std::in_range<std::size_t>(size_)) fail("larger than the address space");
  constexpr std::align_val_t line{64};
  const std::size_t bytes = size_;
  const std::shared_ptr<std::byte> copy(static_cast<std::byte*>(::operator new(bytes, line)),
                                        [](std::byte* p) { ::operator delete(p, line); });
  read(copy.get(), size_, 0);
  return mapped_ = copy;
}

#if defined(__unix__) || defined(__APPLE__)

inline void RegularFile::open(const std::filesystem::path& where) {
  // Opens the file first, and then checks the open file. A path that was checked before could name a different file by
  // the time of open(). O_NONBLOCK is needed because open() of a pipe would otherwise wait for the other end.
  do file_ = ::open(where.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  while (file_ < 0 && errno == EINTR);
  if (file_ < 0 && errno == ENXIO) not_regular();  // the path is a socket
  if (file_ < 0) fail("cannot open: " + text(errno));
  struct stat status {};
  const int reason = ::fstat(file_, &status) == 0 ? 0 : errno;
  if (reason != 0 || !S_ISREG(status.st_mode)) {
    close();
    if (reason != 0) fail("cannot open: " + text(reason));
    not_regular();
  }
  size_ = static_cast<std::uint64_t>(status.st_size);
}
inline void RegularFile::close() {
  if (file_ >= 0) ::close(file_);
  file_ = -1;
}
inline std::shared_ptr<std::byte> RegularFile::mapping() {
  if (!std::in_range<std::size_t>(size_)) return nullptr;
  const std::size_t bytes = size_;
#if defined(MAP_NORESERVE)
  constexpr int flags = MAP_PRIVATE | MAP_NORESERVE;
#else
  constexpr int flags = MAP_PRIVATE;
#endif
  void* const p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, file_, 0);
  if (p == MAP_FAILED) return nullptr;
  const std::shared_ptr<std::byte> mapped(static_cast<std::byte*>(p), [bytes](std::byte* q) { ::munmap(q, bytes); });
  struct stat status {};
  if (::fstat(file_, &status) != 0) fail("cannot map: " + text(errno));
  const auto now = static_cast<std::uint64_t>(status.st_size);
  if (now < size_) fail(now, "truncated: expected " + std::to_string(size_ - now) + " more bytes");
  return mapped;
}
inline std::uint64_t RegularFile::read_some(void* to, std::uint64_t count, std::uint64_t offset) {
  std::uint64_t got = 0;
  while (got < count) {
    const auto part = static_cast<std::size_t>(std::min(count - got, std::uint64_t(1) << 30));
    const ::ssize_t n = ::pread(file_, static_cast<char*>(to) + got, part, static_cast<::off_t>(offset + got));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(offset + got, "cannot read: " + text(errno));
    if (n == 0) break;
    got += static_cast<std::uint64_t>(n);
  }
  return got;
}

#else

inline void RegularFile::open(const std::filesystem::path& where) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(where, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) not_regular();
  errno = 0;
  if (!file_.open(where, std::ios::in | std::ios::binary)) fail("cannot open: " + text(errno));
  size_ = std::filesystem::file_size(where, error);
  if (error) fail("cannot open: " + error.message());
}
inline void RegularFile::close() {}
inline std::shared_ptr<std::byte> RegularFile::mapping() { return nullptr; }
inline std::uint64_t RegularFile::read_some(void* to, std::uint64_t count, std::uint64_t offset) {
  const auto at = static_cast<std::streamoff>(offset);
  if (file_.pubseekpos(at, std::ios::in) != std::streampos(at)) fail(offset, "cannot read");
  return static_cast<std::uint64_t>(file_.sgetn(static_cast<char*>(to), static_cast<std::streamsize>(count)));
}

#endif

}  // namespace gatefold
