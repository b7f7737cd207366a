"""A ScenarioRun's operator in virtual time, with models of the API server, the kubelet, the runner and the agents."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headgate_operator import objects_runs
from headgate_operator.handler import Context
from headgate_operator.handlers.scenariorun import ScenarioRunHandler
from headgate_operator.handlers.scenariorun import _batch as unfinished_runs
from headgate_operator.plan import scenariorun
from headgate_operator.plan.model import Key
from headgate_operator.settings import Settings
from testbed_runtime.api import naming
from testbed_runtime.api.status import RunReport, ScenarioRunStatus, read, rfc3339
from testbed_runtime.api.views import Run
from tests.operator.actors import ModelAgents, Runners, a_run, a_trials_testbed
from tests.operator.model import ModelApi, Obj
from tests.operator.world import World, find, kstatus, simulate

RUN = ("ScenarioRun", "lab", "trial-run")
WITHIN_S = 300.0


class Lab:
    """A world in which runner pods and agents live."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.api = world.api
        self.agents = ModelAgents(world.api)
        self.runners = Runners(world, self.agents)
        world.agents = self.agents
        self.runners.attach()

    @property
    def status(self) -> Obj:
        return (self.api.one(*RUN) or {}).get("status") or {}

    def condition(self, type_: str) -> str:
        found = find(self.status, type_)
        return f"{found['status']}/{found['reason']}" if found else ""

    def pods(self) -> set[str]:
        return {p["metadata"]["name"] for p in self.api.select("Pod", "lab")}

    def start(self, **spec: Any) -> None:
        self.world.start()
        self.api.put(a_run(**spec))

    async def complete(self) -> None:
        await self.world.until(lambda: self.status.get("phase") == "Complete", limit_s=WITHIN_S)

    def reasons(self) -> set[str]:
        return {reason for _, _, reason, _ in self.api.events}


def play(scenario: Callable[[Lab], Coroutine[Any, Any, None]]) -> None:
    simulate(lambda world: scenario(Lab(world)))


def test_a_run_gets_its_pods_and_ends_with_the_runners_verdict() -> None:
    """Recorder, runner and a warm Spark; the status mirrors; conditions and Events tell; nothing of a testbed stays."""

    async def scenario(lab: Lab) -> None:
        lab.start()
        await lab.world.until(lambda: lab.status.get("phase") == "Running", limit_s=30)
        assert {"trial-run-recorder", "trial-run-runner", "headgate-spark"} <= lab.pods()
        await lab.complete()
        assert lab.status["verdict"] == "Pass"
        assert lab.status["progress"] == "3/3"
        assert lab.condition("Complete") == "True/Pass"
        assert lab.condition("EffectVerified") == "True/Measured"
        assert lab.condition("NoResidue") == "True/Clean"
        assert lab.status["report"] == "trial-run-report"
        assert {"Accepted", "Started", "TrialStarted", "EffectVerified", "Complete"} <= lab.reasons()
        assert not lab.api.select("Testbed", "lab")

    play(scenario)


def test_an_invalid_scenario_is_rejected_before_anything_is_created() -> None:
    """Accepted=False has the command line's own text, and no pod, Secret or account is there."""

    async def scenario(lab: Lab) -> None:
        run = a_run()
        run["spec"]["scenario"]["faults"][0]["target"]["taskManagers"]["names"] = ["tm-9"]
        lab.world.start()
        lab.api.put(run)
        await lab.complete()
        found = find(lab.status, "Accepted")
        assert found is not None
        assert found["status"] == "False"
        assert "'tm-9' does not exist" in found["message"]
        assert "spec.scenario.faults[0]" in found["message"]
        assert lab.status["verdict"] == "Error"
        assert kstatus(lab.api.one(*RUN)) == "Failed"
        assert not lab.api.select("Pod", "lab")
        assert not lab.api.select("Secret", "lab")

    play(scenario)


def test_a_suspended_run_creates_nothing_until_it_may_begin() -> None:
    """`suspend: true` before the start; taken away, it runs."""

    async def scenario(lab: Lab) -> None:
        lab.start(suspend=True)
        await lab.world.until(lambda: lab.status.get("phase") == "Suspended", limit_s=10)
        await asyncio.sleep(20)
        assert not lab.api.select("Pod", "lab")
        lab.api.change(*RUN, {"spec": {"suspend": False}})
        await lab.complete()
        assert lab.status["verdict"] == "Pass"

    play(scenario)


