#include <fmt/format.h>

#include <memory>
#include <string>

#include "tools/command/command.h"
#include "tools/completion/completion.h"

namespace sluice::tools {

Subcommand add_completion_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("completion",
                                         "Print a script that completes sluice commands and options in a shell.\n\n"
                                         "Examples:\n"
                                         "  source <(sluice completion bash)\n"
                                         "  sluice completion zsh > ~/.zfunc/_sluice\n"
                                         "  sluice completion fish > ~/.config/fish/completions/sluice.fish");
  command->group("Shell");
  command->footer("Exit codes: 0 success, 2 wrong input.");
  const auto shell = std::make_shared<std::string>();
  command->add_option("shell", *shell, "Shell to complete in")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  return {command, [&app, shell] {
            const CommandEntry tree = command_tree(app);
            fmt::print("{}", *shell == "bash"  ? bash_completion(tree)
                             : *shell == "zsh" ? zsh_completion(tree)
                                               : fish_completion(tree));
            return kDone;
          }};
}

}  // namespace sluice::tools
