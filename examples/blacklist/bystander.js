// A client that has nothing to do with the others: one small GET a millisecond.
import { parentPort, workerData } from 'node:worker_threads';
import { setTimeout as sleep } from 'node:timers/promises';
import Redis from 'ioredis';

const redis = new Redis(workerData);
let waits = [];

/** Answers and forgets what was measured since the last time. */
parentPort.on('message', () => {
  const sorted = Float64Array.from(waits).sort();
  waits = [];
  const at = (share) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? 0;
  parentPort.postMessage({ p50: at(0.5), p99: at(0.99), max: sorted.at(-1) ?? 0 });
});

await redis.get('somebody-elses');
parentPort.postMessage('ready');
for (;;) {
  const started = performance.now();
  await redis.get('somebody-elses');
  waits.push(performance.now() - started);
  await sleep(1);
}