def test_a_run_goes_when_its_time_after_the_end_has_passed() -> None:
    """`ttlSecondsAfterFinished: 30`: it is there after 20 s, gone with everything after 40 s."""

    async def scenario(lab: Lab) -> None:
        lab.start(ttlSecondsAfterFinished=30)
        await lab.complete()
        await asyncio.sleep(20)
        assert lab.api.one(*RUN)
        await asyncio.sleep(20)
        assert lab.api.one(*RUN) is None
        assert not {p for p in lab.pods() if p.startswith("trial-run")}

    play(scenario)


def test_spark_stays_two_minutes_after_the_last_run() -> None:
    """Warm for the next of a batch, then gone; its Service and its token go with the last run."""

    async def scenario(lab: Lab) -> None:
        lab.start()
        await lab.complete()
        await asyncio.sleep(110)
        assert "headgate-spark" in lab.pods()
        await asyncio.sleep(20)
        assert "headgate-spark" not in lab.pods()
        lab.api.remove(RUN)
        await asyncio.sleep(5)
        assert lab.api.one("Service", "lab", "headgate-spark") is None
        assert lab.api.one("Secret", "lab", "headgate-spark-token") is None

    play(scenario)


def test_runs_that_begin_together_share_one_spark() -> None:
    """Its pod, Service and token are made once and belong to all of them, so none goes with the first that is deleted."""

    async def scenario(lab: Lab) -> None:
        lab.world.start()
        names = ["trial-run", "trial-run-b", "trial-run-c"]
        for name in names:
            lab.api.put(a_run(name))
        shared = [
            ("Pod", "headgate-spark"),
            ("Service", "headgate-spark"),
            ("Secret", "headgate-spark-token"),
        ]

        def owners(kind: str, name: str) -> list[str]:
            found = (lab.api.one(kind, "lab", name) or {}).get("metadata", {})
            return sorted(owner["name"] for owner in found.get("ownerReferences") or ())

        await lab.world.until(lambda: all(owners(*key) == names for key in shared), limit_s=15)

    play(scenario)


def test_heal_stops_a_run_and_its_faults() -> None:
    """The annotation: no fault is held a few seconds later, the verdict is Inconclusive with reason Healed."""

    async def scenario(lab: Lab) -> None:
        lab.start()
        await lab.world.until(lambda: bool(lab.agents.holding()), limit_s=60)
        lab.api.change(*RUN, {"metadata": {"annotations": {naming.ANNOTATION_HEAL: "now"}}})
        await lab.world.until(lambda: not lab.agents.holding(), limit_s=3)
        await lab.complete()
        assert (lab.status["verdict"], lab.status["reason"]) == ("Inconclusive", "Healed")

    play(scenario)


