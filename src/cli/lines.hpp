// Lines of text and of ids from a file or standard input.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string_view>
#include <vector>

namespace warpwright::cli {

// Calls visit with each line (without its "\n" or "\r\n") and its number from 1. An empty path or "-" is
// standard input. Throws Error for a file of another format (an archive, an executable, UTF-16). Calls
// before_read, if given, before each read, which may block until a pipe's writer sends more.
void for_each_line(const std::filesystem::path& input,
                   const std::function<void(std::string_view line, std::int64_t number)>& visit,
                   const std::function<void()>& before_read = {});

// "15496 995" → {15496, 995}. Throws Error, naming the line, for anything but ids below vocab_size that
// spaces separate.
std::vector<std::uint32_t> parse_ids(std::string_view line, std::int64_t number, std::size_t vocab_size);

}  // namespace warpwright::cli
