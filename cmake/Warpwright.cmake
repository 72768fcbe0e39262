# Builds the folders of this project.
#
# warpwright_library(NAME FOLDER folder SOURCES … CUDA_SOURCES … SOURCES_WITHOUT_CUDA … DEPENDS …) makes the static
# library of one folder of src/, or of a part of it if FOLDER is not NAME. Its headers are reachable as
# "FOLDER/header.hpp", but only for targets that link it: every folder has its own include root, which holds
# nothing but a link to that folder. An include against the direction of the dependency rule
# (cli → train → infer → model → ops → runtime → core) therefore does not compile.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
if(NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(WARPWRIGHT_CCACHE ccache)
  if(WARPWRIGHT_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${WARPWRIGHT_CCACHE})
  endif()
endif()

# GCC 12 takes the insertion into a string for an overlapping copy (GCC bug 105651): -Wno-restrict.
# Clang warns where it does not vectorize a loop with `omp simd`, which the sanitizers prevent: -Wno-pass-failed.
add_library(warpwright_flags INTERFACE)
target_compile_options(warpwright_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Werror>
  $<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>
  $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wno-pass-failed>)

# CUDA where nvcc is found: sources ending in .cu, CUDA's runtime linked statically, so that the program also starts
# where there is no driver. WARPWRIGHT_CUDA_ARCHS takes CMake's words for CUDA_ARCHITECTURES.
if(WARPWRIGHT_CUDA)
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_EXTENSIONS OFF)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has it
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  endif()
  set(CMAKE_CUDA_ARCHITECTURES ${WARPWRIGHT_CUDA_ARCHS})
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  if(WARPWRIGHT_CCACHE)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${WARPWRIGHT_CCACHE})
  endif()
  add_library(warpwright_cuda INTERFACE)
  target_link_libraries(warpwright_cuda INTERFACE CUDA::cudart_static)
  target_compile_definitions(warpwright_cuda INTERFACE WARPWRIGHT_CUDA=1)
  target_compile_options(warpwright_flags INTERFACE
    "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Werror;-Werror=all-warnings;--expt-relaxed-constexpr;-Xfatbin=-compress-all>")
endif()

function(warpwright_library name)
  cmake_parse_arguments(arg "" "FOLDER" "SOURCES;CUDA_SOURCES;SOURCES_WITHOUT_CUDA;DEPENDS" ${ARGN})
  set(folder ${name})
  if(arg_FOLDER)
    set(folder ${arg_FOLDER})
  endif()
  set(root ${PROJECT_BINARY_DIR}/include/${folder})
  file(MAKE_DIRECTORY ${root})
  file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR} ${root}/${folder} SYMBOLIC)
  add_library(warpwright_${name} STATIC ${arg_SOURCES})
  target_include_directories(warpwright_${name} PUBLIC ${root})
  list(TRANSFORM arg_DEPENDS PREPEND warpwright_ REGEX "^(core|roofline|runtime|text|data|norms|ops|model|infer|train)$")
  target_link_libraries(warpwright_${name} PUBLIC ${arg_DEPENDS} PRIVATE warpwright_flags)
  if(WARPWRIGHT_CUDA)
    target_sources(warpwright_${name} PRIVATE ${arg_CUDA_SOURCES})
    target_link_libraries(warpwright_${name} PUBLIC warpwright_cuda)
  else()
    target_sources(warpwright_${name} PRIVATE ${arg_SOURCES_WITHOUT_CUDA})
  endif()
endfunction()

# Sources compiled for one instruction set, chosen at run time. They are always optimized (their inline helpers must not
# survive as functions of their own) and export no weak symbol, which scripts/check-isa-symbols checks.
# GCC 12 and 13 take their own AVX-512 headers' deliberately undefined operands for a mistake (GCC bug 105593).
# Loops begin at a cache line: the same GEMM loop took 10% longer on a Zen 3 where it happened to begin elsewhere.
set(isa_sse2 -O3)
set(isa_avx2 -O3 -falign-functions=64 -falign-loops=64 -mavx2 -mfma -mbmi2 -mf16c
    $<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized -Wno-maybe-uninitialized>)
set(isa_avx512 ${isa_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512)
set(isa_amx_bf16 ${isa_avx512} -mavx512bf16 -mamx-tile -mamx-bf16)

# warpwright_cpu_kernels(LIBRARY ISAS isa… FILES file… DEPENDS …) adds kernels for CPUs to a library, compiled with
# WARPWRIGHT_ISA defined: NAME.inl once for each of ISAS, NAME.ISA.cpp for the instruction set in its name, and
# NAME.portable.cpp as any other source.
function(warpwright_cpu_kernels library)
  cmake_parse_arguments(arg "" "" "ISAS;FILES;DEPENDS" ${ARGN})
  set(used)
  foreach(file IN LISTS arg_FILES)
    if(file MATCHES "\\.inl$")
      set(isas ${arg_ISAS})
      set_source_files_properties(${file} PROPERTIES LANGUAGE CXX)
    elseif(file MATCHES "\\.portable\\.cpp$")
      target_sources(${library} PRIVATE ${file})
      continue()
    elseif(file MATCHES "\\.([^./]+)\\.cpp$")
      set(isas ${CMAKE_MATCH_1})
    else()
      message(FATAL_ERROR "${file}: the file of a CPU kernel is called NAME.inl, NAME.ISA.cpp or NAME.portable.cpp")
    endif()
    foreach(isa IN LISTS isas)
      if(NOT isa_${isa})
        message(FATAL_ERROR "${file}: no instruction set is called ${isa}")
      endif()
      list(APPEND files_${isa} ${file})
      list(APPEND used ${isa})
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES used)
  foreach(isa IN LISTS used)
    set(objects ${library}_${isa})
    add_library(${objects} OBJECT ${files_${isa}})
    target_compile_options(${objects} PRIVATE ${isa_${isa}})
    target_compile_definitions(${objects} PRIVATE WARPWRIGHT_ISA=${isa})
    target_include_directories(${objects} PRIVATE $<TARGET_PROPERTY:${library},INTERFACE_INCLUDE_DIRECTORIES>)
    target_link_libraries(${objects} PRIVATE ${arg_DEPENDS} warpwright_flags)
    target_sources(${library} PRIVATE $<TARGET_OBJECTS:${objects}>)
    set_property(GLOBAL APPEND PROPERTY warpwright_isa_libraries ${objects})
  endforeach()
endfunction()

# warpwright_test(NAME SOURCES … DEPENDS …) builds one GoogleTest program and registers each of its tests with ctest,
# labelled NAME.
function(warpwright_test name)
  if(NOT WARPWRIGHT_TESTS)
    return()
  endif()
  cmake_parse_arguments(arg "" "" "SOURCES;DEPENDS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  list(TRANSFORM arg_DEPENDS PREPEND warpwright_ REGEX "^(core|roofline|runtime|text|data|ops|model|infer|train)$")
  target_link_libraries(${name} PRIVATE ${arg_DEPENDS} warpwright_flags GTest::gtest_main)
  # Tests that run side by side share the processors: a thread that waits must not spin.
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT 900 LABELS ${name} ENVIRONMENT OMP_WAIT_POLICY=passive)
endfunction()
