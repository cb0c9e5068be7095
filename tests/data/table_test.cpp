// CSV, JSON lines and plain lines; splits and scalers.
#include <algorithm>
#include <catch2/catch.hpp>
#include <charconv>
#include <clocale>
#include <cmath>
#include <cstring>

#include "mezzo/data/loader.h"
#include "mezzo/data/preprocess.h"
#include "mezzo/data/table.h"
#include "mezzo/mezzo.h"
#include "mezzo/train/checkpoint.h"
#include "tests/support/folder.h"
#include "tests/support/support.h"

using namespace mezzo;
using Catch::Matchers::Contains;
using data::ColumnKind;
using test::Folder;
using Integers = std::vector<std::int64_t>;

TEST_CASE("csv: kinds, quotes, ends of lines", "[data]") {
    const Folder folder;
    const data::Table table = data::read_csv(folder.write(
        "t.csv", "\xef\xbb\xbfid,price,\"na\"\"me\",note\r\n1,2.5,\"a,\nb\",\n\n+2,,c,x\n-3,1e3,\"\",inf\n"));
    CHECK(table.size() == 3);
    REQUIRE(table.columns().size() == 4);
    CHECK(table.column("id").kind == ColumnKind::integer);
    CHECK(table.column("id").values.to_vector<std::int64_t>() == Integers{1, 2, -3});
    CHECK(table.column("price").kind == ColumnKind::real);
    CHECK(std::isnan(table.column("price").values.to_vector<double>()[1]));
    CHECK(table.column("na\"me").texts == std::vector<std::string>{"a,\nb", "c", ""});
    CHECK(table.column("note").kind == ColumnKind::text);
    const Tensor both = table.numbers({"price", "id"}, float64);
    CHECK(both.shape() == Shape{3, 2});
    CHECK(both.to_vector<double>()[5] == -3);
    CHECK(table.numbers({}).shape() == Shape{3, 0});
    CHECK_THROWS_WITH(table.numbers({"note"}), Contains("\"note\" has texts"));
    CHECK_THROWS_WITH(table.column("x"), Contains("no column is named \"x\"; there are: id, price, "));
    CHECK(table.categories("id").names == std::vector<std::string>{"-3", "1", "2"});
    CHECK(table.categories("id").codes.to_vector<std::int64_t>() == Integers{1, 2, 0});
    CHECK(table.categories("note").names == std::vector<std::string>{"", "inf", "x"});
    CHECK_THROWS_WITH(table.categories("price"), Contains("real numbers"));

    const data::Table plain = data::read_csv(folder.write("p.csv", "007;1\n008;9223372036854775808"),
                                             {.delimiter = ';', .header = false, .texts = {"0"}});
    CHECK(plain.column("0").texts == std::vector<std::string>{"007", "008"});
    CHECK(plain.column("1").kind == ColumnKind::real);
    CHECK(data::read_csv(folder.write("h.csv", "a,b")).size() == 0);
}

TEST_CASE("csv: numbers beyond float64 are numbers", "[data]") {
    const Folder folder;
    const std::string file =
        folder.write("p.csv", "p,q\n1e-400,\"-0.2e+400\"\n2, 1e99999999999 \n+1e-320,-1e-999\n");
    const std::string before = std::setlocale(LC_ALL, nullptr);
    std::setlocale(LC_ALL, "de_DE.UTF-8");  // where it is there, its decimal point is a comma
    const data::Table table = data::read_csv(file);
    std::setlocale(LC_ALL, before.c_str());
    CHECK(table.numbers({"p"}, float64).to_vector<double>() == std::vector<double>{0, 2, 1e-320});
    CHECK(table.numbers({"q"}, float64).to_vector<double>() == std::vector<double>{-INFINITY, INFINITY, 0});
    CHECK(data::read_csv(folder.write("t.csv", "p\n1e-400x\n2\n")).column("p").kind == ColumnKind::text);
}

