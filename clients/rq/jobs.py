"""The functions that the worker of cases.py calls."""

import time

from rq import get_current_job


def add(a, b):
    return a + b


def fail(text):
    raise ValueError(text)


def flaky(times):
    job = get_current_job()
    tries = job.meta.get("tries", 0)
    job.meta["tries"] = tries + 1
    job.save_meta()
    if tries < times:
        raise ValueError("not yet")
    return tries


def slow(seconds):
    time.sleep(seconds)
    return "slept"


def told(job, connection, *_):
    connection.rpush("told", job.id)
