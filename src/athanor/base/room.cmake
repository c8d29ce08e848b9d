find_package(PkgConfig REQUIRED)
pkg_check_modules(ISAL REQUIRED IMPORTED_TARGET libisal)
target_link_libraries(athanor_base PRIVATE PkgConfig::ISAL)
