"""RQ does real jobs over the server: queues, workers, results, registries, retries, schedules, dependencies."""

import os
import sys
import threading
import time
import traceback
from datetime import datetime, timedelta, timezone

from redis import Redis
from rq import Queue, Repeat, Retry, SimpleWorker, Worker
from rq.group import Group
from rq.job import Dependency, Job
from rq.registry import FailedJobRegistry, FinishedJobRegistry, ScheduledJobRegistry
from rq.scheduler import RQScheduler
from rq.suspension import is_suspended, resume, suspend

import jobs

CASES = []
redis = Redis(host=os.environ.get("EVENKEEL_HOST", "127.0.0.1"), port=int(os.environ.get("EVENKEEL_PORT", "6379")), socket_timeout=60)


def case(function):
    CASES.append(function)
    return function


def queue(name="default"):
    return Queue(name, connection=redis)


def burst(*queues, worker=SimpleWorker, **options):
    """A worker that does all there is."""
    worker(list(queues), connection=redis).work(burst=True, logging_level="CRITICAL", **options)


@case
def a_job_returns_a_result():
    job = queue().enqueue(jobs.add, 1, 2)
    assert job.get_status() == "queued" and queue().job_ids == [job.id]
    burst(queue())
    assert job.get_status() == "finished" and job.return_value() == 3
    assert job.latest_result().type.name == "SUCCESSFUL"


@case
def a_worker_with_processes_of_its_own():
    work = [queue().enqueue(jobs.add, n, 1) for n in range(5)]
    burst(queue(), worker=Worker)
    assert [job.return_value() for job in work] == [1, 2, 3, 4, 5]


@case
def many_jobs_at_once():
    work = queue().enqueue_many([Queue.prepare_data(jobs.add, (n, n)) for n in range(100)])
    assert len(queue()) == 100
    burst(queue())
    assert [job.return_value() for job in work] == [2 * n for n in range(100)]


@case
def a_caller_waits_for_a_result():
    job = queue().enqueue(jobs.add, 20, 22)
    found = []
    waiter = threading.Thread(target=lambda: found.append(job.latest_result(timeout=30)))
    waiter.start()
    time.sleep(0.1)
    burst(queue())
    waiter.join(30)
    assert found[0].return_value == 42


@case
def failures_are_kept_and_tried_again():
    job = queue().enqueue(jobs.fail, "on purpose")
    burst(queue())
    registry = FailedJobRegistry(queue=queue())
    assert job.is_failed and registry.get_job_ids() == [job.id]
    assert "ValueError: on purpose" in job.latest_result().exc_string
    registry.requeue(job)
    assert queue().job_ids == [job.id]
    burst(queue())
    assert len(job.results()) == 2 and job.id in registry


@case
def the_results_of_every_try_are_kept():
    job = queue().enqueue(jobs.fail, "again")
    for _ in range(12):
        burst(queue())
        FailedJobRegistry(queue=queue()).requeue(job)
    assert len(job.results()) >= 10


@case
def retries():
    job = queue().enqueue(jobs.flaky, 2, retry=Retry(max=3))
    burst(queue())
    assert job.is_finished and job.return_value() == 2


@case
def queues_in_their_order():
    low, high = queue("low").enqueue(jobs.add, 1, 1), queue("high").enqueue(jobs.add, 1, 1)
    burst(queue("high"), queue("low"), max_jobs=1)
    assert high.is_finished and not low.is_finished
    front = queue("low").enqueue(jobs.add, 2, 2, at_front=True)
    assert queue("low").job_ids == [front.id, low.id]
    burst(queue("high"), queue("low"))
    assert low.is_finished


@case
def dependencies():
    first = queue().enqueue(jobs.add, 1, 1)
    second = queue().enqueue(jobs.add, 2, 2, depends_on=first)
    failing = queue().enqueue(jobs.fail, "x")
    third = queue().enqueue(jobs.add, 3, 3, depends_on=Dependency(jobs=[failing], allow_failure=True))
    assert second.get_status() == "deferred" and second.id in queue().deferred_job_registry
    burst(queue())
    assert second.return_value() == 4 and third.return_value() == 6


