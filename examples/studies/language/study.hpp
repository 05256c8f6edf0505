#pragma once

#include <string>
#include <vector>

#include "model.hpp"

namespace studies::lm {

/// A measurement of every layer after training: its title, the JSON pointer to the number in the results of a layer,
/// and its format.
struct LayerNumber {
  std::string title, pointer;  // pointer: for example "/norm"
  double scale = 1;
  int decimals = 2;
  bool drawn = false;
};

/// The content of a study. `cases` are the models to compare, the most important first. `groups` are the tables, each
/// with a heading. `seen` are the names of the cases whose layers are reported, and `of_layers` the reported numbers.
struct Comparison {
  std::vector<Case> cases;
  std::vector<Group> groups;
  std::vector<std::string> seen;
  std::vector<LayerNumber> of_layers;
};

/// Runs a study of language models. A study's main() only calls this function.
/// @param what  description of the program for --help
/// @param make  make(setting, size of the vocabulary) returns the content of the study
int study_of_language(const char* program, const char* what, int argc, char** argv,
                      Comparison (*make)(const Setting&, Index));

}  // namespace studies::lm
