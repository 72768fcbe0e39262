// Guesses the word that the user wanted.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace warpwright::cli {

// The candidate that an unknown word most likely means; nullopt if none is close. Close means a typing error
// ("trian": train), an extra or missing word ("--batch-size": --batch), a shortened or lengthened word
// ("--output": --out), or initials ("--learning-rate": --lr). Leading dashes do not count.
std::optional<std::string> nearest(std::string_view word, std::span<const std::string> candidates);

}  // namespace warpwright::cli
