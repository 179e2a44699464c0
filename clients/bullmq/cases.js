// What applications do with BullMQ, case by case: queues, workers, delays, schedules, flows, limits and events.
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import Redis from 'ioredis';

const require = createRequire(import.meta.url);
const { DelayedError, FlowProducer, Queue, QueueEvents, UnrecoverableError, Worker } = require('bullmq');

const connection = { host: process.env.EVENKEEL_HOST ?? '127.0.0.1', port: Number(process.env.EVENKEEL_PORT ?? 6379) };
const PATIENCE_MS = 30_000;

// Everything that a case opens, to be closed behind it.
let open = [];
const keep = (one) => {
  one.on?.('error', () => {});
  open.push(one);
  return one;
};
const queueOf = (name, options = {}) => keep(new Queue(name, { connection, ...options }));
const workerOf = (name, run, options = {}) => keep(new Worker(name, run, { connection, ...options }));
// From the first event on, unless another ID is named.
const eventsOf = async (name, lastEventId = '0-0') => {
  const events = keep(new QueueEvents(name, { connection, lastEventId }));
  await events.waitUntilReady();
  return events;
};
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const until = async (what, check) => {
  for (const end = Date.now() + PATIENCE_MS; Date.now() < end; await sleep(10)) {
    if (await check()) return;
  }
  throw new Error(`it does not come about: ${what}`);
};
const completed = (queue, count) => until(`${count} completed`, async () => (await queue.getCompletedCount()) === count);

