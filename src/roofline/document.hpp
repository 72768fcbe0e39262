// The numbers of document 003, and the results of computing them again. docs/gemm.md explains each
// difference.
#pragma once

#include <string>
#include <vector>

#include "roofline/intensity.hpp"

namespace warpwright::roofline {

// A row of the document's tables as printed there, for its RTX 3090.
struct DocumentRow {
  Mnk warp, instruction, block;  // block is empty in the first table
  double intensity, bytes_per_clock, clocks;
};
const std::vector<DocumentRow>& document_instruction_table();
const std::vector<DocumentRow>& document_warp_table();

// True if the document's own formulas give its printed digits (three decimals, cut or rounded).
bool reproduced(const DocumentRow& row, const Traffic& computed);

struct Finding {
  std::string where, document, corrected;  // corrected is empty where the document is right
};
std::vector<Finding> document_findings();

}  // namespace warpwright::roofline
