#include "gatefold/data/idx.hpp"

#include <doctest/doctest.h>
#include <zlib.h>

#if defined(__unix__)
#include <sys/stat.h>
#include <unistd.h>
#endif

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "support/temp_directory.hpp"

using gatefold::FileError;
using gatefold::data::IdxImages;
using gatefold::data::read_idx_images;
using gatefold::data::read_idx_labels;

namespace {

using Bytes = std::vector<std::uint8_t>;

struct Files : gatefold::support::TempDirectory {
  std::filesystem::path write(const Bytes& bytes, const char* name = "file") const {
    std::ofstream(path / name, std::ios::binary).write(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return path / name;
  }
  std::filesystem::path write_gz(const Bytes& bytes, const char* name = "file.gz") const {
    gzFile file = gzopen((path / name).c_str(), "wb");
    REQUIRE(file != nullptr);
    REQUIRE(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())) == static_cast<int>(bytes.size()));
    REQUIRE(gzclose(file) == Z_OK);
    return path / name;
  }
};

Bytes read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(file), {});
}

Bytes idx_file(std::vector<std::uint32_t> extents, const Bytes& elements, std::uint8_t type = 8) {
  Bytes file{0, 0, type, static_cast<std::uint8_t>(extents.size())};
  for (std::uint32_t n : extents) {
    for (int shift = 24; shift >= 0; shift -= 8) file.push_back(static_cast<std::uint8_t>(n >> shift));
  }
  file.insert(file.end(), elements.begin(), elements.end());
  return file;
}

/// Returns an IDX file of two images of 3 x 4 with the elements 0, 11, 22, …, 253.
Bytes small_images() {
  Bytes elements(24);
  for (std::size_t i = 0; i < elements.size(); ++i) elements[i] = static_cast<std::uint8_t>(i * 11);
  return idx_file({2, 3, 4}, elements);
}

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const FileError& e) {
    return e.what();
  }
  return "nothing was thrown";
}

void check_message(const std::string& message, const std::filesystem::path& path, const std::string& rest) {
  CHECK_MESSAGE(message.starts_with(path.string() + ": "), message);
  CHECK_MESSAGE(message.find(rest) != std::string::npos, message, " lacks ", rest);
}

}  // namespace

TEST_CASE("read_idx: reads images and labels, plain and gzip") {
  Files temp;
  const Bytes file = small_images();
  for (const auto& path : {temp.write(file), temp.write_gz(file)}) {
    const IdxImages images = read_idx_images(path);
    CHECK(images.count == 2);
    CHECK(images.rows == 3);
    CHECK(images.columns == 4);
    CHECK(images.pixels == Bytes(file.begin() + 16, file.end()));
  }
  const Bytes labels{3, 1, 4, 1, 5};
  CHECK(read_idx_labels(temp.write(idx_file({5}, labels))) == labels);
  CHECK(read_idx_labels(temp.write_gz(idx_file({5}, labels))) == labels);
}

TEST_CASE("read_idx: reads long files and several gzip members") {
  Files temp;
  Bytes labels(3'000'001);
  std::mt19937 random(1);
  for (std::uint8_t& label : labels) label = static_cast<std::uint8_t>(random());
  const Bytes file = idx_file({3'000'001}, labels);
  CHECK(read_idx_labels(temp.write(file)) == labels);
  CHECK(read_idx_labels(temp.write_gz(file)) == labels);

  const auto middle = file.begin() + 1'500'000;
  Bytes two = read_bytes(temp.write_gz(Bytes(file.begin(), middle)));
  const Bytes second = read_bytes(temp.write_gz(Bytes(middle, file.end())));
  two.insert(two.end(), second.begin(), second.end());
  CHECK(read_idx_labels(temp.write(two)) == labels);
}

