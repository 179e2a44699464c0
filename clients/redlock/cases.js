// Locks of Redlock: one holder at a time, a quorum of three places, extension, expiry.
// The three places are three databases of the server: a lock in one is unknown to the others.
import assert from 'node:assert/strict';
import Redis from 'ioredis';
import Redlock, { ExecutionError, ResourceLockedError } from 'redlock';

const address = { host: process.env.EVENKEEL_HOST ?? '127.0.0.1', port: Number(process.env.EVENKEEL_PORT ?? 6379) };
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const places = [0, 1, 2].map((db) => new Redis({ ...address, db }));
const [redis] = places;
const AT_ONCE = { retryCount: 0 };
const locks = (settings = {}, clients = places) =>
  new Redlock(clients, { retryCount: 200, retryDelay: 10, retryJitter: 5, ...settings });
const near = (ms, most) => assert.ok(ms > most - 30_000 && ms <= most, `${ms} of ${most} ms`);
const held = (key) => Promise.all(places.map((place) => place.get(key)));
// A release is told when a quorum has it: the last place may follow a moment later.
const free = async (key) => {
  for (const end = Date.now() + 60_000; (await held(key)).some(Boolean) && Date.now() < end; ) await sleep(5);
  assert.deepEqual(await held(key), [null, null, null]);
};
// The reason of each place that refused.
const refused = async (call) => {
  const told = await call.then(() => assert.fail('the lock was given'), (told) => told);
  if (!(told instanceof ExecutionError) || told.attempts.length === 0) throw told;
  return [...(await told.attempts.at(-1)).votesAgainst.values()];
};

const cases = {
  async 'a lock is held at every place, and released'() {
    const lock = await locks().acquire(['a'], 60_000);
    await (await lock.attempts[0]);
    assert.deepEqual(await held('a'), [lock.value, lock.value, lock.value]);
    for (const place of places) near(await place.pttl('a'), 60_000);
    await lock.release();
    await free('a');
  },

  async 'a second one is refused'() {
    const lock = await locks().acquire(['a'], 60_000);
    const reasons = await refused(locks(AT_ONCE).acquire(['a'], 60_000));
    assert.ok(reasons.length >= 2 && reasons.every((e) => e instanceof ResourceLockedError), `${reasons}`);
    await lock.attempts[0];
    assert.deepEqual(await held('a'), [lock.value, lock.value, lock.value]);
  },

  async 'a waiter gets it after the release'() {
    const lock = await locks().acquire(['a'], 60_000);
    let got = false;
    const waiting = locks().acquire(['a'], 60_000).then((lock) => ((got = true), lock));
    await sleep(60);
    assert.equal(got, false);
    await lock.release();
    const next = await waiting;
    assert.notEqual(next.value, lock.value);
    assert.equal((await held('a')).filter((value) => value === next.value).length >= 2, true);
  },

  async 'a lock whose holder died ends by its time'() {
    const began = Date.now();
    await (await locks().acquire(['a'], 300)).attempts[0];
    const next = await locks().acquire(['a'], 300);
    assert.ok(Date.now() - began >= 295, `${Date.now() - began} ms`);
    await next.attempts.at(-1);
  },

  async 'a lock is extended, and its old form is worth nothing'() {
    const lock = await locks().acquire(['a'], 60_000);
    const longer = await lock.extend(120_000);
    await longer.attempts[0];
    assert.equal(longer.value, lock.value);
    for (const place of places) near(await place.pttl('a'), 120_000);
    await assert.rejects(lock.extend(60_000), /already-expired/);
    await longer.release();
  },

  async 'another\'s lock is neither extended nor released'() {
    const lock = await locks(AT_ONCE).acquire(['a'], 60_000);
    await lock.attempts[0];
    await Promise.all(places.map((place) => place.set('a', 'another', 'PX', 60_000)));
    const reasons = await refused(lock.extend(90_000));
    assert.ok(reasons.every((e) => /applied to: 0 of the 1/.test(e.message)), `${reasons}`);
    await refused(lock.release());
    assert.deepEqual(await held('a'), ['another', 'another', 'another']);
    for (const place of places) near(await place.pttl('a'), 60_000);
  },

  async 'a quorum is enough, a minority is not'() {
    await places[2].set('a', 'another');
    const lock = await locks().acquire(['a'], 60_000);
    const { votesFor, votesAgainst } = await lock.attempts[0];
    assert.deepEqual([votesFor.size, votesAgainst.size], [2, 1]);
    await lock.release();
    await places[1].set('a', 'another');
    await refused(locks(AT_ONCE).acquire(['a'], 60_000));
    assert.deepEqual(await held('a'), [null, 'another', 'another']);
  },

  async 'several resources: all or none'() {
    const lock = await locks().acquire(['a', 'b', 'c'], 60_000);
    await lock.attempts[0];
    assert.deepEqual(await redis.mget('a', 'b', 'c'), [lock.value, lock.value, lock.value]);
    await refused(locks(AT_ONCE).acquire(['c', 'd'], 60_000));
    assert.equal(await redis.exists('d'), 0);
    await lock.release();
    await (await locks(AT_ONCE).acquire(['c', 'd'], 60_000)).release();
  },

  async 'a counter that only a lock protects'() {
    const all = Array.from({ length: 8 }, () => new Redis(address));
    let [inside, most] = [0, 0];
    const work = async (client) => {
      const own = locks({ retryCount: -1 }, [client]);
      for (let i = 0; i < 10; i++) {
        const lock = await own.acquire(['mutex'], 60_000);
        most = Math.max(most, ++inside);
        await client.set('counter', Number(await client.get('counter')) + 1);
        inside--;
        await lock.release();
      }
    };
    await Promise.all(all.map(work));
    assert.deepEqual([await redis.get('counter'), most], ['80', 1]);
    all.forEach((one) => one.disconnect());
  },

  async 'work that keeps its lock as long as it takes'() {
    const result = await locks({ automaticExtensionThreshold: 59_000 }).using(['a'], 60_000, async (signal) => {
      const first = await redis.get('a');
      // Only an extension makes the time that is left grow.
      for (let before = await redis.pttl('a'), left; !signal.aborted && (left = await redis.pttl('a')) <= before; before = left) await sleep(10);
      assert.equal(signal.aborted, false);
      assert.equal(await redis.get('a'), first);
      return 'done';
    });
    assert.equal(result, 'done');
    await free('a');
  },

  async 'work whose lock is lost is told'() {
    let told;
    // The release of what is lost is refused, whatever the work says.
    await assert.rejects(
      locks({ ...AT_ONCE, automaticExtensionThreshold: 500 }).using(['a'], 1000, async (signal) => {
        await Promise.all(places.map((place) => place.del('a')));
        for (const end = Date.now() + 60_000; !signal.aborted && Date.now() < end; ) await sleep(10);
        told = signal.error;
      }),
      ExecutionError,
    );
    assert.ok(told instanceof ExecutionError, `${told}`);
  },

  async 'scripts that the server has forgotten'() {
    const own = locks();
    const lock = await own.acquire(['a'], 60_000);
    assert.equal(await redis.script('FLUSH'), 'OK');
    await lock.release();
    assert.equal(await redis.script('FLUSH'), 'OK');
    await (await own.acquire(['a'], 60_000)).release();
  },
};

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
}
process.exit(failed ? 1 : 0);
