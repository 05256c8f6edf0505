#include "gatefold/attention/segment_memory.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;
using detail_::attending::Window;

namespace {

Tensor<double, 2, Cpu> counted(Index rows, Index columns, double from) {
  Tensor<double, 2, Cpu> t(rows, columns);
  for (Index i = 0; i < t.size(); ++i) t.data()[i] = from + double(i);
  return t;
}

}  // namespace

TEST_CASE("memory: joins remembered and current rows, and splits them again") {
  Cpu::Context ctx(2);
  const Window window{3, 2, 9};
  const auto past = counted(4, 5, 1000), now = counted(6, 2, 0);
  const AttentionMemory<double, Cpu> memory{past.view().as(1, 4, 5), {}};
  for (const Index column : {0, 3}) {
    auto mark = ctx.mark();
    const auto joined = detail_::attending::with_past(ctx, window, memory, column, now.view());
    REQUIRE(joined.extent(0) == 10);
    for (Index g = 0; g < 2; ++g)
      for (Index j = 0; j < 5; ++j)
        for (Index c = 0; c < 2; ++c)
          CHECK(joined(g * 5 + j, c) == (j < 2 ? past(g * 2 + j, column + c) : now(g * 3 + j - 2, c)));
    const auto own = detail_::attending::without_past(ctx, window, joined);
    REQUIRE(own.extent(0) == 6);
    for (Index i = 0; i < now.size(); ++i) CHECK(own.data()[i] == now.data()[i]);
    Tensor<double, 2, Cpu> keys(10, 2);
    fill(ctx, keys.view(), 5);
    detail_::attending::add_own_rows<Cpu::Context, double, Cpu>(ctx, window, now, keys);
    for (Index g = 0; g < 2; ++g)
      for (Index j = 0; j < 5; ++j)
        for (Index c = 0; c < 2; ++c) CHECK(keys(g * 5 + j, c) == 5 + (j < 2 ? 0 : now(g * 3 + j - 2, c)));
  }
  // Without remembered items nothing is copied.
  const Window alone{3, 0, 9};
  CHECK(detail_::attending::with_past(ctx, alone, memory, 0, now.view()).data() == now.data());
  CHECK(detail_::attending::without_past(ctx, alone, now.view()).data() == now.data());
}

TEST_CASE("memory: the next segment remembers the last rows") {
  Cpu::Context ctx(2);
  const auto keys = counted(10, 2, 0);  // two sequences of five
  for (const Index width : {1, 3, 5, 6, 9}) {
    const Window window{3, 2, width};
    const Index kept = window.remembered();
    CHECK(kept == std::min<Index>(width - 1, 5));
    Tensor<double, 3, Cpu> next(1, 2 * kept, 4);
    fill(ctx, next.view(), -1);
    detail_::attending::remember<Cpu::Context, double, Cpu>(ctx, window, {{}, next}, 1, keys);
    for (Index g = 0; g < 2; ++g)
      for (Index j = 0; j < kept; ++j) {
        CHECK(next(0, g * kept + j, 0) == -1);
        for (Index c = 0; c < 2; ++c) CHECK(next(0, g * kept + j, 1 + c) == keys(g * 5 + 5 - kept + j, c));
        CHECK(next(0, g * kept + j, 3) == -1);
      }
  }
}

TEST_CASE("SegmentMemory: grows, restarts, and keeps its address") {
  Cpu::Context ctx(1);
  SegmentMemory<float, Cpu> memory(ctx, {.layers = 2, .sequences = 3, .width = 4, .most = 5});
  CHECK(memory.items() == 0);
  const float* first = nullptr;
  for (const Index items : {0, 2, 4, 5, 5}) {
    CHECK(memory.items() == items);
    const auto m = memory.of(2);
    CHECK(m.past.extent(1) == 3 * items);
    CHECK(m.next.extent(1) == 3 * std::min<Index>(items + 2, 5));
    CHECK(m.items(3) == items);
    if (!first) first = m.past.data();
    CHECK((m.past.data() == first || m.next.data() == first));
    CHECK(m.past.data() != m.next.data());
    memory.of(2);  // a segment can be run again
    CHECK(memory.items() == items);
    // Each layer has its own part.
    CHECK(m.at(1).next.data() == m.next.data() + m.next.size() / 2);
    CHECK(m.at(0).next.size() == m.next.size() / 2);
    memory.advance();
  }
  memory.begin(ctx);
  CHECK(memory.items() == 0);
  memory.begin(ctx, 5);
  CHECK(memory.items() == 5);
  const auto zeros = memory.of(1).past;
  for (Index i = 0; i < zeros.size(); ++i) CHECK(zeros.data()[i] == 0);
  const auto valid = memory.of(1).valid;
  REQUIRE(valid.size() == 15);
  for (Index i = 0; i < valid.size(); ++i) CHECK(valid(i) == 1);  // the zeros count as keys, not as padding
}

