// A roofline as an SVG of its own: log-log axes, roofs with their ridge points, measured kernels with labels
// that do not overlap. No style sheet, no script, no font beyond the reader's sans-serif.
#pragma once

#include <string>
#include <vector>

#include "roofline/machine.hpp"

namespace warpwright::roofline {

struct ChartPoint {
  std::string group;  // one colour, one line of the legend
  std::string label;  // beside the point, where there is room
  double intensity = 0;
  double flops_per_second = 0;
  bool predicted = false;  // an open mark
};

struct Chart {
  std::string title, subtitle;
  struct Ceiling {
    std::string name;
    double flops_per_second;
  };
  struct Roof {
    std::string name;
    double bytes_per_second;
  };
  std::vector<Ceiling> ceilings;  // the first is the one that roofs meet
  std::vector<Roof> roofs;        // the first is device memory, which points belong to
  std::vector<ChartPoint> points;
};

// Peaks and levels of the machine, no points.
Chart chart_of(const Machine& machine, Math math);

std::string svg(const Chart& chart);

// A heat map: for each row (top down) and column a value and a word in the cell.
struct HeatMap {
  std::string title, subtitle, row_name, column_name;
  std::vector<std::string> rows, columns;
  struct Cell {
    int kind = 0;         // picks the colour
    double strength = 0;  // 0 to 1: how strong it is
    std::string text;
  };
  std::vector<Cell> cells;         // row by row
  std::vector<std::string> kinds;  // the legend
};
std::string svg(const HeatMap& map);

}  // namespace warpwright::roofline
