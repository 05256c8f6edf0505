#pragma once

#include <atomic>
#include <thread>

#include "gatefold/core/error.hpp"

namespace gatefold {

/// Makes sure that only one thread at a time uses an object, for example a context with its temporary memory. A thread
/// that uses the object holds a Scope.
/// @throws ArgumentError, from the constructor of Scope, if a different thread has a Scope of the same object
/// @cost  one atomic exchange for the outermost Scope of a thread, one load for each Scope inside it
class OneThread {
 public:
  /// @param name  the name of the object in the error message
  /// @param own   the advice in the error message: the object that each thread should have, for example "one context"
  explicit OneThread(const char* name = "Context", const char* own = "one context") : name_(name), own_(own) {}
  /// A thread holds a Scope while it uses the object. Other threads then get an error if they make a Scope of the same
  /// object; the same thread can make more.
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

}  // namespace gatefold
