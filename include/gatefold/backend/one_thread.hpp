#pragma once

#include <atomic>
#include <thread>

#include "gatefold/core/error.hpp"

namespace gatefold {

/// Refuses a second thread in an object that one thread at a time may use: a context and its memory, a Shard.
/// @throws ArgumentError, from Scope, if another thread has one
/// @cost  one atomic exchange for the outermost Scope of a thread, a load for those inside
class OneThread {
 public:
  /// @param name, own  the object in the message, and what each thread needs
  explicit OneThread(const char* name = "Context", const char* own = "a context") : name_(name), own_(own) {}
  /// While one lives, other threads cannot make theirs. The thread that made it may make more.
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
             Joined{"one at a time (each thread needs ", own_, " of its own)"},
             "a second one while the first is at work");
    }
    ++depth_;
  }
  void leave() {
    if (--depth_ == 0) inside_.store(std::thread::id{}, std::memory_order_release);
  }

  std::atomic<std::thread::id> inside_{};
  int depth_ = 0;  // scopes of that thread
  const char *name_, *own_;
};

}  // namespace gatefold
