find_package(nlohmann_json REQUIRED)
target_link_libraries(athanor_cli PRIVATE nlohmann_json::nlohmann_json)
# The compiled library: its header-only form costs seconds for every file that includes it.
find_package(PkgConfig REQUIRED)
pkg_check_modules(TOMLPLUSPLUS REQUIRED IMPORTED_TARGET tomlplusplus)
target_link_libraries(athanor_cli PRIVATE PkgConfig::TOMLPLUSPLUS)
# CLI11 takes seconds to compile, most of them to optimise what runs once.
set_source_files_properties(${CMAKE_SOURCE_DIR}/src/athanor/cli/command_line.cpp PROPERTIES COMPILE_OPTIONS -O0)
