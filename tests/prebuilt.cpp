#include "support/prebuilt.hpp"

namespace gatefold::cpu {

template class Product<float>;
template class Product<double>;
template class ProductPair<float>;
template class ProductPair<double>;

}  // namespace gatefold::cpu
