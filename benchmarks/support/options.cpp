#include "support/options.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>

#include "athanor/base/error.h"

namespace athanor {

BenchmarkOptions::BenchmarkOptions(const std::string& about) : app_(std::make_unique<CLI::App>(about)) {}

BenchmarkOptions::~BenchmarkOptions() = default;

template <class Value>
CLI::Option* BenchmarkOptions::add(const std::string& name, Value& value, const std::string& about) {
  return app_->add_option(name, value, about)->capture_default_str();
}

template <class Number>
void BenchmarkOptions::add_number(const std::string& name, Number& value, Number least, Number most,
                                  const std::string& about) {
  add(name, value, about)->check(CLI::Range(least, most));
}

template <class Value>
void BenchmarkOptions::add_text(const std::string& name, Value& value, const std::string& about,
                                const std::vector<std::string>& allowed) {
  CLI::Option* const option = add(name, value, about);
  if (!allowed.empty()) option->check(CLI::IsMember(allowed));
}

void BenchmarkOptions::flag(const std::string& name, bool& value, const std::string& about) {
  app_->add_flag(name, value, about);
}

void BenchmarkOptions::number(const std::string& name, int& value, int least, int most,
                              const std::string& about) {
  add_number(name, value, least, most, about);
}

void BenchmarkOptions::number(const std::string& name, int64_t& value, int64_t least, int64_t most,
                              const std::string& about) {
  add_number(name, value, least, most, about);
}

void BenchmarkOptions::number(const std::string& name, double& value, double least, double most,
                              const std::string& about) {
  add_number(name, value, least, most, about);
}

void BenchmarkOptions::text(const std::string& name, std::string& value, const std::string& about,
                            const std::vector<std::string>& allowed) {
  add_text(name, value, about, allowed);
}

void BenchmarkOptions::text(const std::string& name, std::vector<std::string>& values,
                            const std::string& about, const std::vector<std::string>& allowed) {
  add_text(name, values, about, allowed);
}

int BenchmarkOptions::run(int count, char** values, const std::function<void()>& work) {
  try {
    app_->parse(count, values);
    work();
    return 0;
  } catch (const CLI::ParseError& error) {
    return app_->exit(error) == 0 ? 0 : 2;
  } catch (const Error& error) {
    fmt::print(stderr, "bench: {}\n", error.what());
    return 2;
  }
}

}  // namespace athanor
