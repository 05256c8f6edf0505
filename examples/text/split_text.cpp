// Splits the lines of a text into the files train.txt, valid.txt and test.txt in FOLDER. Each line goes into one file.
//
//   split_text TEXT FOLDER [--valid 0.05] [--test 0.05] [--stretches 1]
//
// Exit code 0: done; 2: an option or file is invalid (one line on stderr says which); 1: any other error.
#include <CLI/App.hpp>
#include <array>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <gatefold/data/text_reader.hpp>
#include <gatefold/data/tokens.hpp>
#include <gatefold/io/replacement.hpp>
#include <string>
#include <string_view>
#include <unordered_set>

#include "../support/command_line.hpp"

namespace {

using gatefold::Index;
using gatefold::data::Part;
using gatefold::data::Split;
using gatefold::data::Unit;

/// A file that is being written, with counts of its content.
struct Output {
  gatefold::io::Replacement file;
  std::string name, pending{};
  Index lines = 0, words = 0, characters = 0, repeated = 0;
  std::unordered_set<std::string> distinct{};

  Output(const std::filesystem::path& folder, const char* part) : file(folder / part), name(part) {}

  void add(std::string_view line) {
    pending.append(line).push_back('\n');
    if (pending.size() >= (1u << 16)) flush();
    ++lines;
    const auto word = [&](std::string_view w) {
      ++words;
      distinct.emplace(w);
    };
    gatefold::data::Tokenizer split(Unit::word, word);
    split(line);
    split(" ");
    const auto character = [&](std::string_view) { ++characters; };
    gatefold::data::Tokenizer(Unit::character, character)(line);
    ++characters;  // counts the end of the line
  }
  void flush() {
    file.write(pending.data(), pending.size());
    pending.clear();
  }
};

void cut(const std::filesystem::path& text, const std::filesystem::path& folder, const Split& split) {
  split.validate();
  Index lines = 0;
  gatefold::data::for_each_line(text, [&](std::string_view) { ++lines; });
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw gatefold::FileError(folder.string() + ": " + error.message());
  std::array<Output, 3> outputs{Output(folder, "train.txt"), Output(folder, "valid.txt"), Output(folder, "test.txt")};
  std::unordered_set<std::string> learnt;
  for (const bool of_train : {true, false}) {
    Index n = 0;
    gatefold::data::for_each_line(text, [&](std::string_view line) {
      const Part part = split.part(n++, lines);
      if ((part == Part::train) != of_train) return;
      Output& output = outputs[static_cast<std::size_t>(part)];
      output.add(line);
      if (of_train) {
        learnt.emplace(line);
      } else {
        output.repeated += learnt.contains(std::string(line));
      }
    });
  }
  std::printf("%-10s %9s %10s %9s %12s  %s\n", "part", "lines", "words", "distinct", "characters",
              "lines of train too");
  for (Output& output : outputs) {
    output.flush();
    output.file.commit();
    std::printf("%-10s %9lld %10lld %9zu %12lld  %lld\n", output.name.c_str(), static_cast<long long>(output.lines),
                static_cast<long long>(output.words), output.distinct.size(), static_cast<long long>(output.characters),
                static_cast<long long>(output.repeated));
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::string text, folder;
  Split split;
  CLI::App app("Split the lines of a text into a training, a validation and a test file");
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("text", text, "text file in UTF-8")->required();
  app.add_option("folder", folder, "folder to which train.txt, valid.txt and test.txt are written")->required();
  app.add_option("--valid", split.valid, "share of the lines for validation")->capture_default_str();
  app.add_option("--test", split.test, "share of the lines for the test")->capture_default_str();
  app.add_option("--stretches", split.stretches,
                 "number of contiguous pieces of the text; each piece is split separately")
      ->check(CLI::Range(Index(1), Index(1) << 20))
      ->capture_default_str();
  return command_line::run("split_text", app, argc, argv, [&] { cut(text, folder, split); });
}
