#include "comm/launch.hpp"

#include <gtest/gtest.h>

#include <map>

#include "core/error.hpp"

namespace warpwright {
namespace {

using Environment = std::map<std::string, std::string>;

Launch launch_in(const Environment& environment) {
  return read_launch([&](const char* name) {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

const Environment kTorchrun = {{"RANK", "5"},
                               {"WORLD_SIZE", "8"},
                               {"LOCAL_RANK", "1"},
                               {"LOCAL_WORLD_SIZE", "4"},
                               {"MASTER_ADDR", "node1"},
                               {"MASTER_PORT", "29500"}};
const Environment kSlurm = {{"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_PROCID", "6"},
                            {"SLURM_LOCALID", "2"},        {"SLURM_STEP_NODELIST", "node[03-04]"},
                            {"SLURM_JOB_ID", "1234"},      {"SLURM_STEP_ID", "0"}};

Environment with(Environment environment, const std::string& name, const std::string& value) {
  environment[name] = value;
  return environment;
}
Environment without(Environment environment, const std::string& name) {
  environment.erase(name);
  return environment;
}

void expect_error(const Environment& environment, const std::string& part) {
  try {
    launch_in(environment);
    ADD_FAILURE() << "no error with " << part;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(Launch, WithoutALauncherAProcessIsAlone) {
  for (const Environment& environment :
       {Environment{}, Environment{{"PMI_SIZE", "1"}}, Environment{{"RANK", "0"}, {"WORLD_SIZE", "1"}},
        Environment{{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}}, Environment{{"WORLD_SIZE", "1"}},
        with(with(kSlurm, "SLURM_STEP_NUM_TASKS", "1"), "SLURM_PROCID", "0")}) {
    const Launch launch = launch_in(environment);
    EXPECT_EQ(launch.by, Launch::By::nobody);
    EXPECT_EQ(launch.ranks, 1);
  }
}

TEST(Launch, Torchrun) {
  const Launch launch = launch_in(kTorchrun);
  EXPECT_EQ(launch.by, Launch::By::store);
  EXPECT_EQ(launch.rank, 5);
  EXPECT_EQ(launch.ranks, 8);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_ranks, 4);
  EXPECT_EQ(launch.address, "node1");
  EXPECT_EQ(launch.port, 29500);
  EXPECT_EQ(launch_in(with(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE", "True")).port, 29501);
  EXPECT_EQ(launch_in(with(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE", "False")).port, 29500);
  EXPECT_EQ(launch_in(without(kTorchrun, "LOCAL_RANK")).local_rank, 5);
  EXPECT_EQ(launch.session, "");
  EXPECT_EQ(launch_in(with(kTorchrun, "TORCHELASTIC_RUN_ID", "my run")).session, "my run");
}

TEST(Launch, TorchrunsVariablesMustFit) {
  expect_error(with(kTorchrun, "RANK", "8"), "RANK: is '8', not a number from 0 to 7");
  expect_error(with(kTorchrun, "RANK", "one"), "RANK: is 'one'");
  expect_error(with(kTorchrun, "WORLD_SIZE", "0"), "WORLD_SIZE: is '0'");
  expect_error(with(kTorchrun, "WORLD_SIZE", "8x"), "WORLD_SIZE: is '8x'");
  expect_error(with(kTorchrun, "MASTER_PORT", "70000"), "MASTER_PORT: is '70000'");
  expect_error(without(kTorchrun, "RANK"), "RANK: is not set, but WORLD_SIZE is");
  expect_error(without(kTorchrun, "WORLD_SIZE"), "WORLD_SIZE: is not set, but RANK is");
  expect_error(without(kTorchrun, "MASTER_ADDR"), "MASTER_ADDR: is not set");
  expect_error(with(kTorchrun, "MASTER_ADDR", ""), "MASTER_ADDR: is empty");
  expect_error(without(kTorchrun, "MASTER_PORT"), "MASTER_PORT: is not set");
}

TEST(Launch, Mpirun) {
  const Launch launch = launch_in({{"OMPI_COMM_WORLD_SIZE", "4"},
                                   {"OMPI_COMM_WORLD_RANK", "3"},
                                   {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
                                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                                   {"SLURM_STEP_NUM_TASKS", "2"},
                                   {"SLURM_PROCID", "0"}});
  EXPECT_EQ(launch.by, Launch::By::mpi);
  EXPECT_EQ(launch.rank, 3);
  EXPECT_EQ(launch.ranks, 4);
  EXPECT_EQ(launch.local_rank, 3);
  EXPECT_EQ(launch.local_ranks, 4);
  EXPECT_EQ(launch_in({{"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}}).local_rank, 1);
}

TEST(Launch, MpirunsVariablesMustFit) {
  const Environment two = {{"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_RANK", "1"}};
  expect_error(with(two, "OMPI_COMM_WORLD_RANK", "9"),
               "OMPI_COMM_WORLD_RANK: is '9', not a number from 0 to 1");
  expect_error(with(two, "OMPI_COMM_WORLD_LOCAL_RANK", "2"), "OMPI_COMM_WORLD_LOCAL_RANK: is '2'");
  expect_error(with(two, "OMPI_COMM_WORLD_LOCAL_SIZE", "3"), "OMPI_COMM_WORLD_LOCAL_SIZE: is '3'");
}

TEST(Launch, MpirunMayGetRank0sHost) {
  Environment environment = {{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "3"}};
  EXPECT_EQ(launch_in(environment).address, "");
  EXPECT_EQ(launch_in(with(environment, "MASTER_ADDR", "node1")).address, "node1");
}

TEST(Launch, MpirunOfMpichWithinSlurm) {
  const Launch launch = launch_in({{"SLURM_STEP_NUM_TASKS", "2"},
                                   {"SLURM_PROCID", "1"},
                                   {"PMI_SIZE", "8"},
                                   {"PMI_RANK", "6"},
                                   {"MPI_LOCALRANKID", "2"},
                                   {"MPI_LOCALNRANKS", "4"}});
  EXPECT_EQ(launch.by, Launch::By::mpi);
  EXPECT_EQ(launch.rank, 6);
}

// Jobs of one process set RANK and WORLD_SIZE, and mpirun passes them on.
TEST(Launch, ALauncherWithOneRankHidesNoOther) {
  Environment environment = {
      {"RANK", "0"}, {"WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_SIZE", "3"}, {"OMPI_COMM_WORLD_RANK", "2"}};
  EXPECT_EQ(launch_in(environment).by, Launch::By::mpi);
  EXPECT_EQ(launch_in(environment).rank, 2);
  environment = with(with(kSlurm, "RANK", "0"), "WORLD_SIZE", "1");
  EXPECT_EQ(launch_in(with(environment, "OMPI_COMM_WORLD_SIZE", "1")).rank, 6);
}

TEST(Launch, LaunchersThatContradictEachOtherAreNamed) {
  Environment both = with(with(kTorchrun, "OMPI_COMM_WORLD_SIZE", "3"), "OMPI_COMM_WORLD_RANK", "2");
  expect_error(both, "RANK and WORLD_SIZE say rank 5 of 8, and mpirun says rank 2 of 3");
  both = with(both, "OMPI_COMM_WORLD_SIZE", "8");
  expect_error(both, "rank 5 of 8, and mpirun says rank 2 of 8");
  EXPECT_EQ(launch_in(with(both, "OMPI_COMM_WORLD_RANK", "5")).by, Launch::By::store);
}

TEST(Launch, Slurm) {
  const Launch launch = launch_in(kSlurm);
  EXPECT_EQ(launch.by, Launch::By::store);
  EXPECT_EQ(launch.rank, 6);
  EXPECT_EQ(launch.ranks, 8);
  EXPECT_EQ(launch.local_rank, 2);
  EXPECT_EQ(launch.address, "node03");
  EXPECT_EQ(launch.session, "1234.0.0");
  EXPECT_EQ(launch_in(with(kSlurm, "SLURM_RESTART_COUNT", "2")).session, "1234.0.2");
  for (const char* large : {"4294967290", "18446744073709551615"}) {
    const Launch late = launch_in(with(kSlurm, "SLURM_JOB_ID", large));
    EXPECT_EQ(late.session, std::string(large) + ".0.0");
    EXPECT_GE(late.port, 20000);
    EXPECT_LT(late.port, 30000);
  }
  expect_error(with(kSlurm, "SLURM_JOB_ID", "18446744073709551616"), "SLURM_JOB_ID: is '1844");
  EXPECT_GE(launch.port, 20000);
  EXPECT_LT(launch.port, 30000);
  EXPECT_NE(launch_in(with(kSlurm, "SLURM_STEP_ID", "1")).port, launch.port);
  EXPECT_EQ(launch_in(with(kSlurm, "MASTER_PORT", "1234")).port, 1234);
  EXPECT_EQ(launch_in(with(kSlurm, "MASTER_ADDR", "head")).address, "head");
  expect_error(without(kSlurm, "SLURM_STEP_NODELIST"),
               "MASTER_ADDR: is not set, but srun has started 8 ranks");
  // srun sets PMI's variables too where MpiDefault is pmi2.
  EXPECT_EQ(launch_in(with(with(kSlurm, "PMI_SIZE", "8"), "PMI_RANK", "6")).by, Launch::By::store);
}

TEST(Launch, AJobHasTheNamesOfItsLaunchers) {
  const auto job = [](const Environment& environment) { return launch_in(environment).job; };
  const Environment named = with(kTorchrun, "TORCHELASTIC_RUN_ID", "my run");
  const Environment open = {
      {"OMPI_COMM_WORLD_SIZE", "3"}, {"OMPI_COMM_WORLD_RANK", "2"}, {"PMIX_NAMESPACE", "1276313601"}};
  const Environment mpich = {
      {"PMI_SIZE", "3"}, {"MPI_LOCALNRANKS", "3"}, {"SLURM_JOB_ID", "1"}, {"SLURM_STEP_ID", "2"}};
  for (const Environment& environment : {kTorchrun, mpich, without(kSlurm, "SLURM_STEP_ID")}) {
    EXPECT_EQ(job(environment), "");
  }
  EXPECT_EQ(job(named), job(with(named, "RANK", "0")));
  EXPECT_NE(job(named), job(with(named, "TORCHELASTIC_RUN_ID", "your run")));
  EXPECT_EQ(job(open), job(with(open, "OMPI_COMM_WORLD_RANK", "0")));
  EXPECT_NE(job(open), job(with(open, "PMIX_NAMESPACE", "1276379137")));
  EXPECT_EQ(job(kSlurm), job(with(kSlurm, "SLURM_PROCID", "0")));
  EXPECT_NE(job(kSlurm), job(with(kSlurm, "SLURM_STEP_ID", "1")));
  EXPECT_NE(job(kSlurm), job(with(kSlurm, "SLURM_JOB_ID", "1235")));
}

TEST(Launch, TheFirstHostOfAList) {
  EXPECT_EQ(first_host("node"), "node");
  EXPECT_EQ(first_host("a1,a2"), "a1");
  EXPECT_EQ(first_host("node[03-05,7],login1"), "node03");
  EXPECT_EQ(first_host("rack[2,4]n[007-9].site"), "rack2n007.site");
  EXPECT_EQ(first_host("cn-12"), "cn-12");
  EXPECT_EQ(first_host(""), "");
}

}  // namespace
}  // namespace warpwright
