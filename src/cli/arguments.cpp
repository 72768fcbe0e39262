#include "cli/arguments.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "cli/checks.hpp"
#include "cli/nearest.hpp"
#include "core/error.hpp"
#include "model/families.hpp"
#include "runtime/json.hpp"

namespace warpwright::cli {
namespace {

bool is_name_letter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_';
}

// "--name", "--name=…" or "-x"; not "-", "-5", "--" or text that happens to begin with dashes.
bool looks_like_an_option(const std::string& word) {
  const std::string name = word.substr(0, word.find('='));
  const std::size_t dashes = name.starts_with("--") ? 2 : 1;
  if (!name.starts_with('-') || name.size() <= dashes) return false;
  if (!std::isalpha(static_cast<unsigned char>(name[dashes]))) return false;
  if (dashes == 1) return name.size() == 2;
  return std::all_of(name.begin(), name.end(), is_name_letter);
}

// A word from the command line, as messages quote it.
std::string shown(const std::string& word) {
  constexpr std::size_t kLongest = 40;
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), is_name_letter);
  return plain && word.size() <= kLongest ? word : quote(word);
}

[[noreturn]] void refuse(const CLI::App& command, const std::string& word, const std::string& problem) {
  throw UsageError(problem, shown(word), fmt::format("see `{} --help`", full_name(command)));
}

std::vector<std::string> names_of_options(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : shown_options(command)) {
    if (option->nonpositional()) names.push_back(name_of(*option));
  }
  return names;
}

std::vector<std::string> names_of_commands(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* sub : shown_commands(command)) names.push_back(sub->get_name());
  return names;
}

// The commands under this one that have the option: "train", "data build".
std::vector<std::string> owners_of(const CLI::App& command, const std::string& name) {
  std::vector<std::string> owners;
  for (const CLI::App* sub : shown_commands(command)) {
    if (sub->get_option_no_throw(name)) owners.push_back(sub->get_name());
    for (const std::string& inner : owners_of(*sub, name)) owners.push_back(sub->get_name() + " " + inner);
  }
  return owners;
}

std::string guess(const std::string& word, const std::vector<std::string>& names) {
  const auto near = nearest(word, names);
  return near ? fmt::format("; the nearest is {}", *near) : "; none is similar";
}

// The commands under this one that take the word, as "`warpwright bench ops gelu`", then those that are about
// it: their descriptions mention it.
std::vector<std::string> takers_of(const CLI::App& command, const std::string& word) {
  std::vector<std::string> takers;
  for (const CLI::App* sub : shown_commands(command)) {
    for (const CLI::Option* option : shown_options(*sub)) {
      const std::vector<std::string> choices = choices_of(*option);
      if (option->nonpositional() || std::ranges::find(choices, word) == choices.end()) continue;
      takers.push_back(fmt::format("`{} {}`", full_name(*sub), word));
    }
  }
  if (takers.empty()) return takers;
  for (const CLI::App* sub : shown_commands(command)) {
    if (sub->get_description().find(word) != std::string::npos)
      takers.push_back(fmt::format("`{}`", full_name(*sub)));
  }
  return takers;
}

[[noreturn]] void refuse_command(const CLI::App& command, const std::string& word) {
  if (const std::vector<std::string> takers = takers_of(command, word); !takers.empty()) {
    throw UsageError("unknown command", shown(word), fmt::format("write {}", fmt::join(takers, " or ")));
  }
  refuse(command, word, "unknown command" + guess(word, names_of_commands(command)));
}

class Reader {
 public:
  Reader(const CLI::App& program, const std::vector<std::string>& words) : program_(program), words_(words) {
    read_.command = &program;
  }

  Arguments read() {
    bool options_ended = false;
    for (; next_ < words_.size() && read_.asked == Asked::run; ++next_) {
      const std::string& word = words_[next_];
      if (options_ended || !looks_like_an_option(word)) {
        if (!options_ended && word == "--") {
          options_ended = true;
          read_.words.push_back(word);
        } else {
          take_word(word, !options_ended);
        }
      } else {
        take_option(word);
      }
    }
    if (read_.asked == Asked::run) require_command();
    return std::move(read_);
  }

 private:
  void take_word(const std::string& word, bool may_be_command) {
    const std::vector<const CLI::App*> commands =
        read_.command->get_subcommands([&](const CLI::App* sub) { return sub->check_name(word); });
    if (may_be_command && !commands.empty()) {
      read_.command = commands.front();
    } else if (!shown_commands(*read_.command).empty()) {
      refuse_command(*read_.command, word);
    } else if (!takes_words()) {
      const std::vector<std::string> names = names_of_options(*read_.command);
      const std::string option = missing_option(word);
      refuse(*read_.command, word,
             std::ranges::find(names, "--" + word) != names.end()
                 ? fmt::format("belongs to no option; --{} is an option", word)
             : option.empty() ? "belongs to no option"
                              : fmt::format("belongs to no option; perhaps {} is missing before it", option));
    }
    read_.words.push_back(word);
  }

