#include "roofline/chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

namespace warpwright::roofline {
namespace {

constexpr double kFont = 13, kSmall = 11.5;
constexpr std::string_view kInk = "#222222", kGrey = "#777777", kGrid = "#e6e6e6";
// Okabe and Ito's colours, which the colour-blind can tell apart, and four of Tol's.
constexpr std::array<std::string_view, 12> kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                       "#e69f00", "#56b4e9", "#7f4f24", "#444444",
                                                       "#882255", "#999933", "#44aa99", "#aa4499"};

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        if (static_cast<unsigned char>(c) >= 0x20) out += c;
    }
  }
  return out;
}

// Of a sans-serif font's text, in pixels; continuation bytes of UTF-8 have no width.
double width_of(std::string_view text, double size) {
  double units = 0;
  for (const char c : text) {
    if ((static_cast<unsigned char>(c) & 0xc0) == 0x80) continue;
    const bool narrow = std::string_view(".,:;il|!' ()[]/").find(c) != std::string_view::npos;
    const bool wide = (c >= 'A' && c <= 'Z') || c == 'm' || c == 'w' || c == '_';
    units += narrow ? 0.38 : wide ? 0.76 : 0.61;
  }
  return units * size;
}

std::string head(double width, double height) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
      "{1:.0f}\" font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\" font-size=\"{2}\" "
      "fill=\"{3}\">\n"
      "<rect width=\"{0:.0f}\" height=\"{1:.0f}\" fill=\"white\"/>\n",
      width, height, kFont, kInk);
}

std::string text(double x, double y, std::string_view what, std::string_view attributes = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\"{}{}>{}</text>\n", x, y, attributes.empty() ? "" : " ",
                     attributes, escaped(what));
}

std::string line(double x0, double y0, double x1, double y1, std::string_view attributes) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x0, y0, x1, y1,
                     attributes);
}

// "0.1", "1", "10", "1,000".
std::string plain(double value) {
  if (value >= 1000) {
    return fmt::format("{:.0f},{:03.0f}", std::floor(value / 1000), std::fmod(std::round(value), 1000));
  }
  return fmt::format("{:.3g}", value);
}

struct Box {
  double x0, y0, x1, y1;
  bool meets(const Box& b) const { return x0 < b.x1 && b.x0 < x1 && y0 < b.y1 && b.y0 < y1; }
  bool inside(const Box& b) const { return x0 >= b.x0 && y0 >= b.y0 && x1 <= b.x1 && y1 <= b.y1; }
};

struct Segment {
  double x0, y0, x1, y1;
  bool meets(const Box& b) const {  // Liang and Barsky's clipping
    double enter = 0, leave = 1;
    const double dx = x1 - x0, dy = y1 - y0;
    for (const auto& [step, room] :
         {std::pair{-dx, x0 - b.x0}, {dx, b.x1 - x0}, {-dy, y0 - b.y0}, {dy, b.y1 - y0}}) {
      if (step == 0) {
        if (room < 0) return false;
      } else if (step < 0) {
        enter = std::max(enter, room / step);
      } else {
        leave = std::min(leave, room / step);
      }
    }
    return enter <= leave;
  }
  bool crosses(const Segment& s) const {
    const auto side = [](const Segment& of, double px, double py) {
      return (of.x1 - of.x0) * (py - of.y0) - (of.y1 - of.y0) * (px - of.x0);
    };
    return side(*this, s.x0, s.y0) * side(*this, s.x1, s.y1) < 0 && side(s, x0, y0) * side(s, x1, y1) < 0;
  }
};