def test_heal_ends_a_run_whose_runner_cannot_start() -> None:
    """Its container waits for its next start: the operator ends the run, and what an earlier life left is deleted."""

    async def scenario(lab: Lab) -> None:
        lab.start()
        await lab.world.until(lambda: bool(lab.agents.holding()), limit_s=60)
        waits = {"name": "runner", "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
        lab.world.kubelet.set(("Pod", "lab", "trial-run-runner"), {"containerStatuses": [waits]})
        await lab.world.until(lambda: lab.condition("Ready") == "False/RunnerNotReady", limit_s=15)
        lab.api.change(*RUN, {"metadata": {"annotations": {naming.ANNOTATION_HEAL: "now"}}})
        await lab.world.until(lambda: lab.status.get("phase") == "Complete", limit_s=10)
        assert (lab.status["verdict"], lab.status["reason"]) == ("Inconclusive", "Healed")
        await lab.world.until(lambda: not lab.api.select("Testbed", "lab"), limit_s=60)
        assert not lab.agents.holding()

    play(scenario)


def test_heal_ends_a_run_whose_runner_does_not_answer_it() -> None:
    """It has a minute to end its trial; then the operator does it."""

    async def scenario(lab: Lab) -> None:
        lab.start()
        await lab.world.until(lambda: lab.status.get("phase") == "Running", limit_s=30)
        lab.runners.deaf = True
        lab.api.change(*RUN, {"metadata": {"annotations": {naming.ANNOTATION_HEAL: "now"}}})
        await lab.world.until(lambda: lab.condition("Healing") == "True/Asked", limit_s=5)
        await asyncio.sleep(30)
        assert lab.status["phase"] != "Complete"
        await lab.world.until(lambda: lab.status.get("phase") == "Complete", limit_s=35)
        assert (lab.status["verdict"], lab.status["reason"]) == ("Inconclusive", "Healed")
        assert lab.condition("Healing") == "False/Complete"

    play(scenario)


def test_a_runner_that_does_not_end_after_its_last_word_keeps_nothing() -> None:
    """After a minute its pod goes, and then what it had made; the verdict is its own."""

    async def scenario(lab: Lab) -> None:
        lab.runners.hanging = True
        lab.start()
        await lab.complete()
        await asyncio.sleep(50)
        assert "trial-run-runner" in lab.pods()
        await lab.world.until(lambda: "trial-run-runner" not in lab.pods(), limit_s=20)
        await lab.world.until(lambda: not lab.api.select("Testbed", "lab"), limit_s=30)
        assert lab.status["verdict"] == "Pass"
        assert "RunnerHangs" in lab.reasons()

    play(scenario)


def test_a_runner_that_is_lost_again_and_again_is_given_up() -> None:
    """Made again five times; then Error, its Testbeds are deleted, and it is Complete."""

    async def scenario(lab: Lab) -> None:
        lab.start()
        losses = 0
        while lab.status.get("phase") != "Complete" and losses < 20:
            await asyncio.sleep(7)
            if "trial-run-runner" in lab.pods():
                lab.world.kubelet.vanish("lab", "trial-run-runner")
                losses += 1
        assert losses == 6
        assert (lab.status["verdict"], lab.status["reason"]) == ("Error", "RunnerLost")
        await lab.world.until(lambda: not lab.api.select("Testbed", "lab"), limit_s=30)
        assert "trial-run-runner" not in lab.pods()

    play(scenario)


@pytest.mark.parametrize("after_s", [0.5, 3.0, 8.0, 14.0, 60.0])
def test_a_run_can_be_deleted_in_every_phase(after_s: float) -> None:
    """Within seconds it and everything of it is gone, and no fault is held."""

    async def scenario(lab: Lab) -> None:
        lab.start()
        await asyncio.sleep(after_s)
        lab.api.remove(RUN)
        await lab.world.until(lambda: lab.api.one(*RUN) is None, limit_s=30)
        await asyncio.sleep(5)
        assert not {p for p in lab.pods() if p.startswith("trial-run")}
        assert not lab.api.select("Testbed", "lab")
        assert not lab.agents.holding()

    play(scenario)


def test_runs_that_come_and_go_while_the_operator_is_away_are_found_when_it_is_back() -> None:
    """One was asked for and one was deleted meanwhile: the first is run, of the second nothing stays."""

    async def scenario(lab: Lab) -> None:
        lab.start()
        await asyncio.sleep(8.0)
        lab.world.kill()
        lab.api.remove(RUN)
        lab.api.put(a_run("later"))
        await asyncio.sleep(30)
        lab.world.start("operator-1")
        await lab.world.until(lambda: lab.api.one(*RUN) is None, limit_s=30)
        later = ("ScenarioRun", "lab", "later")
        await lab.world.until(
            lambda: (lab.api.one(*later) or {}).get("status", {}).get("verdict") == "Pass", limit_s=180
        )
        assert not {p for p in lab.pods() if p.startswith("trial-run")}
        assert not lab.agents.holding()

    play(scenario)


async def test_a_testbed_that_a_runner_made_last_is_seen_when_the_runner_is_seen_to_be_gone() -> None:
    """Else the finalizer would be let go while it is there."""

    class Late(ModelApi):
        async def get(self, kind: str, namespace: str | None, name: str) -> Obj | None:
            if name == "trial-run-runner":
                owner = self.objects[RUN]["metadata"]["uid"]
                self.put(
                    a_trials_testbed(naming.trial_testbed_name("trial-run", "main-1"), "trial-run", owner)
                )
            return await super().get(kind, namespace, name)

    api = Late(now=lambda: 0.0)
    api.put(a_run())
    api.change(*RUN, {"metadata": {"finalizers": ["other"], "deletionTimestamp": rfc3339(0.0)}})
    context = Context(api, Settings(), None, None, lambda: 0.0, lambda: "0", lambda: b"0")
    observed = await ScenarioRunHandler().observe(context, Key(*RUN))
    assert observed is not None
    assert observed.runner is None
    assert len(observed.testbeds) == 1


def test_the_finalizer_lets_go_after_a_minute_whatever_hangs() -> None:
    """A Testbed that does not go away holds the run for 60 s, with a Warning; the escape lets go at once."""

    async def scenario(lab: Lab) -> None:
        lab.start()
        await lab.world.until(lambda: bool(lab.api.select("Testbed", "lab")), limit_s=30)
        stuck = lab.api.select("Testbed", "lab")[0]["metadata"]["name"]
        lab.api.change("Testbed", "lab", stuck, {"metadata": {"finalizers": ["example.org/stuck"]}})
        lab.api.remove(RUN)
        took = await lab.world.until(lambda: lab.api.one(*RUN) is None, limit_s=80)
        assert 58 <= took <= 66
        assert "DeletionTimedOut" in lab.reasons()

    play(scenario)


def test_a_pod_that_spark_ended_is_reported_with_the_end_of_its_log() -> None:
    """The end of Spark's log, as the kubelet kept it, is in an Event when the verdict is Error."""

    async def scenario(lab: Lab) -> None:
        lab.start()
        await lab.world.until(lambda: lab.status.get("phase") == "Evaluating", limit_s=120)
        lab.world.kubelet.set(("Pod", "lab", "headgate-spark"), {
            "phase": "Running",
            "containerStatuses": [{"name": "spark", "lastState": {"terminated": {"message": "java.lang.OutOfMemoryError"}}}],
        })  # fmt: skip
        lab.api.change("ConfigMap", "lab", "trial-run-status", {
            "data": {"status.json": '{"phase": "Complete", "verdict": "Error", "reason": "RunFailed", "text": "no rows", "evaluationFailure": "no rows"}'}
        })  # fmt: skip
        await lab.complete()
        assert any(r == "EvaluationFailed" and "OutOfMemoryError" in t for _, _, r, t in lab.api.events)

    play(scenario)


def test_a_spark_that_fails_and_stays_alive_is_reported_with_the_runners_text() -> None:
    """Their end has the end of Spark's log, however short the evaluation was; an Error without such words is no failed evaluation."""

    async def scenario(lab: Lab) -> None:
        lab.start()
        await lab.world.until(lambda: lab.status.get("phase") == "Running", limit_s=120)
        report = {"phase": "Complete", "verdict": "Error", "reason": "RunFailed", "text": "no rows", **more}
        lab.api.change(
            "ConfigMap",
            "lab",
            "trial-run-status",
            {"data": {"status.json": json.dumps(report)}},
        )
        await lab.complete()
        texts = [text for _, _, reason, text in lab.api.events if reason == "EvaluationFailed"]
        assert [text.endswith("damaged") for text in texts] == [True] * len(more)

    more: dict[str, str] = {"evaluationFailure": "x" * 2000 + "damaged"}
    play(scenario)
    more = {}
    play(scenario)


@pytest.mark.parametrize(
    ("phase", "suspend", "unfinished"),
    [("Running", False, 1), ("Running", True, 1), ("Suspended", False, 1), ("Suspended", True, 0)],
)
async def test_the_warm_spark_is_kept_for_every_run_that_goes_on(
    phase: str, suspend: bool, unfinished: int
) -> None:
    """Also for one whose trial still ends, or that was just resumed. One that waits for its user may wait for days."""
    api = ModelApi(now=lambda: 0.0)
    statuses = {"ended": {"phase": "Complete"}, "other": {"phase": phase, "runnerStarts": 1}}
    for name, status in statuses.items():
        run = a_run(suspend=suspend)
        run["metadata"]["name"] = name
        api.objects["ScenarioRun", RUN[1], name] = {**api.put(run), "status": status}
    ended = Run(api.one("ScenarioRun", RUN[1], "ended") or {})
    context = Context(api, Settings(), None, None, lambda: 0.0, lambda: "0", lambda: b"0")
    assert (await unfinished_runs(context, ended))[0] == unfinished


def test_the_warm_sparks_service_does_not_lead_to_a_spark_with_executors() -> None:
    """Both may be in a namespace at once; each Service finds its own pod."""
    own = a_run(evaluation={"executors": 1, "historyClaim": "histories"})
    warm = a_run()
    for run in (own, warm):
        run["metadata"].setdefault("uid", "u")
    services = [objects_runs.spark_service(Run(run))["spec"]["selector"].items() for run in (own, warm)]
    pods = [objects_runs.spark_pod(Run(run), Settings())["metadata"]["labels"].items() for run in (own, warm)]
    assert [[service <= pod for pod in pods] for service in services] == [[True, False], [False, True]]


def test_what_an_earlier_run_of_the_name_left_is_not_taken_for_the_own() -> None:
    """Its verdict and its token are still there when the run is made again: it waits until they are gone, then runs."""

    async def scenario(lab: Lab) -> None:
        owner = {
            "apiVersion": naming.API_VERSION,
            "kind": "ScenarioRun",
            "name": "trial-run",
            "uid": "before",
        }
        metadata = {"namespace": "lab", "ownerReferences": [owner]}
        said = {"status.json": '{"phase": "Complete", "verdict": "Fail", "reason": "", "text": "an old one"}'}
        lab.api.put(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "trial-run-status", **metadata},
                "data": said,
            }
        )
        lab.api.put(
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "trial-run-token", **metadata}}
        )
        lab.start()
        await lab.world.until(lambda: lab.condition("Ready") == "False/NamesTaken", limit_s=10)
        assert "Secret trial-run-token" in (find(lab.status, "Ready") or {})["message"]
        assert not lab.api.select("Pod", "lab")
        lab.api.remove(("ConfigMap", "lab", "trial-run-status"))
        lab.api.remove(("Secret", "lab", "trial-run-token"))
        await lab.complete()
        assert lab.status["verdict"] == "Pass"

    play(scenario)


