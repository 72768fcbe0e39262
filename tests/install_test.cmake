# cmake -DBUILD=build folder -DPREFIX=empty folder -P install_test.cmake: what `cmake --install` leaves runs there.
file(REMOVE_RECURSE ${PREFIX})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${PREFIX} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${PREFIX}/bin/warpwright info --json OUTPUT_VARIABLE report COMMAND_ERROR_IS_FATAL ANY)
string(JSON operations ERROR_VARIABLE error GET "${report}" ops)
if(error)
  message(FATAL_ERROR "the installed program's report is not what it should be: ${error}")
endif()
