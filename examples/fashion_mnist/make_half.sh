# Sourced by the tests. make_half PATH COUNT writes PATH-images-idx3-ubyte and PATH-labels-idx1-ubyte: the images and
# labels of a made-up training or test set. IDX files have big-endian magic and extents, then bytes. An image of class c
# has a bright block in row c / 2 and column c % 2 of a 5 x 2 grid, plus noise.
make_half() {
  awk -v count="$2" -v images="$1-images-idx3-ubyte" -v labels="$1-labels-idx1-ubyte" 'BEGIN {
    be = sprintf("\\%03o\\%03o\\%03o\\%03o", 0, 0, int(count / 256), count % 256)
    printf "printf \"\\000\\000\\010\\003%s\\000\\000\\000\\034\\000\\000\\000\\034\" >%s\n", be, images
    printf "printf \"\\000\\000\\010\\001%s\" >%s\n", be, labels
    srand(count)
    for (n = 0; n < count; ++n) {
      c = n % 10
      printf "printf \"\\%03o\" >>%s\n", c, labels
      row = ""
      for (i = 0; i < 784; ++i) {
        y = int(i / 28); x = i % 28
        v = int(rand() * 60) + (int(y / 6) == int(c / 2) && int(x / 14) == c % 2 ? 150 : 0)
        row = row sprintf("\\%03o", v)
      }
      printf "printf \"%s\" >>%s\n", row, images
    }
  }' | bash
}
