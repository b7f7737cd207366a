"""The conformance tests of RPC adapters, run by `test_rpc_http` and `test_rpc_memory`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.job.messages import Acknowledge, CancelTask, FreeSlot, Heartbeat, RequestJobStatus
from testbed_runtime.ports.rpc import AskTimeout, RecipientUnreachable, RemoteFailure, Rpc

ENOUGH_S = 5.0
MakeRpc = Callable[..., Awaitable[Rpc]]


class Interceptor:
    """Delays or swallows what a test says."""

    active = True

    def __init__(self) -> None:
        self.handle_delay_s = 0.0
        self.swallow = ""
        self.links: list[str] = []

    async def before_ask(self, link: str, endpoint: str, message: Any) -> bool:
        del endpoint
        self.links.append(link)
        return self.swallow != f"ask {type(message).__name__}"

    async def before_handle(self, endpoint: str, message: Any) -> bool:
        del endpoint
        if isinstance(message, CancelTask) and self.handle_delay_s:
            await asyncio.sleep(self.handle_delay_s)
        return self.swallow != f"handle {type(message).__name__}"


class History:
    """A HistorySink that keeps its rows."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def append(self, table: str, **row: Any) -> None:
        self.rows.append({"table": table, **row})

    async def flush(self) -> None:
        return


