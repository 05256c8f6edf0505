#include "gatefold/data/vocabulary.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "support/pass.hpp"
#include "support/text_file.hpp"

using namespace gatefold::data;
using gatefold::support::message_of;
using gatefold::support::refusal;
using gatefold::support::TextFile;

namespace {

using Words = std::vector<std::string>;
using Ids = std::vector<TokenId>;

}  // namespace

TEST_CASE("Vocabulary: words are numbered in order of first appearance") {
  const TextFile train("the cat saw The cat\n"), test("a cat\n\nwith the <unk> <eos> dog");
  const Vocabulary v = read_vocabulary({train.path, test.path}, Unit::word);
  CHECK(v.tokens() == Words{"the", "cat", "saw", "The", "<eos>", "a", "with", "<unk>", "dog"});
  CHECK(v.size() == 9);
  CHECK((v.end_of_line() == 4 && v.unknown() == 7 && v.id("cat") == 1 && v.token(3) == "The"));
  CHECK(v.id("mouse") == v.unknown());
  CHECK(read_ids(test.path, v) == Ids{5, 1, 4, 4, 6, 0, 7, 4, 8, 4});
}

TEST_CASE("Vocabulary: a threshold drops rarer words, keeping the order") {
  const TextFile text("c b a b\nc b\n");
  const auto kept = [&](gatefold::Index threshold) {
    return read_vocabulary({text.path}, Unit::word, threshold).tokens();
  };
  CHECK(kept(1) == Words{"c", "b", "a", "<eos>", "<unk>"});
  CHECK(kept(2) == Words{"c", "b", "<eos>", "<unk>"});
  CHECK(kept(3) == Words{"b", "<eos>", "<unk>"});
  CHECK(kept(100) == Words{"<eos>", "<unk>"});
  const Vocabulary v = read_vocabulary({text.path}, Unit::word, 2);
  CHECK(read_ids(text.path, v) == Ids{0, 1, 3, 1, 2, 0, 1, 2});
  CHECK(message_of([&] { (void)kept(0); }) == "read_vocabulary: threshold: expected at least 1, got 0");
}

TEST_CASE("Vocabulary: characters are tokens") {
  const TextFile text("ab\u00e9 a\n");
  const Vocabulary v = read_vocabulary({text.path}, Unit::character);
  CHECK(v.tokens() == Words{"a", "b", "\u00e9", " ", "<eos>", "<unk>"});
  CHECK(read_ids(text.path, v) == Ids{0, 1, 2, 3, 0, 4});
  CHECK(read_ids(TextFile("ax\n").path, v) == Ids{0, 5, 4});
}

TEST_CASE("Vocabulary: given tokens keep their numbers; <eos>, <unk> are added") {
  CHECK(Vocabulary().tokens() == Words{"<eos>", "<unk>"});
  CHECK(Vocabulary(Unit::word, {"a", "b"}).tokens() == Words{"a", "b", "<eos>", "<unk>"});
  CHECK(Vocabulary(Unit::word, {"<unk>", "b"}).tokens() == Words{"<unk>", "b", "<eos>"});
  const TextFile text("z y <unk> z\nx\n");
  const Vocabulary v = read_vocabulary({text.path}, Unit::word);
  const Vocabulary copy(v.unit(), v.tokens());
  CHECK(copy.tokens() == v.tokens());
  CHECK(read_ids(text.path, copy) == read_ids(text.path, v));
  const Vocabulary other = copy;
  CHECK(read_ids(text.path, other) == read_ids(text.path, v));
  CHECK(message_of([] {
          Vocabulary(Unit::word, {"a", "b", "a"});
        }) == "Vocabulary: tokens: expected distinct tokens, got two of a");
}

TEST_CASE("Vocabulary: an id out of range throws") {
  const Vocabulary v;
  CHECK(v.token(v.unknown()) == v.tokens()[static_cast<std::size_t>(v.unknown())]);
  const std::string most = std::to_string(v.size() - 1),
                    said = "Vocabulary.token: id: expected 0 to " + most + ", got ";
  CHECK(message_of([&] { (void)v.token(static_cast<TokenId>(v.size())); }) == said + std::to_string(v.size()));
  CHECK(message_of([&] { (void)v.token(-1); }) == said + "-1");
}

TEST_CASE("Vocabulary: a file that is not UTF-8 throws") {
  const TextFile good("a\n"), bad("a\n\xff\n");
  const std::string said = bad.path.string() + ": offset 2: not UTF-8";
  CHECK(refusal([&] { (void)read_vocabulary({good.path, bad.path}, Unit::word); }) == said);
  CHECK(refusal([&] { (void)read_ids(bad.path, Vocabulary()); }) == said);
}
