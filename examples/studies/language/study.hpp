#pragma once

#include <string>
#include <vector>

#include "model.hpp"

namespace studies::lm {

/// A measurement of every layer after training: its title, its place in the results of a layer, and its format.
struct LayerNumber {
  std::string title, pointer;  // "/norm"
  double scale = 1;
  int decimals = 2;
  bool drawn = false;
};

/// The content of a study: the cases, the most important first; their headings; the names of the cases whose layers are
/// examined; and the measurements of these layers.
struct Comparison {
  std::vector<Case> cases;
  std::vector<Group> groups;
  std::vector<std::string> seen;
  std::vector<LayerNumber> of_layers;
};

/// Runs a study of language models: the body of main.
/// @param make  make(setting, words of the vocabulary) returns the comparison
int study_of_language(const char* program, const char* what, int argc, char** argv,
                      Comparison (*make)(const Setting&, Index));

}  // namespace studies::lm
