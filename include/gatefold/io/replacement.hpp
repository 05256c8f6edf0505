#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <system_error>

#include "gatefold/core/error.hpp"

#if defined(__unix__) || defined(__APPLE__)
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

namespace gatefold::io {

/// Writes a file under a temporary name in the same folder; `commit` then replaces the target file by the new file in
/// one step (a rename). Without `commit`, or after an exception, an existing target is unchanged and no other file is
/// left.
///
/// The data is on the disk before the name of the target refers to it, and the new name is on the disk before `commit`
/// returns. Therefore, after a power failure there is either the complete old file or the complete new file. The
/// target keeps its permissions. A symbolic link stays a link, and its target is replaced. The next Replacement of the
/// same name removes files that a killed writer left, but not the files of a writer that is still running. Outside
/// POSIX systems, the next Replacement does not remove files of killed writers, and `commit` does not flush data from
/// the operating system to the disk.
///
/// @throws FileError with path and reason, also if the target is read-only
class Replacement {
 public:
  explicit Replacement(const std::filesystem::path& path) : path_(path.string()), target_(target_of(path)) {
    if (path_.empty()) throw FileError("cannot write: the name of the file is empty");
    std::error_code error;
    const std::filesystem::file_status status = std::filesystem::status(target_, error);
    if (error == std::errc::too_many_symbolic_link_levels) fail("cannot write", error.value());  // a cycle of links
    // Refuse a device or a pipe, because the rename in commit() would replace it by a file.
    if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
      throw FileError(path_ + ": cannot write: not a regular file");
    // Refuse a read-only file, because the rename in commit() would replace it in spite of its protection.
    using std::filesystem::perms;
    constexpr perms write = perms::owner_write | perms::group_write | perms::others_write;
    if (std::filesystem::exists(status) && (status.permissions() & write) == perms::none)
      throw FileError(path_ + ": cannot write: the file is read-only");
    create(status);
  }
  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;
  ~Replacement() {
    if (committed_) return;
    std::error_code ignored;
    if (is_open()) std::filesystem::remove(temporary_, ignored);
    close();
  }

  void write(const void* bytes, std::size_t count);
  void commit();
  /// Replaces the file `path` instead of the target that was passed to the constructor. `path` must be in the same
  /// folder. Otherwise like commit.
  void commit_as(const std::filesystem::path& path) {
    target_ = path;
    commit();
  }
  /// Returns the path of the temporary file that is being written. Other processes can open it and write to it too.
  const std::filesystem::path& temporary() const { return temporary_; }
  /// Flushes the directory entries of the target's folder to the disk, so that a rename survives a power failure. Does
  /// nothing outside POSIX systems.
  void sync_folder() const { sync_folder(folder(), path_); }
  /// Flushes the directory entries of a folder to the disk, like sync_folder().
  /// @param path  the name of the file or folder in an error message
  static void sync_folder(const std::filesystem::path& folder, const std::string& path);

 private:
  [[noreturn]] void fail(const std::string& what, int reason = errno) const { fail(path_, what, reason); }
  [[noreturn]] static void fail(const std::string& path, const std::string& what, int reason) {
    throw FileError(path + ": " + what + ": " + std::generic_category().message(reason));
  }

  // Follows symbolic links from `path` and returns the path to which the last one points, even if no file exists there.
  static std::filesystem::path target_of(std::filesystem::path path) {
    std::error_code error;
    for (int links = 0; links < 40 && std::filesystem::is_symlink(path, error); ++links) {
      const std::filesystem::path next = std::filesystem::read_symlink(path, error);
      if (error) break;
      path = next.is_absolute() ? next : path.parent_path() / next;
    }
    return path;
  }
  std::filesystem::path folder() const { return target_.has_parent_path() ? target_.parent_path() : "."; }

  // Returns the common prefix of the names of all temporary files for this target. The target's name is cut, so that
  // the name of a temporary file has at most 216 bytes.
  std::string stem() const {
    const std::string name = target_.filename().string();
    std::uint64_t hash = 14695981039346656037u;  // FNV-1a
    for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
    return name.substr(0, 180) + '.' + std::to_string(hash) + '.';
  }

  void create(const std::filesystem::file_status& status);
  bool is_open() const;
  void close();