class Plot {
 public:
  explicit Plot(const Chart& chart) : chart_(chart) {
    double least_x = 1e300, most_x = 0, least_y = 1e300;
    const double peak = chart.ceilings.front().flops_per_second;
    for (const Chart::Roof& roof : chart.roofs) {
      least_x = std::min(least_x, peak / roof.bytes_per_second / 8);  // room for the roof's name
      most_x = std::max(most_x, peak / roof.bytes_per_second);
    }
    for (const ChartPoint& point : chart.points) {
      least_x = std::min(least_x, point.intensity);
      most_x = std::max(most_x, point.intensity);
      least_y = std::min(least_y, point.flops_per_second);
    }
    for (const Chart::Ceiling& ceiling : chart.ceilings)
      least_y = std::min(least_y, ceiling.flops_per_second / 4);
    x0_ = std::floor(std::log10(least_x / 1.5) * 2) / 2;
    x1_ = std::ceil(std::log10(most_x * 7) * 2) / 2;
    least_y = std::min(least_y, chart.roofs.front().bytes_per_second * std::pow(10.0, x0_));
    y0_ = std::floor(std::log10(least_y / 1.6));
    y1_ = std::log10(peak * 2.6);
  }

  std::string draw() {
    frame();
    roofs();
    ceilings();
    points();
    legend();
    return head(kWidth, kHeight) + out_ + "</svg>\n";
  }

 private:
  static constexpr double kWidth = 1000, kHeight = 680;
  static constexpr Box kArea{78, 70, 966, 614};

  double x(double intensity) const {
    return kArea.x0 + (std::log10(intensity) - x0_) / (x1_ - x0_) * (kArea.x1 - kArea.x0);
  }
  double y(double flops) const {
    return kArea.y1 - (std::log10(flops) - y0_) / (y1_ - y0_) * (kArea.y1 - kArea.y0);
  }
  double peak() const { return chart_.ceilings.front().flops_per_second; }

  void frame() {
    out_ += text(kArea.x0, 28, chart_.title, "font-size=\"17\" font-weight=\"bold\"");
    out_ += text(kArea.x0, 49, chart_.subtitle, fmt::format("font-size=\"{}\" fill=\"{}\"", kSmall, kGrey));
    const auto grid = [&](double from, double to, const auto& at) {
      for (int decade = static_cast<int>(std::floor(from)); decade <= static_cast<int>(std::ceil(to));
           ++decade) {
        for (int digit = 1; digit < 10; ++digit) {
          const double value = digit * std::pow(10.0, decade);
          if (std::log10(value) >= from - 1e-9 && std::log10(value) <= to + 1e-9) at(value, digit == 1);
        }
      }
    };
    const auto width = [](bool major) { return major ? 1.0 : 0.5; };
    grid(x0_, x1_, [&](double value, bool major) {
      out_ += line(x(value), kArea.y0, x(value), kArea.y1,
                   fmt::format("stroke=\"{}\" stroke-width=\"{}\"", kGrid, width(major)));
      if (major) out_ += text(x(value), kArea.y1 + 20, plain(value), "text-anchor=\"middle\"");
    });
    grid(y0_, y1_, [&](double value, bool major) {
      out_ += line(kArea.x0, y(value), kArea.x1, y(value),
                   fmt::format("stroke=\"{}\" stroke-width=\"{}\"", kGrid, width(major)));
      if (major) out_ += text(kArea.x0 - 8, y(value) + 4.5, plain(value * 1e-12), "text-anchor=\"end\"");
    });
    out_ += fmt::format(
        "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"{}\" "
        "stroke-width=\"1\"/>\n",
        kArea.x0, kArea.y0, kArea.x1 - kArea.x0, kArea.y1 - kArea.y0, kInk);
    out_ += text((kArea.x0 + kArea.x1) / 2, kArea.y1 + 46, "arithmetic intensity, FLOP a byte",
                 "text-anchor=\"middle\"");
    const double middle = (kArea.y0 + kArea.y1) / 2;
    out_ += text(24, middle, "TFLOP/s",
                 fmt::format("text-anchor=\"middle\" transform=\"rotate(-90 24 {})\"", middle));
  }

  // A text that lies along a line going up at 45° of the logarithms, above it, beginning at (px, py).
  void along(double px, double py, std::string_view what, std::string_view fill) {
    const double rise = (kArea.y1 - kArea.y0) / (y1_ - y0_), run = (kArea.x1 - kArea.x0) / (x1_ - x0_);
    const double angle = std::atan2(rise, run);
    const double tx = px - 6 * std::sin(angle), ty = py - 6 * std::cos(angle);
    out_ += text(tx, ty, what,
                 fmt::format("font-size=\"{}\" fill=\"{}\" transform=\"rotate({:.2f} {:.1f} {:.1f})\"",
                             kSmall, fill, -angle * 180 / 3.14159265358979, tx, ty));
    const double length = width_of(what, kSmall);
    for (double at = 0; at < length; at += 10) {
      const double cx = tx + at * std::cos(angle), cy = ty - at * std::sin(angle);
      taken_.push_back({cx - 9, cy - 11, cx + 9, cy + 3});
    }
  }

