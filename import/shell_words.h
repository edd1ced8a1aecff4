#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "import/shell_arithmetic.h"
#include "model/namespaces.h"

namespace sluice::imports {

// A word of a command line after its expansions, and the line on which it begins, from 1. `known`: it contains nothing
// that only a shell knows.
struct ShellWord {
  std::string text;
  std::int64_t line = 1;
  bool known = true;
};

// Reads the words of a shell script and expands their variables. What only a shell knows stays as it is written.
class ShellWords {
 public:
  // Without `script`, all characters but quotes and backslashes are ordinary.
  ShellWords(std::string_view text, std::string source, bool script)
      : text_(text), source_(std::move(source)), script_(script) {}

 protected:
  // The fields into which a word expands.
  class Fields {
   public:
    void add(std::string_view text) {
      if (!open_) out_.emplace_back();
      open_ = true;
      out_.back() += text;
    }
    void split() { open_ = false; }
    std::vector<std::string> take() { return std::move(out_); }

   private:
    std::vector<std::string> out_;
    bool open_ = false;
  };

  // Throws InputError naming the line.
  [[noreturn]] void fail(std::int64_t line, const std::string& what) const;

  bool at_end() const { return at_ >= text_.size(); }
  char here() const { return at_end() ? '\0' : text_[at_]; }
  char after(std::size_t n = 1) const { return at_ + n < text_.size() ? text_[at_ + n] : '\0'; }
  bool starts(std::string_view what) const { return text_.substr(std::min(at_, text_.size())).starts_with(what); }
  char take();
  bool is_operator(char c) const { return script_ && std::string_view(";&|<>()").find(c) != std::string_view::npos; }
  bool ends_word() const;
  // Returns the number of characters of the name here.
  std::size_t name_length() const;
  // Skips blanks, continued lines and comments. Returns whether it skipped anything.
  bool skip_blank();

  // Expands the word here. Sets `known_` to false if it contains what only a shell knows.
  std::vector<std::string> word_fields();
  // The same without splitting at blanks.
  std::string whole_word();
  // Reads (words).
  std::vector<std::string> array();
  // Returns the text from here up to the parenthesis or brace that closes the first one.
  std::string enclosed(char open, char close);
  // Expands a text as within double quotes, such as a here-document.
  std::string expanded_text(std::string_view text);
  // Counts characters of variables, which are limited.
  void count(std::size_t characters);

  std::string_view text_;
  std::string source_;
  bool script_;
  std::size_t at_ = 0;
  std::int64_t line_ = 1;
  bool known_ = true;
  ShellVariables variables_;
  const std::vector<ShellWord>* arguments_ = nullptr;  // of the function; null: those of the script, not known

 private:
  void single_quoted(Fields& out);
  void double_quoted(Fields& out);
  std::string backticks();
  void add_unknown(const std::string& text, Fields& out);
  void add_values(const std::vector<std::string>& values, bool list, bool quoted, Fields& out);
  bool add_arguments(bool quoted, Fields& out);
  bool add_argument(std::size_t number, bool quoted, Fields& out);
  bool dollar(Fields& out, bool quoted);
  bool braces(std::string_view inside, bool quoted, Fields& out);
  bool defaulted(const std::string& name, std::string_view rest, bool quoted, Fields& out);
  bool counted(std::string_view inside, Fields& out);
  std::string expanded(std::string_view word, bool quoted);

  bool splitting_ = true;  // unquoted variables are split at blanks
  std::size_t expanded_ = 0;
  int nested_ = 0;
};

}  // namespace sluice::imports
