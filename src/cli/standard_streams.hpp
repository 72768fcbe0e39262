// Standard input, output and error of a program that anyone may start in any way.
#pragma once

#include <string_view>

namespace warpwright::cli {

// Takes those of the descriptors 0, 1 and 2 that the caller closed, so that no file of ours becomes standard
// output and gets what is printed. Reading from them and writing to them fails as before.
// Non-blocking streams are reopened as blocking ones.
void claim_standard_streams();

// Writes to standard output, or throws.
void write_output(std::string_view text);

// Throws where something printed has not left the process.
void require_whole_output();

// Writes to standard error; where nobody takes it, nothing else can be said.
void write_message(std::string_view text);

}  // namespace warpwright::cli