const cases = {
  async 'a job returns a result'() {
    const queue = queueOf('one');
    const events = await eventsOf('one', '$');
    workerOf('one', async (job) => job.data.a + 1);
    const job = await queue.add('add', { a: 41 });
    assert.equal(await job.waitUntilFinished(events, PATIENCE_MS), 42);
    assert.equal(await job.getState(), 'completed');
  },

  async 'jobs are done in their order'() {
    const queue = queueOf('order');
    const done = [];
    await queue.addBulk(Array.from({ length: 50 }, (_, i) => ({ name: 'n', data: { i } })));
    assert.equal(await queue.getWaitingCount(), 50);
    workerOf('order', async (job) => void done.push(job.data.i));
    await completed(queue, 50);
    assert.deepEqual(done, Array.from({ length: 50 }, (_, i) => i));
  },

  async 'the last one comes first with lifo'() {
    const queue = queueOf('lifo');
    for (let i = 0; i < 5; i++) await queue.add('n', { i }, { lifo: true });
    const done = [];
    workerOf('lifo', async (job) => void done.push(job.data.i));
    await completed(queue, 5);
    assert.deepEqual(done, [4, 3, 2, 1, 0]);
  },

  async 'several workers share a queue'() {
    const queue = queueOf('shared');
    const seen = new Map();
    const run = async (job) => {
      seen.set(job.id, (seen.get(job.id) ?? 0) + 1);
      await sleep(2);
    };
    for (let i = 0; i < 3; i++) workerOf('shared', run, { concurrency: 5 });
    await queue.addBulk(Array.from({ length: 200 }, () => ({ name: 'n', data: {} })));
    await completed(queue, 200);
    assert.equal(seen.size, 200);
    assert.ok([...seen.values()].every((times) => times === 1));
  },

  async 'a delayed job waits'() {
    const queue = queueOf('delayed');
    const began = Date.now();
    await queue.add('later', {}, { delay: 300 });
    assert.equal(await queue.getDelayedCount(), 1);
    workerOf('delayed', async () => Date.now());
    await completed(queue, 1);
    const [job] = await queue.getCompleted();
    assert.ok(job.returnvalue - began >= 295);
  },

  async 'a delayed job is promoted, another is delayed again'() {
    const queue = queueOf('promoted');
    const [first, second] = [await queue.add('a', {}, { delay: 1e6 }), await queue.add('b', {}, { delay: 1e6 })];
    await first.promote();
    assert.equal(await first.getState(), 'waiting');
    await second.changeDelay(50);
    workerOf('promoted', async (job) => job.name);
    await completed(queue, 2);
  },

  async 'priorities'() {
    const queue = queueOf('priorities');
    for (const priority of [5, 1, 3, 2, 4]) await queue.add('n', { priority }, { priority });
    assert.equal(await queue.getPrioritizedCount(), 5);
    assert.deepEqual(await queue.getCountsPerPriority([1, 9]), { 1: 1, 9: 0 });
    const done = [];
    workerOf('priorities', async (job) => void done.push(job.data.priority));
    await completed(queue, 5);
    assert.deepEqual(done, [1, 2, 3, 4, 5]);
  },

  async 'a failure with its reason and its trace'() {
    const queue = queueOf('failed');
    const events = await eventsOf('failed');
    workerOf('failed', async () => {
      throw new Error('on purpose');
    });
    const job = await queue.add('n', {});
    await assert.rejects(job.waitUntilFinished(events, PATIENCE_MS), /on purpose/);
    const [failed] = await queue.getFailed();
    assert.equal(failed.failedReason, 'on purpose');
    assert.match(failed.stacktrace[0], /Error: on purpose/);
  },

  async 'retries with a backoff'() {
    const queue = queueOf('retries');
    const began = Date.now();
    await queue.add('n', {}, { attempts: 3, backoff: { type: 'exponential', delay: 50 } });
    workerOf('retries', async (job) => {
      if (job.attemptsMade < 2) throw new Error('not yet');
      return Date.now();
    });
    await completed(queue, 1);
    const [job] = await queue.getCompleted();
    assert.equal(job.attemptsMade, 3);
    assert.ok(job.returnvalue - began >= 145);
  },

  async 'an unrecoverable error ends the retries; a failed job is tried again by hand'() {
    const queue = queueOf('unrecoverable');
    let fails = true;
    workerOf('unrecoverable', async () => {
      if (fails) throw new UnrecoverableError('never');
    });
    const job = await queue.add('n', {}, { attempts: 5 });
    await until('it failed', async () => (await queue.getFailedCount()) === 1);
    assert.equal((await queue.getJob(job.id)).attemptsMade, 1);
    fails = false;
    await (await queue.getJob(job.id)).retry();
    await completed(queue, 1);
  },

  async 'a job delays itself'() {
    const queue = queueOf('itself');
    workerOf('itself', async (job, token) => {
      if (job.data.again) {
        await job.updateData({ again: false });
        await job.moveToDelayed(Date.now() + 50, token);
        throw new DelayedError();
      }
      return 'done';
    });
    await queue.add('n', { again: true });
    await completed(queue, 1);
  },

  async 'progress and logs'() {
    const queue = queueOf('progress');
    const events = await eventsOf('progress');
    const told = [];
    events.on('progress', ({ data }) => told.push(data));
    workerOf('progress', async (job) => {
      await job.updateProgress(10);
      await job.log('half');
      await job.updateProgress({ part: 2 });
      await job.log('whole');
    });
    const job = await queue.add('n', {});
    await job.waitUntilFinished(events, PATIENCE_MS);
    await until('both are told', () => told.length === 2);
    assert.deepEqual(told, [10, { part: 2 }]);
    assert.deepEqual((await queue.getJobLogs(job.id)).logs, ['half', 'whole']);
  },

  async 'events of a queue, in their order'() {
    const queue = queueOf('events');
    const events = await eventsOf('events');
    const told = [];
    for (const name of ['added', 'waiting', 'active', 'completed', 'drained']) events.on(name, () => told.push(name));
    const job = await queue.add('n', {});
    await until('it is told', () => told.includes('waiting'));
    workerOf('events', async () => 1);
    await job.waitUntilFinished(events, PATIENCE_MS);
    await until('its end is told', () => told.includes('completed'));
    assert.deepEqual(told.filter((name) => name !== 'drained'), ['added', 'waiting', 'active', 'completed']);
  },

  async 'events that came before are read from their ID on'() {
    const queue = queueOf('history');
    workerOf('history', async () => 1);
    await queue.add('n', {});
    await completed(queue, 1);
    const events = await eventsOf('history');
    const told = new Set();
    for (const name of ['added', 'active', 'completed']) events.on(name, () => told.add(name));
    await until('all are told', () => told.size === 3);
  },

  async 'events are trimmed'() {
    const queue = queueOf('trimmed', { streams: { events: { maxLen: 10 } } });
    for (let i = 0; i < 300; i++) await queue.add('n', {});
    assert.ok((await redis.xlen(queue.toKey('events'))) < 250);
    await queue.trimEvents(0);
    assert.equal(await redis.xlen(queue.toKey('events')), 0);
  },

  async 'pause and resume'() {
    const queue = queueOf('pause');
    const worker = workerOf('pause', async () => 1);
    await worker.waitUntilReady();
    await queue.pause();
    assert.equal(await queue.isPaused(), true);
    await queue.add('n', {});
    await sleep(100);
    assert.equal(await queue.getCompletedCount(), 0);
    await queue.resume();
    await completed(queue, 1);
  },

  async 'a limit of jobs in a time'() {
    const queue = queueOf('limited');
    await queue.addBulk(Array.from({ length: 6 }, () => ({ name: 'n', data: {} })));
    const times = [];
    workerOf('limited', async () => void times.push(Date.now()), { limiter: { max: 2, duration: 200 }, concurrency: 5 });
    await completed(queue, 6);
    assert.ok(times[5] - times[0] >= 200, `${times[5] - times[0]} ms`);
  },

  async 'a worker that asks for a pause of its limit'() {
    const queue = queueOf('manual');
    let asked = false;
    const worker = workerOf('manual', async () => {
      if (asked) return Date.now();
      asked = true;
      await worker.rateLimit(150);
      throw Worker.RateLimitError();
    }, { limiter: { max: 100, duration: 1000 } });
    const began = Date.now();
    await queue.add('n', {});
    await completed(queue, 1);
    assert.ok((await queue.getCompleted())[0].returnvalue - began >= 145);
  },

  async 'a schedule by interval'() {
    const queue = queueOf('interval');
    await queue.upsertJobScheduler('tick', { every: 60, limit: 3 }, { name: 'tick', data: { a: 1 } });
    assert.equal((await queue.getJobSchedulers()).length, 1);
    let ticks = 0;
    workerOf('interval', async () => void ticks++);
    await until('three ticks', () => ticks === 3);
    await sleep(150);
    assert.equal(ticks, 3);
  },

  async 'a schedule by pattern, and its removal'() {
    const queue = queueOf('pattern');
    await queue.upsertJobScheduler('second', { pattern: '* * * * * *' }, { name: 'tick' });
    workerOf('pattern', async () => 1);
    await until('a tick', async () => (await queue.getCompletedCount()) > 0);
    assert.equal(await queue.removeJobScheduler('second'), true);
    assert.equal((await queue.getJobSchedulers()).length, 0);
  },

  async 'a flow: children first, their values to the parent'() {
    const queue = queueOf('flow');
    workerOf('flow', async (job) => {
      if (job.name !== 'parent') return job.data.n;
      return Object.values(await job.getChildrenValues()).reduce((a, b) => a + b, 0);
    });
    const children = [1, 2, 3].map((n) => ({ name: 'child', queueName: 'flow', data: { n } }));
    const flow = keep(new FlowProducer({ connection }));
    const { job } = await flow.add({ name: 'parent', queueName: 'flow', children });
    const events = await eventsOf('flow');
    assert.equal(await job.waitUntilFinished(events, PATIENCE_MS), 6);
    assert.equal((await flow.getFlow({ id: job.id, queueName: 'flow' })).children.length, 3);
  },

  async 'a flow whose child fails'() {
    const queue = queueOf('broken');
    workerOf('broken', async (job) => {
      if (job.name === 'child') throw new Error('no');
    });
    const children = [{ name: 'child', queueName: 'broken', opts: { failParentOnFailure: true } }];
    const { job } = await keep(new FlowProducer({ connection })).add({ name: 'parent', queueName: 'broken', children });
    await until('both failed', async () => (await queue.getFailedCount()) === 2);
    assert.equal(await (await queue.getJob(job.id)).getState(), 'failed');
  },

  async 'a deduplicated job is added once'() {
    const queue = queueOf('dedup');
    const first = await queue.add('n', { n: 1 }, { deduplication: { id: 'same', ttl: 60_000 } });
    const second = await queue.add('n', { n: 2 }, { deduplication: { id: 'same', ttl: 60_000 } });
    assert.equal(second.id, first.id);
    assert.equal(await queue.getWaitingCount(), 1);
    await queue.add('n', {}, { jobId: 'mine' });
    await queue.add('n', {}, { jobId: 'mine' });
    assert.equal(await queue.getWaitingCount(), 2);
  },

  async 'removal of jobs, by itself and by hand'() {
    const queue = queueOf('removal');
    const lost = await queue.add('n', {});
    assert.equal(await queue.remove(lost.id), 1);
    assert.equal(await queue.getJob(lost.id), undefined);
    workerOf('removal', async () => 1);
    for (let i = 0; i < 10; i++) await queue.add('n', {}, { removeOnComplete: { count: 3 } });
    await until('three are left', async () => (await queue.getCompletedCount()) === 3 && (await queue.getWaitingCount()) === 0);
    assert.equal((await queue.clean(0, 100, 'completed')).length, 3);
    assert.equal(await queue.getCompletedCount(), 0);
  },

  async 'draining, and an end of everything'() {
    const queue = queueOf('end');
    await queue.addBulk(Array.from({ length: 100 }, () => ({ name: 'n', data: {} })));
    await queue.add('n', {}, { delay: 1e6 });
    await queue.drain(true);
    assert.deepEqual(await queue.getJobCounts('waiting', 'delayed'), { waiting: 0, delayed: 0 });
    await queue.addBulk(Array.from({ length: 100 }, () => ({ name: 'n', data: {} })));
    await queue.obliterate();
    assert.deepEqual(await redis.keys('bull:end:*'), []);
  },

  async 'a job whose worker is lost is done by another'() {
    const queue = queueOf('stalled');
    const events = await eventsOf('stalled');
    let stalled = 0;
    events.on('stalled', () => stalled++);
    const lost = workerOf('stalled', () => new Promise(() => {}), { lockDuration: 200, skipLockRenewal: true, skipStalledCheck: true });
    await queue.add('n', {});
    await until('it is active', async () => (await queue.getActiveCount()) === 1);
    await lost.close(true);
    workerOf('stalled', async () => 'saved', { stalledInterval: 200, maxStalledCount: 10 });
    await completed(queue, 1);
    await until('it is told', () => stalled >= 1);
  },

  async 'metrics, counts and lists'() {
    const queue = queueOf('metrics');
    workerOf('metrics', async () => 1, { metrics: { maxDataPoints: 10 } });
    await queue.addBulk(Array.from({ length: 20 }, (_, i) => ({ name: `n${i}`, data: {} })));
    await completed(queue, 20);
    assert.equal((await queue.getMetrics('completed')).meta.count, 20);
    assert.equal((await queue.getJobs(['completed'], 0, 4, true)).length, 5);
    assert.equal((await queue.getJobCounts()).completed, 20);
    await until('the worker is seen', async () => (await queue.getWorkers()).length === 1);
  },

  async 'a limit of jobs at a time for the whole queue'() {
    const queue = queueOf('global');
    await queue.setGlobalConcurrency(1);
    let [now, most] = [0, 0];
    const run = async () => {
      most = Math.max(most, ++now);
      await sleep(5);
      now--;
    };
    for (let i = 0; i < 2; i++) workerOf('global', run, { concurrency: 4 });
    await queue.addBulk(Array.from({ length: 20 }, () => ({ name: 'n', data: {} })));
    await completed(queue, 20);
    assert.equal(most, 1);
  },
};

const redis = new Redis({ ...connection, lazyConnect: true });
await redis.connect();
process.on('unhandledRejection', (e) => console.log(`unhandled: ${e?.stack ?? e}`));
let failed = 0;
for (const [name, run] of Object.entries(cases)) {
  if (process.argv[2] && !name.includes(process.argv[2])) continue;
  try {
    await redis.flushall();
    await run();
    console.log(`ok ${name}`);
  } catch (e) {
    failed++;
    console.log(`not ok ${name}: ${e.stack ?? e}`);
  }
  await Promise.all(open.map((one) => one.close().catch(() => {})));
  open = [];
}
process.exit(failed ? 1 : 0);
