#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>

#if defined(__unix__) || defined(__APPLE__)
#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>
#else
#include <cstdio>
#endif

namespace gatefold::io {

/// An existing file that is open for writing at any offset. Several processes can write to different bytes of the file
/// at the same time. If a function returns false, errno has the reason.
class OutputFile {
 public:
  OutputFile() = default;
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile() { close(); }

  bool open(const std::filesystem::path& path);
  void close();
  /// Writes the size of the file to `bytes`.
  bool size(std::uint64_t& bytes) const;
  /// Sets the size of the file. New bytes are zeros.
  bool resize(std::uint64_t bytes);
  bool write(const void* bytes, std::size_t count, std::uint64_t offset);
  /// Flushes the file to the disk with fsync. Outside POSIX systems, calls fflush, which flushes only to the operating
  /// system.
  bool sync();

 private:
#if defined(__unix__) || defined(__APPLE__)
  int file_ = -1;
#else
  std::filesystem::path path_{};
  std::FILE* file_ = nullptr;
#endif
};

#if defined(__unix__) || defined(__APPLE__)

inline bool OutputFile::open(const std::filesystem::path& path) {
  close();
  do file_ = ::open(path.c_str(), O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
  while (file_ < 0 && errno == EINTR);
  return file_ >= 0;
}
inline void OutputFile::close() {
  if (file_ >= 0) ::close(file_);
  file_ = -1;
}
inline bool OutputFile::size(std::uint64_t& bytes) const {
  const ::off_t end = ::lseek(file_, 0, SEEK_END);
  if (end >= 0) bytes = static_cast<std::uint64_t>(end);
  return end >= 0;
}
inline bool OutputFile::resize(std::uint64_t bytes) { return ::ftruncate(file_, static_cast<::off_t>(bytes)) == 0; }
inline bool OutputFile::write(const void* bytes, std::size_t count, std::uint64_t offset) {
  for (const char* from = static_cast<const char*>(bytes); count > 0;) {
    const auto piece = std::min<std::size_t>(count, std::size_t(1) << 30);
    const ::ssize_t written = ::pwrite(file_, from, piece, static_cast<::off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    from += written;
    offset += static_cast<std::uint64_t>(written);
    count -= static_cast<std::size_t>(written);
  }
  return true;
}
inline bool OutputFile::sync() { return ::fsync(file_) == 0; }

#else

inline bool OutputFile::open(const std::filesystem::path& path) {
  close();
  errno = 0;
  path_ = path;
  file_ = std::fopen(path.string().c_str(), "rb+");
  return file_ != nullptr;
}
inline void OutputFile::close() {
  if (file_) std::fclose(file_);
  file_ = nullptr;
}
inline bool OutputFile::size(std::uint64_t& bytes) const {
  std::error_code error;
  bytes = std::filesystem::file_size(path_, error);
  errno = error.value();
  return !error;
}
inline bool OutputFile::resize(std::uint64_t bytes) {
  std::error_code error;
  std::filesystem::resize_file(path_, bytes, error);
  errno = error.value();
  return !error;
}
inline bool OutputFile::write(const void* bytes, std::size_t count, std::uint64_t offset) {
  errno = 0;
#if defined(_WIN32)
  const bool there = ::_fseeki64(file_, static_cast<long long>(offset), SEEK_SET) == 0;
#else
  const bool there = std::fseek(file_, static_cast<long>(offset), SEEK_SET) == 0;
#endif
  return there && std::fwrite(bytes, 1, count, file_) == count;
}
inline bool OutputFile::sync() {
  errno = 0;
  return std::fflush(file_) == 0;
}

#endif

}  // namespace gatefold::io
