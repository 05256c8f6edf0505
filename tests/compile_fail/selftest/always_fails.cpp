// expect: never
static_assert(false, "broken in any case");
// complaint: does not compile without GATEFOLD_FAIL
