#include "cli/completion.hpp"

#include <fmt/format.h>

#include <functional>
#include <vector>

#include "cli/arguments.hpp"
#include "cli/checks.hpp"

namespace warpwright::cli {
namespace {

// The words a shell can offer for an option's value. Patterns such as "cuda:N" are left out.
std::vector<std::string> words_to_offer(const CLI::Option& option) {
  std::vector<std::string> words = choices_of(option);
  std::erase_if(words, [](const std::string& word) { return word.ends_with(":N"); });
  return words;
}

void visit_commands(const CLI::App& command, const std::function<void(const CLI::App&)>& visit) {
  visit(command);
  for (const CLI::App* sub : shown_commands(command)) visit_commands(*sub, visit);
}

// "tokenizer train"; "" for the program itself.
std::string path_of(const CLI::App& command) {
  const std::string name = full_name(command);
  const std::size_t space = name.find(' ');
  return space == std::string::npos ? "" : name.substr(space + 1);
}

std::vector<const CLI::Option*> named_options(const CLI::App& command) {
  std::vector<const CLI::Option*> options = shown_options(command);
  std::erase_if(options, [](const CLI::Option* option) { return !option->nonpositional(); });
  return options;
}

std::vector<const CLI::Option*> positionals(const CLI::App& command) {
  std::vector<const CLI::Option*> options = shown_options(command);
  std::erase_if(options, [](const CLI::Option* option) { return option->nonpositional(); });
  return options;
}

std::vector<std::string> spellings(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

std::string replaced(std::string text, std::string_view what, std::string_view with) {
  for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += with.size())
    text.replace(at, what.size(), with);
  return text;
}

// `help` takes the program's commands as its argument.
std::vector<std::string> command_words(const CLI::App& command) {
  std::vector<std::string> words;
  for (const CLI::App* sub : shown_commands(command)) words.push_back(sub->get_name());
  return words;
}

// The commands, option names and arguments that may come next.
std::vector<std::string> next_words(const CLI::App& program, const CLI::App& command) {
  std::vector<std::string> words = command_words(command);
  for (const CLI::Option* option : positionals(command)) {
    const std::vector<std::string> choices =
        command.get_name() == "help" ? command_words(program) : words_to_offer(*option);
    words.insert(words.end(), choices.begin(), choices.end());
  }
  for (const CLI::Option* option : named_options(command)) words.push_back(name_of(*option));
  return words;
}

// An option's labels in a shell `case`: 'train --dtype'|'train -d'.
std::string bash_labels(const CLI::App& command, const CLI::Option& option) {
  std::vector<std::string> labels;
  for (const std::string& name : spellings(option))
    labels.push_back(fmt::format("'{} {}'", path_of(command), name));
  return fmt::format("{}", fmt::join(labels, "|"));
}

std::string bash_values(const CLI::App& command) {
  std::string code;
  for (const CLI::Option* option : named_options(command)) {
    if (!takes_value(*option)) continue;
    const std::vector<std::string> words = words_to_offer(*option);
    code += fmt::format("    {}) {} ;;\n", bash_labels(command, *option),
                        !words.empty()        ? fmt::format("words='{}'", fmt::join(words, " "))
                        : takes_path(*option) ? "files=1"
                                              : "return");
  }
  return code;
}

// Options that take several values: after the first value, the previous word is no longer the option.
std::string bash_lists(const CLI::App& command) {
  std::vector<std::string> labels;
  for (const CLI::Option* option : named_options(command)) {
    if (option->get_items_expected_max() > 1 && takes_path(*option))
      labels.push_back(bash_labels(command, *option));
  }
  return labels.empty() ? ""
                        : fmt::format("    {}) [[ $cur == -* ]] || files=1 ;;\n", fmt::join(labels, "|"));
}

// Text inside single quotes for zsh's _arguments and _describe.
std::string zsh_text(std::string text) {
  for (const char* special : {"\\", "[", "]", ":"})
    text = replaced(text, special, std::string("\\") + special);
  return replaced(text, "'", "'\\''");
}

std::string zsh_value(const CLI::Option& option) {
  const std::vector<std::string> words = words_to_offer(option);
  if (!words.empty()) return fmt::format(":value:({})", fmt::join(words, " "));
  return takes_path(option) ? ":path:_files" : ":value: ";
}

std::string zsh_options(const CLI::App& program, const CLI::App& command) {
  std::string code;
  for (const CLI::Option* option : named_options(command)) {
    for (const std::string& name : spellings(*option)) {
      const bool long_value = takes_value(*option) && name.starts_with("--");
      code +=
          fmt::format(" \\\n    '*{}{}[{}]{}'", name, long_value ? "=" : "",
                      zsh_text(option->get_description()), takes_value(*option) ? zsh_value(*option) : "");
    }
  }
  for (const CLI::Option* option : positionals(command)) {
    const std::vector<std::string> words =
        command.get_name() == "help" ? command_words(program) : words_to_offer(*option);
    code += fmt::format(" \\\n    '*:{}:({})'", zsh_text(option->get_name(true)), fmt::join(words, " "));
  }
  return code;
}

std::string zsh_function(const CLI::App& command) {
  return "_" + replaced(full_name(command), " ", "_");
}

std::string zsh_code(const CLI::App& program, const CLI::App& command) {
  std::string code = fmt::format("{}() {{\n", zsh_function(command));
  if (shown_commands(command).empty()) {
    return code + fmt::format("  _arguments -S{}\n}}\n", zsh_options(program, command));
  }
  std::string names, calls;
  for (const CLI::App* sub : shown_commands(command)) {
    names += fmt::format("        '{}:{}'\n", sub->get_name(), zsh_text(sub->get_description()));
    calls += fmt::format("        {}) {} ;;\n", sub->get_name(), zsh_function(*sub));
  }
  code += fmt::format(
      "  local curcontext=$curcontext state line\n"
      "  local -a commands\n"
      "  _arguments -C{} \\\n    '1: :->command' '*:: :->rest'\n"
      "  case $state in\n"
      "    command)\n      commands=(\n{}      )\n      _describe command commands ;;\n"
      "    rest)\n      case $line[1] in\n{}      esac ;;\n"
      "  esac\n}}\n",
      zsh_options(program, command), names, calls);
  return code;
}

std::string fish_text(const std::string& text) {
  return "'" + replaced(replaced(text, "\\", "\\\\"), "'", "\\'") + "'";
}

std::string fish_code(const CLI::App& program, const CLI::App& command) {
  const std::string start = fmt::format("complete -c warpwright -n '__warpwright_in {}'", path_of(command));
  std::string code;
  for (const CLI::App* sub : shown_commands(command)) {
    code += fmt::format("{} -a {} -d {}\n", start, sub->get_name(), fish_text(sub->get_description()));
  }
  for (const CLI::Option* option : named_options(command)) {
    code += start;
    for (const std::string& name : option->get_snames()) code += " -s " + name;
    for (const std::string& name : option->get_lnames()) code += " -l " + name;
    const std::vector<std::string> words = words_to_offer(*option);
    if (!words.empty()) {
      code += fmt::format(" -x -a '{}'", fmt::join(words, " "));
    } else if (takes_value(*option)) {
      code += takes_path(*option) ? " -r -F" : " -x";
    }
    code += fmt::format(" -d {}\n", fish_text(option->get_description()));
  }
  for (const CLI::Option* option : positionals(command)) {
    const std::vector<std::string> words =
        command.get_name() == "help" ? command_words(program) : words_to_offer(*option);
    if (!words.empty()) code += fmt::format("{} -a '{}'\n", start, fmt::join(words, " "));
  }
  return code;
}

}  // namespace

std::string bash_completion(const CLI::App& program) {
  std::string paths, values, lists, next;
  visit_commands(program, [&](const CLI::App& command) {
    const std::string path = path_of(command);
    if (!path.empty()) paths += fmt::format("{}'{}'", paths.empty() ? "" : "|", path);
    values += bash_values(command);
    lists += bash_lists(command);
    next += fmt::format("    '{}') words='{}' ;;\n", path, fmt::join(next_words(program, command), " "));
  });
  return fmt::format(
      R"(# bash completion for warpwright, made by `warpwright completion bash`
_warpwright() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}}
  local command='' option='' words='' files='' path word
  if [[ $cur == '=' ]]; then
    cur=''
  elif [[ $prev == '=' ]]; then
    prev=${{COMP_WORDS[COMP_CWORD-2]}}
  fi
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    path="${{command:+$command }}$word"
    case $path in
      {}) command=$path ;;
    esac
    [[ $word == -* ]] && option=$word
  done
  COMPREPLY=()
  case "$command $prev" in
{}  esac
  [[ $words$files ]] || case "$command $option" in
{}  esac
  [[ $words$files ]] || case $command in
{}  esac
  if [[ $files ]]; then
    compopt -o filenames 2> /dev/null
    mapfile -t COMPREPLY < <(compgen -f -- "$cur")
  else
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
  fi
}}
complete -F _warpwright warpwright
)",
      paths, values, lists, next);
}

