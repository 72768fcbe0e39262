// The order in which the processes that a launcher such as mpirun has started together report their errors.
// Most errors are those of all ranks. Rank 0 reports at once and ends; its launcher then ends the others,
// which wait before they report.
#pragma once

namespace warpwright::cli {

// This process's rank according to the launcher; 0 without one.
int launched_rank();

// Waits, once per process, unless the rank is 0.
void let_rank_0_report(int rank);

}  // namespace warpwright::cli