TEST_CASE("memory: masks cover the keys of current and next segment") {
  Cpu::Context ctx(2);
  const std::vector<double> past{1, 0, 0, 1}, now{1, 1, 0, 0, 1, 1}, none;
  const auto view = [](const std::vector<double>& mask) {
    return mask.empty() ? View<const double, 1, Cpu>{} : View<const double, 1, Cpu>(mask);
  };
  for (const bool of_past : {true, false})
    for (const bool of_now : {true, false})
      for (const Index width : {1, 3, 5, 9}) {
        const Window window{3, 2, width};
        const Index kept = window.remembered();
        std::vector<double> next(std::size_t(2 * kept), 7);
        AttentionMemory<double, Cpu> memory{};
        memory.valid = view(of_past ? past : none);
        memory.next_valid = View<double, 1, Cpu>(next.data(), 2 * kept);
        auto mark = ctx.mark();
        const auto keys = detail_::attending::valid_keys<Cpu::Context, double, Cpu>(ctx, window, memory,
                                                                                    view(of_now ? now : none), 2);
        detail_::attending::remember_valid<Cpu::Context, double, Cpu>(ctx, window, memory, keys);
        CHECK((keys.data() != nullptr) == (of_past || of_now));
        for (Index g = 0; g < 2; ++g)
          for (Index j = 0; j < 5; ++j) {
            const double expected =
                j < 2 ? (of_past ? past[std::size_t(g * 2 + j)] : 1) : (of_now ? now[std::size_t(g * 3 + j - 2)] : 1);
            if (keys.data()) CHECK(keys(g * 5 + j) == expected);
            if (j >= 5 - kept) CHECK(next[std::size_t(g * kept + j - 5 + kept)] == expected);
          }
      }
  // Without remembered items the keys have the mask of the current items.
  const AttentionMemory<double, Cpu> nothing{};
  CHECK(detail_::attending::valid_keys<Cpu::Context, double, Cpu>(ctx, {3, 0, 9}, nothing, view(now), 2).data() ==
        now.data());
}

TEST_CASE("memory: wrong shapes and options throw") {
  Cpu::Context ctx(1);
  using Memory = SegmentMemory<float, Cpu>;
  CHECK(message_of([&] { Memory(ctx, {.width = 0}); }) == "SegmentMemory: width: expected at least 1, got 0");
  CHECK(message_of([&] { Memory(ctx, {.layers = 0, .width = 1}); }) ==
        "SegmentMemory: layers: expected at least 1, got 0");
  Memory memory(ctx, {.layers = 2, .sequences = 3, .width = 4, .most = 5});
  CHECK(message_of([&] { memory.begin(ctx, 6); }) == "SegmentMemory.begin: zeros: expected 0 to 5, got 6");
  CHECK(message_of([&] { memory.of(1).at(2); }) ==
        "AttentionMemory.at: memory: expected at least 3 layers, because a layer with index 2 reads it, got 2");
  const Window window{2, 0, 6};
  const auto fits = [&](const Window& w, Index dim, bool wide) {
    return message_of([&] { memory.of(2).validate("f", w, 3, dim, wide, false); });
  };
  CHECK(fits(window, 4, false) == "no ArgumentError");
  CHECK(fits(window, 2, true) == "no ArgumentError");
  CHECK(fits(window, 2, false) == "f: memory.past: expected rows of 2 values (items), got rows of 4");
  CHECK(fits(window, 3, true) ==
        "f: memory.past: expected rows of 3 values (items) or twice as many (keys and values), got rows of 4");
  CHECK(message_of([&] {
          memory.of(6).validate("f", {6, 0, 6}, 1, 4, false, false);
        }) == "f: memory: expected memory of 1 sequences (items / length of the segment), got memory of 3");
  CHECK(fits({2, 0, 2}, 4, false) == "f: memory.next: expected 3 rows (1 for each sequence), got 6");
  Tensor<float, 3, Cpu> one(1, 6, 4);
  const AttentionMemory<float, Cpu> same{one, one};
  CHECK(message_of([&] {
          same.validate("f", {2, 2, 3}, 3, 4, false, false);
        }) == "f: memory.next: expected memory that does not overlap memory.past, got memory of memory.past");
  memory.begin(ctx, 5);
  CHECK(fits({2, 5, 3}, 4, false) == "f: memory.past: expected at most 2 items for each sequence, got 5");
  memory.begin(ctx, 2);
  auto padded = memory.of(2);
  const auto says = [&] { return message_of([&] { padded.validate("f", {2, 2, 6}, 3, 4, false, true); }); };
  CHECK(says() == "no ArgumentError");
  padded.valid = padded.valid.rows(0, 5);
  CHECK(says() == "f: memory.valid: expected [6], got [5]");
  padded.valid = {};
  padded.next_valid = padded.next_valid.rows(0, 11);
  CHECK(says() == "f: memory.next_valid: expected [12], got [11]");
  padded.next_valid = {};
  CHECK(says() ==
        "f: memory.next_valid: expected a mask, because memory.next is given and some items are padding, got no mask");
}