std::string zsh_completion(const CLI::App& program) {
  std::string code =
      "#compdef warpwright\n# zsh completion for warpwright, made by `warpwright completion zsh`\n";
  visit_commands(program, [&](const CLI::App& command) { code += zsh_code(program, command); });
  return code +
         "[[ $funcstack[1] == _warpwright ]] && _warpwright \"$@\" || compdef _warpwright warpwright\n";
}

std::string fish_completion(const CLI::App& program) {
  std::string paths, code;
  visit_commands(program, [&](const CLI::App& command) {
    if (!path_of(command).empty()) paths += fmt::format(" '{}'", path_of(command));
    code += fish_code(program, command);
  });
  return fmt::format(
      R"(# fish completion for warpwright, made by `warpwright completion fish`
function __warpwright_in
    set -l command
    for word in (commandline -opc)[2..-1]
        set -l longer (string join -- ' ' $command $word)
        if contains -- $longer{}
            set command $longer
        end
    end
    test "$command" = "$argv"
end
complete -c warpwright -f
{})",
      paths, code);
}

void add_completion(CLI::App& app) {
  CLI::App* command = app.add_subcommand("completion", "Print a script that completes command lines");
  auto shell = std::make_shared<std::string>();
  command->add_option("shell", *shell, "The shell")->required()->check(one_of({"bash", "zsh", "fish"}));
  command->callback([&app, shell] {
    fmt::print("{}", *shell == "bash"  ? bash_completion(app)
                     : *shell == "zsh" ? zsh_completion(app)
                                       : fish_completion(app));
  });
}

}  // namespace warpwright::cli
