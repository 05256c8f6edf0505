// expect: never
int main() {}
// complaint: compiles with GATEFOLD_FAIL
