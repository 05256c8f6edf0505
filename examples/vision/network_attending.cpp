#include <gatefold/gatefold.hpp>

#include "networks.hpp"

template std::unique_ptr<images::Model> images::make_attending<gatefold::Cpu>(const Options&);