TEST_CASE("read_idx: reads extents of 0 unless another extent is huge") {
  Files temp;
  CHECK(read_idx_labels(temp.write(idx_file({0}, {}))).empty());
  CHECK(read_idx_labels(temp.write_gz(idx_file({0}, {}))).empty());
  const IdxImages none = read_idx_images(temp.write(idx_file({0, 28, 28}, {})));
  CHECK(none.count == 0);
  CHECK(none.rows == 28);
  CHECK(none.pixels.empty());
  CHECK(read_idx_images(temp.write(idx_file({3, 0, 28}, {}))).pixels.empty());
  // Extents so large that no code may allocate memory of such a size or loop over it.
  for (const std::vector<std::uint32_t>& huge : std::vector<std::vector<std::uint32_t>>{
           {0xffffffff, 0xffffffff, 0}, {0, 0xffffffff, 0xffffffff}, {0xffffffff, 0, 1}, {0, 1 << 11, 1 << 10}}) {
    for (const auto& path : {temp.write(idx_file(huge, {})), temp.write_gz(idx_file(huge, {}))})
      check_message(message_of([&] { read_idx_images(path); }), path, "offset 16: extents: expected at most 10");
  }
}

TEST_CASE("read_idx: an unreadable path throws") {
  Files temp;
  const auto missing = temp.path / "missing";
  check_message(message_of([&] { read_idx_images(missing); }), missing, "cannot open: No such file");
  check_message(message_of([&] { read_idx_images(temp.path); }), temp.path, "cannot open: not a regular file");
}

TEST_CASE("read_idx: other file types, element types and ranks throw") {
  Files temp;
  auto images = [&](const Bytes& bytes) { return message_of([path = temp.write(bytes)] { read_idx_images(path); }); };
  const auto path = temp.path / "file";
  check_message(images({0x89, 'P', 'N', 'G', 0, 0, 0, 0}), path, "not an IDX file");
  check_message(images({0, 1, 8, 3}), path, "not an IDX file");
  check_message(images(idx_file({1, 1, 1}, {0}, 0x0d)), path, "element type: expected 8 (unsigned byte), got 13");
  check_message(images(idx_file({1}, {0})), path, "rank: expected 3, got 1");
  check_message(message_of([&] { read_idx_labels(temp.write(small_images())); }), path, "rank: expected 1, got 3");
}

TEST_CASE("read_idx: a file truncated at any byte throws") {
  Files temp;
  const Bytes plain = small_images(), gz = read_bytes(temp.write_gz(plain));
  for (const Bytes& whole : {plain, gz}) {
    REQUIRE(read_idx_images(temp.write(whole)).count == 2);
    for (std::size_t n = 0; n < whole.size(); ++n) {
      const auto path = temp.write(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(n)));
      check_message(message_of([&] { read_idx_images(path); }), path, "truncated");
    }
  }
  const auto path = temp.write(Bytes(plain.begin(), plain.end() - 1));
  check_message(message_of([&] { read_idx_images(path); }), path,
                "offset 39: truncated: the header declares 24 bytes of pixels, found 23");
}

TEST_CASE("read_idx: bytes after the end throw") {
  Files temp;
  Bytes file = small_images();
  file.push_back(0);
  for (const auto& path : {temp.write(file), temp.write_gz(file)}) {
    check_message(message_of([&] { read_idx_images(path); }), path, "offset 40: expected the end of the file");
  }
}

TEST_CASE("read_idx: extents larger than the file throw without allocating") {
  Files temp;
  const Bytes few{1, 2, 3};
  const auto images = temp.write(idx_file({0xffffffff, 0xffffffff, 0xffffffff}, few), "images");
  check_message(message_of([&] { read_idx_images(images); }), images,
                "extents: expected at most 1050476 bytes (1 MiB plus 100 times the size of the file), got 4294967295 x "
                "4294967295 x 4294967295");
  for (const auto& path : {temp.write(idx_file({0x7fffffff, 0xffffffff, 1}, few), "large"),
                           temp.write_gz(idx_file({0x7fffffff, 0xffffffff, 1}, few))}) {
    check_message(message_of([&] { read_idx_images(path); }), path, "extents: expected at most 10");
  }
  const auto labels = temp.write(idx_file({0xffffffff}, few), "labels");
  check_message(message_of([&] { read_idx_labels(labels); }), labels,
                "extents: expected at most 1049676 bytes (1 MiB plus 100 times the size of the file), got 4294967295");
}