def test_the_pods_of_a_finished_run_go_after_a_quarter_of_an_hour_and_its_report_stays() -> None:
    """900 s after the end the recorder and the runner are deleted; the run and its ConfigMaps stay."""

    async def scenario(lab: Lab) -> None:
        lab.start()
        await lab.complete()
        await asyncio.sleep(850)
        assert lab.pods() == {"trial-run-recorder", "trial-run-runner"}
        await asyncio.sleep(100)
        assert lab.pods() == set()
        assert lab.status["verdict"] == "Pass"
        assert lab.api.one("ConfigMap", "lab", "trial-run-status")

    play(scenario)


def _finished(verdict: str, **report: Any) -> scenariorun.Observed:
    """Return a run whose second recorder pod is at work and whose runner has reported a verdict."""
    obj = a_run()
    obj["metadata"] |= {"uid": "u", "generation": 1, "finalizers": [naming.FINALIZER]}
    obj["status"] = {"phase": "Running", "runnerStarts": 1, "recorderStarts": 2, "recorderUid": "second"}
    said = {"phase": "Complete", "verdict": verdict, **report}
    return scenariorun.Observed(Run(obj), report=read(RunReport, said))


@pytest.mark.parametrize(
    ("report", "storage", "expected"),
    [
        ({"verdict": "Inconclusive", "reason": "NoData"}, "", ("Inconclusive", "RecorderLost")),
        (
            {"verdict": "Error", "reason": "RunFailed", "evaluationFailure": "no file"},
            "",
            ("Inconclusive", "RecorderLost"),
        ),
        ({"verdict": "Inconclusive", "reason": "ControlFailed"}, "", ("Inconclusive", "ControlFailed")),
        ({"verdict": "Inconclusive", "reason": "Healed"}, "", ("Inconclusive", "Healed")),
        ({"verdict": "Inconclusive", "reason": "NoData"}, "1Gi", ("Inconclusive", "NoData")),
        ({"verdict": "Pass", "reason": ""}, "", ("Pass", "")),
    ],
)
def test_a_verdict_for_want_of_a_record_names_the_lost_recorder(
    report: dict[str, str], storage: str, expected: tuple[str, str]
) -> None:
    """RecorderLost only where the missing record explains the verdict, and not when the record is on a volume."""
    settings = Settings(recorder_storage=storage)
    made = scenariorun.plan(_finished(**report), settings, 1_700_000_000.0).status
    assert isinstance(made, ScenarioRunStatus)
    assert (made.verdict, made.reason) == expected
    assert ("recorder.storage.size" in made.text) == (made.reason == "RecorderLost")


