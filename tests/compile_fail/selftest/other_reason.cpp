// expect: the reason we mean
#ifdef GATEFOLD_FAIL
static_assert(false, "another one");
#endif
// complaint: fails, but nothing matches
