#pragma once

#include <functional>

namespace training {

/// What one of several that train together does besides its steps.
struct Role {
  bool alone = true;
  bool reports = true;                                             // says how far it is, writes metrics and pictures
  std::function<bool(bool)> any = [](bool mine) { return mine; };  // whether any of them says so; all ask together
};

}  // namespace training