TEST_CASE("read_idx: a flipped bit of gzip throws or is harmless") {
  Files temp;
  const Bytes plain = small_images(), gz = read_bytes(temp.write_gz(plain));
  int rejected = 0;
  for (std::size_t bit = 0; bit < gz.size() * 8; ++bit) {
    Bytes bad = gz;
    bad[bit / 8] = static_cast<std::uint8_t>(bad[bit / 8] ^ (1u << (bit % 8)));
    try {
      const Bytes pixels = read_idx_images(temp.write(bad)).pixels;
      // A flipped bit is harmless only if it has no meaning, for example in the time or system of the gzip header.
      CHECK(pixels == Bytes(plain.begin() + 16, plain.end()));
    } catch (const FileError&) {
      ++rejected;
    }
  }
  CHECK(rejected > static_cast<int>((gz.size() - 10) * 8 * 9 / 10));

  Bytes bad = gz;
  bad[bad.size() - 8] ^= 1;  // the checksum
  const auto path = temp.write(bad);
  check_message(message_of([&] { read_idx_images(path); }), path, "corrupt compressed stream: incorrect data check");
}

TEST_CASE("read_idx: extents beyond 1 MiB plus 100 file sizes throw") {
  Files temp;
  // Both files hold 16 MiB of zeros in less than 20 kB. The header of the first states this size, the header of the
  // second a smaller one.
  const auto honest = temp.write_gz(idx_file({16, 1024, 1024}, Bytes(1 << 24)), "honest");
  REQUIRE(std::filesystem::file_size(honest) < 20'000);
  check_message(message_of([&] { read_idx_images(honest); }), honest, "offset 16: extents: expected at most ");
  const auto longer = temp.write_gz(idx_file({2, 3, 4}, Bytes(1 << 24)), "longer");
  check_message(message_of([&] { read_idx_images(longer); }), longer, "offset 40: expected the end of the file");
  // Small files are accepted however well they compress, and so are large ones that are not compressed.
  CHECK(read_idx_images(temp.write_gz(idx_file({1000, 28, 28}, Bytes(784'000)))).pixels == Bytes(784'000));
  CHECK(read_idx_images(temp.write(idx_file({16, 1024, 1024}, Bytes(1 << 24)))).pixels.size() == 1 << 24);
}

TEST_CASE("read_idx: extents whose product overflows throw") {
  Files temp;
  // 2^22 · 2^21 · 2^21 = 2^64
  const Bytes file = idx_file({1u << 22, 1u << 21, 1u << 21}, {});
  for (const auto& path : {temp.write(file), temp.write_gz(file)})
    check_message(message_of([&] { read_idx_images(path); }), path, "extents: expected at most 10");
}

TEST_CASE("read_idx: bytes after a gzip stream throw") {
  Files temp;
  Bytes gz = read_bytes(temp.write_gz(small_images()));
  for (const Bytes& tail : {Bytes{0}, Bytes{'x', 'y', 'z'}, Bytes{0x1f, 0x8b}}) {
    Bytes bad = gz;
    bad.insert(bad.end(), tail.begin(), tail.end());
    const auto path = temp.write(bad);
    check_message(message_of([&] { read_idx_images(path); }), path, "compressed stream");
  }
  // An appended empty stream changes nothing.
  const Bytes nothing = read_bytes(temp.write_gz({}));
  gz.insert(gz.end(), nothing.begin(), nothing.end());
  CHECK(read_idx_images(temp.write(gz)).count == 2);
}

#if defined(__unix__)
TEST_CASE("read_idx: pipes and devices throw without waiting") {
  Files temp;
  const auto pipe = temp.path / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  ::alarm(60);  // ends a test that would wait forever
  check_message(message_of([&] { read_idx_images(pipe); }), pipe, "cannot open: not a regular file");
  check_message(message_of([&] { read_idx_labels("/dev/zero"); }), "/dev/zero", "cannot open: not a regular file");
  ::alarm(0);
}
#endif
