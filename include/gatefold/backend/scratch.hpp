#pragma once

#include <atomic>
#include <cstddef>
#include <new>
#include <thread>
#include <vector>

#include "gatefold/core/error.hpp"
#include "gatefold/tensor/view.hpp"

#if defined(__ELF__)
extern "C" {
// AddressSanitizer defines these reserved names. NOLINTBEGIN(bugprone-reserved-identifier)
void __asan_poison_memory_region(const volatile void* p, std::size_t bytes) __attribute__((weak));
void __asan_unpoison_memory_region(const volatile void* p, std::size_t bytes) __attribute__((weak));
// NOLINTEND(bugprone-reserved-identifier)
}
#endif

namespace gatefold {

/// Tells AddressSanitizer which parts of the library's own memory pools must not be accessed. The functions of the
/// sanitizer are declared as weak symbols and called only if they are linked. The code here is therefore the same in
/// files compiled with and without the sanitizer; without the sanitizer, it does nothing.
namespace detail_::address_sanitizer {

/// Forbids access to a range of memory: AddressSanitizer then reports every read and write in it.
inline void poison([[maybe_unused]] const void* p, [[maybe_unused]] std::size_t bytes) {
#if defined(__ELF__)
  if (__asan_poison_memory_region) __asan_poison_memory_region(p, bytes);
#endif
}
/// Allows access again to a range of memory that poison() has forbidden.
inline void unpoison([[maybe_unused]] const void* p, [[maybe_unused]] std::size_t bytes) {
#if defined(__ELF__)
  if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(p, bytes);
#endif
}

}  // namespace detail_::address_sanitizer

/// Makes sure that only one thread at a time uses an object, for example a context with its temporary memory. A thread
/// that uses the object holds a Scope.
/// @throws ArgumentError, from the constructor of Scope, if a different thread has a Scope of the same object
/// @cost  one atomic load for each Scope; for the outermost Scope of a thread also one compare-exchange and one store
class OneThread {
 public:
  /// @param name  the name of the object in the error message
  /// @param own   the advice in the error message: the object that each thread should have, for example "one context"
  explicit OneThread(const char* name = "Context", const char* own = "one context") : name_(name), own_(own) {}
  /// A thread holds a Scope while it uses the object. Other threads then get an error if they make a Scope of the same
  /// object. The same thread can make further, nested Scopes.
  class Scope {
   public:
    explicit Scope(OneThread& of) : of_(of) { of_.enter(); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() { of_.leave(); }

   private:
    OneThread& of_;
  };

 private:
  void enter() {
    const std::thread::id self = std::this_thread::get_id();
    if (inside_.load(std::memory_order_relaxed) != self) {
      std::thread::id nobody;
      expect(inside_.compare_exchange_strong(nobody, self, std::memory_order_acquire), name_, "thread",
             Joined{"one at a time (use ", own_, " per thread)"}, "a second thread while the first is inside a call");
    }
    ++depth_;
  }
  void leave() {
    if (--depth_ == 0) inside_.store(std::thread::id{}, std::memory_order_release);
  }

  std::atomic<std::thread::id> inside_{};
  int depth_ = 0;  // number of living Scopes of the thread that uses the object
  const char *name_, *own_;
};

/// Temporary memory of a context: a last-in first-out arena that grows if necessary and is then reused.
///
/// - The arena consists of chunks that never move, so views stay valid while it grows. A view must not outlive the Mark
///   (a scope of scratch memory) in which it was taken.
/// - Memory is taken from the first chunk with enough unused room at its end. If no chunk has enough, a new chunk is
///   allocated. A training step therefore reuses the chunks of the step before it.
/// - If an arena in host memory has several chunks when all memory is given back, one chunk replaces them, because
///   several chunks would waste the memory at their ends. This chunk is as large as the largest total in use so far.
/// - Debug builds fill unused memory with 0xff bytes, so that a read of uninitialised memory is visible: floats read as
///   NaN, integers as −1. AddressSanitizer reports accesses to unused memory of an arena in host memory.
/// - Taking a Mark throws ArgumentError while a different thread holds a Mark or the object that here() returns.
template <class B>
class Scratch : public OneThread {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { release_chunks(); }

  /// A scope of scratch memory (temporary memory of a context): the destructor gives back all memory that was taken
  /// since the Mark was made.
  class Mark {
   public:
    explicit Mark(Scratch& owner) : alone_(owner), owner_(owner), parts_(owner.parts_.size()) {}
    Mark(const Mark&) = delete;
    Mark& operator=(const Mark&) = delete;
    ~Mark();

   private:
    OneThread::Scope alone_;
    Scratch& owner_;
    std::size_t parts_;  // number of pieces of memory in use when the Mark was made
  };
  [[nodiscard]] Mark mark() { return Mark(*this); }

