#include "cli/manual.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <sstream>

#include "cli/arguments.hpp"
#include "cli/checks.hpp"
#include "runtime/file.hpp"
#include "runtime/output_file.hpp"

namespace warpwright::cli {
namespace {

// Escapes text for roff, so that nothing in it is a request and its dashes can be copied and searched.
std::string plain(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\') {
      escaped += "\\e";
    } else if (c == '-') {
      escaped += "\\-";
    } else {
      escaped += c;
    }
  }
  return escaped.starts_with('.') || escaped.starts_with('\'') ? "\\&" + escaped : escaped;
}

// "warpwright-data-build"
std::string page_name(const CLI::App& command) {
  std::string name = full_name(command);
  std::replace(name.begin(), name.end(), ' ', '-');
  return name;
}

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return text;
}

// The option's value as the synopsis shows it: fp32|bf16, PATH, INT.
std::string value_of(const CLI::Option& option) {
  const std::vector<std::string> choices = choices_of(option);
  if (!choices.empty()) return fmt::format("{}", fmt::join(choices, "|"));
  const std::string type = option.get_type_name();
  return type.substr(0, type.find_first_of(": "));
}

std::string option_entry(const CLI::Option& option) {
  std::string names;
  for (const std::string& name : option.get_snames()) names += fmt::format("\\fB\\-{}\\fR, ", plain(name));
  for (const std::string& name : option.get_lnames())
    names += fmt::format("\\fB{}\\fR, ", plain("--" + name));
  if (!option.nonpositional()) names = fmt::format("\\fI{}\\fR, ", plain(option.get_name(true)));
  names.resize(names.size() - 2);
  const bool list = option.get_items_expected_max() > 1;
  if (takes_value(option) && option.nonpositional())
    names += fmt::format(" \\fI{}\\fR{}", plain(value_of(option)), list ? " ..." : "");
  std::string notes;
  if (option.get_required()) notes += " Required.";
  if (!option.get_default_str().empty())
    notes += fmt::format(" Default: {}.", plain(option.get_default_str()));
  return fmt::format(".TP\n{}\n{}.{}\n", names, plain(option.get_description()), notes);
}

std::string synopsis(const CLI::App& command) {
  std::string words = fmt::format(".B {}\n", plain(full_name(command)));
  if (!shown_commands(command).empty()) words += ".I COMMAND\n";
  for (const CLI::Option* option : shown_options(command)) {
    if (option->get_required() && option->nonpositional())
      words += fmt::format("\\fB{}\\fR \\fI{}\\fR\n", plain(name_of(*option)), plain(value_of(*option)));
  }
  words += "[\\fIOPTIONS\\fR]\n";
  for (const CLI::Option* option : shown_options(command)) {
    if (!option->nonpositional()) words += fmt::format("[\\fI{}\\fR ...]\n", plain(option->get_name(true)));
  }
  return words;
}

std::string footer_of(const CLI::App& command) {
  std::istringstream lines(command.get_footer());
  std::string text;
  for (std::string line; std::getline(lines, line);) text += line.empty() ? ".sp\n" : plain(line) + "\n";
  return text.empty() ? "" : ".SH ENVIRONMENT AND EXIT CODES\n.nf\n" + text + ".fi\n";
}

void write_pages(const CLI::App& command, const std::filesystem::path& folder) {
  write_file_atomically(folder / (page_name(command) + ".1"), manual_of(command));
  for (const CLI::App* sub : shown_commands(command)) write_pages(*sub, folder);
}

}  // namespace

void add_manual(CLI::App& app) {
  CLI::App* command = app.add_subcommand("man", "Print the man page of the program or of a command");
  auto words = std::make_shared<std::vector<std::string>>();
  auto folder = std::make_shared<std::filesystem::path>();
  command->add_option("command", *words, "The command; default: the program");
  command->add_option("--out", *folder,
                      "Write every page into this folder, made if needed; default: print one");
  command->callback([&app, words, folder] {
    const CLI::App& named = command_named(app, *words);
    if (folder->empty()) return fmt::print("{}", manual_of(named));
    create_folders(*folder);
    write_pages(named, *folder);
  });
}

std::string manual_of(const CLI::App& command) {
  std::string page = fmt::format(".TH {} 1 \"\" \"warpwright {}\" \"User Commands\"\n",
                                 plain(upper(page_name(command))), WARPWRIGHT_VERSION);
  page += fmt::format(".SH NAME\n{} \\- {}\n", plain(page_name(command)), plain(command.get_description()));
  page += ".SH SYNOPSIS\n" + synopsis(command);
  page += fmt::format(".SH DESCRIPTION\n{}.\n", plain(command.get_description()));
  if (const auto commands = shown_commands(command); !commands.empty()) {
    page += ".SH COMMANDS\n";
    for (const CLI::App* sub : commands)
      page += fmt::format(".TP\n\\fB{}\\fR\n{}.\n", plain(sub->get_name()), plain(sub->get_description()));
  }
  page += ".SH OPTIONS\n";
  for (const CLI::Option* option : shown_options(command)) page += option_entry(*option);
  page += footer_of(command) + ".SH SEE ALSO\n";
  std::vector<std::string> others;
  if (const CLI::App* parent = command.get_parent()) others.push_back(page_name(*parent));
  for (const CLI::App* sub : shown_commands(command)) others.push_back(page_name(*sub));
  for (std::string& other : others) other = fmt::format("\\fB{}\\fR(1)", plain(other));
  return page + fmt::format("{}\n", fmt::join(others, ",\n"));
}

}  // namespace warpwright::cli
