# The compiled library: its header-only form costs seconds for every file that includes it.
find_package(PkgConfig REQUIRED)
pkg_check_modules(TOMLPLUSPLUS REQUIRED IMPORTED_TARGET tomlplusplus)
target_link_libraries(athanor_cli PRIVATE PkgConfig::TOMLPLUSPLUS)
