// What applications limit with rate-limiter-flexible: calls, logins, bursts, whole fleets, by its scripts and transactions.
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import Redis from 'ioredis';

const require = createRequire(import.meta.url);
const { BurstyRateLimiter, RateLimiterMemory, RateLimiterQueue, RateLimiterRedis, RateLimiterRedisNonAtomic, RateLimiterUnion } =
  require('rate-limiter-flexible');

const address = { host: process.env.EVENKEEL_HOST ?? '127.0.0.1', port: Number(process.env.EVENKEEL_PORT ?? 6379) };
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const redis = new Redis(address);
const limiter = (options) => new RateLimiterRedis({ storeClient: redis, keyPrefix: 'rl', points: 5, duration: 60, ...options });
// What a refused call is told: no error, but what is left.
const refused = async (call) => {
  const told = await call.then(() => assert.fail('it was let through'), (told) => told);
  if (told instanceof Error) throw told;
  return told;
};
const near = (ms, most) => assert.ok(ms > most - 30_000 && ms <= most, `${ms} of ${most} ms`);

const cases = {
  async 'points are counted down, and then refused'() {
    const calls = limiter();
    for (let left = 4; left >= 0; left--) {
      const told = await calls.consume('ann');
      assert.deepEqual([told.consumedPoints, told.remainingPoints, told.isFirstInDuration], [5 - left, left, left === 4]);
      near(told.msBeforeNext, 60_000);
    }
    const told = await refused(calls.consume('ann'));
    assert.deepEqual([told.consumedPoints, told.remainingPoints], [6, 0]);
    near(told.msBeforeNext, 60_000);
    assert.equal((await calls.consume('bob')).remainingPoints, 4);
  },

  async 'the key, its number and its time'() {
    await limiter().consume('ann', 3);
    assert.equal(await redis.get('rl:ann'), '3');
    near(await redis.pttl('rl:ann'), 60_000);
  },

  async 'a duration ends'() {
    const calls = limiter({ points: 1, duration: 600 });
    await calls.consume('ann');
    near((await refused(calls.consume('ann'))).msBeforeNext, 600_000);
    assert.equal(await redis.pexpire('rl:ann', 50), 1);
    await sleep(100);
    assert.equal((await calls.consume('ann')).isFirstInDuration, true);
  },

  async 'many at once, and not one too many'() {
    const others = Array.from({ length: 4 }, () => new Redis(address));
    const all = [redis, ...others].map((storeClient) => limiter({ storeClient, points: 100 }));
    const calls = Array.from({ length: 500 }, (_, i) => all[i % all.length].consume('crowd'));
    const done = await Promise.allSettled(calls);
    const through = done.filter(({ status }) => status === 'fulfilled');
    assert.equal(through.length, 100);
    const numbers = done.map(({ value, reason }) => (value ?? reason).consumedPoints).sort((a, b) => a - b);
    assert.deepEqual(numbers, Array.from({ length: 500 }, (_, i) => i + 1));
    others.forEach((one) => one.disconnect());
  },

  async 'without an end'() {
    const calls = limiter({ duration: 0 });
    await calls.consume('ann');
    assert.equal((await calls.consume('ann')).consumedPoints, 2);
    assert.equal(await redis.ttl('rl:ann'), -1);
  },

  async 'a penalty, a reward, a look and an end'() {
    const calls = limiter();
    await calls.consume('ann');
    assert.equal((await calls.penalty('ann', 3)).consumedPoints, 4);
    assert.equal((await calls.reward('ann', 2)).consumedPoints, 2);
    const seen = await calls.get('ann');
    assert.deepEqual([seen.consumedPoints, seen.remainingPoints], [2, 3]);
    near(seen.msBeforeNext, 60_000);
    assert.equal(await calls.get('nosuch'), null);
    assert.equal(await calls.delete('ann'), true);
    assert.equal(await calls.delete('ann'), false);
    assert.equal(await calls.get('ann'), null);
  },

  async 'a block, set and by itself'() {
    const calls = limiter({ points: 2, blockDuration: 600 });
    await calls.block('bad', 300);
    near((await refused(calls.consume('bad'))).msBeforeNext, 300_000);
    near(await redis.pttl('rl:bad'), 300_000);
    await calls.consume('ann', 2);
    near((await refused(calls.consume('ann'))).msBeforeNext, 600_000);
    near(await redis.pttl('rl:ann'), 600_000);
  },

  async 'a number set by hand, for a time of its own'() {
    const calls = limiter();
    assert.equal((await calls.set('ann', 4, 100)).consumedPoints, 4);
    near(await redis.pttl('rl:ann'), 100_000);
    assert.equal((await calls.consume('ann')).remainingPoints, 0);
    await refused(calls.consume('ann'));
    await calls.set('forever', 1, 0);
    assert.equal(await redis.ttl('rl:forever'), -1);
  },

  async 'logins: by address and by name'() {
    const union = new RateLimiterUnion(limiter({ keyPrefix: 'slow', points: 3 }), limiter({ keyPrefix: 'fast', points: 2, duration: 600 }));
    await union.consume('ann');
    await union.consume('ann');
    const told = await union.consume('ann').then(() => assert.fail('let through'), (told) => told);
    assert.deepEqual(Object.keys(told), ['fast']);
    assert.deepEqual(await redis.mget('slow:ann', 'fast:ann'), ['3', '3']);
  },

  async 'a burst beside the steady rate'() {
    const bursty = new BurstyRateLimiter(limiter({ points: 2 }), limiter({ keyPrefix: 'burst', points: 3 }));
    const done = await Promise.allSettled(Array.from({ length: 10 }, () => bursty.consume('ann')));
    assert.equal(done.filter(({ status }) => status === 'fulfilled').length, 5);
    assert.deepEqual(await redis.mget('rl:ann', 'burst:ann'), ['10', '8']);
  },

  async 'a queue that waits for its turn'() {
    const queue = new RateLimiterQueue(limiter({ points: 2, duration: 1 }), { maxQueueSize: 3 });
    const began = Date.now();
    await Promise.all(Array.from({ length: 4 }, () => queue.removeTokens(1)));
    assert.ok(Date.now() - began > 500, `${Date.now() - began} ms`);
  },

  async 'the way without scripts'() {
    const calls = limiter();
    const plain = new RateLimiterRedisNonAtomic({ storeClient: redis, keyPrefix: 'rl', points: 5, duration: 60 });
    await calls.consume('ann', 2);
    assert.equal((await plain.consume('ann')).consumedPoints, 3);
    near(await redis.pttl('rl:ann'), 60_000);
  },

  async 'a script of one\'s own, forgotten by the server'() {
    const lua = `local n = redis.call('incrby', KEYS[1], ARGV[1])
      if n == tonumber(ARGV[1]) then redis.call('pexpire', KEYS[1], ARGV[2] * 1000) end
      return {n, redis.call('pttl', KEYS[1])}`;
    const storeClient = new Redis(address);
    const calls = limiter({ storeClient, customIncrTtlLuaScript: lua });
    await calls.consume('ann');
    assert.equal(await redis.script('FLUSH'), 'OK');
    assert.equal((await calls.consume('ann')).consumedPoints, 2);
    near(await redis.pttl('rl:ann'), 60_000);
    storeClient.disconnect();
  },

  async 'a limit kept in memory while the server is away'() {
    // The connection stays away until it is asked for.
    const storeClient = new Redis({ ...address, connectTimeout: 60_000, enableOfflineQueue: false, retryStrategy: () => null });
    storeClient.on('error', () => {});
    await new Promise((resolve) => storeClient.once('ready', resolve));
    const insuranceLimiter = new RateLimiterMemory({ points: 1, duration: 60 });
    const calls = limiter({ storeClient, insuranceLimiter });
    assert.equal((await calls.consume('ann')).remainingPoints, 4);
    const away = new Promise((resolve) => storeClient.once('end', resolve));
    assert.equal(await redis.client('KILL', 'ID', await storeClient.client('ID')), 1);
    await away;
    assert.equal((await calls.consume('ann')).remainingPoints, 0);
    await storeClient.connect();
    assert.equal((await calls.consume('ann')).consumedPoints, 2);
    storeClient.disconnect();
  },

  async 'a key of another kind is an error, no limit'() {
    await redis.lpush('rl:list', 'x');
    await assert.rejects(limiter().consume('list'), /WRONGTYPE/);
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
    console.log(`not ok ${name}: ${e?.stack ?? JSON.stringify(e)}`);
  }
}
process.exit(failed ? 1 : 0);
