#include "gatefold/core/regular_file.hpp"

#include <doctest/doctest.h>

#if defined(__unix__)
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#endif

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "support/temp_directory.hpp"

using gatefold::FileError;
using gatefold::RegularFile;
using gatefold::support::TempDirectory;

namespace {

std::string refusal(const std::filesystem::path& path) {
  try {
    const RegularFile file(path);
  } catch (const FileError& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("RegularFile: reads bytes at a position, up to the end") {
  const TempDirectory temp;
  const auto path = temp.path / "file";
  std::ofstream(path, std::ios::binary) << "0123456789";
  RegularFile file(path);
  CHECK(file.size() == 10);
  CHECK(file.path() == path.string());
  std::string bytes(4, ' ');
  file.read(bytes.data(), 4, 6);
  CHECK(bytes == "6789");
  file.read(bytes.data(), 4, 0);
  CHECK(bytes == "0123");
  file.read(bytes.data(), 0, 10);
  CHECK(file.read_some(bytes.data(), 4, 8) == 2);
  CHECK(bytes == "8923");
  CHECK(file.read_some(bytes.data(), 4, 11) == 0);
  CHECK_THROWS_WITH_AS(file.read(bytes.data(), 4, 7),
                       (path.string() + ": offset 10: truncated: expected 1 more bytes").c_str(), FileError);
}

TEST_CASE("RegularFile: a map outlives its file; writes stay in memory") {
  const TempDirectory temp;
  const auto path = temp.path / "file", empty = temp.path / "empty";
  std::ofstream(path, std::ios::binary) << "0123456789";
  std::ofstream(empty, std::ios::binary) << "";
  std::shared_ptr<std::byte> bytes;
  {
    RegularFile file(path);
    bytes = file.map();
    CHECK(file.map() == bytes);
    CHECK(RegularFile(path).map() != bytes);
    CHECK(reinterpret_cast<std::uintptr_t>(bytes.get()) % 64 == 0);
    bytes.get()[3] = std::byte{'x'};
    std::string read(10, ' ');
    file.read(read.data(), 10, 0);
    CHECK(read == "0123456789");
  }
  std::filesystem::remove(path);
  CHECK(std::string(reinterpret_cast<const char*>(bytes.get()), 10) == "012x456789");
  CHECK(RegularFile(empty).map() != nullptr);
}

TEST_CASE("RegularFile: a file that became shorter is not mapped") {
  const TempDirectory temp;
  const auto path = temp.path / "file";
  std::ofstream(path, std::ios::binary) << std::string(10'000, '0');
  RegularFile file(path);
  std::filesystem::resize_file(path, 17);
  CHECK_THROWS_WITH_AS(file.map(), (path.string() + ": offset 17: truncated: expected 9983 more bytes").c_str(),
                       FileError);
}

TEST_CASE("RegularFile: folders and missing files throw; links are followed") {
  const TempDirectory temp;
  const auto path = temp.path / "file", link = temp.path / "link";
  CHECK(refusal(path) == path.string() + ": cannot open: No such file or directory");
  CHECK(refusal(temp.path) == temp.path.string() + ": cannot open: not a regular file");
  std::ofstream(path) << "x";
  std::filesystem::create_symlink(path, link);
  CHECK(refusal(link) == "");
}

#if defined(__unix__)
TEST_CASE("RegularFile: pipes, devices and sockets are refused without blocking") {
  const TempDirectory temp;
  const auto pipe = temp.path / "pipe", link = temp.path / "link";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  std::filesystem::create_symlink(pipe, link);
  ::alarm(60);  // ends a test that would wait forever
  CHECK(refusal(pipe) == pipe.string() + ": cannot open: not a regular file");
  CHECK(refusal(link) == link.string() + ": cannot open: not a regular file");
  CHECK(refusal("/dev/zero") == "/dev/zero: cannot open: not a regular file");
  CHECK(refusal("/dev/null") == "/dev/null: cannot open: not a regular file");
  ::alarm(0);

  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const std::string socket = (temp.path / "s").string();
  if (socket.size() < sizeof name.sun_path) {
    std::memcpy(name.sun_path, socket.c_str(), socket.size());
    const int end = ::socket(AF_UNIX, SOCK_STREAM, 0);
    REQUIRE(::bind(end, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0);
    CHECK(refusal(socket) == socket + ": cannot open: not a regular file");
    ::close(end);
  }
}
#endif
