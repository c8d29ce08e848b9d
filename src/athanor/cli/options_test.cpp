#include "athanor/cli/options.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>

#include "athanor/base/error.h"
#include "athanor/base/memory_file_environment.h"
#include "athanor/cli/option_docs.h"
#include "athanor/cli/option_files.h"

namespace athanor {
namespace {

enum class Schedule : uint8_t { constant, cosine };

// A program's options in small: one struct a room, one table.
struct TestOptions {
  struct {
    std::string base;
    int64_t layers = 2;
    int64_t width = 64;
    bool tied = true;
  } model;
  struct {
    int64_t steps = 100;
    int32_t threads = 0;
    double learning_rate = 1e-3;
    float clip = 1.0f;
    Schedule schedule = Schedule::cosine;
    std::string precision = "fp32";
    std::vector<int64_t> ramp;
  } train;
  struct {
    std::string train = "text.txt";
    std::map<std::string, std::string> validation;
  } data;
  struct {
    std::vector<std::string> dump;
  } debug;
};

OptionTable make_table(TestOptions& options) {
  OptionTable table;
  table.describe_group("train", "The training loop.");
  table.add("model.base", options.model.base, "Model configuration to start from.");
  table.add("model.layers", options.model.layers, "Number of blocks.").at_least(1).at_most(1000);
  table.add("model.width", options.model.width, "Width of the residual stream.").at_least(1);
  table.add("model.tied", options.model.tied, "Share embedding and head.");
  table.add("train.steps", options.train.steps, "Steps in all.").at_least(0).may_change();
  table.add("train.threads", options.train.threads, "Threads; 0: all cores.").at_least(0).may_change();
  table.add("train.learning_rate", options.train.learning_rate, "Peak learning rate.").above(0).below(10);
  table.add("train.clip", options.train.clip, "Largest gradient norm.").at_least(0);
  table.add_choice("train.schedule", options.train.schedule,
                   {{"constant", Schedule::constant}, {"cosine", Schedule::cosine}},
                   "Course of the learning rate.");
  table.add("train.precision", options.train.precision, "Type of the products.").one_of({"fp32", "bf16"});
  table.add("train.ramp", options.train.ramp, "Batch sizes | of the ramp.").at_least(1);
  table.add("data.train", options.data.train, "Text or token file.");
  table.add("data.validation", options.data.validation, "Named validation sets.").may_change();
  table.add("debug.dump", options.debug.dump, "Tensors to write.").may_change();
  table.set_base_option("model.base", "model");
  return table;
}

class OptionsTest : public testing::Test {
 protected:
  void write(const std::string& path, std::string_view text) {
    files_.make_directories(parent_directory(path));
    write_file_atomically(files_, path, text);
  }
  void load(std::string_view text, std::vector<std::string> settings = {}) {
    write("run.toml", text);
    load_options(table_, files_, {"run.toml", std::move(settings), {"none", "models"}});
  }
  // The error's message and hint.
  std::string refusal(std::string_view text, std::vector<std::string> settings = {}) {
    TestOptions options;
    OptionTable table = make_table(options);
    write("run.toml", text);
    try {
      load_options(table, files_, {"run.toml", std::move(settings), {"none", "models"}});
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::user);
      return error.what();
    }
    return "accepted";
  }

