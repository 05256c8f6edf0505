#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
// doctest 2.4.9 uses DBL_EPSILON. On macOS, the headers that doctest includes do not declare it.
#include <cfloat>

#include <doctest/doctest.h>
