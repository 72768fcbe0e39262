// make_tiny_gpt2 FOLDER: writes the model of decoder_test.
#include <cstdio>

#include "tests/tiny_gpt2.hpp"

int main(int count, char** arguments) {
  if (count != 2) return std::fprintf(stderr, "usage: make_tiny_gpt2 FOLDER\n"), 2;
  warpwright::make_tiny_gpt2(arguments[1]);
}
