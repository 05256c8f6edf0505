#include "interface.hpp"

int main() { return catcher::check(); }
