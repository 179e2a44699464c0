// What applications do with ioredis, case by case.
import assert from 'node:assert/strict';
import Redis from 'ioredis';

const host = process.env.EVENKEEL_HOST ?? '127.0.0.1';
const port = Number(process.env.EVENKEEL_PORT ?? 6379);
const open = (options = {}) => new Redis({ host, port, ...options });

const cases = {
  async 'strings and expiry'(redis) {
    assert.equal(await redis.set('s', 'v', 'EX', 100), 'OK');
    assert.equal(await redis.get('s'), 'v');
    assert.ok((await redis.ttl('s')) > 90);
    assert.equal(await redis.set('s', 'other', 'NX'), null);
    assert.equal(await redis.getset('s', 'w'), 'v');
    assert.equal(await redis.incrby('n', 41), 41);
    assert.equal(await redis.incr('n'), 42);
    assert.equal(await redis.incrbyfloat('n', 0.5), '42.5');
    assert.deepEqual(await redis.mget('s', 'nosuch', 'n'), ['w', null, '42.5']);
    await redis.set('short', 'x', 'PX', 20);
    await new Promise((resolve) => setTimeout(resolve, 60));
    assert.equal(await redis.get('short'), null);
  },

  async 'binary values'(redis) {
    const bytes = Buffer.from(Array.from({ length: 256 }, (_, i) => i));
    await redis.set(Buffer.from([0, 255, 13, 10]), bytes);
    assert.deepEqual(await redis.getBuffer(Buffer.from([0, 255, 13, 10])), bytes);
    const big = Buffer.alloc(3_000_000, 'z');
    await redis.set('big', big);
    assert.ok((await redis.getBuffer('big')).equals(big));
  },

  async hashes(redis) {
    assert.equal(await redis.hset('h', { a: 1, b: 'two', c: 3.5 }), 3);
    assert.deepEqual(await redis.hgetall('h'), { a: '1', b: 'two', c: '3.5' });
    assert.deepEqual(await redis.hmget('h', 'a', 'nosuch'), ['1', null]);
    assert.equal(await redis.hincrby('h', 'a', 9), 10);
    assert.equal(await redis.hdel('h', 'a', 'nosuch'), 1);
    assert.deepEqual(await redis.hgetall('nosuch'), {});
  },

  async lists(redis) {
    await redis.rpush('l', 'a', 'b', 'c');
    await redis.lpush('l', 'z');
    assert.deepEqual(await redis.lrange('l', 0, -1), ['z', 'a', 'b', 'c']);
    assert.equal(await redis.lmove('l', 'l2', 'LEFT', 'RIGHT'), 'z');
    assert.deepEqual(await redis.lpop('l', 2), ['a', 'b']);
    assert.equal(await redis.lpos('l', 'c'), 0);
    assert.equal(await redis.rpoplpush('l', 'l2'), 'c');
    assert.equal(await redis.exists('l'), 0);
  },

  async 'sets and sorted sets'(redis) {
    await redis.sadd('t1', 1, 2, 3);
    await redis.sadd('t2', 2, 3, 4);
    assert.deepEqual((await redis.sdiff('t1', 't2')).sort(), ['1']);
    assert.deepEqual((await redis.sinter('t1', 't2')).sort(), ['2', '3']);
    assert.deepEqual(await redis.smismember('t1', 1, 9), [1, 0]);
    await redis.zadd('z', 3, 'c', 1, 'a', 2, 'b');
    assert.deepEqual(await redis.zrange('z', 0, -1, 'WITHSCORES'), ['a', '1', 'b', '2', 'c', '3']);
    assert.deepEqual(await redis.zrange('z', '(1', '+inf', 'BYSCORE', 'LIMIT', 0, 1), ['b']);
    assert.equal(await redis.zincrby('z', 10, 'a'), '11');
    assert.equal(await redis.zrevrank('z', 'a'), 0);
    assert.deepEqual(await redis.zpopmin('z'), ['b', '2']);
  },

  async pipelines(redis) {
    const pipeline = redis.pipeline();
    for (let i = 0; i < 2000; i++) pipeline.set(`p:${i}`, i);
    for (let i = 0; i < 2000; i++) pipeline.get(`p:${i}`);
    pipeline.lpush('p:1', 'wrong type');
    pipeline.get('p:5');
    const replies = await pipeline.exec();
    assert.equal(replies.length, 4002);
    assert.deepEqual(replies[2000 + 1234], [null, '1234']);
    assert.match(replies[4000][0].message, /^WRONGTYPE /);
    assert.deepEqual(replies[4001], [null, '5']);
  },

  async autopipelining() {
    const redis = open({ enableAutoPipelining: true });
    const replies = await Promise.all(Array.from({ length: 500 }, (_, i) => redis.incrby('auto', i)));
    assert.equal(replies.at(-1), (499 * 500) / 2);
    redis.disconnect();
  },

  async 'MULTI, and its two kinds of errors'(redis) {
    const done = await redis.multi().set('m', 1).incr('m').lpush('m', 'x').get('m').exec();
    assert.deepEqual([done[0], done[1], done[3]], [[null, 'OK'], [null, 2], [null, '2']]);
    assert.match(done[2][0].message, /^WRONGTYPE /);
    await assert.rejects(redis.multi().set('m', 5).call('nosuchcommand').exec(), /EXECABORT/);
    assert.equal(await redis.get('m'), '2');
    await redis.multi({ pipeline: false });
    assert.equal(await redis.set('m', 3), 'QUEUED');
    assert.deepEqual(await redis.exec(), [[null, 'OK']]);
  },

  async 'WATCH refuses what somebody else changed'(redis) {
    const other = open();
    await redis.set('w', 1);
    await redis.watch('w');
    await other.set('w', 2);
    assert.equal(await redis.multi().set('w', 3).exec(), null);
    await redis.watch('w');
    assert.deepEqual(await redis.multi().incr('w').exec(), [[null, 3]]);
    other.disconnect();
  },

  async 'Lua by EVALSHA, falling back to EVAL'(redis) {
    redis.defineCommand('addAll', {
      numberOfKeys: 1,
      lua: 'local n = 0 for _, v in ipairs(ARGV) do n = redis.call("INCRBY", KEYS[1], v) end return {n, #ARGV}',
    });
    await redis.script('FLUSH');
    assert.deepEqual(await redis.addAll('lua', 1, 2, 3), [6, 3]);
    assert.deepEqual(await redis.addAll('lua', 10), [16, 1]);
    await assert.rejects(redis.evalsha('f'.repeat(40), 0), /NOSCRIPT/);
    assert.equal(await redis.eval('return cjson.encode({tonumber(ARGV[1]), "x"})', 0, 7), '[7,"x"]');
    await assert.rejects(redis.eval('return redis.call("nosuch")', 0), /Unknown Redis command called from script/);
  },

  async 'pub/sub'(redis) {
    const listener = open();
    const heard = [];
    const complete = new Promise((resolve) => {
      const hear = (...what) => { if (heard.push(what) === 3) resolve(); };
      listener.on('message', (channel, text) => hear(channel, text));
      listener.on('pmessage', (pattern, channel, text) => hear(pattern, channel, text));
    });
    assert.equal(await listener.subscribe('news', 'other'), 2);
    assert.equal(await listener.psubscribe('n*'), 3);
    assert.equal(await redis.publish('news', 'hello'), 2);
    assert.equal(await redis.publish('other', 'world'), 1);
    await complete;
    assert.deepEqual(heard.filter((what) => what.length === 2), [['news', 'hello'], ['other', 'world']]);
    assert.deepEqual(heard.filter((what) => what.length === 3), [['n*', 'news', 'hello']]);
    assert.deepEqual(await redis.pubsub('NUMSUB', 'news'), ['news', 1]);
    await listener.unsubscribe('news', 'other');
    await listener.punsubscribe('n*');
    assert.equal(await listener.get('s'), null);
    listener.disconnect();
  },

  async 'blocking pop'(redis) {
    const waiter = open();
    const popped = waiter.blpop('queue', 'queue2', 5);
    await new Promise((resolve) => setTimeout(resolve, 30));
    await redis.rpush('queue2', 'job');
    assert.deepEqual(await popped, ['queue2', 'job']);
    assert.equal(await waiter.blpop('queue', 0.05), null);
    waiter.disconnect();
  },

  async 'SCAN streams'(redis) {
    const pipeline = redis.pipeline();
    for (let i = 0; i < 3000; i++) pipeline.set(`scan:${i}`, i).sadd('scan-set', `m${i}`).hset('scan-hash', `f${i}`, i);
    await pipeline.exec();
    const all = async (stream) => { const found = []; for await (const part of stream) found.push(...part); return found; };
    const keys = new Set(await all(redis.scanStream({ match: 'scan:*', count: 100 })));
    assert.equal(keys.size, 3000);
    assert.equal(new Set(await all(redis.sscanStream('scan-set', { count: 50 }))).size, 3000);
    assert.equal((await all(redis.hscanStream('scan-hash', { match: 'f1*' }))).length % 2, 0);
  },

  async 'databases, key prefixes, INFO'() {
    const redis = open({ db: 3, keyPrefix: 'app:' });
    await redis.set('k', 'v');
    assert.deepEqual(await redis.keys('*'), ['app:k']);
    assert.match(await redis.info(), /redis_version:\d+\.\d+\.\d+/);
    await redis.flushdb();
    redis.disconnect();
  },

  async 'reconnects after the server cut it off'(redis) {
    const victim = open({ retryStrategy: () => 20 });
    const id = await victim.client('ID');
    victim.on('error', () => {});
    assert.equal(await redis.client('KILL', 'ID', id), 1);
    assert.equal(await victim.set('again', 'yes'), 'OK');
    assert.notEqual(await victim.client('ID'), id);
    victim.disconnect();
  },

  async 'errors are ReplyErrors'(redis) {
    await redis.set('e', 'text');
    await assert.rejects(redis.incr('e'), (e) => e.name === 'ReplyError' && e.message === 'ERR value is not an integer or out of range');
    await assert.rejects(redis.call('GET'), /wrong number of arguments for 'get' command/);
    await assert.rejects(redis.call('NOSUCH', 'x'), /unknown command/);
  },
};

const redis = open({ lazyConnect: true });
await redis.connect();
let failed = 0;
for (const [name, run] of Object.entries(cases)) {
  try {
    await redis.flushall();
    await run(redis);
    console.log(`ok ${name}`);
  } catch (e) {
    failed++;
    console.log(`not ok ${name}: ${e.stack ?? e}`);
  }
}
process.exit(failed ? 1 : 0);
