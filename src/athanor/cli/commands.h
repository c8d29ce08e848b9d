// The commands of the program `athanor`, one file each; command_table_*.cpp say what arguments they take, and
// command_line.cpp reads these.
//
// Each command throws Error for what it refuses and leaves messages and exit codes to run_program.
// Thread safety: one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace athanor {

// The program: reads the arguments (argv[0] is its name), runs the command, reports errors on standard error.
int run_program(int argc, const char* const* argv);

// Options of a run as given on the command line.
struct ConfigurationArguments {
  std::string file;                   // --config
  std::vector<std::string> settings;  // --set, each "NAME=VALUE"
};

struct TrainArguments {
  ConfigurationArguments configuration;
  bool resume = false;
  std::string resume_folder;  // empty: the latest run of the configuration's folder
  bool change_data = false;   // resuming with another blend is meant
  int64_t ranks = 0;          // of the job; 0: those of the mesh
};
void train_command(const TrainArguments& arguments);

struct ShowArguments {
  ConfigurationArguments configuration;
  std::string topic;                         // one of show_topics()
  std::string program = "train";             // train, validate, prefill or decode
  std::optional<std::string> template_name;  // show block: templates whose name begins so
};
const std::vector<std::string>& show_topics();
void show_command(const ShowArguments& arguments);

// Which model a command uses, and how.
struct InferenceArguments {
  std::string model;      // see open_model_source; empty: the latest run in runs/
  std::string precision;  // empty: fp32, or the 16-bit type that the weights are kept in
  std::string tokenizer;  // see open_tokenizer; empty: the one kept with the model
  int threads = 0;        // of each rank; 0: all cores
  int64_t ranks = 0;      // that share the work; 0: as many as share a model
  int64_t tensor = 1;     // of them share a model
  bool no_average = false;
};

struct GenerateArguments {
  InferenceArguments inference;
  std::vector<std::string> prompts, stops;
  std::string file;  // of prompts; "-": standard input
  int64_t max_tokens = 300, top_k = 0, seed = 0, batch = 8, context = 0;
  double temperature = 0.8, top_p = 1;
  bool special_tokens = false, json = false;
};
void generate_command(const GenerateArguments& arguments);

struct EvaluateArguments {
  InferenceArguments inference;
  std::string data;  // file, or name of a validation set; empty: all sets of the model's run
  int64_t tokens = 0, sequence = 0, stride = 0, batch = 8;
  bool shard_weights = false;  // ranks keep a part each, and gather a layer when they need it
  bool json = false;
};
void evaluate_command(const EvaluateArguments& arguments);

struct CompareArguments {
  std::vector<std::string> runs;       // folders
  std::string by = "step";             // or tokens, seconds
  std::string output = "compare.svg";  // the chart
};
void compare_command(const CompareArguments& arguments);

struct TokenizerArguments {
  std::string tokenizer;            // a name or path that open_tokenizer takes
  std::optional<std::string> text;  // instead of an input
  std::string input, output;        // files; empty or "-": the standard streams
  bool special_tokens = false;      // encode: text that spells one becomes it; decode: they are shown
};
void tokenizer_encode_command(const TokenizerArguments& arguments);  // text to ids, written as numbers
void tokenizer_decode_command(const TokenizerArguments& arguments);
void tokenizer_show_command(const TokenizerArguments& arguments);

struct ImportArguments {
  std::string folder, output;
};
void import_command(const ImportArguments& arguments);

struct ExportArguments {
  std::string source, output;
  std::string dtype;                   // empty: as the weights are kept
  std::string max_shard_size = "5GB";  // of a file
  bool average = false;                // the averaged weights
};
void export_command(const ExportArguments& arguments);

struct DataBuildArguments {
  std::vector<std::string> inputs;  // files, folders, patterns
  std::string output;               // PREFIX
  std::string tokenizer = "bytes";
  std::string format = "athanor";
  std::string field = "text", separator, chat_template = "plain";
  double validation_fraction = 0, test_fraction = 0;
  int64_t split_seed = 1;
  int threads = 0;
  bool skip_bad = false, overwrite = false;
};
void data_build_command(const DataBuildArguments& arguments);

struct DataInspectArguments {
  std::vector<std::string> inputs;
  std::string tokenizer;  // shows the first documents as text; empty: not
  int64_t documents = 3;  // so many
};
void data_inspect_command(const DataInspectArguments& arguments);

struct TokenizerTrainArguments {
  std::vector<std::string> inputs;  // texts, JSON lines, folders and patterns of them; "-": standard input
  int64_t vocabulary = 0;           // tokens
  std::string output;               // the tokenizer.json
  std::string pattern = "gpt2";     // or llama3
  std::string memory;               // bytes, with suffix k, M or G; empty: half of what is free
  int64_t threads = 0;              // 0: all cores
  std::vector<std::string> special_tokens = {"<|endoftext|>"};
  std::string separator;       // a line that ends a document; empty: none
  std::string field = "text";  // of JSON lines
};
void tokenizer_train_command(const TokenizerTrainArguments& arguments);

struct HelpOptionsArguments {
  std::string group;  // empty: all
  bool markdown = false;
};
void help_options_command(const HelpOptionsArguments& arguments);

void version_command();

// --- shared by commands --------------------------------------------------------------------------------

// Writes to standard output; throws Error (user) when that fails, so that a full disk is no success.
void write_output(const std::string& text);

// Writes to standard error. What cannot be written there is dropped: the work does not depend on it.
void write_message(const std::string& text);

}  // namespace athanor
