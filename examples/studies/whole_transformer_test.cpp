#include "whole_transformer.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <gatefold/check.hpp>
#include <gatefold/papers/corruption.hpp>
#include <string>
#include <vector>

#include "mot_text/task.hpp"
#include "mot_vision/augment.hpp"
#include "mot_vision/corrupt.hpp"
#include "support/attention.hpp"
#include "support/experts.hpp"
#include "support/naive_moe.hpp"
#include "support/part_of_slots.hpp"

using namespace studies;
using namespace gatefold::support;

namespace {

using Row = std::vector<double>;

constexpr Index dim = 4, length = 3, tokens = 2;

const WholeTransformer expert{.token_dim = tokens,
                              .model_dim = dim,
                              .hidden_dim = 5,
                              .heads = 2,
                              .length = length,
                              .blocks = 2,
                              .outputs = 3,
                              .epsilon = 0.1};

Row part(const Row& x, Index l, Index width) { return {x.begin() + l * width, x.begin() + (l + 1) * width}; }

Row normed(const auto& p, Index e, Row x) {
  for (Index l = 0; l < length; ++l) {
    double mean = 0, variance = 0;
    for (const double v : part(x, l, dim)) mean += v / dim;
    for (const double v : part(x, l, dim)) variance += (v - mean) * (v - mean) / dim;
    for (Index d = 0; d < dim; ++d) {
      double& v = x[std::size_t(l * dim + d)];
      v = (v - mean) / std::sqrt(variance + 0.1) * p.gain(e, d) + p.bias(e, d);
    }
  }
  return x;
}
Row linear(const auto& p, Index e, const Row& x) {
  return naive::affine(
      x, p.weight.extent(2), [&](Index i, Index j) { return p.weight(e, i, j); },
      [&](Index j) { return p.bias(e, j); });
}

/// Computes equation (1) of WholeTransformer with simple loops, for one item x and the expert e.
Row whole(const auto& p, Index e, const Row& x) {
  Row h;
  for (Index l = 0; l < length; ++l) {
    const Row token = linear(p.embed, e, part(x, l, tokens));
    for (Index d = 0; d < dim; ++d) h.push_back(token[std::size_t(d)] + p.position(e, l, d));
  }
  for (const auto& block : p.blocks) {
    const Row mixed = naive::multi_head(block.attention, e, normed(block.attention_norm, e, h), length, 2, false);
    for (std::size_t i = 0; i < h.size(); ++i) h[i] += mixed[i];
    const Row n = normed(block.mlp_norm, e, h);
    for (Index l = 0; l < length; ++l) {
      const Row y = naive::mlp(block.mlp, e, part(n, l, dim), naive::gelu);
      for (Index d = 0; d < dim; ++d) h[std::size_t(l * dim + d)] += y[std::size_t(d)];
    }
  }
  h = normed(p.norm, e, h);
  Row mean(dim, 0.0);
  for (std::size_t i = 0; i < h.size(); ++i) mean[i % dim] += h[i] / length;
  return linear(p.head, e, mean);
}

}  // namespace

TEST_CASE("WholeTransformer (1): equals loops for uneven numbers of items") {
  Cpu::Context ctx(2);
  for (const auto& counts : uneven_counts()) {
    Bank<double, WholeTransformer> b(ctx, expert, counts, 6);
    fill_uniform(ctx, Seed{5}, -1, 1, b.params.position);
    fill_uniform(ctx, Seed{6}, 0.5, 1, b.params.norm.gain);
    fill_uniform(ctx, Seed{7}, -1, 1, b.params.norm.bias);
    b.forward();
    CHECK(difference(b.of_slots(b.z), b.expected([&](Index e, const Row& x) { return whole(b.params, e, x); })) <=
          1e-13);
  }
}

TEST_CASE("WholeTransformer: reads and writes only slots of its experts") {
  for (const auto& broken : {broken_promises<double>(expert, [](auto&) {}), broken_for_later_slots<double>(expert)})
    CHECK_MESSAGE(broken.empty(), (broken.empty() ? "" : broken[0]));
}

