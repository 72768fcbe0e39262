# cmake -DBUILD=build folder -DPREFIX=empty folder -DLIBDIR=lib -DSOURCE=folder with a project that uses the library
# -DC_COMPILER=cc -P install_test.cmake: what `cmake --install` leaves runs there, and can be built against.
file(REMOVE_RECURSE ${PREFIX})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${PREFIX} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${PREFIX}/bin/warpwright info --json OUTPUT_VARIABLE report COMMAND_ERROR_IS_FATAL ANY)
string(JSON operations ERROR_VARIABLE error GET "${report}" ops)
if(error)
  message(FATAL_ERROR "the installed program's report is not what it should be: ${error}")
endif()

if(NOT C_COMPILER)
  return()
endif()
# A C program against the installed library, by CMake's package and, where there is one, by pkg-config.
execute_process(COMMAND ${CMAKE_COMMAND} -S ${SOURCE} -B ${PREFIX}/user -DCMAKE_PREFIX_PATH=${PREFIX}
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
