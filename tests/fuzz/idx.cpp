// Reads any bytes as an IDX file, plain or gzip, and as a netpbm image. The data has the size that its extents say. If
// it is written without gzip and read again, it is the same. The readers hold at most 300 times the size of the file
// plus 3.5 MiB.
#include <cstdint>
#include <string>
#include <vector>

#include "fuzz/fuzz.hpp"
#include "gatefold/data/idx.hpp"
#include "gatefold/data/images.hpp"

using namespace gatefold;

namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes plain(const std::vector<Index>& extents, const Bytes& elements) {
  Bytes file{0, 0, 8, static_cast<std::uint8_t>(extents.size())};
  for (const Index n : extents)
    for (int shift = 24; shift >= 0; shift -= 8) file.push_back(static_cast<std::uint8_t>(n >> shift));
  file.insert(file.end(), elements.begin(), elements.end());
  return file;
}

/// Returns true if f(path) reads the bytes without a FileError. Also requires that f holds little memory.
template <class F>
bool accepted(const F& f, const std::uint8_t* bytes, std::size_t size) {
  const fuzz::File file(bytes, size);
  bool accepted = false;
  const std::size_t held = fuzz::peak([&] {
    try {
      f(file.path());
      accepted = true;
    } catch (const FileError&) {
    }
  });
  // A growing vector holds its data twice, and the result holds it once more. The rest is for the buffers of the
  // reader.
  FUZZ_REQUIRE(held <= 3 * (100 * size + (1 << 20)) + (1 << 19));
  return accepted;
}

}  // namespace

int fuzz::idx(const std::uint8_t* bytes, std::size_t size) {
  data::IdxImages images;
  if (accepted([&](const auto& path) { images = data::read_idx_images(path); }, bytes, size)) {
    FUZZ_REQUIRE(images.pixels.size() == static_cast<std::size_t>(images.count * images.rows * images.columns));
    const std::size_t limit =
        (1 << 20) + 100 * size;  // the products cannot overflow, because each extent is less than 2^32
    const auto at_least_one = [](Index n) { return static_cast<std::size_t>(n > 0 ? n : 1); };
    FUZZ_REQUIRE(at_least_one(images.count) * at_least_one(images.rows) <= limit);
    FUZZ_REQUIRE(at_least_one(images.count) * at_least_one(images.rows) * at_least_one(images.columns) <= limit);
    const Bytes file = plain({images.count, images.rows, images.columns}, images.pixels);
    const fuzz::File again(file.data(), file.size());
    FUZZ_REQUIRE(data::read_idx_images(again.path()).pixels == images.pixels);
  }
  Bytes labels;
  if (accepted([&](const auto& path) { labels = data::read_idx_labels(path); }, bytes, size)) {
    const Bytes file = plain({static_cast<Index>(labels.size())}, labels);
    const fuzz::File again(file.data(), file.size());
    FUZZ_REQUIRE(data::read_idx_labels(again.path()) == labels);
  }
  data::Image image;
  if (accepted([&](const auto& path) { image = data::read_netpbm(path); }, bytes, size)) {
    FUZZ_REQUIRE(image.channels == 1 || image.channels == 3);
    FUZZ_REQUIRE(image.pixels.size() == static_cast<std::size_t>(image.rows * image.columns * image.channels));
    const std::string header = std::string(image.channels == 1 ? "P5 " : "P6 ") + std::to_string(image.columns) + ' ' +
                               std::to_string(image.rows) + " 255\n";
    Bytes file(header.begin(), header.end());
    file.insert(file.end(), image.pixels.begin(), image.pixels.end());
    const fuzz::File again(file.data(), file.size());
    FUZZ_REQUIRE(data::read_netpbm(again.path()).pixels == image.pixels);
  }
  return 0;
}
