#pragma once

#include <cstddef>
#include <vector>

#include "gatefold/core/types.hpp"

namespace gatefold {

/// Keeps objects of a context between calls, so that a call can reuse the memory of an object that an earlier call
/// used. For example, a forward pass without a backward pass borrows the object for its saved values from this pool.
///
/// The pool never holds more objects of one type than the largest number in use at the same time.
class ObjectPool {
 public:
  ObjectPool() = default;
  ObjectPool(const ObjectPool&) = delete;
  ObjectPool& operator=(const ObjectPool&) = delete;
  ~ObjectPool() {
    for (const Entry& entry : entries_) entry.destroy(entry.object);
  }

  /// A handle to an object borrowed from the pool. The destructor gives the object back. The object has the values of
  /// its earlier use or, if it is new, the values that its default constructor sets.
  template <class S>
  class Borrowed {
   public:
    Borrowed(ObjectPool& lender, std::size_t index) : pool_(lender), index_(index) {}
    Borrowed(const Borrowed&) = delete;
    Borrowed& operator=(const Borrowed&) = delete;
    ~Borrowed() { pool_.entries_[index_].lent = false; }
    S& operator*() const { return *static_cast<S*>(pool_.entries_[index_].object); }
    S* operator->() const { return &**this; }

   private:
    ObjectPool& pool_;
    std::size_t index_;
  };

  /// Borrows an unused object of type S from the pool, which makes a new one if it has none.
  template <class S>
  [[nodiscard]] Borrowed<S> acquire() {
    return Borrowed<S>(*this, lend(
                                  detail_::type_id<S>(), []() -> void* { return new S(); },
                                  [](void* object) { delete static_cast<S*>(object); }));
  }

 private:
  struct Entry {
    const void* type;  // type_id of the object
    void* object;
    void (*destroy)(void*);
    bool lent;
  };

  /// Finds an object of the given type that is not borrowed, or makes one with make(). Records that it is borrowed, and
  /// returns its index in the pool. This function is not a template, so that it is compiled once for all types.
  [[gnu::noinline]] std::size_t lend(const void* type, void* (*make)(), void (*destroy)(void*)) {
    std::size_t i = 0;
    while (i < entries_.size() && (entries_[i].lent || entries_[i].type != type)) ++i;
    if (i == entries_.size()) {
      entries_.reserve(i + 1);
      entries_.push_back({type, make(), destroy, false});
    }
    entries_[i].lent = true;
    return i;
  }

  std::vector<Entry> entries_;
};

}  // namespace gatefold