  void roofs() {
    for (std::size_t i = chart_.roofs.size(); i-- > 0;) {  // device memory last, on top
      const Chart::Roof& roof = chart_.roofs[i];
      const double ridge = peak() / roof.bytes_per_second;
      const double left = std::max(std::pow(10.0, x0_), std::pow(10.0, y0_) / roof.bytes_per_second);
      const std::string_view colour = i == 0 ? kInk : kGrey;
      if (left < ridge) {
        const Segment s{x(left), y(left * roof.bytes_per_second), x(ridge), y(peak())};
        segments_.push_back(s);
        out_ +=
            line(s.x0, s.y0, s.x1, s.y1,
                 i == 0 ? fmt::format("stroke=\"{}\" stroke-width=\"2\"", colour)
                        : fmt::format("stroke=\"{}\" stroke-width=\"1.2\" stroke-dasharray=\"6 4\"", colour));
        const std::string name = fmt::format("{} {} TB/s", roof.name, plain(roof.bytes_per_second * 1e-12));
        const double share = std::min(0.5, 90 / std::hypot(s.x1 - s.x0, s.y1 - s.y0));
        along(s.x0 + share * (s.x1 - s.x0), s.y0 + share * (s.y1 - s.y0), name, colour);
      }
    }
    double last_label = -1e9;
    std::vector<const Chart::Roof*> by_ridge;
    for (const Chart::Roof& roof : chart_.roofs) by_ridge.push_back(&roof);
    std::sort(by_ridge.begin(), by_ridge.end(),
              [](auto* a, auto* b) { return a->bytes_per_second > b->bytes_per_second; });
    for (const Chart::Roof* roof : by_ridge) {
      const double px = x(peak() / roof->bytes_per_second);
      const std::string value = plain(peak() / roof->bytes_per_second);
      const double half = width_of(value, kSmall) / 2;
      const bool room = px - half > last_label + 4;
      const double py = y(peak()) - (room ? 9 : 23);
      if (room) last_label = px + half;
      out_ += text(px, py, value,
                   fmt::format("text-anchor=\"middle\" font-size=\"{}\" fill=\"{}\"", kSmall, kGrey));
      taken_.push_back({px - half, py - 11, px + half, py + 3});
    }
  }

  void ceilings() {
    for (std::size_t i = 0; i < chart_.ceilings.size(); ++i) {
      const Chart::Ceiling& ceiling = chart_.ceilings[i];
      double from = 0;  // where the highest roof that is drawn meets it
      for (const Chart::Roof& roof : chart_.roofs) from = std::max(from, roof.bytes_per_second);
      if (i > 0) from = chart_.roofs.front().bytes_per_second;
      const double left = std::max(std::pow(10.0, x0_), ceiling.flops_per_second / from);
      const double py = y(ceiling.flops_per_second);
      segments_.push_back({x(left), py, kArea.x1, py});
      out_ +=
          line(x(left), py, kArea.x1, py,
               i == 0 ? fmt::format("stroke=\"{}\" stroke-width=\"2\"", kInk)
                      : fmt::format("stroke=\"{}\" stroke-width=\"1.2\" stroke-dasharray=\"2 3\"", kGrey));
      const std::string name = fmt::format("{} {} TFLOP/s", ceiling.name,
                                           plain(std::round(ceiling.flops_per_second * 1e-11) / 10));
      const double width = width_of(name, kSmall);
      out_ += text(
          kArea.x1 - 8, py - 7, name,
          fmt::format("text-anchor=\"end\" font-size=\"{}\" fill=\"{}\"", kSmall, i == 0 ? kInk : kGrey));
      taken_.push_back({kArea.x1 - 8 - width, py - 19, kArea.x1, py - 3});
    }
    for (const Chart::Roof& roof : chart_.roofs) {
      out_ += fmt::format(
          "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.6\" fill=\"white\" stroke=\"{}\" "
          "stroke-width=\"1.4\"/>\n",
          x(peak() / roof.bytes_per_second), y(peak()), kInk);
    }
  }