TEST_CASE("csv: columns whose kind shows late", "[data]") {
    const Folder folder;
    const data::Table table = data::read_csv(
        folder.write("t.csv",
                     "a,b,c,d,e\n-0,007, "
                     "1,,\n5,-1.50,\"2\",,1\n,\"a\"\"b\",x,\"\n\",-0\n9223372036854775807,+3,nan,,2.5\n"));
    CHECK(table.column("a").kind == ColumnKind::real);
    const std::vector<double> a = table.column("a").values.to_vector<double>();
    CHECK(std::signbit(a[0]));
    CHECK(a[3] == 0x1p63);
    CHECK(table.column("b").texts == std::vector<std::string>{"007", "-1.50", "a\"b", "+3"});
    CHECK(table.column("c").texts == std::vector<std::string>{" 1", "2", "x", "nan"});
    CHECK(table.column("d").texts == std::vector<std::string>{"", "", "\n", ""});
    CHECK(table.column("e").kind == ColumnKind::real);
    CHECK(std::signbit(table.column("e").values.to_vector<double>()[2]));
    // A refused line is refused in the first reading, and a second reading counts lines from 1 again.
    CHECK_THROWS_WITH(data::read_csv(folder.write("t.csv", "a\n1\nx\n\n1,2\n")), Contains("line 5: 2 cells"));
    // Without a header the first line is a line of cells.
    const data::Table bare = data::read_csv(folder.write("t.csv", "\n\n1,2\nx,3\n"), {.header = false});
    CHECK(bare.column("0").texts == std::vector<std::string>{"1", "x"});
    CHECK(bare.column("1").values.to_vector<std::int64_t>() == Integers{2, 3});
    // Characters of numbers may be delimiters.
    const data::Table odd = data::read_csv(folder.write("t.csv", "a1b\n23145\n610\n"), {.delimiter = '1'});
    CHECK(odd.column("a").values.to_vector<std::int64_t>() == Integers{23, 6});
    CHECK(odd.column("b").values.to_vector<std::int64_t>() == Integers{45, 0});
    // More lines than the sample from which the reader estimates the memory to reserve.
    std::string many = "n,t\n";
    for (int i = 0; i < 3000; ++i) many += std::to_string(i) + (i < 2000 ? ",1\n" : ",0.5\n");
    const data::Table long_table = data::read_csv(folder.write("t.csv", many));
    CHECK(long_table.column("n").values.to_vector<std::int64_t>()[2999] == 2999);
    CHECK(sum(long_table.column("t").values).item<double>() == 2500);
}

// The fast path for short numbers and std::from_chars give the same bits, and refuse the same cells.
TEST_CASE("csv: numbers have the bits of std::from_chars", "[data]") {
    std::vector<std::string> cells{"1.",
                                   ".5",
                                   "-.5e1",
                                   "1e22",
                                   "1e23",
                                   "1e-22",
                                   "1e-23",
                                   "-0.0",
                                   "0e9",
                                   "1E+05",
                                   "2.5e-3",
                                   "9007199254740993e1",
                                   "1e00005",
                                   "9007199254740992.5",
                                   "999999999999999999",
                                   "0.000000000000000001",
                                   "12345678.87654321",
                                   "123456789012345678e-18"};
    std::uint64_t random = 1;
    const auto next = [&](std::uint64_t below) {
        random = random * 6364136223846793005 + 1442695040888963407;
        return (random >> 33) % below;
    };
    for (int i = 0; i < 20000; ++i) {
        std::string cell = next(2) ? "" : "-";
        for (std::uint64_t n = next(13); n > 0; --n) cell += char('0' + next(10));
        if (next(4)) cell += '.';
        for (std::uint64_t n = 1 + next(13); n > 0; --n) cell += char('0' + next(10));
        if (next(3) == 0) cell += (next(2) ? "e" : "E-") + std::to_string(next(40));
        cells.push_back(cell);
    }
    std::string file = "x\n0.5\n";  // real, whatever follows
    for (const std::string& cell : cells) file += cell + '\n';
    const Folder folder;
    const std::vector<double> values =
        data::read_csv(folder.write("t.csv", file)).numbers({"x"}, float64).to_vector<double>();
    REQUIRE(values.size() == cells.size() + 1);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < cells.size(); ++i) {
        double expected = 0;
        std::from_chars(cells[i].data(), cells[i].data() + cells[i].size(), expected);
        if (std::memcmp(&expected, &values[i + 1], sizeof expected) == 0) continue;
        if (++wrong == 1) CHECK(cells[i] == "another number");
    }
    CHECK(wrong == 0);
    for (const char* const cell :
         {"-", "+-", "1e", "1e+", ".", "1.2.3", "--1", "+-5", "1 2", "0x10", "e5", "1_0"}) {
        INFO(cell);
        CHECK(data::read_csv(folder.write("t.csv", "x\n1\n" + std::string(cell) + "\n")).column("x").kind ==
              ColumnKind::text);
    }
}

