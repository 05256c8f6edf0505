#pragma once

#include <cstddef>
#include <new>
#include <vector>

#include "gatefold/backend/one_thread.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/tensor/view.hpp"

namespace gatefold {

/// Temporary memory of a context: a last-in first-out arena that grows once and is reused.
///
/// Chunks never move, so earlier views stay valid while the arena grows; the second step of a loop runs in the first
/// step's memory. A host's arena that had to grow becomes one chunk once nothing is taken from it, as large as most was
/// taken at a time: the rests of several chunks would stay unused. A view must not outlive the mark it was taken under.
/// Debug builds fill what is not taken with NaN (and -1): whoever reads what nobody wrote sees it. A second thread that
/// takes a mark while the first has one is refused.
template <class B>
class Scratch : public OneThread {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    for (const Chunk& chunk : chunks_) B::release(chunk.data);
  }

  /// Gives back at the end of its scope what was taken since it was made.
  class Mark {
   public:
    explicit Mark(Scratch& owner)
        : alone_(owner), owner_(owner), chunk_(owner.chunk_), used_(owner.used_), taken_(owner.taken_) {}
    Mark(const Mark&) = delete;
    Mark& operator=(const Mark&) = delete;
    ~Mark();

   private:
    OneThread::Scope alone_;
    Scratch& owner_;
    std::size_t chunk_, used_, taken_;
  };
  [[nodiscard]] Mark mark() { return Mark(*this); }

  /// While the returned object lives, what this thread allocates is where the context works. For backends of several
  /// devices, which say so in a `here` of their own; elsewhere there is one place.
  struct Everywhere {
    ~Everywhere() {}
  };
  [[nodiscard]] Everywhere here() const { return {}; }

  /// Uninitialised elements, aligned as B::allocate aligns (256 bytes at most).
  template <class T, class... I>
  View<T, static_cast<int>(sizeof...(I)), B> scratch(I... extents) {
    const std::size_t count = static_cast<std::size_t>((Index(1) * ... * static_cast<Index>(extents)));
    return {static_cast<T*>(take(count * sizeof(T))), extents...};
  }

  /// Bytes taken and not given back.
  std::size_t taken() const { return taken_; }
  /// Bytes held, in use or not.
  std::size_t capacity() const {
    std::size_t n = 0;
    for (const Chunk& chunk : chunks_) n += chunk.size;
    return n;
  }

 private:
  struct Chunk {
    std::byte* data;
    std::size_t size;
  };
  static constexpr std::size_t kAlignment = 256, kSmallestChunk = std::size_t(1) << 20;

  void* take(std::size_t bytes);
  void add_chunk(std::size_t size);
  void rewind(std::size_t chunk, std::size_t used);
  void join_chunks() noexcept;

  std::vector<Chunk> chunks_;
  std::size_t chunk_ = 0, used_ = 0;  // where the next bytes are taken from
  std::size_t taken_ = 0, most_ = 0;  // bytes: now, and at most
};

// Out of the class: what is in it is inline, and compiled again by whoever optimises in spite of
// backend/cpu/kernels.hpp.
template <class B>
Scratch<B>::Mark::~Mark() {
  owner_.rewind(chunk_, used_);
  owner_.taken_ = taken_;
  if (taken_ == 0) owner_.join_chunks();
}

template <class B>
void* Scratch<B>::take(std::size_t bytes) {
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  while (chunk_ < chunks_.size() && used_ + bytes > chunks_[chunk_].size) {
    ++chunk_;
    used_ = 0;
  }
  if (chunk_ == chunks_.size()) {
    const std::size_t size = bytes > kSmallestChunk ? bytes : kSmallestChunk;
    chunks_.reserve(chunks_.size() + 1);
    add_chunk(size);
    used_ = 0;
  }
  std::byte* data = chunks_[chunk_].data + used_;
  used_ += bytes;
  taken_ += bytes;
  most_ = taken_ > most_ ? taken_ : most_;
  return data;
}

template <class B>
void Scratch<B>::add_chunk(std::size_t size) {
  chunks_.push_back({static_cast<std::byte*>(B::allocate(size)), size});
#ifndef NDEBUG
  B::poison(chunks_.back().data, size);
#endif
}

template <class B>
void Scratch<B>::rewind(std::size_t chunk, std::size_t used) {
#ifndef NDEBUG
  for (std::size_t c = chunk; c < chunks_.size() && c <= chunk_; ++c) {
    const std::size_t from = c == chunk ? used : 0, to = c == chunk_ ? used_ : chunks_[c].size;
    if (from < to) B::poison(chunks_[c].data + from, to - from);
  }
#endif
  chunk_ = chunk;
  used_ = used;
}

template <class B>
void Scratch<B>::join_chunks() noexcept {
  if constexpr (B::is_host) {  // a device may still be at work in its chunks
    if (chunks_.size() < 2) return;
    for (const Chunk& chunk : chunks_) B::release(chunk.data);
    chunks_.clear();
    chunk_ = used_ = 0;
    try {
      add_chunk(most_);
    } catch (const std::bad_alloc&) {  // whoever takes next will ask again
    }
  }
}

}  // namespace gatefold
