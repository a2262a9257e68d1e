"""MuJoCo's physics for a batch of environments, on a pool of threads."""

from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from threading import Thread
from types import SimpleNamespace

import mujoco
import numpy as np

from envs.cores import reserving
from envs.mujoco.tasks import Array

Reports = SimpleQueue[Exception | None]


class quiet_mujoco:
    """Keeps MuJoCo's warnings about Gymnasium's own model files from the terminal and from its log file."""

    def __enter__(self) -> None:
        self.handler = mujoco.get_mju_user_warning()
        mujoco.set_mju_user_warning(lambda message: None)

    def __exit__(self, *exception: object) -> None:
        mujoco.set_mju_user_warning(self.handler)


class Physics:
    """One MjData for each environment, stepped on a pool of threads.

    `fields` holds the fields of MjData that a task reads, as arrays [n, …].
    """

    def __init__(self, model: mujoco.MjModel, num_envs: int, fields: Sequence[str], frame_skip: int, threads: int):
        self.model, self.frame_skip = model, frame_skip
        with reserving():
            self.data = [mujoco.MjData(model) for _ in range(num_envs)]
        # mj_step does not compute cfrc_ext; Gymnasium does so after each step, this class only for tasks that read it
        self.contact_forces = "cfrc_ext" in fields
        self.control = [data.ctrl for data in self.data]
        self.sources = {name: [getattr(data, name) for data in self.data] for name in fields}
        self.fields = SimpleNamespace(**{name: np.stack(views) for name, views in self.sources.items()})
        self.work: SimpleQueue[tuple[Iterator[int], Reports] | None] = SimpleQueue()
        self.helpers = [Thread(target=self._help, name="mujoco", daemon=True) for _ in range(threads - 1)]
        for helper in self.helpers:
            helper.start()

    def step(self, action: Array, ids: Array) -> None:
        """Advances the environments `ids` by one step of their task with `action` [n, A]."""
        for i in ids:
            self.control[i][:] = action[i]
        left = iter(ids)  # whichever thread is free takes the next one
        helpers = min(len(self.helpers), len(ids) - 1)
        finished: Reports = SimpleQueue()  # one for each step: an interrupted one may leave reports behind
        for _ in range(helpers):
            self.work.put((left, finished))
        reports: list[Exception | None] = []
        try:
            own = self._advance(left)
        finally:  # after Ctrl-C in a notebook too, nobody else is at work when the caller goes on
            while len(reports) < helpers:
                reports.append(finished.get())
        for error in (own, *reports):
            if error is not None:
                raise error
        self.read(ids)

    def _help(self) -> None:
        """The loop of a helper thread. Two queues are quicker than an executor's futures."""
        while (task := self.work.get()) is not None:
            left, finished = task
            finished.put(self._advance(left))

    def close(self) -> None:
        """Ends the helper threads."""
        for _ in self.helpers:
            self.work.put(None)

    def _advance(self, ids: Iterator[int]) -> Exception | None:
        """Steps environments until none is left; an error is returned, so that every thread reports once a step."""
        model, data, substeps = self.model, self.data, self.frame_skip
        try:
            for i in ids:
                mujoco.mj_step(model, data[i], substeps)
                if self.contact_forces:
                    mujoco.mj_rnePostConstraint(model, data[i])
        except Exception as error:
            return error
        return None

    def reset(self, i: int, qpos: Array, qvel: Array) -> None:
        """Puts environment i into a state, at rest but for `qvel`; `read` gives its fields afterwards."""
        data = self.data[i]
        mujoco.mj_resetData(self.model, data)
        data.qpos[:], data.qvel[:] = qpos, qvel
        mujoco.mj_forward(self.model, data)

    def read(self, ids: Array) -> None:
        """Copies the fields of the environments `ids` from MuJoCo's memory to `fields`."""
        whole = len(ids) == len(self.data)
        for name, views in self.sources.items():
            array = getattr(self.fields, name)
            if whole and array.size:
                np.stack(views, out=array)
            else:
                for i in ids:
                    array[i] = views[i]

    def rows(self, ids: Array) -> SimpleNamespace:
        """The fields of the environments `ids` only."""
        if len(ids) == len(self.data):
            return self.fields
        return SimpleNamespace(**{name: array[ids] for name, array in vars(self.fields).items()})
