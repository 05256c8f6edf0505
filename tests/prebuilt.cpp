#include "support/prebuilt.hpp"

namespace gatefold::cpu {

template class Product<float>;
template class Product<double>;

}  // namespace gatefold::cpu
