#include "gatefold/distributed/collectively.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <stdexcept>
#include <string>

#include "gatefold/distributed/shards.hpp"

using namespace gatefold;

namespace {

/// Returns on how many of five shards an E with this message is caught. Afterwards all shards must still agree on sums.
template <class E>
int caught(const std::string& sentence, const auto& f) {
  std::atomic<int> count = 0, wrong = 0;
  dist::Alone world;
  dist::run(world, 5, [&](auto& shard) {
    try {
      dist::collectively(shard, [&] { f(shard.index()); });
    } catch (const E& e) {
      if (e.what() == sentence) ++count;
    }
    if (shard.sum(shard.index()) != 0 + 1 + 2 + 3 + 4) ++wrong;
  });
  CHECK(wrong == 0);
  return count;
}

}  // namespace

TEST_CASE("collectively: all shards throw the error of the lowest shard") {
  for (const Index one : {0, 3, 4}) {
    CAPTURE(one);
    CHECK(caught<FileError>("file", [&](Index shard) {
            if (shard == one) throw FileError("file");
          }) == 5);
    CHECK(caught<ArgumentError>("argument of more bytes than fit into a short string", [&](Index shard) {
            if (shard == one) throw ArgumentError("argument of more bytes than fit into a short string");
          }) == 5);
  }
  CHECK(caught<ArgumentError>("of 1", [](Index shard) {
          if (shard == 1) throw ArgumentError("of 1");
          if (shard > 1) throw FileError("of " + std::to_string(shard));
        }) == 5);
  CHECK(caught<FileError>("", [](Index) { throw FileError(""); }) == 5);
  CHECK(caught<Error>("", [](Index) {}) == 0);
}

TEST_CASE("collectively: all shards run it, even if one throws immediately") {
  std::atomic<int> ran = 0;
  CHECK(caught<FileError>("file", [&](Index shard) {
          ++ran;
          if (shard == 0) throw FileError("file");
        }) == 5);
  CHECK(ran == 5);
}

TEST_CASE("collectively: other exceptions end the run") {
  CHECK_THROWS_WITH_AS(caught<Error>("",
                                     [](Index shard) {
                                       if (shard == 2) throw std::runtime_error("other");
                                     }),
                       "other", std::runtime_error);
}
