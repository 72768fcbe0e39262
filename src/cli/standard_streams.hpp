// Standard input, output and error of a program that anyone may start in any way.
#pragma once

#include <string>
#include <string_view>

namespace warpwright::cli {

// Opens those of the descriptors 0, 1 and 2 that the caller closed. Otherwise a file opened later would
// become standard output. Reading from them and writing to them fails as before. Non-blocking streams are
// reopened as blocking ones.
void claim_standard_streams();

// Writes to standard output, or throws.
void write_output(std::string_view text);

// Throws if something that was printed could not be written.
void require_whole_output();

// One line of valid UTF-8, whatever the text quotes.
std::string plain_line(std::string_view text);

// Writes to standard error. If that fails, the message is lost.
void write_message(std::string_view text);

// Writes "warpwright: MESSAGE" as one line. A very long message keeps its beginning and end.
void report_error(std::string_view message);

}  // namespace warpwright::cli
