#include <gatefold/gatefold.hpp>

int main() {
  gatefold::Index items = 0;
  return static_cast<int>(items);
}
