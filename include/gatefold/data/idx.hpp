#pragma once

#include <zlib.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "gatefold/core/regular_file.hpp"
#include "gatefold/core/types.hpp"

/// Reads IDX, the file format of MNIST and similar data sets, plain or compressed with gzip. A file has two zero bytes,
/// the element type, the rank, one big-endian 32-bit extent per dimension, and the elements. Offsets in error messages
/// count uncompressed bytes.
namespace gatefold::data {

/// Grey images of the same size, with one byte for each pixel.
struct IdxImages {
  Index count = 0, rows = 0, columns = 0;
  std::vector<std::uint8_t> pixels{};  // [count, rows, columns]
};

namespace idx {

/// The header of a file may declare at most 1 MiB (kPromise) plus 100 (kRatio) times the size of the file. Images of
/// digits compress to a fifth of their size. A file that compresses much better is probably an attack (a decompression
/// bomb). If it is not, unpack it before you read it.
inline constexpr std::uint64_t kPromise = std::uint64_t(1) << 20, kRatio = 100;

/// Reads a plain or gzip-compressed file sequentially, and counts the uncompressed bytes.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) : file_(path) {
    std::uint8_t magic[2];
    compressed_ = file_.read_some(magic, 2, 0) == 2 && magic[0] == 0x1f && magic[1] == 0x8b;
    constexpr int gzip = 15 + 16;  // zlib's windowBits: largest window (15), gzip format only (+ 16)
    if (compressed_ && inflateInit2(&stream_, gzip) != Z_OK) throw std::bad_alloc();
    if (compressed_) input_.resize(1u << 17);
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  ~Reader() {
    if (compressed_) inflateEnd(&stream_);
  }

  /// Returns the largest number of bytes that the header of this file may declare.
  std::uint64_t limit() const { return kPromise + kRatio * std::min(file_.size(), std::uint64_t(1) << 56); }

  /// Reads `count` uncompressed bytes of the file.
  /// @param what  describes these bytes in the error message
  /// @throws FileError if fewer bytes are left
  void read(std::uint8_t* to, std::size_t count, const char* what) {
    if (const std::size_t got = some(to, count); got < count) {
      fail("truncated: expected " + std::to_string(count - got) + " more bytes of " + what);
    }
  }

  /// Reads `count` uncompressed bytes into a vector. The vector grows while reading, so a wrong header cannot cause a
  /// large allocation.
  std::vector<std::uint8_t> read_vector(std::uint64_t count, const char* what) {
    constexpr std::uint64_t step = 1u << 20;
    std::vector<std::uint8_t> bytes;
    while (bytes.size() < count) {
      const std::size_t used = bytes.size();
      bytes.resize(used + static_cast<std::size_t>(std::min(count - used, step)));
      if (const std::size_t got = some(bytes.data() + used, bytes.size() - used); got < bytes.size() - used) {
        fail("truncated: the header declares " + std::to_string(count) + " bytes of " + what + ", found " +
             std::to_string(used + got));
      }
    }
    return bytes;
  }

  /// Throws FileError unless the file has been read to its end. For a compressed file, zlib also checks its checksum
  /// here.
  void expect_end() {
    const std::uint64_t end = offset_;
    std::uint8_t byte;
    if (some(&byte, 1) != 0) file_.fail(end, "expected the end of the file, found more bytes");
  }

  [[noreturn]] void fail(const std::string& reason) const { file_.fail(offset_, reason); }

 private:
  /// Reads up to `count` bytes, and returns how many were read.
  std::size_t some(std::uint8_t* to, std::size_t count) {
    const std::size_t got = compressed_ ? unpacked(to, count) : file_.read_some(to, count, offset_);
    if (!compressed_) offset_ += got;
    return got;
  }
  std::size_t unpacked(std::uint8_t* to, std::size_t count) {
    std::size_t total = 0;
    while (total < count) {
      if (stream_.avail_in == 0) {
        const std::uint64_t got = file_.read_some(input_.data(), input_.size(), read_);
        if (got == 0 && ended_) break;
        if (got == 0) fail("truncated: the compressed stream stops early");
        read_ += got;
        stream_.next_in = input_.data();
        stream_.avail_in = static_cast<uInt>(got);
      }
      // A gzip file can contain several streams. After the end of one, start the next.
      if (std::exchange(ended_, false)) inflateReset(&stream_);
      const auto room = static_cast<uInt>(std::min<std::size_t>(count - total, 1u << 30));
      stream_.next_out = to + total;
      stream_.avail_out = room;
      const int state = inflate(&stream_, Z_NO_FLUSH);
      total += room - stream_.avail_out;
      offset_ += room - stream_.avail_out;
      if (state == Z_MEM_ERROR) throw std::bad_alloc();
      if (state == Z_STREAM_END) {
        ended_ = true;
      } else if (state != Z_OK && state != Z_BUF_ERROR) {
        fail(std::string("corrupt compressed stream: ") + (stream_.msg ? stream_.msg : "not gzip"));
      }
    }
    return total;
  }

