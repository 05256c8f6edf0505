#include <doctest/doctest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <gatefold/gatefold.hpp>
#include <span>
#include <string>
#include <vector>

#include "network.hpp"

using namespace studies::classification;
namespace fs = std::filesystem;

namespace {

/// A temporary file with a text.
struct File {
  fs::path path;
  explicit File(const std::string& text)
      : path(fs::temp_directory_path() / ("classification_test." + std::to_string(getpid()))) {
    std::ofstream(path) << text;
  }
  ~File() { fs::remove(path); }
};

/// Returns the part of the error message after the name of the file, or an empty text if there is no error.
std::string refused(const std::string& text, Index classes = 1000) {
  const File file(text);
  try {
    read_labelled(file.path, classes);
  } catch (const FileError& error) {
    return std::string(error.what()).substr(file.path.string().size());
  }
  return {};
}

/// Sentences of the words 0 to 8, each up to `longest` words long, with labels of 5 classes.
Sentences sentences(Index count, Index longest) {
  Sentences all;
  for (Index n = 0; n < count; ++n) {
    all.words.emplace_back();
    for (Index w = 0; w < 1 + n % longest; ++w)
      all.words.back().push_back(static_cast<TokenId>((n + 7 * w * (n + 1)) % 9));
    all.labels.push_back(n % 5);
  }
  return all;
}

auto small_model(const auto& mixing) {
  const studies::lm::Setting s{.depth = 2, .dim = 8, .heads = 2, .experts = 4, .k = 2, .hidden = 8, .length = 6};
  using Gate = gatefold::WithMixing<gatefold::SoftmaxTopK, std::remove_cvref_t<decltype(mixing)>>;
  return gatefold::switch_model<gatefold::language::Traced>(studies::lm::sizes(s, 9), gatefold::update::Plain{},
                                                            studies::graph_of_tokens::mixture<Gate>(s, mixing));
}

}  // namespace

TEST_CASE("read_labelled: reads words and labels, also of a last line without line feed") {
  const File file("sentence\tlabel\na  fine film .\t1\r\nno\t0");
  const std::vector<Labelled> found = read_labelled(file.path);
  REQUIRE(found.size() == 2);
  CHECK(found[0].words == std::vector<std::string>{"a", "fine", "film", "."});
  CHECK(found[0].label == 1);
  CHECK(found[1].words == std::vector<std::string>{"no"});
  CHECK(found[1].label == 0);
}

TEST_CASE("read_labelled: names the line of a mistake") {
  const std::string header = "sentence\tlabel\n";
  CHECK(refused("index\tsentence\n0\tgood\n") ==
        ": line 1: header: expected \"sentence<tab>label\", got \"index\tsentence\"");
  CHECK(refused(header + "good\t1\nbad\n") == ": line 3: columns: expected two, separated by one tab, got \"bad\"");
  CHECK(refused(header + "a\tb\t1\n") == ": line 2: columns: expected two, separated by one tab, got \"a\tb\t1\"");
  CHECK(refused(header + " \t1\n") == ": line 2: sentence: expected at least one word, got \" \t1\"");
  for (const std::string label : {"", "-1", "2", "1.5", "1 ", "99999999999999999999"})
    CHECK(refused(header + "good\t" + label + '\n', 2) ==
          ": line 2: label: expected a whole number from 0 to 1, got \"" + label + '"');
  for (const std::string& empty : {std::string(), header})
    CHECK(refused(empty) == ": expected a header and at least one sentence, got none");
}

TEST_CASE("with_words_of: adds words that sentences have often enough") {
  const gatefold::data::Vocabulary text(gatefold::data::Unit::word, {"the", "king"});
  const auto all = with_words_of(text, {{{"film", "the", "film"}, 1}, {{"once", "<unk>", "<unk>"}, 0}}, 2);
  CHECK(all.tokens() == std::vector<std::string>{"the", "king", "<eos>", "<unk>", "film"});
  CHECK(all.unknown() == text.unknown());
}

TEST_CASE("Sentences: keeps the first words and replaces unknown ones") {
  const gatefold::data::Vocabulary vocabulary(gatefold::data::Unit::word, {"a", "b"});
  const Sentences all({{{"b", "x", "a"}, 4}, {{"a"}, 0}}, vocabulary, 2);
  CHECK(all.words == std::vector<std::vector<TokenId>>{{1, vocabulary.unknown()}, {0}});
  CHECK(all.labels == Ids{4, 0});
}

TEST_CASE("Batch: pads after the sentences and has their labels at the last words") {
  Sentences all;
  all.words = {{5, 6}, {7}, {1, 2, 3}};
  all.labels = {1, 0, 2};
  const Ids which{2, 1};
  const Batch batch(all, which, 9);
  CHECK(batch.length == 3);
  CHECK(batch.words == Ids{1, 2, 3, 7, 9, 9});
  CHECK(batch.targets == Ids{-1, -1, 2, 0, -1, -1});
  CHECK(batch.last == Ids{2, 3});
}

TEST_CASE("Classifier: logits depend neither on the padding nor on the other sentences") {
  const auto check = [](const auto& mixing) {
    const auto model = small_model(mixing);
    Classifier<std::remove_const_t<decltype(model)>> classifier(model, 5, {}, Seed{1});
    const Sentences all = sentences(12, 6);
    Ids which(12);
    std::iota(which.begin(), which.end(), Index(0));
    const std::vector<float> together = classifier.logits(Batch(all, which, 8));
    std::vector<float> alone;
    for (const Index& one : which) {
      const auto of_one = classifier.logits(Batch(all, std::span(&one, 1), 8));
      alone.insert(alone.end(), of_one.begin(), of_one.end());
    }
    CHECK(together == alone);
  };
  check(gatefold::TokenSimilarity{.causal = true});
  check(gatefold::AttentionPosterior{});
}

TEST_CASE("Classifier: learns the labels of a few sentences, and counts them") {
  const auto model = small_model(gatefold::TokenSimilarity{.causal = true});
  Classifier<std::remove_const_t<decltype(model)>> classifier(model, 5, {.lr = 1e-2}, Seed{1});
  Data data;
  data.tested = sentences(10, 6);
  Ids which(10);
  std::iota(which.begin(), which.end(), Index(0));
  const Batch batch(data.tested, which, 8);
  CHECK(correct(classifier, data, 3) < 10);
  for (int step = 0; step < 200; ++step) classifier.step(batch);
  CHECK(classifier.classify(batch) == data.tested.labels);
  CHECK(correct(classifier, data, 3) == 10);  // batches of 3, 3, 3 and 1
  ++data.tested.labels[9];
  CHECK(correct(classifier, data, 3) == 9);
}
