#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/namespaces.h"

namespace sluice::test {

// An element of an SVG with its effective attributes.
struct SvgElement {
  std::string name;
  std::map<std::string, std::string> attributes;  // its own, and those inherited from its parents
  std::string group;                              // id of the nearest enclosing <g> with an id
  std::string text;                               // its own text

  bool has(const std::string& key) const { return attributes.contains(key); }
  std::string get(const std::string& key) const { return has(key) ? attributes.at(key) : ""; }
  double number(const std::string& key) const { return std::stod(attributes.at(key)); }
};

// Parses an SVG with expat and returns its elements in document order. Throws std::runtime_error if it is not
// well-formed, references external content, or has an element other than svg, title, desc, g, defs, pattern, rect,
// line, path, circle and text.
std::vector<SvgElement> svg_elements(const std::string& svg);

struct SvgBox {
  double x = 0;
  double y = 0;
  double width = 0;
  double height = 0;
};
// Returns the boxes of path data that consists of M x y h w v h h -w z. Throws std::runtime_error if it is other data.
std::vector<SvgBox> boxes_of(const std::string& data);

// Returns the total area of such path data.
double area_of_boxes(const std::string& data);

}  // namespace sluice::test
