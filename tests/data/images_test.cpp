#include "gatefold/data/images.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "support/temp_directory.hpp"

using gatefold::FileError;
using gatefold::Index;
using namespace gatefold::data;

namespace {

using Bytes = std::vector<std::uint8_t>;

struct Files : gatefold::support::TempDirectory {
  std::filesystem::path write(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories((path / name).parent_path());
    std::ofstream(path / name, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return path / name;
  }
};

/// Returns the bytes of an image of CIFAR. Channel c of pixel i has the value (7 i + 50 c + shift) mod 256.
std::string cifar(const std::string& labels, int shift) {
  std::string bytes = labels;
  for (int c = 0; c < 3; ++c)
    for (int i = 0; i < 1024; ++i) bytes += static_cast<char>((7 * i + 50 * c + shift) % 256);
  return bytes;
}

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const FileError& e) {
    return e.what();
  }
  return "nothing was thrown";
}

}  // namespace

TEST_CASE("read_cifar10: reads labels, and the channels of a pixel together") {
  const Files files;
  const LabelledImages images = read_cifar10(files.write("a.bin", cifar("\x03", 0) + cifar(std::string(1, 0), 9)));
  CHECK(images.count() == 2);
  CHECK(images.labels == std::vector<Index>{3, 0});
  CHECK((images.rows == 32 && images.columns == 32 && images.channels == 3));
  REQUIRE(images.pixels.size() == 2 * 32 * 32 * 3);
  for (std::size_t n = 0; n < 2; ++n)
    for (std::size_t i = 0; i < 1024; ++i)
      for (std::size_t c = 0; c < 3; ++c)
        REQUIRE(images.pixels[(n * 1024 + i) * 3 + c] == (7 * i + 50 * c + 9 * n) % 256);
}

TEST_CASE("read_cifar100: reads the fine or the coarse label") {
  const Files files;
  const auto path = files.write("train.bin", cifar("\x13\x63", 0) + cifar(std::string("\x00\x05", 2), 1));
  CHECK(read_cifar100(path).labels == std::vector<Index>{99, 5});
  CHECK(read_cifar100(path, Cifar100Label::coarse).labels == std::vector<Index>{19, 0});
  CHECK(read_cifar100(path).pixels == read_cifar100(path, Cifar100Label::coarse).pixels);
  CHECK(read_cifar100(path).pixels[3] == 7);
}

TEST_CASE("read_cifar: files of another size and labels that do not exist throw") {
  const Files files;
  const auto message = [&](const std::string& bytes) {
    const auto path = files.write("a.bin", bytes);
    const std::string text = message_of([&] { read_cifar10(path); });
    REQUIRE(text.starts_with(path.string() + ": "));
    return text.substr(path.string().size() + 2);
  };
  CHECK(message("") == "size: expected a multiple of the 3073 bytes of an image, got 0");
  CHECK(message(cifar("\x01", 0) + "x") == "size: expected a multiple of the 3073 bytes of an image, got 3074");
  CHECK(message(cifar("\x01", 0) + cifar("\x0a", 0)) == "offset 3073: label: expected 0 to 9, got 10");
  const auto coarse = files.write("b.bin", cifar(std::string("\x14\x00", 2), 0));
  CHECK(message_of([&] { read_cifar100(coarse, Cifar100Label::coarse); }).ends_with("label: expected 0 to 19, got 20"));
  CHECK_THROWS_AS(read_cifar10(files.path / "missing"), FileError);
  CHECK_THROWS_AS(read_cifar10(files.path), FileError);
}

TEST_CASE("read_netpbm: reads grey and RGB images, comments and other largest values") {
  const Files files;
  const auto read = [&](const std::string& bytes) { return read_netpbm(files.write("image", bytes)); };
  const Image grey = read("P5\n# made by hand\n 3 # columns\n2\n255\nabcde\n");
  CHECK((grey.rows == 2 && grey.columns == 3 && grey.channels == 1));
  CHECK(grey.pixels == Bytes{'a', 'b', 'c', 'd', 'e', '\n'});
  const Image colour = read(std::string("P6 1 2 15 \x00\x01\x02\x0d\x0e\x0f", 16));
  CHECK((colour.rows == 2 && colour.columns == 1 && colour.channels == 3));
  CHECK(colour.pixels == Bytes{0, 17, 34, 221, 238, 255});
  CHECK(read(std::string("P5 1 3 2\n\x00\x01\x02", 12)).pixels == Bytes{0, 128, 255});
}

