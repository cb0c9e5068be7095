"""Trainings of rank_program that save checkpoints, and what tests ask of the files."""
import json
import pathlib
import signal
import struct

from runs import SAME_KERNELS, expect, run

STEPS, SAVE_EVERY = 24, 2
KILLED = 128 + signal.SIGKILL


class Training:
    """One training, started as often as it takes."""

    def __init__(self, folder, name, **variables):
        self.checkpoint, self.result = pathlib.Path(folder) / f"{name}.ckpt", pathlib.Path(folder) / f"{name}.result"
        self.variables = {"TEST_TIMEOUT": 60, "TEST_RENDEZVOUS_TIMEOUT": 60, **SAME_KERNELS, **variables}

    def start(self, ranks=2, kills="", options=(), while_running=None):
        return run("train_and_save", ranks, limit=120, options=options, while_running=while_running, TEST_KILLS=kills,
                   TEST_CHECKPOINT=self.checkpoint, TEST_RESULT=self.result, **self.variables)

    def start_to_end(self, **arguments):
        """The bytes of the state at the end."""
        result = self.start(**arguments)
        expect(result.code == 0 and self.result.exists(), result)
        return self.result.read_bytes()

    def saved_step(self):
        """The step of the checkpoint, which must be whole; 0 if there is none."""
        if not self.checkpoint.exists():
            return 0
        data = self.checkpoint.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:8 + size])
        header.pop("__metadata__")
        ends = [entry["data_offsets"][1] for entry in header.values()]
        expect(8 + size + max(ends) == len(data), self.checkpoint, "a checkpoint that is whole")
        begin, end = header["extra.step"]["data_offsets"]
        return int.from_bytes(data[8 + size + begin:8 + size + end], "little")