  /// Reserves the context for the calling thread while the returned object lives: other threads get an error
  /// (OneThread), and this thread allocates on the device of the context. A function that calls several functions of
  /// the backend, or writes state that belongs to the context, first calls here(). Backends with several devices define
  /// their own `here`.
  /// @throws ArgumentError if another thread works in the context
  [[nodiscard]] OneThread::Scope here() { return OneThread::Scope(*this); }

  /// Returns a view of uninitialised temporary memory with the given extents. The memory has the alignment of
  /// B::allocate or 256 bytes, whichever is less. The destructor of the innermost Mark (a scope of scratch memory)
  /// gives it back.
  template <class T, class... Extent>
  View<T, static_cast<int>(sizeof...(Extent)), B> scratch(Extent... extents) {
    const std::size_t count = static_cast<std::size_t>((Index(1) * ... * static_cast<Index>(extents)));
    return {static_cast<T*>(take(count * sizeof(T))), extents...};
  }

  /// Returns the number of bytes of the arena that are in use.
  std::size_t taken() const { return taken_; }
  /// Returns the number of bytes that the arena has allocated, in use or not.
  std::size_t capacity() const {
    std::size_t n = 0;
    for (const Chunk& chunk : chunks_) n += chunk.size;
    return n;
  }

 private:
  struct Chunk {
    std::byte* data;
    std::size_t size, used = 0;
  };
  /// A piece of memory in use. The list `parts_` has all of them in the order in which they were taken.
  struct Part {
    std::size_t chunk, bytes;
  };
  static constexpr std::size_t kAlignment = 256, kSmallestChunk = std::size_t(1) << 20;

  void* take(std::size_t bytes);
  void add_chunk(std::size_t size);
  void rewind(std::size_t parts);
  void join_chunks() noexcept;
  void release_chunks() noexcept;
  static void permit(const void* p, std::size_t bytes) {
    if constexpr (B::is_host) detail_::address_sanitizer::unpoison(p, bytes);
  }
  static void forbid(const void* p, std::size_t bytes) {
    if constexpr (B::is_host) detail_::address_sanitizer::poison(p, bytes);
  }

  std::vector<Chunk> chunks_;
  std::vector<Part> parts_;
  // taken_ is the present number of bytes in use, and most_ the maximum so far.
  std::size_t taken_ = 0, most_ = 0;
};

// The member functions of Scratch are defined outside the class, because functions defined inside a class are inline.
// An optimised build would compile inline functions again in each file, although backend/cpu/kernels.hpp declares them
// as extern templates.
template <class B>
Scratch<B>::Mark::~Mark() {
  owner_.rewind(parts_);
  if (parts_ == 0) owner_.join_chunks();
}

template <class B>
void* Scratch<B>::take(std::size_t bytes) {
  const std::size_t asked = bytes;
  bytes = divide_up(bytes, kAlignment) * kAlignment;
  std::size_t at = 0;
  while (at < chunks_.size() && chunks_[at].size - chunks_[at].used < bytes) ++at;
  if (at == chunks_.size()) add_chunk(bytes > kSmallestChunk ? bytes : kSmallestChunk);
  Chunk& chunk = chunks_[at];
  std::byte* const data = chunk.data + chunk.used;
  parts_.push_back({at, bytes});
  chunk.used += bytes;
  taken_ += bytes;
  most_ = taken_ > most_ ? taken_ : most_;
  permit(data, asked);
  return data;
}

template <class B>
void Scratch<B>::add_chunk(std::size_t size) {
  chunks_.reserve(chunks_.size() + 1);
  chunks_.push_back({static_cast<std::byte*>(B::allocate(size)), size});
#ifndef NDEBUG
  B::poison(chunks_.back().data, size);
#endif
  forbid(chunks_.back().data, size);
}

template <class B>
void Scratch<B>::rewind(std::size_t parts) {
  for (; parts_.size() > parts; parts_.pop_back()) {
    const auto [at, bytes] = parts_.back();
    Chunk& chunk = chunks_[at];
    chunk.used -= bytes;
    taken_ -= bytes;
#ifndef NDEBUG
    permit(chunk.data + chunk.used, bytes);
    if (bytes > 0) B::poison(chunk.data + chunk.used, bytes);
#endif
    forbid(chunk.data + chunk.used, bytes);
  }
}

template <class B>
void Scratch<B>::join_chunks() noexcept {
  // The chunks of device memory are kept, because the device can still be working in them.
  if constexpr (B::is_host) {
    if (chunks_.size() < 2) return;
    release_chunks();
    try {
      add_chunk(most_);
    } catch (const std::bad_alloc&) {
      // The failure is ignored, because the next call of take() tries to allocate again.
    }
  }
}

template <class B>
void Scratch<B>::release_chunks() noexcept {
  for (const Chunk& chunk : chunks_) {
    permit(chunk.data, chunk.size);
    B::release(chunk.data);
  }
  chunks_.clear();
}

}  // namespace gatefold
