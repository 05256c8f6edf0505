#include "gatefold/io/output_file.hpp"

#include <doctest/doctest.h>

#include <cerrno>
#include <cstdint>
#include <string>

#include "support/temp_directory.hpp"

using gatefold::io::OutputFile;
using gatefold::support::read_bytes;
using gatefold::support::TempDirectory;

TEST_CASE("OutputFile: two writers write their own bytes in any order") {
  const TempDirectory temp;
  const auto path = temp.write("");
  OutputFile first, second;
  REQUIRE(first.open(path));
  REQUIRE(first.resize(6));
  REQUIRE(second.open(path));
  std::uint64_t size = 0;
  CHECK(second.size(size));
  CHECK(size == 6);
  CHECK(second.write("ef", 2, 4));
  CHECK(first.write("ab", 2, 0));
  CHECK(first.write("", 0, 2));
  CHECK(second.write("d", 1, 3));
  CHECK(first.sync());
  CHECK(second.sync());
  CHECK(read_bytes(path) == std::string("ab\0def", 6));
}

TEST_CASE("OutputFile: open does not create a missing file") {
  const TempDirectory temp;
  OutputFile file;
  CHECK_FALSE(file.open(temp.file()));
  CHECK(errno == ENOENT);
  CHECK(temp.entries() == 0);
}
