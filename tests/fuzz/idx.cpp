// Any bytes as an IDX file, plain or gzip. What is read has the size its extents say, and written plainly it is read
// again as the same; no more memory is held than the file's size allows.
#include <cstdint>
#include <string>
#include <vector>

#include "fuzz/fuzz.hpp"
#include "gatefold/data/idx.hpp"

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

/// f(path) for what it reads, and the bound of memory.
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
  // Twice while a vector grows, and once more where it ends up; the reader's own buffers.
  FUZZ_REQUIRE(held <= 3 * (100 * size + (1 << 20)) + (1 << 19));
  return accepted;
}

}  // namespace

int fuzz::idx(const std::uint8_t* bytes, std::size_t size) {
  data::IdxImages images;
  if (accepted([&](const auto& path) { images = data::read_idx_images(path); }, bytes, size)) {
    FUZZ_REQUIRE(images.pixels.size() == static_cast<std::size_t>(images.count * images.rows * images.columns));
    const std::size_t limit = (1 << 20) + 100 * size;  // far from an overflow, each being less than 2^32
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
  return 0;
}