TEST_CASE("read_netpbm: other formats, sizes and values throw") {
  const Files files;
  const auto message = [&](const std::string& bytes) {
    const auto path = files.write("image", bytes);
    return message_of([&] { read_netpbm(path); }).substr(path.string().size() + 2);
  };
  for (const char* other : {"", "P", "P2 1 1 255 0", "P7", "\x89PNG"})
    CHECK(message(other) == "format: expected netpbm P5 or P6");
  CHECK(message("P5 2 2 255\nabc") == "pixels: expected 4 bytes (2 x 2 x 1), got 3");
  CHECK(message("P5 2 2 255\nabcde") == "pixels: expected 4 bytes (2 x 2 x 1), got 5");
  CHECK(message("P6 2147483648 2147483648 255\n").starts_with("pixels: expected 13835058055282163712 bytes"));
  CHECK(message("P5 0 1 255\n") == "offset 4: width: expected a number from 1 to 2147483648");
  CHECK(message("P5 99999999999999999999 1 255\n").find(": width: expected") != std::string::npos);
  CHECK(message("P5 1 -1 255\na").find(": height: expected") != std::string::npos);
  CHECK(message("P5 1 1 65535\nab").find(": largest value: expected a number from 1 to 255") != std::string::npos);
  CHECK(message("P5 1 1").find(": largest value: expected") != std::string::npos);
  CHECK(message("P5 1 1 # 255").find(": largest value: expected") != std::string::npos);
  CHECK(message("P5 1 1 255") == "offset 10: expected white space before the pixels");
  CHECK(message("P5 1 1 9\na") == "offset 9: pixel: expected at most 9, got 97");
}

TEST_CASE("read_image_folder: labels are the positions of the subfolders in the order of their names") {
  const Files files;
  files.write("dog/2.pgm", "P5 2 1 255\ncd");
  files.write("dog/1.pgm", "P5 2 1 255\nab");
  files.write("cat/9.pgm", "P5 2 1 255\nef");
  files.write("dog/.hidden", "x");
  files.write(".hidden/1.pgm", "x");
  files.write("readme.txt", "x");
  const LabelledImages images = read_image_folder(files.path);
  CHECK(images.classes == std::vector<std::string>{"cat", "dog"});
  CHECK(images.labels == std::vector<Index>{0, 1, 1});
  CHECK(images.pixels == Bytes{'e', 'f', 'a', 'b', 'c', 'd'});
  CHECK((images.rows == 1 && images.columns == 2 && images.channels == 1));

  std::vector<std::string> seen;
  const auto decode = [&](const std::filesystem::path& path) {
    seen.push_back(path.filename().string());
    return Image{1, 1, 2, {1, 2}};
  };
  CHECK(read_image_folder(files.path, decode).pixels == Bytes{1, 2, 1, 2, 1, 2});
  CHECK(seen == std::vector<std::string>{"9.pgm", "1.pgm", "2.pgm"});
}

TEST_CASE("read_image_folder: empty folders and images of different sizes throw") {
  const Files files;
  const auto message = [&] { return message_of([&] { read_image_folder(files.path); }); };
  CHECK(message() == files.path.string() + ": expected one subfolder for each class, found none");
  files.write("a/1.pgm", "P5 2 1 255\nab");
  std::filesystem::create_directories(files.path / "b");
  CHECK(message() == (files.path / "b").string() + ": expected at least one image of this class, found none");
  files.write("b/1.pgm", "P5 1 2 255\nab");
  CHECK(message() ==
        (files.path / "b/1.pgm").string() + ": size: expected 1 x 2 x 1, as the first image, got 2 x 1 x 1");
  CHECK(message_of([&] { read_image_folder(files.path / "missing"); }).find("missing: cannot read this folder: ") !=
        std::string::npos);
  const auto short_of_pixels = [](const std::filesystem::path&) { return Image{2, 2, 1, {1, 2, 3}}; };
  CHECK(message_of([&] {
          read_image_folder(files.path, short_of_pixels);
        }).ends_with("1.pgm: pixels: expected 2 x 2 x 1 values, got 3"));
}
