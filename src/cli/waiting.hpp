// Limits how long OpenMP threads spin before they sleep.
#pragma once

namespace warpwright::cli {

// Sets GOMP_SPINCOUNT, unless the environment already chooses how threads wait, and restarts the program
// (execv), because libgomp reads it once, before main(). By default a thread spins for some ten milliseconds.
// Next to another busy program it then spends its share of the processor spinning, while the thread it waits
// for has none, so that every parallel region costs a time slice or two.
void limit_spinning(char** argv);

}  // namespace warpwright::cli
