#pragma once

#include <filesystem>
#include <fstream>
#include <gatefold/core/error.hpp>
#include <gatefold/io/replacement.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "../support/kneser_ney.hpp"
#include "text.hpp"

namespace language {

/// The results of the language model's baseline, Kneser–Ney n-grams that are counted in the training tokens: their bits
/// per token on the validation text and on the test text.
struct Ngram {
  int order = 0;
  double valid = 0, test = 0;  // bits per token
};

inline int ngram_order(const Options& o) { return o.order > 0 ? o.order : unit(o) == Unit::word ? 3 : 5; }
/// @throws gatefold::ArgumentError unless n-grams of the order of the options can be counted in the training text
inline void expect_ngrams(const Options& o, const Text& text) {
  baseline::KneserNey::validate(static_cast<gatefold::Index>(text.train.size()), ngram_order(o),
                                text.vocabulary.size());
}

/// Counts and evaluates n-grams. If the texts are read from a folder, the result is stored in this folder, in the file
/// ngram_….json. Later calls for the same texts read this file.
inline Ngram ngram(const Options& o, const Text& text) {
  Ngram n{.order = ngram_order(o)};
  const std::string of = std::to_string(text.hash()) + " " + o.unit + " " + std::to_string(n.order);
  const auto kept = std::filesystem::path(o.data) / ("ngram_" + o.unit + "_" + std::to_string(n.order) + ".json");
  if (o.text.empty()) {
    std::ifstream file(kept);
    const auto json = nlohmann::json::parse(file, nullptr, false);
    const auto holds = [&](const char* name) { return json.contains(name) && json[name].is_number(); };
    if (json.is_object() && json.contains("of") && json["of"] == of && holds("valid_bits") && holds("test_bits")) {
      n.valid = json["valid_bits"];
      n.test = json["test_bits"];
      return n;
    }
  }
  const baseline::KneserNey model(text.train, n.order, text.vocabulary.size());
  n.valid = model.bits(text.valid);
  n.test = model.bits(text.test);
  if (o.text.empty()) {
    const std::string json =
        nlohmann::ordered_json{{"of", of}, {"valid_bits", n.valid}, {"test_bits", n.test}}.dump() + '\n';
    try {
      gatefold::io::Replacement file(kept);
      file.write(json.data(), json.size());
      file.commit();
    } catch (const gatefold::FileError&) {
      // If the folder cannot be written, for example because another user owns it, the next run counts the n-grams
      // again.
    }
  }
  return n;
}

}  // namespace language
