set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/reduction.cpp PROPERTIES COMPILE_OPTIONS -O3)  # vectorised
