#!/usr/bin/env python3
"""How ranks find each other without mezzo-run, and a program that is alone. Usage: environments_test.py MEZZO_RUN RANK_PROGRAM GLOO_MODULE [TEST...]"""
import os
import shutil
import socket
import subprocess
import tempfile

from runs import MODULE, PROGRAM, environment, expect, free_port, main, matches, run, start_ranks, torchrun_variables, wait_until_begun


def all_joined(result, ranks):
    expect(result.code in (0, [0] * ranks), result)
    for rank in range(ranks):
        expect(any(lines[-1] == f"joined {rank} of {ranks}" for lines in result.ranks.values()), result)


def torchrun():
    port = free_port()
    all_joined(start_ranks("join", [torchrun_variables(r, 3, port) for r in range(3)]), 3)


def torchrun_listens_at_the_port_itself():
    """It accepts and says nothing, as its own store would."""
    port = free_port()
    with socket.socket() as agent:
        agent.bind(("127.0.0.1", port))
        agent.listen()
        elastic = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0"}
        for more in (elastic, {**elastic, "TORCHELASTIC_USE_AGENT_STORE": "True"}):
            all_joined(start_ranks("join", [torchrun_variables(r, 2, port, **more) for r in range(2)]), 2)


def two_runs_at_one_port():
    """Each finds its own ranks."""
    port = free_port()
    ranks = [torchrun_variables(r, 2, port, TORCHELASTIC_RUN_ID=run) for r in range(2) for run in ("a", "b")]
    result = start_ranks("join", ranks)
    expect(result.code == [0] * 4, result)


def two_runs_without_a_name_at_one_port():
    """Nothing tells them apart, so the second is refused; with MEZZO_RUN_ID each finds its own ranks."""
    port = free_port()

    def second(processes, folder):
        wait_until_begun(folder, 2)
        late = subprocess.run([PROGRAM, "join", str(folder)], env=environment(**torchrun_variables(0, 2, port)), text=True, timeout=100,
                              capture_output=True, check=False)
        for process in processes:
            process.terminate()
        expect(late.returncode == 1 and f"other programs listen at port {port} of 127.0.0.1" in late.stderr, late)
        expect("MEZZO_RUN_ID" in late.stderr, late)

    start_ranks("stop_when_asked", [torchrun_variables(r, 2, port) for r in range(2)], after_start=second)
    result = start_ranks("join", [torchrun_variables(r, 2, port, MEZZO_RUN_ID=run) for r in range(2) for run in ("a", "b")])
    expect(result.code == [0] * 4, result)


def strangers_are_no_ranks():
    """What connects to the store and is no rank of the run disturbs nobody."""
    def disturb(processes, folder):
        for text in (b"", b"GET / HTTP/1.0\r\n\r\n", b"\xff" * 100, b"\x05\x00\x00\x00\x02hello", os.urandom(5000)):
            for offset in range(2):
                try:
                    with socket.create_connection(("127.0.0.1", port + offset), timeout=5) as stranger:
                        stranger.sendall(text)
                except OSError:
                    pass

    port = free_port()
    ranks = [torchrun_variables(r, 2, port) for r in range(2)]
    result = start_ranks("wait_and_join", ranks, after_start=disturb)
    all_joined(result, 2)


def a_wrong_size():
    port = free_port()
    ranks = [torchrun_variables(0, 2, port, TEST_RENDEZVOUS_TIMEOUT=1), torchrun_variables(1, 3, port, TEST_RENDEZVOUS_TIMEOUT=1)]
    result = start_ranks("join", ranks)
    expect("missing rank 1" in result.last(0) and "found no store of this run" in result.last(1), result)


def two_of_one_rank():
    port = free_port()
    more = {"TORCHELASTIC_RUN_ID": "x", "TEST_RENDEZVOUS_TIMEOUT": 20}
    result = start_ranks("join", [torchrun_variables(r, 3, port, **more) for r in (0, 1, 1)])
    expect("rank 1 has come twice" in result.output, result)