TEST_CASE("csv: errors say the line", "[data]") {
    const Folder folder;
    const auto refused = [&](const std::string& text, const char* message,
                             const data::CsvOptions& options = {}) {
        CHECK_THROWS_WITH(data::read_csv(folder.write("t.csv", text), options),
                          Contains("t.csv") && Contains(message));
    };
    refused("a,b\n1,2\n\"x\ny\",2\n1\n", "line 5: 1 cell; the header has 2");
    refused("a,b\n1,2,3\n", "line 2: 3 cells; the header has 2");
    refused("1,2\n1\n", "line 2: 1 cell; the first line has 2", {.header = false});
    refused("a\n\"x\n\n", "line 2: a quote is not closed");
    refused("a\nx\"y\n", "line 2: a quote follows text");
    refused("a\n\"x\"y\n", "line 2: text follows a quote");
    refused("a,b\r1,2\r", "line 1: a byte 0 or a lone carriage return");  // or all would be a header
    refused("a,b\n1,2\r\r\n", "line 2: a byte 0 or a lone carriage return");
    refused(std::string("\xff\xfe"
                        "a\0\n\0",
                        6),
            "line 1: a byte 0");  // UTF-16
    refused("\n\n", "is empty");
    refused("", "is empty");
    refused("a\n1\n", "texts names a column \"b\"", {.texts = {"b"}});
    CHECK_THROWS_WITH(data::read_csv(folder.write("t.csv", "a,a\n1,2\n")),
                      Contains("two columns are named \"a\""));
    CHECK_THROWS_WITH(data::read_csv(folder.file("none.csv")), Contains("none.csv"));
    CHECK_THROWS_WITH(data::read_csv(folder.file("t.csv"), {.delimiter = '"'}), Contains("delimiter"));
}

TEST_CASE("json lines: columns of what the lines have", "[data]") {
    const Folder folder;
    const data::Table table = data::read_json_lines(
        folder.write("t.jsonl",
                     "{\"id\": 1, \"text\": \"a\\u00e9\", \"ok\": true}\r\n\n{\"id\": -2, \"x\": 0.5, "
                     "\"text\": null, \"ok\": false}\n"
                     "{\"big\": 18446744073709551615, \"text\": \"1\", \"id\": 3, \"ok\": true}"));
    CHECK(table.size() == 3);
    CHECK(table.column("id").values.to_vector<std::int64_t>() == Integers{1, -2, 3});
    CHECK(table.column("ok").values.to_vector<std::int64_t>() == Integers{1, 0, 1});
    CHECK(table.column("text").texts == std::vector<std::string>{"a\xc3\xa9", "", "1"});
    CHECK(table.column("x").kind == ColumnKind::real);
    CHECK(table.column("x").values.to_vector<double>()[1] == 0.5);
    CHECK(std::isnan(table.column("x").values.to_vector<double>()[0]));
    CHECK(table.column("big").values.to_vector<double>()[2] == 18446744073709551615.0);
    CHECK(table.columns()[3].name == "x");
    const auto refused = [&](const std::string& text, const char* message) {
        CHECK_THROWS_WITH(data::read_json_lines(folder.write("t.jsonl", text)),
                          Contains("t.jsonl: line 2") && Contains(message));
    };
    refused("{}\n[1]", "is an array, not an object");
    refused("{}\n{\"a\": [1]}", "\"a\" is an array; a table holds numbers and texts");
    refused("{}\n{\"a\": 1", "");
    refused("{}\n{\"a\": 1, \"a\": 2}", "");
    CHECK(data::read_json_lines(folder.write("e", "")).size() == 0);
    CHECK(data::read_lines(folder.write("l", "a\r\n\nb")) == std::vector<std::string>{"a", "", "b"});
    CHECK(data::read_lines(folder.write("l", "")).empty());
}

TEST_CASE("json lines: every int64 is read exactly", "[data]") {
    const Folder folder;
    const data::Table table =
        data::read_json_lines(folder.write("t.jsonl",
                                           "{\"n\": -9007199254740993, \"id\": -1234567890123456789}\n"
                                           "{\"n\": -9223372036854775808, \"id\": \"x\"}\n"
                                           "{\"n\": 9223372036854775807, \"id\": 0}\n"));
    REQUIRE(table.column("n").kind == ColumnKind::integer);
    CHECK(table.column("n").values.to_vector<std::int64_t>() ==
          Integers{-9007199254740993, std::numeric_limits<std::int64_t>::min(),
                   std::numeric_limits<std::int64_t>::max()});
    CHECK(table.column("id").texts == std::vector<std::string>{"-1234567890123456789", "x", "0"});
}

