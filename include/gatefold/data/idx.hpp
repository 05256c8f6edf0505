#pragma once

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"

/// IDX, the format of MNIST and its relatives, plain or compressed with gzip: two zero bytes, element type, rank, one
/// big-endian 32-bit extent per dimension, elements. Offsets in messages count uncompressed bytes.
namespace gatefold::data {

/// Grey images of one size.
struct IdxImages {
  Index count = 0, rows = 0, columns = 0;
  std::vector<std::uint8_t> pixels{};  // [count, rows, columns]
};

namespace idx {

/// Reads front to back and knows where it is.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) : path_(path.string()) {
    errno = 0;
    file_.reset(gzopen(path_.c_str(), "rb"));
    // zlib leaves errno at 0 when it could not allocate.
    if (!file_) fail("cannot open: " + std::generic_category().message(errno ? errno : ENOMEM));
    gzbuffer(file_.get(), 1u << 17);
  }

  /// @param what  names the bytes in the message of a short read
  void read(std::uint8_t* to, std::size_t count, const char* what) {
    if (const std::size_t got = some(to, count); got < count) {
      fail("truncated: expected " + std::to_string(count - got) + " more bytes of " + what);
    }
  }

  /// A vector of `count` bytes, grown while reading, so that a header cannot make us allocate what the file lacks.
  std::vector<std::uint8_t> read_vector(std::uint64_t count, const char* what) {
    constexpr std::uint64_t step = 1u << 20;
    std::vector<std::uint8_t> bytes;
    while (bytes.size() < count) {
      const std::size_t used = bytes.size();
      bytes.resize(used + static_cast<std::size_t>(std::min(count - used, step)));
      if (const std::size_t got = some(bytes.data() + used, bytes.size() - used); got < bytes.size() - used) {
        fail("truncated: the header promises " + std::to_string(count) + " bytes of " + what + ", found " +
             std::to_string(used + got));
      }
    }
    return bytes;
  }

  /// Also where a compressed file proves its checksum: zlib compares it on the way to the end.
  void expect_end() {
    std::uint8_t byte;
    if (some(&byte, 1) != 0) {
      --offset_;
      fail("expected the end of the file, found more bytes");
    }
  }

  [[noreturn]] void fail(const std::string& reason) const {
    throw FileError(path_ + ": offset " + std::to_string(offset_) + ": " + reason);
  }

 private:
  struct Close {
    void operator()(gzFile file) const { gzclose_r(file); }
  };

  /// As many bytes as there are, up to count.
  std::size_t some(std::uint8_t* to, std::size_t count) {
    std::size_t total = 0;
    while (total < count) {
      const auto part = static_cast<unsigned>(std::min<std::size_t>(count - total, 1u << 30));
      const int got = gzread(file_.get(), to + total, part);
      if (got > 0) {
        total += static_cast<std::size_t>(got);
        offset_ += static_cast<std::uint64_t>(got);
      }
      // A compressed stream that stops early gives its bytes first, and then no error but a state.
      int state = Z_OK;
      const char* message = gzerror(file_.get(), &state);
      if (state == Z_BUF_ERROR) fail("truncated: the compressed stream stops early");
      if (state == Z_ERRNO) fail("cannot read: " + std::generic_category().message(errno));
      if (state != Z_OK && state != Z_STREAM_END) {
        std::string reason = message;
        if (reason.starts_with(path_ + ": ")) reason.erase(0, path_.size() + 2);  // fail says it already
        fail("corrupt compressed stream: " + reason);
      }
      if (got <= 0) break;
    }
    return total;
  }

  std::string path_;
  std::unique_ptr<std::remove_pointer_t<gzFile>, Close> file_{};
  std::uint64_t offset_ = 0;
};

/// The extents of a file of unsigned bytes.
template <int Rank>
struct Header {
  std::uint64_t extents[Rank];
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
    // An extent of 0 makes all others harmless, wherever it stands.
    if (std::find(extents, extents + Rank, 0u) != extents + Rank) {
      size = 0;
      return;
    }
    for (std::uint64_t n : extents) {
      if (size > static_cast<std::uint64_t>(std::numeric_limits<Index>::max()) / n) {
        file.fail("truncated: the header promises more than 2^63 bytes");
      }
      size *= n;
    }
  }
};

}  // namespace idx

/// Read a file of images, `train-images-idx3-ubyte` or the same with `.gz`.
///
/// Source: LeCun, Cortes and Burges, "The MNIST database of handwritten digits", file formats.
/// @throws FileError with path, offset and reason when the file is missing, is not IDX with three dimensions of
///         unsigned bytes, is truncated, corrupt or longer than its header says (what follows a complete gzip stream
///         and is not gzip is ignored, as zlib does)
/// @cost   memory grows with what the file holds, never with what its header claims
inline IdxImages read_idx_images(const std::filesystem::path& path) {
  idx::Reader file(path);
  const idx::Header<3> header(file);
  std::vector<std::uint8_t> pixels = file.read_vector(header.size, "pixels");
  file.expect_end();
  auto extent = [&](int d) { return static_cast<Index>(header.extents[d]); };
  return {extent(0), extent(1), extent(2), std::move(pixels)};
}

/// Read a file of labels, `train-labels-idx1-ubyte` or the same with `.gz`.
///
/// @throws FileError as read_idx_images
inline std::vector<std::uint8_t> read_idx_labels(const std::filesystem::path& path) {
  idx::Reader file(path);
  const idx::Header<1> header(file);
  std::vector<std::uint8_t> labels = file.read_vector(header.size, "labels");
  file.expect_end();
  return labels;
}

}  // namespace gatefold::data
