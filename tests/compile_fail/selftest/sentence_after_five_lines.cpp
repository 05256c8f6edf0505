// expect: gatefold: the sentence
#ifdef GATEFOLD_FAIL
#warning "three lines"
#warning "three more"
static_assert(false, "gatefold: the sentence");
#endif
// complaint: no sentence within the first five lines
