"""A bucket under way, and the sample by which its error is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from .._arguments import AVG
from ..communicator import Communicator
from ..errors import GcommError, UnsupportedError
from ..work import Work
from ._bucket import DTYPES, Part, Plan, Row
from ._control import Control
from .stats import Statistics

__all__ = ["Flight", "Sample"]


class Flight:
    """A bucket under way."""

    def __init__(
        self,
        comm: Communicator,
        plan: Plan,
        buffer: torch.Tensor,
        statistics: Statistics,
        fail: Callable[[GcommError], None],
        *,
        control: Control | None,
        step: int,
    ) -> None:
        self._comm = comm
        self._statistics = statistics
        self._fail = fail
        self._plan = plan
        self._buffer = buffer
        self._works: list[tuple[Part, Work, list[int]]] = []
        self._control = control
        self._turn = None if control is None else control.next_turn(step)
        self._gathered: tuple[Work, torch.Tensor] | None = None
        self._sample: Sample | None = None
        self.future: torch.futures.Future[torch.Tensor] = torch.futures.Future()

    def start(self, seconds: float, sample: Sample | None) -> None:
        """Queues the calls, of so many seconds each (0: the communicator's default), and a sample's.

        The future is done when they are, well or not; ``fail`` gets what went wrong.
        """
        try:
            last = self._start(seconds, sample)
        except GcommError as error:
            # What was started is waited for, and the next bucket's turn comes then.
            self._fail(error)
            last = self._works[-1][1] if self._works else None
        except BaseException:
            self._end_turn()
            raise
        if last is None:
            self._end_turn()
            self.future.set_result(self._buffer)
        else:
            # Calls complete in their order.
            last._when_done(self._finish)

    def _start(self, seconds: float, sample: Sample | None) -> Work | None:
        dtype = DTYPES.get(self._buffer.dtype)
        if self._buffer.numel() == 0:
            return None
        if dtype is None:
            if self._control is not None and self._buffer.is_floating_point():
                raise UnsupportedError(
                    f"a controller watches float32, bfloat16 and float16 gradients, not {self._buffer.dtype}",
                    self._comm.rank,
                )
            return self._gather(seconds)
        for part, rows, places in self._calls():
            work = self._comm._all_reduce_rows(
                rows, dtype, AVG, codec=part.codec, keep=[self._buffer], seconds=seconds
            )
            self._works.append((part, work, places))
        if sample is None:
            return self._works[-1][1]
        self._sample = sample
        return sample.start(self._comm, seconds)

    def _calls(self) -> Iterator[tuple[Part, list[Row], list[int]]]:
        base = self._buffer.data_ptr()
        if self._control is not None and self._turn is not None:
            yield from self._control.calls(self._plan, base, self._turn.step)
        else:
            for part in self._plan.parts:
                yield part, part.rows(base), list(range(len(part.names)))

    def _gather(self, seconds: float) -> Work | None:
        """For element types that nothing sums: everybody's gradients to everybody."""
        everybody = self._buffer.new_empty((self._comm.size, self._buffer.numel()))
        work = self._comm.all_gather_into_tensor(
            everybody, self._buffer, codec=None, async_op=True, timeout=seconds or None
        )
        assert work is not None
        self._gathered = work, everybody
        return work

    def _finish(self) -> None:
        try:
            self._collect()
        except GcommError as error:
            self._fail(error)
        except Exception as error:
            self._fail(GcommError(f"the averages could not be taken over: {error}"))
        finally:
            self._end_turn()
            self.future.set_result(self._buffer)

    def _end_turn(self) -> None:
        if self._turn is not None:
            self._turn.end()

    def _collect(self) -> None:
        for part, work, places in self._works:
            work.wait()
            tensors = [(0, 0, False)] * len(part.names)
            for place, each in zip(places, work._native.tensor_stats(len(places)), strict=True):
                tensors[place] = each
            self._statistics.add(part.sums, work.stats, tensors)
        if self._gathered is not None:
            work, everybody = self._gathered
            work.wait()
            total = self._buffer.copy_(everybody[0])
            for each in everybody[1:]:
                total += each
            total /= self._comm.size
            self._statistics.add_other(work.stats)
            (part,) = self._plan.parts
            counts = [place[1] * self._buffer.element_size() * (self._comm.size - 1) for place in part.places]
            self._statistics.add_parameters(part.sums, [(n, n, False) for n in counts])
        if self._sample is not None:
            self._statistics.add_errors(self._sample.errors(self._buffer))
            self._statistics.add_other(self._sample.stats)
        # Behind the sample, which is of what the codecs did.
        if self._control is not None and self._turn is not None and self._works:
            self._turn.wait()
            self._control.act(self._plan, self._buffer, self._turn.step)


class Sample:
    """Some elements of each parameter, averaged exactly as well."""

    def __init__(self, plan: Plan, buffer: torch.Tensor, most: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._names: list[str] = []
        self._lengths: list[int] = []
        places: list[torch.Tensor] = []
        for part in plan.parts:
            for name, (offset, count, *_) in zip(part.names, part.places, strict=True):
                begin = offset // buffer.element_size()
                if count <= most:
                    places.append(torch.arange(begin, begin + count))
                else:
                    places.append(torch.randint(begin, begin + count, (most,), generator=generator))
                self._names.append(name)
                self._lengths.append(len(places[-1]))
        self._places = torch.cat(places)
        self._exact = buffer[self._places].float()
        self._work: Work | None = None

    def start(self, comm: Communicator, seconds: float) -> Work:
        self._work = comm.all_reduce(self._exact, "avg", codec=None, async_op=True, timeout=seconds or None)
        assert self._work is not None
        return self._work

    @property
    def stats(self) -> Mapping[str, Any]:
        assert self._work is not None
        return self._work.stats

    def errors(self, buffer: torch.Tensor) -> list[tuple[str, float, float]]:
        """(name, squared error, squared norm) of each parameter."""
        assert self._work is not None
        self._work.wait()
        exact = self._exact.double()
        squares = torch.stack([(buffer[self._places].double() - exact) ** 2, exact**2])
        parts: Sequence[torch.Tensor] = squares.split(self._lengths, 1)  # type: ignore[no-untyped-call]
        sums = [part.sum(1).tolist() for part in parts]
        return [(name, error, norm) for name, (error, norm) in zip(self._names, sums, strict=True)]
