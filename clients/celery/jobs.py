"""The application that the worker and the client of cases.py share: broker and results both in the server."""

import os
import time

from celery import Celery

HOST = os.environ.get("EVENKEEL_HOST", "127.0.0.1")
PORT = os.environ.get("EVENKEEL_PORT", "6379")
app = Celery("jobs", broker=f"redis://{HOST}:{PORT}/0", backend=f"redis://{HOST}:{PORT}/1")
app.conf.update(
    result_expires=600,
    worker_send_task_events=True,
    broker_connection_retry_on_startup=True,
    task_default_priority=5,
    broker_transport_options={"visibility_timeout": 60},
)


@app.task
def add(a, b):
    return a + b


@app.task
def fail(text):
    raise ValueError(text)


@app.task
def total(numbers):
    return sum(numbers)


@app.task(bind=True, max_retries=3, default_retry_delay=0.1)
def flaky(self, times):
    if self.request.retries < times:
        raise self.retry(countdown=0.1)
    return self.request.retries


@app.task
def slow(seconds):
    time.sleep(seconds)
    return "slept"
