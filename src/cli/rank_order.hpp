// Which of the processes that a launcher such as mpirun has started together reports an error. Most errors
// are those of all ranks, and one line is enough.
#pragma once

namespace warpwright::cli {

// This process's rank according to the launcher; 0 without one.
int launched_rank();

// From here on an error is reported unless connect_ranks() says otherwise.
void begin_to_connect();

// Before an error is reported. False if another rank has reported it; this process then ends without a word.
bool may_report();

// In a rank that ends without a word: launchers may end the others as soon as one has ended.
void wait_for_the_report();

// After rank 0 has reported an error: tells the others.
void end_other_ranks();

}  // namespace warpwright::cli
