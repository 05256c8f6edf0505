#pragma once

#include <cstddef>
#include <vector>

#include "gatefold/core/type_id.hpp"

namespace gatefold {

/// Objects that a context keeps between calls, so that a call reuses the memory of an earlier one. For example, the
/// pool holds the Saved object of a forward pass that no backward pass follows.
///
/// The pool never holds more objects of one type than were in use at the same time.
class ObjectPool {
 public:
  ObjectPool() = default;
  ObjectPool(const ObjectPool&) = delete;
  ObjectPool& operator=(const ObjectPool&) = delete;
  ~ObjectPool() {
    for (const Entry& entry : entries_) entry.destroy(entry.object);
  }

  /// A borrowed object, which goes back to the pool when the Borrowed is destroyed. It has the values of an earlier
  /// use, or those of its default constructor.
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

  /// Returns an unused object of type S, or a new one if the pool has none.
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

  /// Marks an unused object of this type as lent, or makes one, and returns its index. This function is not a template,
  /// so that it is compiled once for all types.
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
