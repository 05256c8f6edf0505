#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "../whole_training.hpp"
#include "verses.hpp"

namespace studies::mot_text {

/// Verses with the indices of their classes.
struct Verses {
  std::vector<const Verse*> verses{};
  std::vector<Index> labels{};
};
/// A task: the names of the classes, the training verses and the test verses.
struct Task {
  std::vector<std::string> classes{};
  Verses train{}, test{};
};

/// Adds `train` verses to the training set and `test` to the test set, in the order of a hash. Neighbouring verses have
/// the same topic, so a split by position would give two different kinds of verses.
template <class F>
void add(Task& task, std::vector<const Verse*> verses, Index train, Index test, const F& label) {
  std::sort(verses.begin(), verses.end(), [](const Verse* a, const Verse* b) {
    return std::pair(hash_of(a->place), a->position) < std::pair(hash_of(b->place), b->position);
  });
  for (std::size_t i = 0; i < static_cast<std::size_t>(train + test); ++i) {
    Verses& part = i < static_cast<std::size_t>(train) ? task.train : task.test;
    part.verses.push_back(verses[i]);
    part.labels.push_back(label(*verses[i]));
  }
}

constexpr Index kBooks = 10;

/// Returns the task to predict which of the ten longest books a verse is from. Takes the same number of verses from
/// each book.
/// @throws ArgumentError unless `train` and `test` are multiples of ten, and together at most ten times the number of
///   verses of the shortest of these books
inline Task which_book(const std::vector<Verse>& verses, Index train, Index test) {
  std::map<std::string, std::vector<const Verse*>> of_book;
  for (const Verse& v : verses) of_book[v.book].push_back(&v);
  std::vector<std::vector<const Verse*>> books;
  for (const auto& [name, all] : of_book) books.push_back(all);
  std::stable_sort(books.begin(), books.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
  books.resize(kBooks);
  const Index most = static_cast<Index>(books.back().size());
  expect(train % kBooks == 0, "options", "--train", "a multiple of 10, the number of books", train);
  expect(test % kBooks == 0, "options", "--test", "a multiple of 10, the number of books", test);
  expect((train + test) / kBooks <= most, "options", "--train and --test",
         Joined{"at most ", kBooks * most, " together"}, train + test);
  std::sort(books.begin(), books.end(), [](const auto& a, const auto& b) { return a[0]->position < b[0]->position; });
  Task task;
  for (const auto& book : books) {
    const Index label = static_cast<Index>(task.classes.size());
    add(task, book, train / kBooks, test / kBooks, [&](const Verse&) { return label; });
    task.classes.push_back(book[0]->book);
  }
  return task;
}

/// Returns the task to predict the position of a verse in the whole Bible: 0 is the first verse, 1 the last. The
/// classes are ten equal parts of this range. Only routing tables use them; the loss does not.
inline Task which_place(const std::vector<Verse>& verses, Index train, Index test) {
  std::vector<const Verse*> all;
  for (const Verse& v : verses) all.push_back(&v);
  Task task;
  for (Index c = 0; c < 10; ++c) task.classes.push_back("0." + std::to_string(c));
  add(task, all, train, test, [](const Verse& v) { return std::min<Index>(9, static_cast<Index>(10 * v.position)); });
  return task;
}

/// Returns verses as items x [N, columns]. `fill(verse, row)` writes one row, which is all zeros before the call.
template <class F>
Items items(const Verses& part, Index columns, const F& fill) {
  const Index count = static_cast<Index>(part.verses.size());
  Items all{Tensor<float, 2, Cpu>(count, columns), Tensor<Index, 1, Cpu>(count), Tensor<float, 2, Cpu>(count, 1)};
  std::fill_n(all.x.data(), all.x.size(), 0.0f);
  for (Index n = 0; n < count; ++n) {
    const Verse& verse = *part.verses[static_cast<std::size_t>(n)];
    fill(verse, &all.x(n, 0));
    all.label(n) = part.labels[static_cast<std::size_t>(n)];
    all.value(n, 0) = static_cast<float>(verse.position);
  }
  return all;
}

/// Calls f(word, position) for each of the first `length` words of a verse. The models read only these words.
template <class F>
void each_word(const Verse& verse, Index length, const F& f) {
  for (std::size_t l = 0; l < std::min(verse.words.size(), static_cast<std::size_t>(length)); ++l)
    f(verse.words[l], static_cast<Index>(l));
}
/// Returns how often each word occurs among the first `length` words of the training verses.
inline std::map<std::string, Index> words_of_training(const Verses& train, Index length) {
  std::map<std::string, Index> counts;
  for (const Verse* v : train.verses) each_word(*v, length, [&](const std::string& word, Index) { ++counts[word]; });
  return counts;
}

/// The input of a transformer: the vectors of a verse's words, followed by zeros.
///
/// The vector of a word is drawn from N(0, 1) by a hash of the word, and is the same in all runs. It is not learned, so
/// the router is linear in the sum over the words. Words that are in no training verse share one vector. The mean over
/// all words of the training verses is subtracted, as for the pixels of images, because with the mean the router would
/// send every verse to the same expert.
class WordVectors {
 public:
  WordVectors(const std::map<std::string, Index>& words, Index length, Index dim)
      : length_(length), unknown_(draw("", dim)) {
    std::vector<double> mean(static_cast<std::size_t>(dim), 0.0);
    double total = 0;
    for (const auto& [word, count] : words) {
      const auto& vector = vectors_.emplace(word, draw(word, dim)).first->second;
      for (std::size_t d = 0; d < mean.size(); ++d) mean[d] += static_cast<double>(count) * double(vector[d]);
      total += static_cast<double>(count);
    }
    for (double& m : mean) m /= total;
    const auto center = [&](std::vector<float>& vector) {
      for (std::size_t d = 0; d < mean.size(); ++d) vector[d] -= static_cast<float>(mean[d]);
    };
    center(unknown_);
    for (auto& [word, vector] : vectors_) center(vector);
  }
  void tokens(const Verse& verse, float* row) const {
    each_word(verse, length_, [&](const std::string& word, Index l) { add(word, 1, row + l * dim()); });
  }
  /// Computes the mean of a verse's vectors, including the zeros after the last word. Up to a factor, it is the input
  /// of a router.
  void mean(const Verse& verse, float* row) const {
    each_word(verse, length_, [&](const std::string& word, Index) { add(word, 1 / static_cast<float>(length_), row); });
  }

 private:
  static std::vector<float> draw(const std::string& word, Index dim) {
    std::vector<float> vector;
    for (Index d = 0; d < dim; ++d)
      vector.push_back(normal<float>(Seed{hash_of(word)}, 0, static_cast<std::uint64_t>(d)));
    return vector;
  }
  Index dim() const { return static_cast<Index>(unknown_.size()); }
  void add(const std::string& word, float factor, float* row) const {
    const auto found = vectors_.find(word);
    const auto& vector = found == vectors_.end() ? unknown_ : found->second;
    for (std::size_t d = 0; d < vector.size(); ++d) row[d] += factor * vector[d];
  }

  Index length_;
  std::vector<float> unknown_;
  std::map<std::string, std::vector<float>> vectors_;
};

/// Counts how often each of the most frequent words occurs in a verse.
class WordCounts {
 public:
  WordCounts(const std::map<std::string, Index>& words, Index most, Index length) : length_(length) {
    std::vector<std::pair<Index, std::string>> order;
    for (const auto& [word, count] : words) order.emplace_back(-count, word);
    std::sort(order.begin(), order.end());
    for (std::size_t i = 0; i < order.size() && size() < most; ++i) column_.emplace(order[i].second, size());
  }
  Index size() const { return static_cast<Index>(column_.size()); }
  void count(const Verse& verse, float* row) const {
    each_word(verse, length_, [&](const std::string& word, Index) {
      if (const auto found = column_.find(word); found != column_.end()) row[found->second] += 1;
    });
  }

 private:
  std::map<std::string, Index> column_;
  Index length_;
};

}  // namespace studies::mot_text