  std::string_view colour_of(const std::string& group) const {
    const auto found = std::find(groups_.begin(), groups_.end(), group);
    return kColours[static_cast<std::size_t>(found - groups_.begin()) % kColours.size()];
  }

  struct Place {
    Box box;
    std::optional<Segment> leader;  // from the point, where it is not beside it
  };

  // The place for a label: the free one nearest the point, or nothing if none is free.
  std::optional<Place> place_of(double px, double py, double width, double height) const {
    for (const double distance : {9.0, 15.0, 22.0, 31.0, 42.0, 56.0, 72.0}) {
      // Beside it first, then around.
      for (const double degrees :
           {0.0, 180.0, -20.0, 20.0, 200.0, 160.0, -45.0, 45.0, 225.0, 135.0, -90.0, 90.0}) {
        const double angle = degrees * 3.14159265358979 / 180;
        const double dx = std::cos(angle), dy = std::sin(angle);
        const double cx = px + dx * (distance + width / 2 * std::abs(dx)),
                     cy = py + dy * (distance + height / 2);
        const Box box{cx - width / 2, cy - height / 2, cx + width / 2, cy + height / 2};
        if (!box.inside(kArea)) continue;
        std::optional<Segment> leader;
        const double nearest_x = std::clamp(px, box.x0, box.x1), nearest_y = std::clamp(py, box.y0, box.y1);
        if (std::hypot(nearest_x - px, nearest_y - py) > 14) leader = Segment{px, py, nearest_x, nearest_y};
        const auto meets_box = [&](const Box& b) { return box.meets(b); };
        const bool free =
            std::none_of(taken_.begin(), taken_.end(),
                         [&](const Box& b) { return box.meets(b) || (leader && leader->meets(b)); }) &&
            std::none_of(marks_.begin(), marks_.end(), meets_box) &&
            std::none_of(segments_.begin(), segments_.end(),
                         [&](const Segment& s) { return s.meets(box) || (leader && s.crosses(*leader)); });
        if (free) return Place{box, leader};
      }
    }
    return std::nullopt;
  }

  // True if an earlier point of the same name is near enough to share its label.
  bool labelled_before(std::size_t index) const {
    constexpr double kNear = 40;
    const ChartPoint& point = chart_.points[index];
    return std::any_of(chart_.points.begin(), chart_.points.begin() + static_cast<std::ptrdiff_t>(index),
                       [&](const ChartPoint& p) {
                         return p.group == point.group && p.label == point.label &&
                                std::hypot(x(p.intensity) - x(point.intensity),
                                           y(p.flops_per_second) - y(point.flops_per_second)) < kNear;
                       });
  }

