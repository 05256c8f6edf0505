#include <gatefold/gatefold.hpp>

#include "networks.hpp"

template std::unique_ptr<images::Model> images::make_soft<gatefold::Cpu>(const Options&);