TEST_CASE("json lines: numbers that are not finite are the strings of JsonLinesWriter", "[data]") {
    const Folder folder;
    const data::Table table = data::read_json_lines(
        folder.write("t.jsonl",
                     "\xef\xbb\xbf{\"x\": 1, \"y\": \"NaN\", \"z\": \"NaN\"}\n"
                     "{\"x\": \"-Infinity\", \"y\": \"Infinity\", \"z\": \"nobody\"}\n"));
    CHECK(table.column("x").values.to_vector<double>() == std::vector<double>{1, -INFINITY});
    CHECK(std::isnan(table.column("y").values.to_vector<double>()[0]));
    CHECK(table.column("y").values.to_vector<double>()[1] == INFINITY);
    CHECK(table.column("z").texts == std::vector<std::string>{"NaN", "nobody"});
    CHECK(data::read_lines(folder.write("l",
                                        "\xef\xbb\xbf"
                                        "a\nb")) == std::vector<std::string>{"a", "b"});
}

TEST_CASE("csv: bytes that are not UTF-8", "[data]") {
    const Folder folder;
    for (const char* const text : {"a\nb\n12345678\xe9\n", "a\nb\n\"x\xff\"\n", "a\nb\n\xc3"})
        CHECK_THROWS_WITH(data::read_csv(folder.write("t.csv", text)),
                          Contains("t.csv: line 3: no valid UTF-8: byte"));
}

TEST_CASE("table: numbers that a dtype does not have", "[data]") {
    const Folder folder;
    const data::Table table = data::read_csv(folder.write("t.csv", "a,b,c,d\n1,inf,300,-0.5\n,2,-1,254.5\n"));
    CHECK_THROWS_WITH(table.numbers({"a"}, int64), Contains("column \"a\" has nan in row 1, which int64"));
    CHECK_THROWS_WITH(table.numbers({"b"}, int32), Contains("\"b\" has inf in row 0"));
    CHECK_THROWS_WITH(table.numbers({"c"}, uint8), Contains("\"c\" has 300 in row 0, which uint8"));
    CHECK_THROWS_WITH(table.numbers({"c"}, int8), Contains("\"c\" has 300 in row 0, which int8"));
    CHECK(table.numbers({"c"}, int32).to_vector<std::int32_t>() == std::vector<std::int32_t>{300, -1});
    CHECK(table.numbers({"d"}, uint8).to_vector<std::uint8_t>() == std::vector<std::uint8_t>{0, 254});
    CHECK(std::isnan(table.numbers({"a"}).to_vector<float>()[1]));
    for (const Dtype dtype : {boolean, float8_e4m3fn, float8_e5m2, float8_e8m0fnu})
        CHECK_THROWS_WITH(table.numbers({"a"}, dtype), Contains("must be floating or integral"));
}

TEST_CASE("table: columns that do not fit each other", "[data]") {
    const data::Column numbers{"a", ColumnKind::integer, arange(2)};
    CHECK_THROWS_WITH(data::Table({numbers, {"b", ColumnKind::text, {}, {"x"}}}),
                      Contains("\"b\" has 1 values, the first has 2"));
    CHECK_THROWS_WITH(data::Table({{"a", ColumnKind::real, arange(2)}}), Contains("not float64 [rows]"));
    CHECK(data::Table({}).size() == 0);
}