  RegularFile file_;
  bool compressed_ = false, ended_ = false;
  z_stream stream_{};
  std::vector<std::uint8_t> input_{};
  std::uint64_t read_ = 0;    // bytes read from the file so far
  std::uint64_t offset_ = 0;  // uncompressed bytes read
};

/// The header of an IDX file of unsigned bytes: the extents of its `Rank` dimensions, and their product.
template <int Rank>
struct Header {
  std::uint64_t extents[std::size_t{Rank}];
  std::uint64_t size = 1;

  explicit Header(Reader& file) {
    std::uint8_t magic[4];
    file.read(magic, 4, "the magic number");
    if (magic[0] != 0 || magic[1] != 0) file.fail("not an IDX file: it does not begin with two zero bytes");
    if (magic[2] != 0x08) file.fail("element type: expected 8 (unsigned byte), got " + std::to_string(magic[2]));
    if (magic[3] != Rank) file.fail("rank: expected " + std::to_string(Rank) + ", got " + std::to_string(magic[3]));
    for (std::uint64_t& n : extents) {
      std::uint8_t big[4];
      file.read(big, 4, "an extent");
      n = std::uint64_t{big[0]} << 24 | std::uint64_t{big[1]} << 16 | std::uint64_t{big[2]} << 8 | big[3];
    }
    // For the limit on the size, an extent of 0 counts as 1, because the other extents of an empty array could
    // otherwise be arbitrarily large.
    std::uint64_t promised = 1;
    for (const std::uint64_t n : extents) {
      if (n > file.limit() / promised) {
        std::string got = std::to_string(extents[0]);
        for (int d = 1; d < Rank; ++d) got += " x " + std::to_string(extents[d]);
        file.fail("extents: expected at most " + std::to_string(file.limit()) +
                  " bytes (1 MiB plus 100 times the size of the file), got " + got);
      }
      promised *= std::max<std::uint64_t>(n, 1);
      size *= n;
    }
  }
};

}  // namespace idx

/// Reads a file of images, for example `train-images-idx3-ubyte` or `train-images-idx3-ubyte.gz`.
///
/// Source: LeCun, Cortes and Burges, "The MNIST database of handwritten digits", file formats.
/// @throws FileError with path, offset and reason if the file is missing, is not IDX with three dimensions of unsigned
///         bytes, is truncated or corrupt, is longer than its header declares, or is followed by data that is not
///         gzip; also if its extents, with 1 in place of 0, declare more than 1 MiB plus 100 times the size of the
///         file
/// @cost   memory grows with the bytes that are read, not with the size in the header. At most 1 MiB plus 100 times the
///         size of the file is read
inline IdxImages read_idx_images(const std::filesystem::path& path) {
  idx::Reader file(path);
  const idx::Header<3> header(file);
  std::vector<std::uint8_t> pixels = file.read_vector(header.size, "pixels");
  file.expect_end();
  auto extent = [&](int d) { return static_cast<Index>(header.extents[d]); };
  return {extent(0), extent(1), extent(2), std::move(pixels)};
}

/// Reads a file of labels, for example `train-labels-idx1-ubyte` or `train-labels-idx1-ubyte.gz`.
///
/// @throws FileError in the same cases as read_idx_images
inline std::vector<std::uint8_t> read_idx_labels(const std::filesystem::path& path) {
  idx::Reader file(path);
  const idx::Header<1> header(file);
  std::vector<std::uint8_t> labels = file.read_vector(header.size, "labels");
  file.expect_end();
  return labels;
}

}  // namespace gatefold::data
