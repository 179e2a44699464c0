// What applications do with node-redis, in RESP2 and in RESP3.
import assert from 'node:assert/strict';
import { createClient, defineScript } from 'redis';

const host = process.env.EVENKEEL_HOST ?? '127.0.0.1';
const port = Number(process.env.EVENKEEL_PORT ?? 6379);

const addAll = defineScript({
  NUMBER_OF_KEYS: 1,
  SCRIPT: 'local n = 0 for _, v in ipairs(ARGV) do n = redis.call("INCRBY", KEYS[1], v) end return n',
  parseCommand(parser, key, numbers) {
    parser.pushKey(key);
    parser.push(...numbers.map(String));
  },
  transformReply: (reply) => reply,
});

async function open(RESP, options = {}) {
  const client = createClient({ RESP, socket: { host, port, reconnectStrategy: 20 }, scripts: { addAll }, ...options });
  client.on('error', () => {});
  return client.connect();
}

const cases = {
  async strings(redis) {
    assert.equal(await redis.set('s', 'v', { EX: 100, NX: true }), 'OK');
    assert.equal(await redis.set('s', 'v', { NX: true }), null);
    assert.equal(await redis.get('s'), 'v');
    assert.ok((await redis.ttl('s')) > 90);
    assert.equal(await redis.incr('n'), 1);
    assert.deepEqual(await redis.mGet(['s', 'nosuch']), ['v', null]);
    assert.equal(await redis.getEx('s', { type: 'PERSIST' }), 'v');
    assert.equal(await redis.ttl('s'), -1);
  },

  async 'hashes, lists, sets, sorted sets'(redis) {
    await redis.hSet('h', { a: '1', b: '2' });
    assert.deepEqual({ ...(await redis.hGetAll('h')) }, { a: '1', b: '2' });
    await redis.rPush('l', ['a', 'b', 'c']);
    assert.deepEqual(await redis.lRange('l', 0, -1), ['a', 'b', 'c']);
    await redis.sAdd('t', ['x', 'y']);
    assert.deepEqual([...(await redis.sMembers('t'))].sort(), ['x', 'y']);
    assert.equal(Number(await redis.sIsMember('t', 'x')), 1);
    await redis.zAdd('z', [{ score: 1.5, value: 'a' }, { score: 2, value: 'b' }]);
    assert.deepEqual(await redis.zRangeWithScores('z', 0, -1), [{ value: 'a', score: 1.5 }, { value: 'b', score: 2 }]);
    assert.equal(await redis.zScore('z', 'a'), 1.5);
    assert.deepEqual(await redis.zPopMax('z'), { value: 'b', score: 2 });
    assert.equal(await redis.zRank('z', 'nosuch'), null);
  },

  async 'pipelines by themselves'(redis) {
    const replies = await Promise.all(Array.from({ length: 1000 }, (_, i) => redis.set(`p:${i}`, `${i}`)));
    assert.ok(replies.every((reply) => reply === 'OK'));
    assert.equal(await redis.get('p:999'), '999');
  },

  async 'MULTI and WATCH'(redis, RESP) {
    assert.deepEqual(await redis.multi().set('m', '1').incr('m').get('m').exec(), ['OK', 2, '2']);
    const mixed = await redis.multi().set('m', 'text').incr('m').exec().catch((e) => e);
    assert.match(String(mixed.replies?.[1] ?? mixed), /not an integer/);
    const other = await open(RESP);
    await redis.watch('m');
    await other.set('m', 'changed');
    await assert.rejects(redis.multi().get('m').exec(), /watched keys has been changed/i);
    other.destroy();
  },

  async 'Lua with EVALSHA fallback'(redis) {
    await redis.scriptFlush();
    assert.equal(await redis.addAll('lua', [1, 2, 3]), 6);
    assert.equal(await redis.addAll('lua', [1]), 7);
    assert.deepEqual(await redis.eval('return {KEYS[1], ARGV[1], false}', { keys: ['k'], arguments: ['a'] }), ['k', 'a', null]);
  },

  async functions(redis) {
    const code = "#!lua name=lib\nredis.register_function('twice', function(keys, args) return args[1] * 2 end)";
    assert.equal(await redis.functionLoad(code, { REPLACE: true }), 'lib');
    assert.equal(await redis.fCall('twice', { arguments: ['21'] }), 42);
    const [library] = await redis.functionList();
    assert.equal(library.library_name, 'lib');
  },

  async 'pub/sub'(redis, RESP) {
    const listener = await open(RESP);
    const heard = [];
    await listener.subscribe('news', (text, channel) => heard.push([channel, text]));
    await listener.pSubscribe('n*', (text, channel) => heard.push(['pattern', channel, text]));
    await redis.publish('news', 'hello');
    for (let i = 0; i < 100 && heard.length < 2; i++) await new Promise((resolve) => setTimeout(resolve, 10));
    assert.deepEqual(heard.sort(), [['news', 'hello'], ['pattern', 'news', 'hello']]);
    await listener.unsubscribe();
    await listener.pUnsubscribe();
    listener.destroy();
  },

  async 'blocking pop'(redis, RESP) {
    const waiter = await open(RESP);
    const popped = waiter.blPop('queue', 5);
    await new Promise((resolve) => setTimeout(resolve, 30));
    await redis.rPush('queue', 'job');
    assert.deepEqual({ ...(await popped) }, { key: 'queue', element: 'job' });
    const score = waiter.bzPopMin('zqueue', 5);
    await redis.zAdd('zqueue', { score: 7, value: 'm' });
    assert.deepEqual({ ...(await score) }, { key: 'zqueue', value: 'm', score: 7 });
    assert.equal(await waiter.blPop('queue', 0.05), null);
    waiter.destroy();
  },

  async 'SCAN iterators'(redis) {
    await Promise.all(Array.from({ length: 1500 }, (_, i) => redis.set(`scan:${i}`, 'x')));
    const found = new Set();
    for await (const keys of redis.scanIterator({ MATCH: 'scan:*', COUNT: 100 })) for (const key of [keys].flat()) found.add(key);
    assert.equal(found.size, 1500);
    await redis.hSet('h', Object.fromEntries(Array.from({ length: 700 }, (_, i) => [`f${i}`, `${i}`])));
    let fields = 0;
    for await (const entries of redis.hScanIterator('h')) fields += [entries].flat().length;
    assert.equal(fields, 700);
  },

  async 'reconnects after the server cut it off'(redis, RESP) {
    const victim = await open(RESP);
    const id = await victim.clientId();
    await redis.sendCommand(['CLIENT', 'KILL', 'ID', String(id)]);
    let again = null;
    for (let i = 0; i < 50 && again !== 'OK'; i++) {
      again = await victim.set('again', 'yes').catch(() => new Promise((resolve) => setTimeout(resolve, 20)));
    }
    assert.equal(again, 'OK');
    victim.destroy();
  },

  async errors(redis) {
    await redis.set('e', 'text');
    await assert.rejects(redis.incr('e'), /ERR value is not an integer or out of range/);
    await assert.rejects(redis.lPush('e', 'x'), /WRONGTYPE/);
    await assert.rejects(redis.sendCommand(['NOSUCH']), /unknown command/);
  },
};

let failed = 0;
for (const RESP of [2, 3]) {
  const redis = await open(RESP, { name: `cases-${RESP}` });
  for (const [name, run] of Object.entries(cases)) {
    try {
      await redis.flushAll();
      await run(redis, RESP);
      console.log(`ok ${name} (RESP${RESP})`);
    } catch (e) {
      failed++;
      console.log(`not ok ${name} (RESP${RESP}): ${e.stack ?? e}`);
    }
  }
  redis.destroy();
}
process.exit(failed ? 1 : 0);
