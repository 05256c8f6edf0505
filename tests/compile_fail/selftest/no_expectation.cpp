int main() {}
// complaint: first line must be
