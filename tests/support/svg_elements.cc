#include "tests/support/svg_elements.h"

#include <expat.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <set>
#include <stdexcept>
#include <string_view>

namespace sluice::test {
namespace {

struct Reader {
  std::vector<SvgElement> elements;
  std::vector<std::size_t> open;
  std::string wrong;

  static void start(void* self, const XML_Char* name, const XML_Char** attributes) {
    static_cast<Reader*>(self)->start_element(name, attributes);
  }
  static void end(void* self, const XML_Char* /*name*/) { static_cast<Reader*>(self)->open.pop_back(); }
  static void characters(void* self, const XML_Char* text, int length) {
    auto* reader = static_cast<Reader*>(self);
    if (!reader->open.empty())
      reader->elements[reader->open.back()].text.append(text, static_cast<std::size_t>(length));
  }

  void start_element(const char* name, const char** attributes) {
    static const std::set<std::string_view> kAllowed = {"svg",  "title", "desc", "g",      "defs", "pattern",
                                                        "rect", "line",  "path", "circle", "text"};
    static const std::set<std::string_view> kInherited = {"fill", "stroke", "text-anchor", "font-size", "font-weight"};
    if (!kAllowed.contains(name)) wrong = std::string("element ") + name;
    SvgElement element{.name = name, .attributes = {}, .group = {}, .text = {}};
    if (!open.empty()) {
      const SvgElement& parent = elements[open.back()];
      element.group = parent.group;
      if (parent.name == "g" && parent.has("id")) element.group = parent.attributes.at("id");
      for (const auto& [key, value] : parent.attributes) {
        if (kInherited.contains(key)) element.attributes[key] = value;
      }
    }
    for (; *attributes != nullptr; attributes += 2) {
      const std::string_view key = attributes[0];
      const std::string_view value = attributes[1];
      if (key == "style" || key == "class" || key.starts_with("on") || key.find("href") != key.npos ||
          (value.find("url(") != value.npos && !value.starts_with("url(#"))) {
        wrong = std::string("attribute ") + attributes[0];
      }
      element.attributes[std::string(key)] = value;
    }
    open.push_back(elements.size());
    elements.push_back(std::move(element));
  }
};

}  // namespace

std::vector<SvgElement> svg_elements(const std::string& svg) {
  Reader reader;
  const std::unique_ptr<std::remove_pointer_t<XML_Parser>, void (*)(XML_Parser)> parser(XML_ParserCreate(nullptr),
                                                                                        XML_ParserFree);
  XML_SetUserData(parser.get(), &reader);
  XML_SetElementHandler(parser.get(), Reader::start, Reader::end);
  XML_SetCharacterDataHandler(parser.get(), Reader::characters);
  if (XML_Parse(parser.get(), svg.data(), static_cast<int>(svg.size()), XML_TRUE) == XML_STATUS_ERROR) {
    throw std::runtime_error(std::string(XML_ErrorString(XML_GetErrorCode(parser.get()))) + " in line " +
                             std::to_string(XML_GetCurrentLineNumber(parser.get())));
  }
  if (!reader.wrong.empty()) throw std::runtime_error("not allowed in a portable SVG: " + reader.wrong);
  return std::move(reader.elements);
}

std::vector<SvgBox> boxes_of(const std::string& data) {
  std::vector<SvgBox> boxes;
  const char* at = data.c_str();
  const auto number = [&](char letter) {
    if (*at != letter) throw std::runtime_error(std::string("expected ") + letter + " at " + at);
    char* end = nullptr;
    const double value = std::strtod(at + 1, &end);
    at = end;
    return value;
  };
  while (*at != '\0') {
    SvgBox& box = boxes.emplace_back();
    box.x = number('M');
    box.y = number(' ');
    box.width = number('h');
    box.height = number('v');
    if (std::abs(number('h') + box.width) > 1e-9 || *at++ != 'z') throw std::runtime_error("a box that is not closed");
  }
  return boxes;
}

double area_of_boxes(const std::string& data) {
  double area = 0;
  for (const SvgBox& box : boxes_of(data)) area += box.width * box.height;
  return area;
}

}  // namespace sluice::test