  // The option that a word without one was probably meant for: the first of these that the command has and
  // the line has not; "" if there is none.
  std::string missing_option(const std::string& word) const {
    std::vector<std::string> usual = {"--input", "--from", "--to", "--out"};
    if (names_sizes(word)) usual = {"--model"};
    if (read_.command->get_name() == "generate") usual = {"--prompt"};
    for (const std::string& name : usual) {
      if (read_.command->get_option_no_throw(name) &&
          std::ranges::find(read_.words, name) == read_.words.end())
        return name;
    }
    return "";
  }

  void take_option(const std::string& word) {
    const std::size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const CLI::Option* option = read_.command->get_option_no_throw(name);
    if (!option || !option->nonpositional()) refuse_option(name);
    if (option == program_.get_version_ptr()) read_.asked = Asked::version;
    if (option == read_.command->get_help_ptr()) read_.asked = Asked::help;
    if (!takes_value(*option)) {
      if (equals != std::string::npos) refuse(*read_.command, name, "is a flag and takes no value");
      read_.words.push_back(name);
      return;
    }
    read_.words.push_back(name);
    if (equals != std::string::npos) {
      read_.words.push_back(word.substr(equals + 1));
      return;
    }
    take_values(name, *option);
  }

  void take_values(const std::string& name, const CLI::Option& option) {
    if (next_ + 1 == words_.size()) refuse(*read_.command, name, "needs a value");
    if (const std::string& value = words_[next_ + 1]; value == "--" || looks_like_an_option(value)) {
      const std::string other = value.substr(0, value.find('='));
      if (value != "--" && !read_.command->get_option_no_throw(other)) refuse_option(other);
      throw UsageError(
          "needs a value", name,
          fmt::format("{0} is an option; for a value that begins so write {1}={0}", other, name));
    }
    int count = 0;
    while (next_ + 1 < words_.size() && count < option.get_items_expected_max() &&
           (count == 0 || (words_[next_ + 1] != "--" && !looks_like_an_option(words_[next_ + 1])))) {
      read_.words.push_back(words_[++next_]);
      ++count;
    }
  }

  [[noreturn]] void refuse_option(const std::string& name) const {
    constexpr std::size_t kMostOwners = 3;  // beyond that, naming them helps nobody
    const CLI::App& command = *read_.command;
    const std::vector<std::string> owners = owners_of(program_, name), names = names_of_options(command);
    if (!owners.empty() && &command == &program_) {
      throw UsageError("comes before the command", shown(name), "write `warpwright COMMAND OPTIONS`");
    }
    if (!nearest(name, names) && !owners.empty() && owners.size() <= kMostOwners) {
      refuse(command, name,
             fmt::format("unknown option; {} {} it", fmt::join(owners, ", "),
                         owners.size() == 1 ? "has" : "have"));
    }
    refuse(command, name, "unknown option" + guess(name, names));
  }

  bool takes_words() const {
    const auto options = read_.command->get_options();
    return std::any_of(options.begin(), options.end(), [](const auto* o) { return o->get_positional(); });
  }

  void require_command() const {
    const std::vector<std::string> names = names_of_commands(*read_.command);
    if (names.empty()) return;
    const bool is_program = read_.command == &program_;
    throw UsageError(
        "needs a command", is_program ? "command line" : full_name(*read_.command),
        fmt::format("give one of {}; see `{} --help`", fmt::join(names, ", "), full_name(*read_.command)));
  }

  const CLI::App& program_;
  const std::vector<std::string>& words_;
  std::size_t next_ = 0;
  Arguments read_;
};

}  // namespace

Arguments read_arguments(const CLI::App& program, const std::vector<std::string>& words) {
  return Reader(program, words).read();
}

const CLI::App& command_named(const CLI::App& program, const std::vector<std::string>& words) {
  const CLI::App* command = &program;
  for (const std::string& word : words) {
    const auto named = command->get_subcommands([&](const CLI::App* sub) { return sub->get_name() == word; });
    if (named.empty()) refuse_command(*command, word);
    command = named.front();
  }
  return *command;
}

std::string full_name(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return parent ? full_name(*parent) + " " + command.get_name() : command.get_name();
}

std::vector<const CLI::App*> shown_commands(const CLI::App& command) {
  return command.get_subcommands([](const CLI::App* sub) { return !sub->get_group().empty(); });
}

std::vector<const CLI::Option*> shown_options(const CLI::App& command) {
  return command.get_options([](const CLI::Option* option) { return !option->get_group().empty(); });
}

std::string name_of(const CLI::Option& option) {
  if (!option.get_lnames().empty()) return "--" + option.get_lnames().front();
  return option.get_snames().empty() ? option.get_name(true) : "-" + option.get_snames().front();
}

bool takes_value(const CLI::Option& option) {
  return option.get_items_expected_max() > 0;
}

}  // namespace warpwright::cli