TEST_CASE("WholeTransformer: a mixture of whole items passes conformance") {
  const SoftmaxTopK gate{
      .scores = {.experts = 2, .length = length}, .mixing = {}, .selection = {.k = 1, .renormalise = false}};
  const auto report = check::conformance<Cpu>(
      Mixture{gate, expert}, {.gradients = {.items = 5, .of_largest = 1e-8}, .items_are_independent = true});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("WholeTransformer: initial.shared copies experts; bad options throw") {
  Cpu::Context ctx(1);
  auto shared = expert;
  shared.initial.shared = true;
  auto p = shared.init<double, Cpu>(ctx, 3, Seed{1});
  for_each_tensor(
      [&](const Name&, const auto& t) {
        const Index size = t.size() / 3;
        for (Index i = 0; i < t.size(); ++i) CHECK(t.data()[i] == t.data()[i % size]);
      },
      p);
  CHECK_THROWS_WITH(shared.validate(p, 4), "Linear: params.weight: expected [4, 2, 4], got [3, 2, 4]");
  auto shallow = expert;
  shallow.blocks = 1;
  CHECK_THROWS_WITH(shallow.validate(p, 3), "WholeTransformer: params.blocks: expected 1, got 2");
  shallow.blocks = 0;
  CHECK_THROWS_WITH((shallow.init<double, Cpu>(ctx, 1, {})),
                    "WholeTransformer.init: blocks: expected at least 1, got 0");
}

TEST_CASE("CropAndFlipPatches: shifts and mirrors images in the order of patches") {
  constexpr Index patch = 4, side = fashion::kSide;
  const auto order = fashion::patch_order(patch);
  const float black = -fashion::kMean / fashion::kDeviation;
  // Each pixel shows its row and column. The changed image must be this picture at one shift, mirrored or not.
  const auto pixel = [](Index y, Index x) { return static_cast<float>(1 + y * side + x); };
  constexpr Index items = 64;
  Tensor<float, 2, Cpu> x(items, fashion::kPixels);
  for (Index n = 0; n < items; ++n)
    for (Index i = 0; i < fashion::kPixels; ++i) {
      const Index at = order[std::size_t(i)];
      x(n, i) = pixel(at / side, at % side);
    }
  Cpu::Context ctx;
  const mot_vision::CropAndFlipPatches change(patch, 2, 0.5);
  change(ctx, x, {Seed{4}, 7});
  Index mirrored = 0, shifted = 0;
  for (Index n = 0; n < items; ++n) {
    Index matches = 0;
    for (Index down = -2; down <= 2; ++down)
      for (Index right = -2; right <= 2; ++right)
        for (const bool mirror : {false, true}) {
          bool same = true;
          for (Index i = 0; i < fashion::kPixels && same; ++i) {
            const Index at = order[std::size_t(i)], column = at % side;
            const Index from_y = at / side + down, from_x = (mirror ? side - 1 - column : column) + right;
            const bool inside = 0 <= from_y && from_y < side && 0 <= from_x && from_x < side;
            same = std::abs(x(n, i) - (inside ? pixel(from_y, from_x) : black)) < 1e-3f;  // black is added and removed
          }
          matches += same;
          mirrored += same && mirror;
          shifted += same && (down != 0 || right != 0);
        }
    CHECK(matches == 1);
  }
  CHECK(mirrored > items / 4);
  CHECK(mirrored < items * 3 / 4);
  CHECK(shifted > items / 2);
}

TEST_CASE("corrupt: replaces patches, adds noise, and repeats for equal seeds") {
  using mot_vision::corrupt;
  constexpr Index items = 200, patches = 20, size = 3, width = patches * size;
  std::vector<float> images;
  std::vector<Index> labels;
  for (Index n = 0; n < items; ++n) {
    labels.push_back(n % 4 == 0 ? 1 : 0);
    for (Index i = 0; i < width; ++i) images.push_back(static_cast<float>(1000 + 1000 * n + i));
  }
  const mot_vision::Corruption c{.replaced = 0.15, .noisy = 0.1, .deviation = 2};
  const auto out = corrupt(images, labels, patches, c, Seed{3});
  double squares = 0;
  std::vector<Index> touched(patches, 0);
  for (Index n = 0; n < items; ++n) {
    Index swapped = 0, noisy = 0;
    for (Index p = 0; p < patches; ++p) {
      const float* patch = out.data() + n * width + p * size;
      if (patch[0] == images[std::size_t(n * width + p * size)]) continue;
      ++touched[std::size_t(p)];
      if (patch[0] < 500) {
        ++noisy;
        for (Index v = 0; v < size; ++v) squares += double(patch[v]) * double(patch[v]);
        continue;
      }
      ++swapped;
      const Index from = static_cast<Index>(patch[0]) / 1000 - 1;
      CHECK(labels[std::size_t(from)] != labels[std::size_t(n)]);
      for (Index v = 0; v < size; ++v) CHECK(patch[v] == static_cast<float>(1000 + 1000 * from + p * size + v));
    }
    CHECK(swapped == 3);
    CHECK(noisy == 2);
  }
  CHECK(squares / (items * 2 * size) == doctest::Approx(4).epsilon(0.2));
  for (const Index count : touched) CHECK(std::abs(count - items * 5 / patches) < 30);  // ± 5 standard deviations
  CHECK(out == corrupt(images, labels, patches, c, Seed{3}));
  CHECK(out != corrupt(images, labels, patches, c, Seed{4}));
  CHECK(images == corrupt(images, labels, patches, {.replaced = 0, .noisy = 0}, Seed{3}));
  CHECK_THROWS_AS(corrupt(images, labels, patches, {.replaced = 0.6, .noisy = 0.5}, Seed{3}), ArgumentError);
  CHECK_THROWS_AS(corrupt(images, std::vector<Index>(items, 7), patches, c, Seed{3}), ArgumentError);
}

TEST_CASE("parse_verse: reads place and words, throws for other lines") {
  using namespace mot_text;
  const Verse verse = parse_verse("1Chr2:13 And Jesse's firstborn, Eliab--and ABINADAB;");
  CHECK(verse.book == "1Chr");
  CHECK(verse.place == "1Chr2:13");
  CHECK(verse.words == std::vector<std::string>{"and", "jesses", "firstborn", "eliab", "and", "abinadab"});
  for (const char* line :
       {"", "Ge1:1", "Genesis 1", "Ge:1 In", "Ge1: In", "12:3 In", "  1 In the beginning", "Ge1:1x In"})
    CHECK_THROWS_AS(parse_verse(line), FileError);
}

TEST_CASE("which_book: takes distinct verses from only the longest books") {
  using namespace mot_text;
  std::vector<Verse> verses;
  for (Index book = 0; book < 12; ++book)
    for (Index i = 0; i < (book == 3 || book == 5 ? 2 : 6); ++i) {
      const std::string name = "B" + std::string(1, static_cast<char>('a' + book));
      verses.push_back({name, name + "1:" + std::to_string(i + 1), {"word"}, static_cast<double>(verses.size()) / 100});
    }
  const Task task = which_book(verses, 40, 20);
  CHECK(task.classes == std::vector<std::string>{"Ba", "Bb", "Bc", "Be", "Bg", "Bh", "Bi", "Bj", "Bk", "Bl"});
  std::vector<const Verse*> all = task.train.verses;
  all.insert(all.end(), task.test.verses.begin(), task.test.verses.end());
  CHECK(all.size() == 60);
  std::sort(all.begin(), all.end());
  CHECK(std::adjacent_find(all.begin(), all.end()) == all.end());
  for (const Verses* part : {&task.train, &task.test})
    for (std::size_t i = 0; i < part->verses.size(); ++i)
      CHECK(task.classes[std::size_t(part->labels[i])] == part->verses[i]->book);
  CHECK_THROWS_AS(which_book(verses, 60, 20), ArgumentError);
  CHECK_THROWS_AS(which_book(verses, 45, 10), ArgumentError);
}

TEST_CASE("WordVectors: training tokens average 0; unknown words share one vector") {
  using namespace mot_text;
  const Verse a{"A", "A1:1", {"x", "y", "x", "x"}}, b{"A", "A1:2", {"z"}}, c{"A", "A1:3", {"new", "x", "newer"}};
  const Verses train{{&a, &b}, {0, 0}};
  const WordVectors vectors(words_of_training(train, 3), 3, 4);
  const auto tokens = [&](const Verses& part) {
    return items(part, 12, [&](const Verse& v, float* row) { vectors.tokens(v, row); });
  };
  const auto trained = tokens(train), other = tokens({{&c}, {0}});
  for (Index d = 0; d < 4; ++d) {
    double sum = 0;
    for (Index n = 0; n < 2; ++n)
      for (Index l = 0; l < 3; ++l) sum += double(trained.x(n, l * 4 + d));
    CHECK(std::abs(sum) < 1e-5);  // rounding of floats near 1
    CHECK(trained.x(0, d) == trained.x(0, 8 + d));
    CHECK(trained.x(0, d) != trained.x(0, 4 + d));
    CHECK(trained.x(1, 4 + d) == 0);
    CHECK(other.x(0, d) == other.x(0, 8 + d));
    CHECK(other.x(0, 4 + d) == trained.x(0, d));
  }
}