def test_a_run_whose_pod_gets_no_node_ends_with_the_schedulers_reason() -> None:
    """After 600 s the verdict is Error, reason Unschedulable, with the scheduler's words."""

    async def scenario(lab: Lab) -> None:
        lab.world.kubelet.nodes = False
        lab.start()
        took = await lab.world.until(lambda: lab.status.get("phase") == "Complete", limit_s=700)
        assert took > 600
        assert (lab.status["verdict"], lab.status["reason"]) == ("Error", "Unschedulable")
        assert "0/1 nodes are available: 1 Insufficient cpu" in lab.status["text"]
        await asyncio.sleep(5)
        assert "trial-run-runner" not in lab.pods()

    play(scenario)


def test_a_recorder_that_is_lost_is_reported_with_how_to_keep_its_record() -> None:
    """A Warning RecorderLost names the chart's value; the pod is created again."""

    async def scenario(lab: Lab) -> None:
        lab.start()
        await lab.world.until(lambda: lab.status.get("recorderStarts") == 1, limit_s=30)
        lab.world.kubelet.vanish("lab", "trial-run-recorder")
        await lab.world.until(lambda: lab.status.get("recorderStarts") == 2, limit_s=30)
        [(type_, text)] = [(t, text) for _, t, reason, text in lab.api.events if reason == "RecorderLost"]
        assert type_ == "Warning"
        assert "recorder.storage.size" in text

    play(scenario)


