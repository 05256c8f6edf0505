// expect: gatefold: the sentence
#ifdef GATEFOLD_FAIL
int noise = undeclared;
static_assert(false, "gatefold: the sentence");
#endif
// complaint: the first error is another one
