// What applications do with node-redis, in RESP2 and in RESP3.
import assert from 'node:assert/strict';
import { createClient, defineScript, RESP_TYPES, WatchError } from 'redis';

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

// A map, of what RESP2 sends as names and values one after the other.
const table = (reply) => Array.isArray(reply)
  ? Object.fromEntries(Array.from({ length: reply.length / 2 }, (_, i) => [reply[2 * i], reply[2 * i + 1]]))
  : reply;

// Waits until another connection has brought a condition about.
async function soon(condition) {
  for (const deadline = Date.now() + 30_000; !(await condition());) {
    assert.ok(Date.now() < deadline, 'it did not come to that');
    await new Promise((done) => setTimeout(done, 5));
  }
}

// The number of GETs that have reached the server.
const gets = async (redis) => Number(/cmdstat_get:calls=(\d+)/.exec(await redis.info('commandstats'))?.[1] ?? 0);

const caching = () => open(3, { clientSideCache: { maxEntries: 1000 } });

const cases = {
  async strings(redis) {
    assert.equal(await redis.set('s', 'v', { EX: 1000, NX: true }), 'OK');
    assert.equal(await redis.set('s', 'v', { NX: true }), null);
    assert.equal(await redis.get('s'), 'v');
    assert.ok((await redis.ttl('s')) > 900);
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
    await soon(() => heard.length === 2);
    assert.deepEqual(heard.sort(), [['news', 'hello'], ['pattern', 'news', 'hello']]);
    await listener.unsubscribe();
    await listener.pUnsubscribe();
    listener.destroy();
  },

  async 'blocking pop'(redis, RESP) {
    const waiter = await open(RESP);
    const popped = waiter.blPop('queue', 30);
    await new Promise((resolve) => setTimeout(resolve, 30));
    await redis.rPush('queue', 'job');
    assert.deepEqual({ ...(await popped) }, { key: 'queue', element: 'job' });
    const score = waiter.bzPopMin('zqueue', 30);
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

  async 'sharded pub/sub'(redis, RESP) {
    const listener = await open(RESP);
    const heard = new Promise((resolve) => listener.sSubscribe('orders', (text, channel) => resolve([channel, text])).then(async () => {
      assert.deepEqual(await redis.pubSubShardChannels(), ['orders']);
      assert.equal(await redis.publish('orders', 'not for them'), 0);
      assert.equal(await redis.sPublish('orders', 'one'), 1);
    }));
    assert.deepEqual(await heard, ['orders', 'one']);
    await listener.sUnsubscribe('orders');
    listener.destroy();
  },

  async 'functions restored from a dump'(redis) {
    const code = "#!lua name=lib\nredis.register_function{function_name='twice', flags={'no-writes'}, callback=function(keys, args) return args[1] * 2 end}";
    await redis.functionLoad(code, { REPLACE: true });
    const [library] = await redis.functionListWithCode();
    assert.deepEqual([library.library_name, library.library_code, [...library.functions[0].flags]], ['lib', code, ['no-writes']]);
    const dump = await redis.withTypeMapping({ [RESP_TYPES.BLOB_STRING]: Buffer }).functionDump();
    await redis.functionDelete('lib');
    await assert.rejects(redis.fCall('twice', { arguments: ['1'] }), /Function not found/);
    assert.equal(await redis.functionRestore(dump), 'OK');
    assert.equal(await redis.fCallRo('twice', { arguments: ['5'] }), 10);
    assert.equal((await redis.functionStats()).engines.LUA.functions_count, 1);
    await redis.functionFlush();
  },

  async 'a transaction with WATCH, repeated until nobody comes between'(redis, RESP) {
    await Promise.all([1, 2, 3, 4].map(async () => {
      const own = await open(RESP);
      for (let done = 0; done < 25; ) {
        await own.watch('counter');
        const n = Number(await own.get('counter'));
        try {
          await own.multi().set('counter', String(n + 1)).exec();
          done++;
        } catch (e) {
          assert.ok(e instanceof WatchError, String(e));
        }
      }
      own.destroy();
    }));
    assert.equal(await redis.get('counter'), '100');
  },

  async 'SCAN with TYPE and a large COUNT'(redis) {
    await Promise.all(Array.from({ length: 2000 }, (_, i) => Promise.all([redis.set(`text:${i}`, 'x'), redis.rPush(`list:${i}`, 'x')])));
    const all = async (options) => { const found = new Set(); for await (const keys of redis.scanIterator(options)) for (const key of keys) found.add(key); return found; };
    assert.equal((await all({ TYPE: 'list', COUNT: 1_000_000 })).size, 2000);
    assert.deepEqual([...(await all({ MATCH: 'text:1?', TYPE: 'string', COUNT: 10 }))].sort(), Array.from({ length: 10 }, (_, i) => `text:1${i}`));
    assert.equal((await all({ MATCH: 'text:*', TYPE: 'hash' })).size, 0);
  },

  async 'binary keys, and a value of 50 MB'(redis) {
    const bytes = redis.withTypeMapping({ [RESP_TYPES.BLOB_STRING]: Buffer });
    const key = Buffer.from(Array.from({ length: 256 }, (_, i) => i));
    const value = Buffer.alloc(50 << 20);
    for (let i = 0; i < value.length; i += 4096) value.writeUInt32LE(i, i);
    assert.equal(await bytes.set(key, value), 'OK');
    assert.ok((await bytes.get(key)).equals(value));
    assert.ok((await bytes.keys('*'))[0].equals(key));
    assert.equal(await bytes.del(key), 1);
  },

  async 'slow log'(redis, RESP) {
    const shop = await open(RESP, { name: 'shop' });
    const address = (await shop.clientInfo()).addr;
    await redis.configSet('slowlog-log-slower-than', '0');
    await redis.sendCommand(['SLOWLOG', 'RESET']);
    await shop.rPush('cart', ['an apple', 'x'.repeat(200)]);
    await shop.lRange('cart', 0, -1);
    // A threshold of a minute logs no command, however late it is.
    await redis.configSet('slowlog-log-slower-than', '60000000');
    assert.ok((await redis.sendCommand(['SLOWLOG', 'LEN'])) >= 3);
    const entries = await redis.sendCommand(['SLOWLOG', 'GET', '20']);
    const [read, write] = entries.filter((entry) => entry[5] === 'shop');
    assert.deepEqual(write[3], ['RPUSH', 'cart', 'an apple', `${'x'.repeat(128)}... (72 more bytes)`]);
    assert.deepEqual(read[3], ['LRANGE', 'cart', '0', '-1']);
    assert.equal(read[0], write[0] + 1);
    for (const entry of [read, write]) {
      assert.deepEqual([entry.length, entry[4]], [6, address]);
      assert.ok(Math.abs(entry[1] - Date.now() / 1000) < 600 && Number.isInteger(entry[2]) && entry[2] >= 0);
    }
    await redis.sendCommand(['SLOWLOG', 'RESET']);
    assert.deepEqual(await redis.sendCommand(['SLOWLOG', 'GET', '-1']), []);
    shop.destroy();
    await redis.configSet('slowlog-log-slower-than', '10000');
  },

  async latency(redis) {
    await redis.configSet('latency-monitor-threshold', '0');
    await redis.latencyReset();
    assert.deepEqual(await redis.latencyLatest(), []);
    await redis.configSet('latency-monitor-threshold', '2');
    await redis.eval('for i = 1, 5000000 do end');
    await redis.configSet('latency-monitor-threshold', '0');
    const [, at, last, longest] = (await redis.latencyLatest()).find(([event]) => event === 'command');
    assert.ok(longest >= last && last >= 2);
    assert.ok((await redis.latencyHistory('command')).some(([seconds]) => seconds === at));
    assert.match(await redis.latencyDoctor(), /command/);
    assert.match(await redis.latencyGraph('command'), /command/);
    assert.equal(await redis.latencyReset('command'), 1);
    await redis.configResetStat();
    await redis.set('a', '1');
    const histogram = (await redis.latencyHistogram('set', 'nosuch')).set;
    assert.deepEqual([histogram.calls, Object.values(histogram.histogram_usec)], [1, [1]]);
  },

  async 'who made whom wait (Evenkeel)'(redis, RESP) {
    const shop = await open(RESP, { name: 'shop-frontend' });
    const id = await shop.clientId();
    await redis.sendCommand(['EVENKEEL', 'WAITS', 'RESET']);
    await redis.sendCommand(['SLOWLOG', 'RESET']);
    await redis.clientPause(600_000, 'WRITE');
    const paid = shop.set('paid', 'yes');
    try {
      while ((await redis.clientList({ ID: [String(id)] }))[0].flags !== 'b');
      await new Promise((resolve) => setTimeout(resolve, 20));
    } finally {
      await redis.clientUnpause();
    }
    assert.equal(await paid, 'OK');
    const waits = table(await redis.sendCommand(['EVENKEEL', 'WAITS']));
    assert.deepEqual(Object.keys(waits), ['causes', 'culprits', 'latest']);
    assert.ok(table(table(waits.causes).pause).us >= 10_000);
    const wait = waits.latest.map(table).find((one) => one.client === id && one.for === 'pause');
    assert.deepEqual([wait.name, wait.command, wait.behind], ['shop-frontend', 'set', null]);
    const why = table(await redis.sendCommand(['EVENKEEL', 'WHY', String(id)]));
    assert.deepEqual([why.client, why.name, why['last-command']], [id, 'shop-frontend', 'set']);
    const request = why['slow-requests'].map(table).find((one) => one.command === 'set');
    assert.ok(table(request['phases-us'])['waited-for-pause'] >= 10_000);
    const entry = (await redis.sendCommand(['SLOWLOG', 'WHY', '10'])).find((one) => one[5] === 'shop-frontend');
    assert.deepEqual([entry.length, entry[3], ...entry.slice(7)], [10, ['SET', 'paid', 'yes'], '', '', '']);
    assert.match(entry[6], /for the end of CLIENT PAUSE/);
    await assert.rejects(redis.sendCommand(['EVENKEEL', 'WHY', 'x']), /Invalid client ID/);
    shop.destroy();
  },

  async clients(redis, RESP) {
    const other = await open(RESP, { name: 'other', database: 5 });
    const id = await other.clientId();
    const info = await other.clientInfo();
    assert.deepEqual([info.id, info.name, info.db, info.cmd, info.resp], [id, 'other', 5, 'client|info', RESP]);
    const listed = await redis.clientList({ ID: [String(id)] });
    assert.deepEqual([listed.length, listed[0].addr], [1, info.addr]);
    assert.ok((await redis.clientList()).length >= 2);
    const waiting = other.blPop('nothing', 30);
    while ((await redis.clientList({ ID: [String(id)] }))[0].flags !== 'b');
    assert.equal(await redis.clientUnblock(id), 1);
    assert.equal(await waiting, null);
    assert.equal(await redis.clientNoEvict(true), 'OK');
    assert.equal(await redis.clientNoEvict(false), 'OK');
    assert.equal(await redis.clientGetRedir(), -1);
    assert.equal((await redis.clientTrackingInfo()).redirect, -1);
    assert.equal(await redis.clientSetName(`cases-${RESP}`), 'OK');
    assert.equal(await redis.clientGetName(), `cases-${RESP}`);
    assert.equal(await redis.clientKill({ filter: 'ADDR', address: '1.2.3.4:5' }), 0);
    other.destroy();
  },

  async 'what is told of keys, commands and the server'(redis) {
    await redis.mSet({ n: '12', long: 'x'.repeat(100) });
    assert.deepEqual([await redis.objectEncoding('n'), await redis.objectEncoding('long')], ['int', 'raw']);
    assert.deepEqual([await redis.objectRefCount('long'), await redis.objectEncoding('nosuch')], [1, null]);
    await assert.rejects(redis.objectFreq('n'), /LFU maxmemory policy is not selected/);
    assert.ok((await redis.memoryUsage('long')) > 100);
    assert.equal(await redis.memoryUsage('nosuch'), null);
    assert.equal((await redis.memoryStats())['keys.count'], 2);
    assert.deepEqual(await redis.commandGetKeys(['MSET', 'a', '1', 'b', '2']), ['a', 'b']);
    assert.deepEqual(await redis.commandGetKeysAndFlags(['GETDEL', 'a']), [{ key: 'a', flags: ['RW', 'access', 'delete'] }]);
    const [get] = await redis.commandInfo(['get']);
    assert.deepEqual([get.name, get.arity, get.firstKeyIndex, [...get.flags].sort()], ['get', 2, 1, ['fast', 'readonly']]);
    assert.equal((await redis.command()).length, await redis.commandCount());
    assert.deepEqual(await redis.commandList({ FILTERBY: { type: 'PATTERN', value: 'getde?' } }), ['getdel']);
    assert.deepEqual({ ...(await redis.configGet('maxmemory')) }, { maxmemory: '0' });
    await assert.rejects(redis.configSet('nosuch', '1'), /nosuch/);
    assert.match(await redis.info('keyspace'), /^# Keyspace\r\ndb0:keys=2,expires=0,avg_ttl=0/);
  },

  async 'a cached value needs no request (RESP3 only)'(redis) {
    await redis.set('k', 'v');
    const cached = await caching();
    assert.equal(await cached.get('k'), 'v');
    const before = await gets(redis);
    for (let i = 0; i < 10; i++) assert.equal(await cached.get('k'), 'v');
    assert.equal(await gets(redis), before);
    assert.equal(cached.clientSideCache.stats().hitCount, 10);
    assert.deepEqual([...(await cached.clientTrackingInfo()).flags], ['on']);
    await redis.set('unread', '1');
    assert.equal(await cached.get('k'), 'v');
    assert.equal(await gets(redis), before);
    cached.destroy();
  },

  async 'every way to change a key invalidates (RESP3 only)'(redis) {
    const changes = {
      SET: [() => redis.set('k', 'from set'), 'from set'],
      DEL: [() => redis.del('k'), null],
      'the passing of PX': [() => redis.set('k', 'short', { PX: 20 }), null],
      'the passing of PEXPIRE': [() => redis.pExpire('k', 20), null],
      FLUSHALL: [() => redis.flushAll(), null],
      EVAL: [() => redis.eval("return redis.call('SET', KEYS[1], 'from eval')", { keys: ['k'] }), 'from eval'],
      MULTI: [() => redis.multi().set('k', 'from exec').get('k').exec(), 'from exec'],
      RENAME: [async () => { await redis.set('l', 'from rename'); await redis.rename('l', 'k'); }, 'from rename'],
      APPEND: [() => redis.append('k', 'er'), 'older'],
    };
    const cached = await caching();
    for (const [how, [change, after]] of Object.entries(changes)) {
      await redis.set('k', 'old');
      await soon(async () => (await cached.get('k')) === 'old');
      await change();
      await soon(async () => (await cached.get('k')) === after);
      assert.equal(await redis.get('k'), after, how);
    }
    cached.destroy();
  },

  async 'a cache of many keys follows (RESP3 only)'(redis) {
    const cached = await caching();
    const keys = Array.from({ length: 300 }, (_, i) => `k:${i}`);
    const all = (value) => async () => (await Promise.all(keys.map((key) => cached.get(key)))).every((got) => got === value);
    for (const turn of ['0', '1', '2']) {
      await redis.mSet(Object.fromEntries(keys.map((key) => [key, turn])));
      await redis.hSet('h', 'turn', turn);
      await soon(all(turn));
      await soon(async () => (await cached.hGetAll('h')).turn === turn);
      const before = await gets(redis);
      assert.ok(await all(turn)());
      assert.equal(await gets(redis), before);
    }
    cached.destroy();
  },

  async 'a new connection begins with an empty cache (RESP3 only)'(redis) {
    await redis.set('k', 'old');
    const cached = await caching();
    assert.equal(await cached.get('k'), 'old');
    const before = await gets(redis);
    const id = await cached.clientId();
    const again = new Promise((done) => cached.once('ready', done));
    assert.equal(await redis.clientKill({ filter: 'ID', id }), 1);
    await again;
    assert.equal(cached.clientSideCache.size(), 0);
    assert.equal(await cached.get('k'), 'old');
    assert.equal(await gets(redis), before + 1);
    assert.notEqual(await cached.clientId(), id);
    await redis.set('k', 'new');
    await soon(async () => (await cached.get('k')) === 'new');
    cached.destroy();
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
  const [evenkeel] = await redis.commandInfo(['evenkeel']);
  for (const [name, run] of Object.entries(cases)) {
    if (name.includes('(Evenkeel)') && !evenkeel) continue;
    if (name.includes('(RESP3 only)') && RESP < 3) continue;
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
