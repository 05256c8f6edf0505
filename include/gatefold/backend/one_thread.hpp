#pragma once

#include <atomic>
#include <thread>

#include "gatefold/core/error.hpp"

namespace gatefold {

/// Lets only one thread at a time use an object: a context with its memory, or a Shard.
/// @throws ArgumentError, from the constructor of Scope, if a different thread has a Scope of the same object
/// @cost  one atomic exchange for the outermost Scope of a thread, one load for each Scope inside it
class OneThread {
 public:
  /// @param name  name of the object in the error message
  /// @param own   what to use for each thread instead, in words of the error message, for example "one context"
  explicit OneThread(const char* name = "Context", const char* own = "one context") : name_(name), own_(own) {}
  /// While a Scope lives, other threads cannot make one. The thread that made it can make more.
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
  int depth_ = 0;  // number of Scopes of the thread `inside_`
  const char *name_, *own_;
};

}  // namespace gatefold