  std::string path_;
  std::filesystem::path target_, temporary_;
  bool committed_ = false;

#if defined(__unix__) || defined(__APPLE__)
  void remove_leftovers() const;
  int file_ = -1;
#else
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, Close> file_{};
#endif
};

#if defined(__unix__) || defined(__APPLE__)

inline bool Replacement::is_open() const { return file_ >= 0; }
inline void Replacement::close() {
  if (file_ >= 0) ::close(file_);
  file_ = -1;
}

inline void Replacement::create(const std::filesystem::file_status& status) {
  remove_leftovers();
  std::random_device random;
  // Between `open` and `flock`, another process can take the new file for the leftover of a killed writer and remove
  // it. In this case, create another file.
  for (int attempt = 0;; ++attempt) {
    temporary_ = folder() / (stem() + std::to_string(random()) + ".tmp");
    file_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file_ < 0) fail("cannot create " + temporary_.string());
    struct stat now {};
    if (::flock(file_, LOCK_EX | LOCK_NB) == 0 && ::fstat(file_, &now) == 0 && now.st_nlink > 0) break;
    close();
    if (attempt == 100)
      throw FileError(path_ + ": cannot create a temporary file in its folder: another process keeps removing it");
  }
  struct stat old {};
  if (std::filesystem::exists(status) && ::stat(target_.c_str(), &old) == 0) {
    // Keeps the owner of the old file if possible. A failure is ignored, because only root can change the owner of a
    // file.
    [[maybe_unused]] const int owner = ::fchown(file_, old.st_uid, old.st_gid);
    if (::fchmod(file_, old.st_mode & 07777) != 0) fail("cannot set permissions");
  }
}

// Removes the temporary files that killed writers of this target have left. They are the files that no running process
// has locked.
inline void Replacement::remove_leftovers() const {
  const std::string begin = stem();
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder(), error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with(begin) || !name.ends_with(".tmp")) continue;
    const int file = ::open(at->path().c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    if (file < 0) continue;
    if (::flock(file, LOCK_EX | LOCK_NB) == 0) ::unlink(at->path().c_str());
    ::close(file);
  }
}

inline void Replacement::write(const void* bytes, std::size_t count) {
  for (const char* from = static_cast<const char*>(bytes); count > 0;) {
    const ::ssize_t written = ::write(file_, from, std::min<std::size_t>(count, std::size_t(1) << 30));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("cannot write");
    from += written;
    count -= static_cast<std::size_t>(written);
  }
}

inline void Replacement::sync_folder(const std::filesystem::path& folder, const std::string& path) {
  const int entries = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (entries < 0) fail(path, "cannot open its folder", errno);
  const int result = ::fsync(entries), reason = errno;
  ::close(entries);
  if (result != 0 && reason != EINVAL)
    fail(path, "cannot write its folder to the disk", reason);  // EINVAL: this folder cannot be flushed
}

inline void Replacement::commit() {
  if (::fsync(file_) != 0) fail("cannot write");
  sync_folder();
  std::error_code error;
  std::filesystem::rename(temporary_, target_, error);
  if (error) throw FileError(path_ + ": cannot replace: " + error.message());
  committed_ = true;
  close();
  sync_folder();
}

#else

inline bool Replacement::is_open() const { return static_cast<bool>(file_); }
inline void Replacement::close() { file_.reset(); }
inline void Replacement::create(const std::filesystem::file_status&) {
  std::random_device random;
  temporary_ = folder() / (stem() + std::to_string(random()) + ".tmp");
  errno = 0;
  file_.reset(std::fopen(temporary_.string().c_str(), "wbx"));
  if (!file_) fail("cannot create " + temporary_.string());
}
inline void Replacement::write(const void* bytes, std::size_t count) {
  errno = 0;
  if (count > 0 && std::fwrite(bytes, 1, count, file_.get()) != count) fail("cannot write");
}
inline void Replacement::sync_folder(const std::filesystem::path&, const std::string&) {}
inline void Replacement::commit() {
  errno = 0;
  // fclose writes the bytes that are still buffered. It fails if the disk is full.
  if (std::fclose(file_.release()) != 0) fail("cannot write");
  std::error_code error;
  std::filesystem::rename(temporary_, target_, error);
  if (error) {
    std::filesystem::remove(temporary_, error);
    throw FileError(path_ + ": cannot replace: " + error.message());
  }
  committed_ = true;
}

#endif

}  // namespace gatefold::io
