#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "import/shell.h"
#include "import/shell_test.h"
#include "import/shell_words.h"
#include "model/namespaces.h"

namespace sluice::imports {

// Reads simple commands: assignments, words, redirections and here-documents. The commands that change variables are
// carried out, tests are evaluated, and the others are recorded.
class ShellCommands : public ShellWords {
 public:
  using ShellWords::ShellWords;
  virtual ~ShellCommands() = default;
  ShellCommands(const ShellCommands&) = delete;
  ShellCommands& operator=(const ShellCommands&) = delete;

 protected:
  using Status = std::optional<bool>;  // of a command; null: only a shell knows
  using Saved = std::map<std::string, std::optional<ShellVariable>>;

  struct Function {
    std::size_t at = 0;
    std::int64_t line = 1;
  };
  // The effects of one branch.
  struct Branch {
    ShellVariables variables;
    bool ended = false;
  };

  virtual Status call(const Function& function, const std::vector<ShellWord>& words) = 0;
  // Returns the commands of a text, which starts with the variables of this script.
  virtual ShellScript run_text(const std::string& text, std::int64_t line) = 0;

  [[noreturn]] void unsupported(std::int64_t line, std::string_view what) const;

  // Returns the word here as it is written, up to a blank or an operator.
  std::string_view raw() const;
  bool takes(std::string_view word);
  void blanks();
  // Reads the end of a line and the here-documents after it.
  void newline();
  void newlines();
  // Skips what may stand between commands.
  void separators();

  Branch branch();
  void restore(const Branch& state);
  // Does `work` without effects.
  template <typename Work>
  void skip(const Work& work) {
    const Branch before = branch();
    const bool skipping = std::exchange(skipping_, true);
    const bool known = known_;
    work();
    known_ = known;
    skipping_ = skipping;
    restore(before);
  }
  // Continues after branches of which only one runs. Variables that differ become choices.
  void merge(std::vector<Branch> branches, std::int64_t line);
  // Makes a variable a choice between its value and others.
  void choose(const std::string& name, const std::vector<std::string>& others, std::int64_t line);

  ShellOperand operand();
  Status simple_command();
  bool redirection();

  ShellScript out_;
  std::map<std::string, Function> functions_;
  std::set<std::string>* assigned_ = nullptr;  // the variables that a loop of unknown length sets
  Saved locals_;                               // of the function, with the values before it
  bool skipping_ = false;
  bool ended_ = false;     // by exit, exec or return
  bool returned_ = false;  // by return
  int undecided_ = 0;      // number of branches around this place that may not run
  int loops_ = 0;          // of unknown length around this place

 private:
  struct Document {
    std::string delimiter;
    bool strip = false;
    bool expand = true;
    std::string target;  // the file that the command writes; empty: none
    bool append = false;
  };

  void write_file(const Document& document, const std::string& body);
  bool here_document(std::vector<Document>& documents);
  bool assignment(Saved& saved);
  void leave_environment(ShellCommand& command, Saved& saved);
  Status carry_out(ShellCommand command);
  Status end(const std::string& name, std::int64_t line);
  Status test_command(std::span<const ShellWord> words);
  void make_local(std::span<const ShellWord> words);
  bool change_variables(std::span<const ShellWord> words);
  void remember(const std::string& name);
  void record(ShellCommand command);
  void record_text(const ShellCommand& command, std::size_t launcher, const std::string& text);

  std::vector<Document> pending_;
  std::string written_;  // the file of the last redirection
  bool appends_ = false;
};

}  // namespace sluice::imports