  void points() {
    for (const ChartPoint& point : chart_.points) {
      if (std::find(groups_.begin(), groups_.end(), point.group) == groups_.end())
        groups_.push_back(point.group);
      const double px = x(point.intensity), py = y(point.flops_per_second);
      marks_.push_back({px - 6, py - 6, px + 6, py + 6});
    }
    reserve_legend();
    for (std::size_t i = 0; i < chart_.points.size(); ++i) {
      const ChartPoint& point = chart_.points[i];
      if (point.label.empty() || labelled_before(i)) continue;
      const auto place = place_of(x(point.intensity), y(point.flops_per_second),
                                  width_of(point.label, kSmall) + 2, kSmall + 3);
      if (!place) continue;
      taken_.push_back(place->box);
      if (place->leader) {
        const Segment& s = *place->leader;
        out_ += line(s.x0, s.y0, s.x1, s.y1, fmt::format("stroke=\"{}\" stroke-width=\"0.7\"", kGrey));
        segments_.push_back(s);
      }
      // Anchored towards the point, since widths are estimates.
      const double px = x(point.intensity);
      const bool left = place->box.x1<px, right = place->box.x0> px;
      const double anchor = left    ? place->box.x1 - 1
                            : right ? place->box.x0 + 1
                                    : (place->box.x0 + place->box.x1) / 2;
      out_ += text(anchor, place->box.y1 - 3.5, point.label,
                   fmt::format("font-size=\"{}\" text-anchor=\"{}\"", kSmall,
                               left    ? "end"
                               : right ? "start"
                                       : "middle"));
    }
    for (std::size_t i = 0; i < chart_.points.size(); ++i) {
      const ChartPoint& point = chart_.points[i];
      const double px = x(point.intensity), py = y(point.flops_per_second);
      // A mark that later ones will cover is drawn larger, so that it shows around them.
      const auto upon =
          std::count_if(chart_.points.begin() + static_cast<std::ptrdiff_t>(i) + 1, chart_.points.end(),
                        [&](const ChartPoint& p) {
                          return std::hypot(x(p.intensity) - px, y(p.flops_per_second) - py) < 2;
                        });
      out_ += mark(px, py, colour_of(point.group), point.predicted,
                   4.6 + 2.8 * static_cast<double>(std::min<std::ptrdiff_t>(upon, 2)));
    }
  }

  static std::string mark(double px, double py, std::string_view colour, bool predicted,
                          double radius = 4.6) {
    return fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\" fill=\"{}\" stroke=\"{}\" stroke-width=\"1.3\"/>\n",
        px, py, radius, predicted ? "white" : colour, predicted ? colour : "white");
  }

  // Below the roofs at the right, where no kernel can be both far right and slow, unless points are there.
  void reserve_legend() {
    if (groups_.empty()) return;
    double width = 0;
    for (const std::string& group : groups_) width = std::max(width, width_of(group, kSmall) + 34);
    const double height = 19 * static_cast<double>(groups_.size()) + 12;
    for (const auto& [right, bottom] :
         {std::pair{true, true}, {false, false}, {true, false}, {false, true}}) {
      const double left = right ? kArea.x1 - 12 - width : kArea.x0 + 12;
      const double top = bottom ? kArea.y1 - 12 - height : kArea.y0 + 12;
      legend_ = {left, top, left + width, top + height};
      const auto meets_legend = [&](const Box& b) { return legend_->meets(b); };
      const bool free = std::none_of(taken_.begin(), taken_.end(), meets_legend) &&
                        std::none_of(marks_.begin(), marks_.end(), meets_legend) &&
                        std::none_of(segments_.begin(), segments_.end(),
                                     [&](const Segment& s) { return s.meets(*legend_); });
      if (free) break;
    }
    taken_.push_back(*legend_);
  }

  void legend() {
    if (!legend_) return;
    out_ += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"white\" stroke=\"{}\"/>\n",
        legend_->x0, legend_->y0, legend_->x1 - legend_->x0, legend_->y1 - legend_->y0, kGrid);
    double py = legend_->y0 + 16;
    for (const std::string& group : groups_) {
      const auto of_group = std::find_if(chart_.points.begin(), chart_.points.end(),
                                         [&](const ChartPoint& p) { return p.group == group; });
      out_ += mark(legend_->x0 + 14, py, colour_of(group), of_group->predicted);
      out_ += text(legend_->x0 + 26, py + 4, group, fmt::format("font-size=\"{}\"", kSmall));
      py += 19;
    }
  }

  const Chart& chart_;
  double x0_, x1_, y0_, y1_;  // decades
  std::string out_;
  std::vector<std::string> groups_;
  std::vector<Box> taken_;  // by texts
  std::vector<Box> marks_;
  std::vector<Segment> segments_;
  std::optional<Box> legend_;
};

// Between white and the colour.
std::string tinted(std::string_view colour, double strength) {
  std::string out = "#";
  for (int i = 0; i < 3; ++i) {
    const int full =
        std::stoi(std::string(colour.substr(static_cast<std::size_t>(1 + 2 * i), 2)), nullptr, 16);
    out += fmt::format("{:02x}", static_cast<int>(std::lround(255 + (full - 255) * strength)));
  }
  return out;
}

}  // namespace

