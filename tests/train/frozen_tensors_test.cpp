#include "gatefold/train/frozen_tensors.hpp"
