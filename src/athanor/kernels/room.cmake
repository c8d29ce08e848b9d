find_package(hwy REQUIRED)
target_link_libraries(athanor_kernels PRIVATE hwy::hwy)
# Highway 1.0.3 has no bf16 target: this file is compiled for it as a whole, and called only where it runs.
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/cpu/attention_bf16.cpp PROPERTIES COMPILE_OPTIONS
                            "-mavx2;-mfma;-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mavx512bf16")

# oneDNN by path: its package file would ask for OpenCL too. It calls GCC's OpenMP, and so do we, to keep it on one
# thread; whatever the compiler's own OpenMP may be.
find_path(ATHANOR_ONEDNN_INCLUDE oneapi/dnnl/dnnl.hpp REQUIRED)
find_library(ATHANOR_ONEDNN dnnl REQUIRED)
find_library(ATHANOR_GNU_OPENMP NAMES libgomp.so.1 REQUIRED)
target_include_directories(athanor_kernels SYSTEM PRIVATE ${ATHANOR_ONEDNN_INCLUDE})
target_link_libraries(athanor_kernels PRIVATE ${ATHANOR_ONEDNN} ${ATHANOR_GNU_OPENMP})
