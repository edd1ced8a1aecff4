#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/namespaces.h"

namespace sluice::test {

// An element of an SVG as it is drawn.
struct SvgElement {
  std::string name;
  std::map<std::string, std::string> attributes;  // its own, else those of what it stands in
  std::string group;                              // id of the nearest <g> around it that has one
  std::string text;                               // its own characters

  bool has(const std::string& key) const { return attributes.contains(key); }
  std::string get(const std::string& key) const { return has(key) ? attributes.at(key) : ""; }
  double number(const std::string& key) const { return std::stod(attributes.at(key)); }
};

// All elements in the order of the document, by expat. Throws std::runtime_error if it is not well-formed, names
// something outside itself, or uses an element other than title, desc, g, defs, pattern, rect, line, path, circle,
// text.
std::vector<SvgElement> svg_elements(const std::string& svg);

// Of path data made of boxes, M x y h w v h h -w z: the area of all of them.
double area_of_boxes(const std::string& data);

}  // namespace sluice::test