  MemoryFileEnvironment files_;
  TestOptions options_;
  OptionTable table_ = make_table(options_);
};

TEST_F(OptionsTest, ASourceLiesBeneathBaseFileFileAndSettings) {
  write("models/small.toml", "[model]\nwidth = 2\n");
  const OptionSources sources{.file = "run.toml",
                              .settings = {"train.steps=3"},
                              .base_folders = {"models"},
                              .source_option = "data.train",
                              .source_text = [](const std::string& value) {
                                EXPECT_EQ(value, "elsewhere");
                                return "[model]\nlayers = 1\nwidth = 1\ntied = false\n[train]\nsteps = 1\n"
                                       "threads = 1\n";
                              }};
  write("run.toml", "[model]\nbase = \"small\"\ntied = true\n[data]\ntrain = \"elsewhere\"\n");
  load_options(table_, files_, sources);
  EXPECT_EQ(options_.model.layers, 1);  // the source
  EXPECT_EQ(options_.model.width, 2);   // the base file
  EXPECT_TRUE(options_.model.tied);     // the file
  EXPECT_EQ(options_.train.steps, 3);   // a setting
  EXPECT_EQ(options_.train.threads, 1);
  EXPECT_EQ(table_.at("model.layers").origin(), "elsewhere:2");
}

TEST_F(OptionsTest, ASettingNamesTheSourceToo) {
  std::string asked;
  const OptionSources sources{.file = {},
                              .settings = {"data.train=there"},
                              .base_folders = {},
                              .source_option = "data.train",
                              .source_text = [&](const std::string& value) {
                                asked = value;
                                return "[model]\nlayers = 9\n";
                              }};
  load_options(table_, files_, sources);
  EXPECT_EQ(asked, "there");
  EXPECT_EQ(options_.model.layers, 9);
}

TEST_F(OptionsTest, ReadsEveryTypeFromAFile) {
  load(R"(
    [model]
    layers = 3
    tied = false
    [train]
    steps = 1_000
    threads = 2
    learning_rate = 1     # a whole number will do
    clip = 0.5
    schedule = "constant"
    precision = "bf16"
    ramp = [8, 16]
    [data.validation]
    psalms = "psalms.txt"
    acts = "acts.txt"
    [debug]
    dump = ["block.0.query", "head"]
  )");
  EXPECT_EQ(options_.model.layers, 3);
  EXPECT_FALSE(options_.model.tied);
  EXPECT_EQ(options_.model.width, 64);
  EXPECT_EQ(options_.train.steps, 1000);
  EXPECT_EQ(options_.train.threads, 2);
  EXPECT_EQ(options_.train.learning_rate, 1.0);
  EXPECT_EQ(options_.train.clip, 0.5f);
  EXPECT_EQ(options_.train.schedule, Schedule::constant);
  EXPECT_EQ(options_.train.precision, "bf16");
  EXPECT_EQ(options_.train.ramp, (IntegerList{8, 16}));
  EXPECT_EQ(options_.data.validation, (StringMap{{"psalms", "psalms.txt"}, {"acts", "acts.txt"}}));
  EXPECT_EQ(options_.debug.dump, (StringList{"block.0.query", "head"}));
  EXPECT_EQ(table_.at("train.steps").origin(), "run.toml:6");
  EXPECT_EQ(table_.at("model.width").origin(), "default");
}

TEST_F(OptionsTest, SettingsWinInTheirOrder) {
  load("train.steps = 7\ndata.validation.a = 'x'\n", {"train.steps=1k", "train.steps=2k", "train.ramp=1,2",
                                                      "data.validation.b=y=z", "data.train=", "debug.dump="});
  EXPECT_EQ(options_.train.steps, 2000);
  EXPECT_EQ(options_.train.ramp, (IntegerList{1, 2}));
  EXPECT_EQ(options_.data.validation, (StringMap{{"a", "x"}, {"b", "y=z"}}));
  EXPECT_EQ(options_.data.train, "");
  EXPECT_EQ(table_.at("train.steps").origin(), "--set");
}

TEST_F(OptionsTest, UnknownNamesGetTheNearestOne) {
  EXPECT_EQ(refusal("[train]\nsteps = 1\nlearning_rat = 1.0\n"),
            "run.toml:3: there is no option train.learning_rat\n  hint: did you mean train.learning_rate?");
  EXPECT_EQ(refusal("", {"trian.steps=1"}),
            "--set: there is no option trian.steps\n  hint: did you mean train.steps?");
  EXPECT_EQ(refusal("learning_rate = 1"),
            "run.toml:1: there is no option learning_rate\n  hint: did you mean train.learning_rate?");
  EXPECT_EQ(refusal("[trian]\nsteps = 1\n"),
            "run.toml:1: there is no option trian\n  hint: did you mean train?");
  EXPECT_EQ(refusal("", {"optimizer.warmup_samples=1"}),
            "--set: there is no option optimizer.warmup_samples\n  hint: docs/options.md lists them all");
  EXPECT_EQ(refusal("train = 3"),
            "run.toml:1: train is a group of options, not an option\n  hint: set its members, train.NAME");
  EXPECT_EQ(refusal("\"train.steps\" = 3").substr(0, 42), "run.toml:1: there is no option train.steps");
  // The first fault of the file, not of the alphabet.
  EXPECT_EQ(refusal("[train]\nx = 1\na = 2\n").substr(0, 12), "run.toml:2: ");
}

TEST_F(OptionsTest, LongAndBrokenNamesAreHarmless) {
  EXPECT_NE(refusal("", {std::string(100'000, 'x') + "=1"}), "accepted");
  EXPECT_NE(refusal("", {"\xff=1"}), "accepted");
  EXPECT_NE(refusal("", {"data.train=\xff"}), "accepted");
  EXPECT_NE(refusal("", {"data.validation.\xff=x"}), "accepted");
  EXPECT_NE(refusal("", {"data.validation.=x"}), "accepted");
  EXPECT_NE(refusal("", {"=1"}), "accepted");
  EXPECT_NE(refusal("", {"train.steps"}), "accepted");
  EXPECT_NE(refusal("", {""}), "accepted");
  EXPECT_NE(refusal("", {"data.validation=x"}), "accepted");
}

TEST_F(OptionsTest, WrongTypesNameFileAndLine) {
  EXPECT_EQ(refusal("\n[train]\nsteps = \"many\"\n"),
            "run.toml:3: train.steps wants a whole number, not a string (\"many\")\n"
            "  hint: train.steps: Steps in all.");
  for (const char* wrong : {"train.steps = 1.0",
                            "train.steps = true",
                            "train.steps = [1]",
                            "train.steps = 1979-05-27",
                            "train.steps = {}",
                            "train.learning_rate = '1'",
                            "train.learning_rate = nan",
                            "train.learning_rate = inf",
                            "model.tied = 1",
                            "train.ramp = 8",
                            "train.ramp = [1.5]",
                            "train.ramp = [1, 'a']",
                            "train.ramp = [[1]]",
                            "train.ramp = ['a']",
                            "debug.dump = [1]",
                            "debug.dump = 'a'",
                            "data.train = 3",
                            "data.validation = 'a'",
                            "data.validation = []",
                            "data.validation.a = 3",
                            "data.validation.a.b = 'c'",
                            "data.validation.'a b' = 'c'",
                            "data.train = \"a\\u0000b\"",
                            "data.validation.a = \"a\\u0000b\"",
                            "debug.dump = [\"a\", \"\\u0000\"]",
                            "train.schedule = 1"}) {
    EXPECT_EQ(refusal(wrong).substr(0, 12), "run.toml:1: ") << wrong;
  }
  EXPECT_EQ(refusal("", {"train.steps=soon"}),
            "--set: train.steps wants a whole number, and this is none: \"soon\"\n"
            "  hint: train.steps: Steps in all. (such as 2000, 1_000_000, 20k, 5M or 2G)");
}

TEST_F(OptionsTest, RangesNameTheDoc) {
  EXPECT_EQ(refusal("train.learning_rate = 0.0"),
            "run.toml:1: train.learning_rate = 0.0 is out of range: above 0 and below 10\n"
            "  hint: train.learning_rate: Peak learning rate.");
  EXPECT_EQ(refusal("train.precision = 'fp8'").substr(0, 61),
            "run.toml:1: train.precision = \"fp8\" is not one of fp32, bf16\n");
  for (const char* wrong :
       {"train.learning_rate=10", "train.schedule=sine", "model.layers=0", "model.layers=1001",
        "train.ramp=4,0", "train.threads=-1", "train.threads=3G", "train.precision="}) {
    EXPECT_NE(refusal("", {wrong}).find(wrong[0] == 't' ? "hint: train" : "hint: model"), std::string::npos)
        << wrong;
  }
  for (const char* right : {"model.layers=1", "model.layers=1000", "train.learning_rate=9.99", "train.clip=0",
                            "train.threads=2147483647", "train.ramp=1"}) {
    EXPECT_EQ(refusal("", {right}), "accepted") << right;
  }
}

TEST_F(OptionsTest, BoundsOfIntegersAreExact) {
  int64_t value = 0;
  OptionTable table;
  table.add("a.b", value, "Doc.").at_most(0x1p53);
  table.apply_setting("a.b=9007199254740992");
  EXPECT_EQ(value, int64_t{1} << 53);
  EXPECT_THROW(table.apply_setting("a.b=9007199254740993"), Error);  // rounds to the bound as a double
  EXPECT_EQ(value, int64_t{1} << 53);
}

TEST_F(OptionsTest, BrokenFilesAreRefused) {
  EXPECT_EQ(refusal("[train]\nsteps = = 1\n").substr(0, 11), "run.toml:2:");
  EXPECT_EQ(refusal("train.steps = 1\ntrain.steps = 2\n").substr(0, 11), "run.toml:2:");  // given twice
  EXPECT_NE(refusal("train.steps = 99999999999999999999"), "accepted");
  EXPECT_NE(refusal("a = \"\xff\""), "accepted");
  EXPECT_NE(refusal(std::string(100'000, '[')), "accepted");
  EXPECT_NE(refusal("a = " + std::string(100'000, '[')), "accepted");
  // Each part of a key is a table within the one before.
  std::string parts = "a";
  while (parts.size() < 400'000) parts += " . a";
  for (const std::string& file : {parts + " = 1", "[" + parts + "]", "[[" + parts + "]]",
                                  "a = {" + parts + " = 1}", "a = '''\n'''\n" + parts + " = 1"}) {
    EXPECT_NE(refusal(file).find("a name of more than 8 parts"), std::string::npos);
  }
  EXPECT_EQ(refusal("data.train = 'a.b.c.d.e.f.g.h.i.j.txt' # a.b.c.d.e.f.g.h.i.j\n"
                    "debug.dump = [\"a\\\".b.c.d.e.f.g\", 'h.i.j.k.l.m.n.o']\n"),
            "accepted");
  EXPECT_NE(refusal(std::string(3 << 20, ' ')), "accepted");  // too large to be a configuration
  EXPECT_THROW(load_options(table_, files_, {"missing.toml", {}, {}}), Error);
}

TEST_F(OptionsTest, BaseFileLiesBeneath) {
  write("models/big.toml", "[model]\nlayers = 12\nwidth = 768\ntied = false\n");
  write("models/small.toml", "[model]\nlayers = 1\n");
  load("model.base = 'big'\nmodel.width = 512\n", {"model.layers=6"});
  EXPECT_EQ(options_.model.layers, 6);
  EXPECT_EQ(options_.model.width, 512);
  EXPECT_FALSE(options_.model.tied);
  EXPECT_EQ(table_.at("model.tied").origin(), "models/big.toml:4");

  TestOptions other;
  OptionTable table = make_table(other);
  load_options(table, files_, {"run.toml", {"model.base=small"}, {"none", "models"}});
  EXPECT_EQ(other.model.layers, 1);
  EXPECT_EQ(other.model.width, 512);  // the run's own value

  TestOptions by_path;
  OptionTable path_table = make_table(by_path);
  load_options(path_table, files_, {"", {"model.base=models/big.toml"}, {}});
  EXPECT_EQ(by_path.model.layers, 12);
}

TEST_F(OptionsTest, BaseFilesAreChecked) {
  write("models/big.toml", "[model]\nlayers = 12\n");
  write("models/train.toml", "[model]\nlayers = 12\n[train]\nsteps = 3\n");
  write("models/twice.toml", "[model]\nbase = 'big'\n");
  write("models/wrong.toml", "[model]\nlayer = 12\n");
  EXPECT_EQ(refusal("model.base = 'bug'"),
            "run.toml:1: model.base = \"bug\": there is no bug.toml in none, models\n"
            "  hint: there are big, train, twice, wrong");
  EXPECT_EQ(refusal("model.base = 'train'").substr(0, 20), "models/train.toml:4:");
  EXPECT_EQ(refusal("model.base = 'twice'").substr(0, 20), "models/twice.toml:2:");
  EXPECT_EQ(refusal("model.base = 'wrong'").substr(0, 20), "models/wrong.toml:2:");
  EXPECT_NE(refusal("model.base = 'models/none.toml'"), "accepted");
  EXPECT_NE(refusal("model.base = 3"), "accepted");
}

TEST_F(OptionsTest, LeadingOptionIsStoredFirst) {
  // The family is read last in the alphabet and given last, yet its defaults lie beneath the other values.
  table_.set_leading_option("train.precision", [&] {
    if (options_.train.precision == "bf16") options_.model = {"", 32, 4096, false};
  });
  write("models/big.toml", "[model]\nlayers = 12\n");
  load("model.base = 'big'\n", {"model.tied=true", "train.precision=bf16"});
  EXPECT_EQ(options_.model.layers, 12);
  EXPECT_EQ(options_.model.width, 4096);
  EXPECT_TRUE(options_.model.tied);
}

TEST_F(OptionsTest, ResolvedConfigurationReadsBackToTheSame) {
  write("models/big.toml", "[model]\nlayers = 12\n");
  load(
      "model.base = 'big'\n[train]\nlearning_rate = 0.1\nclip = 0.3\nramp = [1, 2]\n[data.validation]\na-b = "
      "'x \"y\" \\'\n",
      {"data.train=\xf0\x9f\x94\xa5\n\x01", "debug.dump=a,b", "train.schedule=constant"});
  const std::string text = resolved_toml(table_);
  TestOptions again;
  OptionTable table = make_table(again);
  apply_toml(table, text, "resolved.toml");  // without the base file
  EXPECT_TRUE(differences(table_, table).empty());
  for (const OptionRow& row : table.rows()) {
    if (row.name() == "model.base") continue;
    EXPECT_EQ(row.value(), table_.at(row.name()).value()) << row.name();
  }
  EXPECT_EQ(again.train.clip, 0.3f);
  EXPECT_NE(text.find("# from base = \"big\""), std::string::npos);
  EXPECT_EQ(resolved_toml(table).size(), text.size() - 3);  // but for the name of the base
}

TEST_F(OptionsTest, DifferencesByNameAndWhetherTheyMayChange) {
  TestOptions saved_options;
  OptionTable saved = make_table(saved_options);
  write("models/big.toml", "[model]\nwidth = 64\n");
  // model.base brings nothing new in: no difference.
  load("model.base = 'big'\ntrain.steps = 200\n", {"data.validation.a=x"});
  const auto allowed = require_resumable(saved, table_);
  ASSERT_EQ(allowed.size(), 2u);
  EXPECT_EQ(allowed[0].name, "train.steps");
  EXPECT_EQ(allowed[0].before, "100");
  EXPECT_EQ(allowed[0].after, "200");
  EXPECT_EQ(allowed[1].name, "data.validation");

  table_.apply_setting("model.layers=3");
  table_.apply_setting("train.learning_rate=2e-3");
  try {
    require_resumable(saved, table_);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.message(),
              "these options may not change when a run is resumed:"
              "\n  model.layers: 2 in the saved run, 3 now"
              "\n  train.learning_rate: 0.001 in the saved run, 0.002 now");
  }
}

TEST_F(OptionsTest, HelpAndDocsComeFromTheRows) {
  const std::string help = option_help(table_, "train");
  EXPECT_EQ(help.substr(0, help.find("  train.threads")),
            "train: The training loop.\n"
            "  train.steps = 100\n"
            "      Steps in all. [int, at least 0; may change on resume]\n");
  EXPECT_EQ(help.find("model."), std::string::npos);
  EXPECT_NE(help.find("[string, one of constant, cosine]"), std::string::npos);
  const std::string narrow = option_help(table_, "", 40);
  for (size_t begin = 0; begin < narrow.size();) {
    const size_t end = narrow.find('\n', begin);
    EXPECT_LE(end - begin, 40u) << narrow.substr(begin, end - begin);
    begin = end + 1;
  }
  const std::string docs = options_markdown(table_);
  EXPECT_NE(docs.find("## train\n\nThe training loop.\n"), std::string::npos);
  EXPECT_NE(
      docs.find(
          "| `train.learning_rate` | float | `0.001` | above 0 and below 10 | no | Peak learning rate. |"),
      std::string::npos);
  EXPECT_NE(docs.find("Batch sizes \\| of the ramp."), std::string::npos);
  for (const OptionRow& row : table_.rows()) {
    EXPECT_NE(docs.find("`" + row.name() + "`"), std::string::npos);
    EXPECT_NE(option_help(table_).find("  " + row.name() + " = "), std::string::npos);
  }
}

TEST_F(OptionsTest, ModelFoldersBeginWithTheCurrentOne) {
  const auto folders = model_configuration_folders();
  ASSERT_GE(folders.size(), 2u);
  EXPECT_EQ(folders[0], "configs/models");
  EXPECT_TRUE(folders[1].starts_with('/'));
}

}  // namespace
}  // namespace athanor
