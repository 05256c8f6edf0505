#pragma once

#include <string>
#include <vector>

#include "model.hpp"

namespace studies::lm {

/// A number that every layer has in the end: where it stands in a layer's results, and how it is shown.
struct LayerNumber {
  std::string title, pointer;  // "/norm"
  double scale = 1;
  int decimals = 2;
  bool drawn = false;
};

/// What a study compares: cases, the most important first; the headings they stand under; those whose layers are
/// looked into, and the numbers of these.
struct Comparison {
  std::vector<Case> cases;
  std::vector<Group> groups;
  std::vector<std::string> seen;
  std::vector<LayerNumber> of_layers;
};

/// The body of main.
/// @param make  (setting, words of the vocabulary) → what is compared
int study_of_language(const char* program, const char* what, int argc, char** argv,
                      Comparison (*make)(const Setting&, Index));

}  // namespace studies::lm
