#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "model/namespaces.h"

namespace sluice::test {

// A JSON parser that passes each element of the top-level traceEvents to a callback and keeps the rest. A number with a
// fraction becomes a binary value with its text, because the number of decimals is checked.
class EventReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  using json = nlohmann::json;

  template <typename OnEvent>
  explicit EventReader(OnEvent on_event) : on_event_(std::move(on_event)) {}

  json root;
  std::string error;

  // The part of the top-level object that precedes the events.
  const json& head() const { return open_.front().value; }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t, const string_t& text) override {
    return add(json::binary(json::binary_t::container_type(text.begin(), text.end())));
  }
  bool string(string_t& value) override { return add(value); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(json::object()); }
  bool start_array(std::size_t) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& key) override {
    if (open_.back().value.contains(key)) return fail("key \"" + key + "\" occurs twice in one object");
    open_.back().key = key;
    open_.back().value[key] = nullptr;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const json::exception& e) override { return fail(e.what()); }

 private:
  struct Open {
    json value;
    std::string key;
  };

  bool fail(std::string what) {
    error = std::move(what);
    return false;
  }
  bool open(json value) {
    open_.push_back({std::move(value), ""});
    return true;
  }
  bool close() {
    json value = std::move(open_.back().value);
    open_.pop_back();
    return add(std::move(value));
  }
  bool add(json value) {
    if (open_.empty()) {
      root = std::move(value);
    } else if (open_.back().value.is_object()) {
      open_.back().value[open_.back().key] = std::move(value);
    } else if (open_.size() == 2 && open_.front().value.is_object() && open_.front().key == "traceEvents") {
      on_event_(value);
    } else {
      open_.back().value.push_back(std::move(value));
    }
    return true;
  }

  std::function<void(const json&)> on_event_;
  std::vector<Open> open_;
};

}  // namespace sluice::test
