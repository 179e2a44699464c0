"""A real Celery worker does real jobs over the server: tasks, groups, chains, chords, retries, countdowns, failures."""

import os
import subprocess
import sys
import time
import traceback

from celery import chain, chord, group

import jobs

CASES = []


def case(function):
    CASES.append(function)
    return function


@case
def jobs_return_results():
    results = [jobs.add.delay(number, 1) for number in range(100)]
    assert [result.get(timeout=30) for result in results] == list(range(1, 101))


@case
def failures_reach_the_caller():
    try:
        jobs.fail.delay("on purpose").get(timeout=30)
    except ValueError as error:
        assert str(error) == "on purpose"
    else:
        raise AssertionError("no ValueError")


@case
def groups_chains_and_chords():
    assert group(jobs.add.s(n, n) for n in range(10))().get(timeout=30) == [2 * n for n in range(10)]
    assert chain(jobs.add.s(1, 2), jobs.add.s(10), jobs.add.s(100))().get(timeout=30) == 113
    assert chord((jobs.add.s(n, 1) for n in range(20)), jobs.total.s())().get(timeout=30) == sum(range(1, 21))


@case
def retries_and_countdowns():
    assert jobs.flaky.delay(2).get(timeout=30) == 2
    started = time.monotonic()
    assert jobs.add.apply_async((1, 1), countdown=0.5).get(timeout=30) == 2
    assert time.monotonic() - started > 0.4


@case
def priorities():
    results = [jobs.add.apply_async((n, 0), priority=n % 10) for n in range(30)]
    assert sorted(result.get(timeout=30) for result in results) == list(range(30))


@case
def inspection_and_forgetting():
    assert any(jobs.app.control.ping(timeout=3) for _ in range(20)), "no worker answers a ping"
    assert any(jobs.app.control.inspect(timeout=3).registered() for _ in range(20))
    result = jobs.add.delay(1, 1)
    assert result.get(timeout=30) == 2
    result.forget()


def start_worker():
    command = [sys.executable, "-m", "celery", "-A", "jobs", "worker", "--concurrency", "2", "--loglevel", "WARNING"]
    environment = {**os.environ, "C_FORCE_ROOT": "1"}
    return subprocess.Popen(command, cwd=os.path.dirname(os.path.abspath(__file__)), env=environment)


def main():
    worker = start_worker()
    failed = 0
    try:
        jobs.add.delay(0, 0).get(timeout=60)
        for function in CASES:
            name = function.__name__.replace("_", " ")
            try:
                function()
                print(f"ok {name}", flush=True)
            except Exception:
                failed += 1
                print(f"not ok {name}: {traceback.format_exc()}", flush=True)
    except Exception:
        failed += 1
        print(f"not ok the worker's first job: {traceback.format_exc()}", flush=True)
    worker.terminate()
    if worker.wait(timeout=30) != 0:
        failed += 1
        print("not ok the worker ends in order", flush=True)
    else:
        print("ok the worker ends in order", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
