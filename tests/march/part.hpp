#pragma once

#include <string>
#include <vector>

/// What one object of a mixed program does. Each stands in a namespace named after its -march.
struct Part {
  const char* name;
  std::vector<float> (*infer)();                  // rows of a layer's output
  std::vector<float> (*infer_frozen)();           // the same with frozen parameters
  std::vector<float> (*train)();                  // parameters after three steps
  void* (*make_frozen)();                         // a model that the program hands about
  std::vector<float> (*infer_with)(void* model);  // and that any part may be asked to run
  void (*destroy)(void* model);
};

// Weak: a program holds some of the parts.
[[gnu::weak]] Part part_narrow();  // x86-64
[[gnu::weak]] Part part_middle();  // x86-64-v3
[[gnu::weak]] Part part_native();
