# Installs a build. Checks that the installed program runs and that programs can be built with the installed library.
# usage: cmake -DBUILD=build folder -DPREFIX=empty folder -DLIBDIR=lib -DSOURCE=folder with a project that uses the library
#   -DEXAMPLES=folder with the examples -DMODEL=folder with a sentence model -DDECODER=folder with a decoder
#   -DC_COMPILER=cc -DCXX_COMPILER=c++ -DGENERATOR=Ninja -P install_test.cmake
file(REMOVE_RECURSE ${PREFIX})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${PREFIX} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${PREFIX}/bin/warpwright info --json OUTPUT_VARIABLE report COMMAND_ERROR_IS_FATAL ANY)
string(JSON operations ERROR_VARIABLE error GET "${report}" ops)
if(error)
  message(FATAL_ERROR "the installed program's report is not what it should be: ${error}")
endif()

foreach(file bash-completion/completions/warpwright zsh/site-functions/_warpwright fish/vendor_completions.d/warpwright.fish
    man/man1/warpwright.1 man/man1/warpwright-data-build.1)
  if(NOT EXISTS ${PREFIX}/share/${file})
    message(FATAL_ERROR "share/${file} is not installed")
  endif()
endforeach()

if(NOT C_COMPILER)
  return()
endif()
# Builds a C program with the installed library, through CMake's package and, if present, pkg-config.
execute_process(COMMAND ${CMAKE_COMMAND} -G ${GENERATOR} -S ${SOURCE} -B ${PREFIX}/user -DCMAKE_PREFIX_PATH=${PREFIX}
  -DCMAKE_C_COMPILER=${C_COMPILER} OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${PREFIX}/user OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${PREFIX}/user/user COMMAND_ERROR_IS_FATAL ANY)
find_program(PKG_CONFIG pkg-config)
if(PKG_CONFIG)
  set(ENV{PKG_CONFIG_PATH} ${PREFIX}/${LIBDIR}/pkgconfig)
  execute_process(COMMAND ${PKG_CONFIG} --cflags --libs warpwright OUTPUT_VARIABLE flags COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  execute_process(COMMAND ${C_COMPILER} -std=c11 ${SOURCE}/user.c -o ${PREFIX}/user_by_pkg_config ${flags}
    -Wl,-rpath,${PREFIX}/${LIBDIR} COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${PREFIX}/user_by_pkg_config COMMAND_ERROR_IS_FATAL ANY)
endif()

# The example must embed a text as the installed program does. The model's vocabulary is made here.
set(model ${PREFIX}/model)
file(COPY ${MODEL}/ DESTINATION ${model})
set(vocabulary "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
foreach(token RANGE 5 40)
  string(APPEND vocabulary "w${token}\n")
endforeach()
file(WRITE ${model}/vocab.txt "${vocabulary}")
file(WRITE ${PREFIX}/text "w5 w6 w7\n")
execute_process(COMMAND ${PREFIX}/bin/warpwright embed --model ${model} --input ${PREFIX}/text --device cpu
  --weights-cache none
  OUTPUT_VARIABLE record ERROR_QUIET COMMAND_ERROR_IS_FATAL ANY)
string(JSON count LENGTH "${record}" embedding)
execute_process(COMMAND ${CMAKE_COMMAND} -G ${GENERATOR} -S ${EXAMPLES} -B ${PREFIX}/examples -DCMAKE_PREFIX_PATH=${PREFIX}
  -DCMAKE_CXX_COMPILER=${CXX_COMPILER} OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${PREFIX}/examples OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
set(ENV{CUDA_VISIBLE_DEVICES} "")
execute_process(COMMAND ${PREFIX}/examples/embed ${model} "w5 w6 w7" OUTPUT_VARIABLE printed COMMAND_ERROR_IS_FATAL ANY)
string(STRIP "${printed}" printed)
string(REPLACE "\n" ";" printed "${printed}")
list(LENGTH printed lines)
if(NOT lines EQUAL count)
  message(FATAL_ERROR "the example prints ${lines} numbers, but the vector has ${count}")
endif()
math(EXPR last "${count} - 1")
foreach(i RANGE ${last})
  string(JSON wanted GET "${record}" embedding ${i})
  list(GET printed ${i} got)
  string(SUBSTRING "${wanted}" 0 6 wanted_start)
  string(SUBSTRING "${got}" 0 6 got_start)
  if(NOT wanted_start STREQUAL got_start)
    message(FATAL_ERROR "number ${i} of the example is ${got}, but the program's is ${wanted}")
  endif()
endforeach()

# The other example must continue a text as the program does.
execute_process(COMMAND ${PREFIX}/bin/warpwright generate --model ${DECODER} --prompt "the cat" --max-tokens 30
  --temperature 0.8 --top-k 40 --device cpu OUTPUT_VARIABLE wanted COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${PREFIX}/examples/generate ${DECODER} "the cat" OUTPUT_VARIABLE got COMMAND_ERROR_IS_FATAL ANY)
if(NOT wanted STREQUAL got)
  message(FATAL_ERROR "the example prints ${got}, but the program prints ${wanted}")
endif()