TEST_CASE("split: each sample in one part", "[data]") {
    for (const bool shuffle : {false, true}) {
        const data::SplitIndices parts =
            data::train_test_split(10, {.test_size = 0.25, .shuffle = shuffle, .seed = 3});
        CHECK(parts.test.size() == 3);
        Integers all = parts.train;
        all.insert(all.end(), parts.test.begin(), parts.test.end());
        if (shuffle) CHECK(all != Integers{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
        std::sort(all.begin(), all.end());
        CHECK(all == Integers{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
        if (!shuffle) CHECK(parts.test == Integers{7, 8, 9});
    }
    Integers labels(100);
    for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = i < 90 ? 0 : 1;
    const data::Dataset dataset{arange(100).to(float32).reshape({100, 1}), Tensor::from(labels, {100})};
    const data::SplitDataset parts = data::train_test_split(dataset, {.test_size = 0.2, .stratify = true});
    CHECK(sum(parts.test.y).item<std::int64_t>() == 2);
    CHECK(parts.test.size() == 20);
    CHECK(parts.train.size() == 80);
    for (const data::Dataset* part : {&parts.train, &parts.test}) {
        const Integers rows = part->x.to_vector<std::int64_t>(), y = part->y.to_vector<std::int64_t>();
        for (std::size_t i = 0; i < rows.size(); ++i) CHECK(y[i] == (rows[i] >= 90));
    }
    for (const double share : {0.0, 1.0, -1.0, std::nan("")})
        CHECK_THROWS_WITH(data::train_test_split(10, {.test_size = share}), Contains("test_size is"));
    CHECK_THROWS_WITH(data::train_test_split(1), Contains("1 sample cannot be in two parts"));
    CHECK_THROWS_WITH(data::train_test_split(2, {.test_size = 0.9}),
                      Contains("leaves none for the training"));
    CHECK_THROWS_WITH(data::train_test_split(9, {.stratify = true}), Contains("needs labels"));
    CHECK_THROWS_WITH(
        data::train_test_split({zeros({3, 1}), Tensor::from(Integers{0, 0, 1}, {3})}, {.stratify = true}),
        Contains("class 1 has one sample"));
}

TEST_CASE("scalers: fitted, saved, and undone", "[data]") {
    const double nan = std::nan("");
    const Tensor x = Tensor::from(
        std::vector<double>{1e6 + 1, 5, nan, 2, 1e6 + 3, 5, nan, nan, 1e6 + 5, 5, nan, 4}, {3, 4});
    data::StandardScaler standard;
    CHECK(standard.state_dict().empty());
    CHECK_THROWS_WITH(standard.transform(x), Contains("fit() or load_state_dict() first"));
    standard.fit(x);
    const std::vector<double> shift = standard.shift().to_vector<double>(),
                              scale = standard.scale().to_vector<double>();
    CHECK(shift == std::vector<double>{1e6 + 3, 5, 0, 3});
    CHECK(scale[0] == Approx(std::sqrt(8.0 / 3)).epsilon(1e-14));
    CHECK(scale[1] == 1);
    CHECK(scale[2] == 1);
    CHECK(scale[3] == 1);
    const std::vector<double> y = standard.transform(x).to_vector<double>();
    CHECK(y[0] == Approx(-1.224744871391589).epsilon(1e-14));
    CHECK(y[1] == 0);
    CHECK(standard.inverse_transform(standard.transform(x)).to_vector<double>()[8] ==
          Approx(1e6 + 5).epsilon(1e-15));
    const Tensor between = Tensor::from(std::vector<double>{1e6 + 3.001, 5, 0, 3}, {1, 4});
    CHECK(standard.transform(between).to_vector<double>()[0] ==
          Approx(0.001 / std::sqrt(8.0 / 3)).epsilon(1e-6));
    CHECK(standard.transform(x.to(float32)).dtype() == float32);
    CHECK(standard.transform(x.to(float32)).to_vector<double>()[8] == Approx(1.2247449).epsilon(1e-7));

    data::MinMaxScaler limits;
    limits.fit(x);
    CHECK(limits.transform(x).to_vector<double>()[4] == 0.5);
    CHECK(limits.transform(x).to_vector<double>()[11] == 1);

    const Folder folder;
    training::Checkpoint({.others = {{"features", standard}}}).save(folder.file("c"));
    data::StandardScaler loaded;
    training::Checkpoint({.others = {{"features", loaded}}}).load(folder.file("c"));
    CHECK(loaded.scale().to_vector<double>() == scale);
    CHECK_THROWS_WITH(loaded.transform(zeros({2, 3})), Contains("the last dimension must be 4"));
    CHECK_THROWS_WITH(loaded.transform(arange(4)), Contains("not floating"));
    CHECK_THROWS_WITH(loaded.load_state_dict({{"shift", zeros({1})}, {"scale", zeros({1})}}),
                      Contains("a scale is 0"));
    CHECK_THROWS_WITH(loaded.load_state_dict({{"shift", zeros({1})}}), Contains("its state is"));
    CHECK(loaded.scale().to_vector<double>() == scale);
    CHECK_THROWS_WITH(loaded.fit(zeros({0, 2})), Contains("[n, features]"));
    const Tensor infinite = Tensor::from({0, 1, 0, 2, 0, INFINITY, 0, 4}, {4, 2});
    CHECK_THROWS_WITH(loaded.fit(infinite), Contains("feature 1 has shift inf"));
    CHECK(loaded.scale().to_vector<double>() == scale);
    CHECK_THROWS_WITH(limits.fit(infinite), Contains("feature 1 has shift 1 and scale inf"));
}