@case
def callbacks():
    job = queue().enqueue(jobs.add, 1, 1, on_success=jobs.told)
    failing = queue().enqueue(jobs.fail, "x", on_failure=jobs.told)
    burst(queue())
    assert redis.lrange("told", 0, -1) == [job.id.encode(), failing.id.encode()]


@case
def schedules():
    soon = queue().enqueue_in(timedelta(seconds=-1), jobs.add, 1, 1)
    late = queue().enqueue_at(datetime.now(timezone.utc) + timedelta(hours=1), jobs.add, 2, 2)
    registry = ScheduledJobRegistry(queue=queue())
    assert set(registry.get_job_ids()) == {soon.id, late.id}
    scheduler = RQScheduler([queue()], connection=redis)
    assert scheduler.acquire_locks()
    scheduler.enqueue_scheduled_jobs()
    assert queue().job_ids == [soon.id] and registry.get_job_ids() == [late.id]
    burst(queue())
    assert soon.return_value() == 2 and late.get_status() == "scheduled"


@case
def repeated_jobs():
    job = queue().enqueue(jobs.add, 1, 1, repeat=Repeat(times=2))
    burst(queue())
    assert len(job.results()) == 3


@case
def registries_and_removal():
    job = queue().enqueue(jobs.add, 1, 1, result_ttl=500)
    burst(queue())
    assert FinishedJobRegistry(queue=queue()).get_job_ids() == [job.id]
    job.delete()
    assert not Job.exists(job.id, connection=redis) and len(FinishedJobRegistry(queue=queue())) == 0
    gone = queue().enqueue(jobs.add, 1, 1, result_ttl=0)
    burst(queue())
    assert not Job.exists(gone.id, connection=redis)


@case
def a_cancelled_job_is_not_done():
    job = queue().enqueue(jobs.add, 1, 1)
    job.cancel()
    burst(queue())
    assert job.is_canceled and job.id in queue().canceled_job_registry
    for _ in range(5):
        queue().enqueue(jobs.add, 1, 1)
    assert queue().empty() == 5 and queue().is_empty()


@case
def groups_of_jobs():
    group = Group.create(connection=redis)
    work = group.enqueue_many(queue(), [Queue.prepare_data(jobs.add, (n, 1), job_id=f"g{n}") for n in range(3)])
    burst(queue())
    assert sorted(job.id for job in group.get_jobs()) == sorted(job.id for job in work)


@case
def a_job_that_takes_too_long():
    job = queue().enqueue(jobs.slow, 30, job_timeout=1)
    burst(queue())
    assert job.is_failed and "JobTimeoutException" in job.latest_result().exc_string


@case
def workers_are_known_and_can_be_suspended():
    worker = SimpleWorker([queue()], connection=redis, name="known")
    worker.register_birth()
    assert [one.name for one in Worker.all(connection=redis)] == ["known"]
    worker.register_death()
    assert Worker.all(connection=redis) == []
    suspend(redis)
    assert is_suspended(redis)
    resume(redis)
    assert not is_suspended(redis)


@case
def a_worker_that_waits_for_jobs():
    worker = SimpleWorker([queue()], connection=redis)
    adder = threading.Timer(0.3, lambda: queue().enqueue(jobs.add, 1, 1, job_id="late"))
    adder.start()
    worker.work(max_jobs=1, logging_level="CRITICAL")
    adder.join()
    assert Job.fetch("late", connection=redis).return_value() == 2


def main():
    failed = 0
    for function in CASES:
        name = function.__name__.replace("_", " ")
        redis.flushall()
        try:
            function()
            print(f"ok {name}", flush=True)
        except Exception:
            failed += 1
            print(f"not ok {name}: {traceback.format_exc()}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