Chart chart_of(const Machine& machine, Math math) {
  Chart chart;
  chart.title = fmt::format("{}: roofline, {}", machine.name, name_of(math));
  chart.subtitle =
      fmt::format("{}; figures above the roofs' ends are their ridge points, FLOP a byte", machine.source);
  const auto unit = [](Math m) {
    return m == Math::f32 ? "fp32" : fmt::format("{} tensor cores", name_of(m));
  };
  chart.ceilings.push_back({unit(math), machine.peak_flops(math)});
  if (math != Math::f32) chart.ceilings.push_back({unit(Math::f32), machine.peak_flops(Math::f32)});
  chart.roofs.push_back({"device memory", machine.memory_bytes_per_second});
  if (machine.l2_bytes_per_clock > 0) {
    chart.roofs.push_back({machine.l2_assumed ? "L2 (assumed)" : "L2", machine.l2_bytes_per_second(math)});
  }
  chart.roofs.push_back({"shared memory", machine.shared_bytes_per_second(math)});
  chart.roofs.push_back({"registers, at least", machine.register_bytes_per_second(math)});
  return chart;
}

std::string svg(const Chart& chart) {
  return Plot(chart).draw();
}

std::string svg(const HeatMap& map) {
  constexpr double kCellWidth = 62, kCellHeight = 26, kLeft = 92, kTop = 96;
  const double width = std::max(kLeft + kCellWidth * static_cast<double>(map.columns.size()) + 24,
                                40 + width_of(map.subtitle, kSmall));
  const double bottom = kTop + kCellHeight * static_cast<double>(map.rows.size());
  std::string out = head(width, bottom + 52);
  out += text(20, 28, map.title, "font-size=\"17\" font-weight=\"bold\"");
  out += text(20, 49, map.subtitle, fmt::format("font-size=\"{}\" fill=\"{}\"", kSmall, kGrey));
  for (std::size_t c = 0; c < map.columns.size(); ++c) {
    out += text(kLeft + kCellWidth * (static_cast<double>(c) + 0.5), kTop - 8, map.columns[c],
                "text-anchor=\"middle\"");
  }
  out += text(kLeft, kTop - 26, map.column_name, fmt::format("font-size=\"{}\" fill=\"{}\"", kSmall, kGrey));
  out += text(kLeft - 8, kTop - 26, map.row_name,
              fmt::format("text-anchor=\"end\" font-size=\"{}\" fill=\"{}\"", kSmall, kGrey));
  for (std::size_t r = 0; r < map.rows.size(); ++r) {
    const double y = kTop + kCellHeight * static_cast<double>(r);
    out += text(kLeft - 8, y + 17.5, map.rows[r], "text-anchor=\"end\"");
    for (std::size_t c = 0; c < map.columns.size(); ++c) {
      const HeatMap::Cell& cell = map.cells[r * map.columns.size() + c];
      const double x = kLeft + kCellWidth * static_cast<double>(c);
      const double strength = 0.15 + 0.6 * std::clamp(cell.strength, 0.0, 1.0);
      out += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\" fill=\"{}\" stroke=\"white\" "
          "stroke-width=\"1.5\"/>\n",
          x, y, kCellWidth, kCellHeight,
          tinted(kColours[static_cast<std::size_t>(cell.kind) % kColours.size()], strength));
      out += text(x + kCellWidth / 2, y + 17.5, cell.text,
                  fmt::format("text-anchor=\"middle\" font-size=\"{}\"", kSmall));
    }
  }
  double x = kLeft;
  for (std::size_t kind = 0; kind < map.kinds.size(); ++kind) {
    out += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"14\" height=\"14\" fill=\"{}\"/>\n", x,
                       bottom + 17, tinted(kColours[kind % kColours.size()], 0.6));
    out += text(x + 20, bottom + 28.5, map.kinds[kind], fmt::format("font-size=\"{}\"", kSmall));
    x += 20 + width_of(map.kinds[kind], kSmall) + 24;
  }
  return out + "</svg>\n";
}

}  // namespace warpwright::roofline