def test_the_recorder_of_a_studys_run_goes_with_the_runs_end() -> None:
    """A study has many runs and reads their reports; the recorder of one that somebody made stays until the run goes."""

    async def scenario(lab: Lab) -> None:
        lab.start()
        await lab.world.until(lambda: "trial-run-recorder" in lab.pods(), limit_s=10)
        await lab.complete()
        await asyncio.sleep(10)
        assert "trial-run-recorder" in lab.pods()
        lab.api.change(*RUN, {"metadata": {"labels": {naming.LABEL_STUDY: "knobs"}}})
        await lab.world.until(lambda: "trial-run-recorder" not in lab.pods(), limit_s=10)

    play(scenario)


KILLS_PER_RUN = 5


@pytest.mark.parametrize("seed", range(40))
def test_kills_at_any_moment_end_in_the_right_verdict(seed: int) -> None:
    """Operator, runner, agent or recorder killed five times a run at seeded moments: Pass, voided trials are repeated under new ids, no
    trial is injected twice, nothing is left. (40 runs, 200 kills.)"""

    async def scenario(lab: Lab) -> None:
        random_ = random.Random(seed)
        lab.start()
        for _ in range(KILLS_PER_RUN):
            await asyncio.sleep(random_.uniform(0.1, 18.0))
            await _kill(lab, random_)
        await lab.complete()
        folder = lab.runners.folders["trial-run"]
        injected = lab.runners.trials_injected
        assert lab.status["verdict"] == "Pass"
        assert len(folder["done"]) == 3
        assert len(injected) == len(set(injected)), "a trial was injected twice"
        assert not set(folder["done"]) & set(folder["void"])
        await asyncio.sleep(10)
        assert not lab.agents.holding()
        assert not lab.api.select("Testbed", "lab")

    play(scenario)


async def _kill(lab: Lab, random_: random.Random) -> None:
    what = random_.choice(("operator", "runner", "runner pod", "agent", "recorder"))
    if what == "operator":
        name = next(iter(lab.world.operators), "")
        if name:
            lab.world.kill(name)
            await asyncio.sleep(random_.uniform(0.5, 20.0))
            lab.world.start(f"operator-{random_.random()}")
    elif what == "runner":
        lab.runners.kill()
    elif what == "runner pod":
        lab.world.kubelet.vanish("lab", "trial-run-runner")
    elif what == "recorder":
        lab.world.kubelet.vanish("lab", "trial-run-recorder")
    else:
        for (host, _), _model in list(lab.agents.agents.items()):
            lab.agents.restart(host)
