#pragma once

#include <string>
#include <vector>

/// The functions of one object file of a mixed program, each in a namespace named after its -march.
struct Part {
  const char* name;
  std::vector<float> (*infer)();                  // rows of a layer's output
  std::vector<float> (*infer_frozen)();           // the same with frozen parameters
  std::vector<float> (*train)();                  // parameters after three steps
  void* (*make_frozen)();                         // a model that the program passes around
  std::vector<float> (*infer_with)(void* model);  // any part may be asked to run it
  void (*destroy)(void* model);
};

// Weak, because a program contains only some of the parts.
[[gnu::weak]] Part part_narrow();  // x86-64
[[gnu::weak]] Part part_middle();  // x86-64-v3
[[gnu::weak]] Part part_native();