class RpcConformance:
    """Subclasses give a `make_rpc(name, **options)` fixture whose Rpcs are started and closed."""

    @pytest.fixture
    async def make_rpc(self) -> AsyncIterator[MakeRpc]:
        raise NotImplementedError

    async def test_an_answer_comes_back_as_the_dataclass_that_the_handler_returned(self, make_rpc):
        """Ask and answer."""
        callee, caller = await make_rpc("b"), await make_rpc("a")

        async def handle(message: CancelTask) -> Acknowledge:
            return Acknowledge(accepted=False, reason=message.attempt)

        callee.serve("taskexecutor", {CancelTask: handle})
        answer = await caller.ask(
            "b", callee.address, "taskexecutor", CancelTask("x", "l"), timeout_s=ENOUGH_S
        )
        assert answer == Acknowledge(accepted=False, reason="x")

    async def test_none_is_an_answer(self, make_rpc):
        """A handler without a result."""
        callee, caller = await make_rpc("b"), await make_rpc("a")

        async def handle(message: CancelTask) -> None:
            del message

        callee.serve("taskexecutor", {CancelTask: handle})
        assert (
            await caller.ask("b", callee.address, "taskexecutor", CancelTask("x", ""), timeout_s=ENOUGH_S)
            is None
        )

    async def test_messages_of_one_caller_are_handled_in_the_order_of_their_asks(self, make_rpc):
        """FIFO mailbox."""
        callee, caller = await make_rpc("b"), await make_rpc("a")
        seen: list[str] = []

        async def handle(message: CancelTask) -> None:
            await asyncio.sleep(0)
            seen.append(message.attempt)

        callee.serve("taskexecutor", {CancelTask: handle})
        async with asyncio.TaskGroup() as group:
            for n in range(200):
                message = CancelTask(str(n), "")
                group.create_task(
                    caller.ask("b", callee.address, "taskexecutor", message, timeout_s=ENOUGH_S)
                )
        assert seen == [str(n) for n in range(200)]

    async def test_each_message_first_spends_the_service_time(self, make_rpc):
        """Ten messages of 10 ms take at least 100 ms."""
        callee, caller = await make_rpc("b"), await make_rpc("a")

        async def handle(message: CancelTask) -> None:
            del message

        callee.serve("taskexecutor", {CancelTask: handle}, service_time_s=0.01)
        loop = asyncio.get_running_loop()
        start = loop.time()
        async with asyncio.TaskGroup() as group:
            for n in range(10):
                message = CancelTask(str(n), "")
                group.create_task(
                    caller.ask("b", callee.address, "taskexecutor", message, timeout_s=ENOUGH_S)
                )
        assert loop.time() - start >= 0.099

    async def test_an_ask_timeout_does_not_cancel_the_callee(self, make_rpc):
        """The caller gives up, the work is done all the same; the event says so once."""
        history = History()
        callee, caller = await make_rpc("b"), await make_rpc("a", history=history)
        asked_for, done = asyncio.Event(), asyncio.Event()

        async def handle(message: CancelTask) -> None:
            del message
            await asked_for.wait()
            done.set()

        callee.serve("taskexecutor", {CancelTask: handle})
        with pytest.raises(AskTimeout, match=r"timed out\. This is usually caused by: 1\) Pekko failed"):
            await caller.ask("b", callee.address, "taskexecutor", CancelTask("x", ""), timeout_s=0.02)
        assert not done.is_set()
        asked_for.set()
        async with asyncio.timeout(ENOUGH_S):
            await done.wait()
        assert [(row["kind"], row["subject"]) for row in history.rows] == [("rpc.timeout", "taskexecutor")]

    async def test_a_handler_may_answer_later_and_handle_other_messages_meanwhile(self, make_rpc):
        """It returns a future of its answer. A caller that has given up by then is not missed."""
        callee, caller = await make_rpc("b"), await make_rpc("a")
        later: asyncio.Future[Acknowledge] = asyncio.get_running_loop().create_future()

        async def handle(message: CancelTask) -> Acknowledge | asyncio.Future[Acknowledge]:
            return Acknowledge(reason="at once") if message.attempt == "second" else later

        callee.serve("taskexecutor", {CancelTask: handle})
        asked = [
            asyncio.ensure_future(
                caller.ask("b", callee.address, "taskexecutor", CancelTask(name, ""), timeout_s=seconds)
            )
            for name, seconds in (("first", ENOUGH_S), ("given up", 0.02), ("second", ENOUGH_S))
        ]
        assert await asked[2] == Acknowledge(reason="at once")
        with pytest.raises(AskTimeout):
            await asked[1]
        assert not asked[0].done()
        later.set_result(Acknowledge(reason="later"))
        assert await asked[0] == Acknowledge(reason="later")

    async def test_a_timed_out_ask_speaks_akka_in_1_12(self, make_rpc):
        """The text names the actor and the milliseconds."""
        interceptor = Interceptor()
        interceptor.swallow = "handle CancelTask"
        callee = await make_rpc("b", interceptor=interceptor)
        caller = await make_rpc("a", flink_version="1.12")
        callee.serve("taskexecutor", {})
        with pytest.raises(AskTimeout) as caught:
            await caller.ask("b", callee.address, "taskexecutor", CancelTask("x", ""), timeout_s=0.02)
        assert (
            str(caught.value) == "Ask timed out on [Actor[akka://flink/user/rpc/taskexecutor]] after [20 ms]"
        )

    async def test_a_repeated_call_id_is_handled_once_and_answered_twice(self, make_rpc):
        """Idempotent calls, also while the first is still being handled."""
        callee, caller = await make_rpc("b"), await make_rpc("a")
        calls = 0

        async def handle(message: CancelTask) -> Acknowledge:
            nonlocal calls
            del message
            calls += 1
            await asyncio.sleep(0.01)
            return Acknowledge(reason=str(calls))

        callee.serve("taskexecutor", {CancelTask: handle})

        async def ask() -> Any:
            message = CancelTask("x", "")
            return await caller.ask(
                "b", callee.address, "taskexecutor", message, timeout_s=ENOUGH_S, call_id="one"
            )

        async with asyncio.TaskGroup() as group:
            first, second = group.create_task(ask()), group.create_task(ask())
        assert first.result() == second.result() == await ask() == Acknowledge(reason="1")

    async def test_a_failure_of_the_callee_travels_with_its_class_and_text(self, make_rpc):
        """FlinkError → RemoteFailure."""
        callee, caller = await make_rpc("b"), await make_rpc("a")

        async def handle(message: FreeSlot) -> None:
            raise FlinkError("SlotNotFoundException", f"Could not find slot for {message.allocation}.")

        callee.serve("taskexecutor", {FreeSlot: handle})
        with pytest.raises(RemoteFailure) as caught:
            await caller.ask("b", callee.address, "taskexecutor", FreeSlot("al", "", ""), timeout_s=ENOUGH_S)
        assert (caught.value.class_name, caught.value.message) == (
            "SlotNotFoundException",
            "Could not find slot for al.",
        )

    async def test_a_message_that_no_handler_takes_is_a_failure_and_the_endpoint_goes_on(self, make_rpc):
        """The mailbox survives."""
        callee, caller = await make_rpc("b"), await make_rpc("a")

        async def handle(message: CancelTask) -> Acknowledge:
            del message
            return Acknowledge()

        callee.serve("taskexecutor", {CancelTask: handle})
        with pytest.raises(RemoteFailure, match="does not handle RequestJobStatus"):
            await caller.ask("b", callee.address, "taskexecutor", RequestJobStatus("j"), timeout_s=ENOUGH_S)
        message = CancelTask("x", "")
        assert await caller.ask("b", callee.address, "taskexecutor", message, timeout_s=ENOUGH_S)

    async def test_an_endpoint_that_is_not_there_is_unreachable(self, make_rpc):
        """The process runs, the actor does not."""
        callee, caller = await make_rpc("b"), await make_rpc("a")
        with pytest.raises(RecipientUnreachable, match="because the recipient is unreachable"):
            await caller.ask("b", callee.address, "jobmaster", CancelTask("x", ""), timeout_s=ENOUGH_S)

    async def test_a_process_that_is_gone_is_unreachable_at_once(self, make_rpc):
        """The ask that it had received before it ended is never answered."""
        callee, caller = await make_rpc("b"), await make_rpc("a")
        got = asyncio.Event()

        async def handle(message: CancelTask) -> None:
            del message
            got.set()
            await asyncio.sleep(60)

        callee.serve("taskexecutor", {CancelTask: handle})
        address = callee.address
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(
                _outcome(caller.ask("b", address, "taskexecutor", CancelTask("x", ""), timeout_s=0.5))
            )
            await got.wait()
            await callee.close()
            with pytest.raises(RecipientUnreachable):
                await caller.ask("b", address, "taskexecutor", CancelTask("x", ""), timeout_s=ENOUGH_S)
            assert not asking.done()
        assert isinstance(asking.result(), AskTimeout)

    async def test_a_delay_in_the_mailbox_delays_what_is_queued_behind(self, make_rpc):
        """rpc.delay hits the neighbours too: heartbeats share the mailbox."""
        interceptor = Interceptor()
        interceptor.handle_delay_s = 0.15
        callee, caller = await make_rpc("b", interceptor=interceptor), await make_rpc("a")

        async def handle(message: Any) -> None:
            del message

        callee.serve("taskexecutor", {CancelTask: handle, Heartbeat: handle})
        loop = asyncio.get_running_loop()
        start = loop.time()
        async with asyncio.TaskGroup() as group:
            slow = CancelTask("x", "")
            group.create_task(caller.ask("b", callee.address, "taskexecutor", slow, timeout_s=ENOUGH_S))
            await asyncio.sleep(0)
            await caller.ask("b", callee.address, "taskexecutor", Heartbeat("a"), timeout_s=ENOUGH_S)
        assert loop.time() - start >= 0.149

    @pytest.mark.parametrize("where", ["ask", "handle"])
    async def test_a_swallowed_message_times_out(self, make_rpc, where):
        """heartbeats.mute, on either side; no rpc.timeout event for heartbeats."""
        history, interceptor = History(), Interceptor()
        interceptor.swallow = f"{where} Heartbeat"
        callee = await make_rpc("b", interceptor=interceptor)
        caller = await make_rpc("a", interceptor=interceptor, history=history)

        async def handle(message: Any) -> None:
            raise AssertionError(message)

        callee.serve("taskexecutor", {Heartbeat: handle})
        with pytest.raises(AskTimeout):
            await caller.ask("b", callee.address, "taskexecutor", Heartbeat("a"), timeout_s=0.02)
        assert interceptor.links == ["a->b"]
        assert history.rows == []

    async def test_one_posts_into_ones_own_mailbox(self, make_rpc):
        """Timers and callbacks: objects of any type, behind what is queued."""
        rpc = await make_rpc("a")
        seen = asyncio.Event()

        async def handle(message: str) -> None:
            assert message == "tick"
            seen.set()

        rpc.serve("jobmaster", {str: handle})
        rpc.post("jobmaster", "tick")
        async with asyncio.timeout(ENOUGH_S):
            await seen.wait()

    async def test_a_stopped_endpoint_is_unreachable_until_it_is_served_again(self, make_rpc):
        """The message that it handles, those in its mailbox, and later ones. What is posted to it meanwhile is dropped."""
        callee, caller = await make_rpc("b"), await make_rpc("a")
        begun, handled = asyncio.Event(), []

        async def stuck(message: CancelTask) -> None:
            del message
            begun.set()
            await asyncio.Event().wait()

        async def handle(message: CancelTask) -> Acknowledge:
            handled.append(message.attempt)
            return Acknowledge()

        def ask(attempt: str) -> Awaitable[Any]:
            message = CancelTask(attempt, "l")
            return caller.ask(
                "b", callee.address, "taskexecutor", message, timeout_s=ENOUGH_S, call_id=attempt
            )

        callee.serve("taskexecutor", {CancelTask: stuck})
        loop = asyncio.get_running_loop()
        asked = [loop.create_task(_outcome(ask(attempt))) for attempt in ("x", "y")]
        await begun.wait()
        while callee.waiting("taskexecutor") < 1:
            await asyncio.sleep(0)
        await callee.stop("taskexecutor")
        assert [type(await task) for task in asked] == [RecipientUnreachable] * 2
        with pytest.raises(RecipientUnreachable):
            await ask("z")
        callee.post("taskexecutor", CancelTask("posted", "l"))
        await callee.stop("taskexecutor")
        callee.serve("taskexecutor", {CancelTask: handle})
        assert await ask("x") == Acknowledge()
        assert handled == ["x"]


async def _outcome(asking: Awaitable[Any]) -> Any:
    try:
        return await asking
    except (AskTimeout, RecipientUnreachable) as error:
        return error