def open_mpi_mpich_and_slurm():
    port = free_port()
    mpi = [{"OMPI_COMM_WORLD_RANK": r, "OMPI_COMM_WORLD_SIZE": 2, "OMPI_COMM_WORLD_LOCAL_RANK": r, "OMPI_COMM_WORLD_LOCAL_SIZE": 2,
            "MASTER_PORT": port} for r in range(2)]
    all_joined(start_ranks("join", mpi), 2)
    mpich = [{"PMI_RANK": r, "PMI_SIZE": 2, "MPI_LOCALRANKID": r, "MPI_LOCALNRANKS": 2, "MASTER_PORT": port} for r in range(2)]
    all_joined(start_ranks("join", mpich), 2)
    slurm = [{"SLURM_PROCID": r, "SLURM_STEP_NUM_TASKS": 2, "SLURM_LOCALID": r, "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_NODEID": 0,
              "SLURM_STEP_NODELIST": "localhost", "SLURM_JOB_ID": os.getpid(), "SLURM_STEP_ID": 0} for r in range(2)]
    all_joined(start_ranks("join", slurm), 2)


def by_mpirun():
    """Of Open MPI and MPICH, where they are. Debian gives each a name of its own."""
    for launcher, options in (("mpirun.openmpi", ("--oversubscribe", "--allow-run-as-root")), ("mpirun.mpich", ())):
        if not shutil.which(launcher):
            print(f"no {launcher}: skipped")
            continue
        all_joined(run("join", 2, launcher=launcher, options=options, MASTER_PORT=free_port()), 2)


def half_an_environment():
    result = start_ranks("join", [{"RANK": 0, "WORLD_SIZE": 2}])
    expect("LOCAL_RANK, LOCAL_WORLD_SIZE are missing" in result.output and result.code == [1], result)


def an_interface_by_name():
    port = free_port()
    all_joined(start_ranks("join", [torchrun_variables(r, 2, port, MEZZO_INTERFACE="lo") for r in range(2)]), 2)
    result = start_ranks("join", [torchrun_variables(r, 2, port, MEZZO_INTERFACE="none7") for r in range(2)])
    expect("init: the ranks could not be connected" in result.output, result)


def without_the_module():
    port = free_port()
    result = start_ranks("join", [torchrun_variables(r, 2, port, MEZZO_GLOO="/no/such/module.so") for r in range(2)])
    expect(result.code == [1, 1], result)
    expect(matches(r"several ranks need mezzo's Gloo module: .*/no/such/module.so.*; build mezzo with libgloo-dev", result.last(0)), result)


def the_module_beside_the_program():
    """Not the one of the current folder, however the program was called."""
    with tempfile.TemporaryDirectory(prefix="mezzo_module_") as folder:
        here, elsewhere = (os.path.join(folder, name) for name in ("here", "elsewhere"))
        for path in (here, elsewhere):
            os.mkdir(path)
        program, module = (shutil.copy(path, here) for path in (PROGRAM, MODULE))
        with open(os.path.join(elsewhere, os.path.basename(module)), "w", encoding="utf-8") as stranger:
            stranger.write("no library")
        port = free_port()
        ranks = [torchrun_variables(r, 2, port, MEZZO_GLOO="") for r in range(2)]
        all_joined(start_ranks("join", ranks, program="./" + os.path.basename(program), executable=program, cwd=elsewhere), 2)


def alone():
    """No socket, no thread, no library is opened. The program looks at itself; strace, where it is, sees also what was closed again."""
    for variables in ({}, {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}):
        result = start_ranks("alone", [variables])
        expect(result.code == [0], result)
        text = trace_alone(variables) if shutil.which("strace") else ""
        expect(not matches(r"socket\(|clone|gloo|nccl|ibverbs|hiredis", text), text)


def trace_alone(variables):
    """Calls of the system from where the program has first looked at itself, or "" where strace may not trace."""
    with tempfile.TemporaryDirectory(prefix="mezzo_group_") as folder:
        log = folder + "/trace"
        done = subprocess.run(["strace", "-f", "-o", log, "-e", "trace=socket,clone,clone3,openat,open", PROGRAM, "alone", folder],
                              env=environment(**variables), capture_output=True, text=True, check=False)
        if not os.path.exists(log) or "ptrace" in done.stderr:
            return ""
        expect(done.returncode == 0, done)
        with open(log, encoding="utf-8") as file:
            text = file.read()
        expect(text.count("/proc/self/task") == 2, text, "the program looks at itself before and after")
        return text[text.index("/proc/self/task"):]


main([torchrun, torchrun_listens_at_the_port_itself, two_runs_at_one_port, two_runs_without_a_name_at_one_port, strangers_are_no_ranks, a_wrong_size, two_of_one_rank,
      open_mpi_mpich_and_slurm, by_mpirun, half_an_environment, an_interface_by_name, without_the_module,
      the_module_beside_the_program, alone])
