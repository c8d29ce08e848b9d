#include "athanor/cli/commands.h"

int main(int argc, char** argv) {
  return athanor::run_program(argc, argv);
}
