#pragma once

#include <sanitizer/allocator_interface.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

/// Shared code of the fuzz targets: a file with the input, a property that must hold, and the peak of the held memory.
namespace fuzz {

/// The targets, each in a source file with the same name. all.cpp calls them from LLVMFuzzerTestOneInput.
int blocks(const std::uint8_t* bytes, std::size_t size);
int checkpoint(const std::uint8_t* bytes, std::size_t size);
int config(const std::uint8_t* bytes, std::size_t size);
int frozen(const std::uint8_t* bytes, std::size_t size);
int idx(const std::uint8_t* bytes, std::size_t size);
int index(const std::uint8_t* bytes, std::size_t size);
int safetensors(const std::uint8_t* bytes, std::size_t size);
int text(const std::uint8_t* bytes, std::size_t size);

#define FUZZ_REQUIRE(condition)                                                          \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)

/// A file in memory that looks like a regular file.
class File {
 public:
  File(const std::uint8_t* bytes, std::size_t size) : file_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    FUZZ_REQUIRE(file_ >= 0 && ::write(file_, bytes, size) == static_cast<::ssize_t>(size));
  }
  File(const File&) = delete;
  ~File() { ::close(file_); }
  std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(file_); }

 private:
  int file_;
};

/// Returns the path of a file in a folder of this process. A target may replace the file.
inline std::filesystem::path scratch_file() {
  struct Folder {
    std::filesystem::path path =
        (std::filesystem::exists("/dev/shm") ? "/dev/shm" : std::filesystem::temp_directory_path()) /
        ("gatefold_fuzz_" + std::to_string(::getpid()));
    Folder() { std::filesystem::create_directories(path); }
    ~Folder() { std::filesystem::remove_all(path); }
  };
  static const Folder folder;
  return folder.path / "file";
}

inline thread_local std::size_t held = 0, most = 0;

/// Installs hooks that count heap memory. They are installed only once, because two pairs of hooks would count twice.
inline void count_held() {
  [[maybe_unused]] static const int installed = __sanitizer_install_malloc_and_free_hooks(
      [](const volatile void*, std::size_t size) {
        held += size;
        if (held > most && held < std::size_t(1) << 62) most = held;
      },
      [](const volatile void* memory) { held -= __sanitizer_get_allocated_size(memory); });
}

/// Returns the largest number of heap bytes that f holds at the same time.
template <class F>
std::size_t peak(const F& f) {
  count_held();
  held = most = 0;
  f();
  return most;
}

}  // namespace fuzz
