#include "runtime/json.hpp"

#include <gtest/gtest.h>

#include <string>

#include "runtime/test_folder.hpp"

namespace warpwright {
namespace {

using nlohmann::json;

json parse(std::string_view document) {
  return parse_json(document, "file", 16, "repair it");
}

std::string error_for(std::string_view document) {
  return message_of([&] { parse(document); });
}

std::string repeated(std::string_view unit, std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += unit;
  return text;
}

TEST(Json, ReadsWhatTheLibraryReads) {
  const std::string document =
      R"({"a": [1, -2, 2.5e3, true, false, null, "x\u00e9\n"], "b": {"": {}, "c": [[], {"d": "e"}]}, "f": 1e-9})";
  EXPECT_EQ(parse(document), json::parse(document));
  for (const char* scalar : {"0", "-1", "18446744073709551615", "\"\"", "null", " true "}) {
    EXPECT_EQ(parse(scalar), json::parse(scalar)) << scalar;
  }
}

TEST(Json, RefusesWhatIsNotOneDocument) {
  for (const char* broken :
       {"", " ", "{", "[1,]", "{\"a\"}", "1 2", "nul", "\"\xff\"", "1e999", "\"\\ud800\""}) {
    EXPECT_NE(error_for(broken).find("file: is not JSON"), std::string::npos) << broken;
  }
}

TEST(Json, RefusesTextAfterANul) {
  using namespace std::string_literals;
  EXPECT_NE(error_for("{}\0trailing"s).find("byte 2 is a NUL"), std::string::npos);
  EXPECT_NE(error_for("\"a\0b\""s).find("byte 2 is a NUL"), std::string::npos);
}

TEST(Json, RefusesAKeyTwiceInOneObject) {
  EXPECT_NE(error_for(R"([{"k": 1, "k": 1}])").find("the key \"k\" twice"), std::string::npos);
  EXPECT_EQ(error_for(R"([{"k": 1}, {"k": {"k": 1}}])"), "no error");
  const std::string key = "\"" + std::string(10 << 20, 'k') + "\": 1";
  EXPECT_LT(error_for("{" + key + "," + key + "}").size(), 300u);
}

TEST(Json, RefusesDeepNestingBeforeItTakesMemory) {
  EXPECT_EQ(error_for(repeated("[", 16) + repeated("]", 16)), "no error");
  EXPECT_NE(error_for(repeated("[", 17) + repeated("]", 17)).find("deeper than 16 levels"),
            std::string::npos);
  EXPECT_NE(error_for(std::string(100 << 20, '[')).find("deeper than 16 levels"), std::string::npos);
  EXPECT_NE(error_for(repeated("{\"a\":", 10 << 20)).find("deeper than 16 levels"), std::string::npos);
}

// With the library's own builder and a callback, each of these takes over an hour.
TEST(Json, TakesTimeInProportionToTheDocument) {
  constexpr std::size_t kMostElements = 2'000'000;
  EXPECT_EQ(parse("[" + repeated("{},", kMostElements) + "{}]").size(), kMostElements + 1);
  EXPECT_EQ(parse("[" + repeated("[],", kMostElements) + "[]]").size(), kMostElements + 1);
  std::string members = "{";
  for (std::size_t i = 0; i < kMostElements / 4; ++i) members += "\"" + std::to_string(i) + "\":[],";
  EXPECT_EQ(parse(members + "\"\":[]}").size(), kMostElements / 4 + 1);
}

TEST(Json, RefusesValuesThatTakeTooMuchMemory) {
  for (const char* unit : {"[],", "{},", "\"\","}) {
    EXPECT_NE(error_for("[" + repeated(unit, 12 << 20) + "0]").find("holds more values than fit in 512 MiB"),
              std::string::npos);
  }
}

json members(std::string_view document) {
  return parse_json_members(document, {"text", "id"}, "file", 16, "repair it");
}

TEST(JsonMembers, KeepsTheWantedOnes) {
  EXPECT_EQ(members(R"({"a": {"text": [1]}, "text": "t", "b": [{"id": 0}], "id": {"text": [2]}, "c": {}})"),
            json::parse(R"({"text": "t", "id": {"text": [2]}})"));
  EXPECT_EQ(members("{}"), json::object());
}

TEST(JsonMembers, ChecksTheOthersWithoutKeepingThem) {
  const std::string many = repeated("[],", 12 << 20);
  EXPECT_EQ(members("{\"a\": [" + many + "0], \"text\": \"t\"}"), json::parse(R"({"text": "t"})"));
  const auto error = [](std::string_view document) { return message_of([&] { members(document); }); };
  EXPECT_NE(error(R"({"a": [1, "text": "t"})").find("is not JSON"), std::string::npos);
  EXPECT_NE(error("{\"a\": " + std::string(1 << 20, '[')).find("deeper than 16"), std::string::npos);
  EXPECT_NE(error(R"({"text": "a", "text": "b"})").find("the key \"text\" twice"), std::string::npos);
  for (const char* other : {"[]", "[{\"text\": \"t\"}]", "\"text\"", "1"}) {
    EXPECT_NE(error(other).find("is not a JSON object"), std::string::npos) << other;
  }
}

}  // namespace
}  // namespace warpwright
