// What applications do with ioredis, case by case.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import Redis from 'ioredis';

const host = process.env.EVENKEEL_HOST ?? '127.0.0.1';
const port = Number(process.env.EVENKEEL_PORT ?? 6379);
const open = (options = {}) => new Redis({ host, port, connectTimeout: 60_000, ...options });

// Where clients/run.sh has the server serve TLS, and the folder of certificates.
const tlsPort = Number(process.env.EVENKEEL_TLS_PORT ?? 0);
const certificate = (file) => readFileSync(`${process.env.EVENKEEL_TLS_DIR}/${file}`);

// A client over TLS that shows the certificate of that name, if any, and believes that authority.
const secure = ({ name = 'alice', authority = 'ca', ...options } = {}) => {
  const shown = name ? { cert: certificate(`${name}.crt`), key: certificate(`${name}.key`) } : {};
  return open({ port: tlsPort, tls: { ca: certificate(`${authority}.crt`), ...shown }, ...options });
};

// A map, of what comes as names and values one after the other.
const table = (list) => Object.fromEntries(Array.from({ length: list.length / 2 }, (_, i) => [list[2 * i], list[2 * i + 1]]));

// Takes some ten milliseconds.
const busy = 'for i = 1, 5000000 do end';

const cases = {
  async 'strings and expiry'(redis) {
    assert.equal(await redis.set('s', 'v', 'EX', 1000), 'OK');
    assert.equal(await redis.get('s'), 'v');
    assert.ok((await redis.ttl('s')) > 900);
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
    const popped = waiter.blpop('queue', 'queue2', 30);
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

  async functions(redis) {
    const code = "#!lua name=lib\nredis.register_function('twice', function(keys, args) return args[1] * 2 end)";
    assert.equal(await redis.function('LOAD', 'REPLACE', code), 'lib');
    assert.equal(await redis.fcall('twice', 0, 21), 42);
    await assert.rejects(redis.fcall_ro('twice', 0, 21), /write flag/);
    const [library] = await redis.function('LIST', 'WITHCODE');
    assert.equal(table(library).library_name, 'lib');
    assert.equal(table(library).library_code, code);
    const dump = await redis.functionBuffer('DUMP');
    assert.equal(await redis.function('DELETE', 'lib'), 'OK');
    await assert.rejects(redis.fcall('twice', 0, 21), /Function not found/);
    assert.equal(await redis.function('RESTORE', dump), 'OK');
    assert.equal(await redis.fcall('twice', 0, 5), 10);
    assert.equal(await redis.function('FLUSH'), 'OK');
  },

  async 'sharded pub/sub'(redis) {
    const listener = open();
    const heard = new Promise((resolve) => listener.on('smessage', (channel, text) => resolve([channel, text])));
    assert.equal(await listener.ssubscribe('orders'), 1);
    assert.deepEqual(await redis.pubsub('SHARDCHANNELS'), ['orders']);
    assert.equal(await redis.publish('orders', 'not for them'), 0);
    assert.equal(await redis.spublish('orders', 'one'), 1);
    assert.deepEqual(await heard, ['orders', 'one']);
    assert.equal(await listener.sunsubscribe('orders'), 0);
    listener.disconnect();
  },

  async 'a transaction with WATCH, repeated until nobody comes between'(redis) {
    const others = Array.from({ length: 4 }, () => open());
    await Promise.all(others.map(async (other) => {
      for (let done = 0; done < 25; ) {
        await other.watch('counter');
        const n = Number(await other.get('counter'));
        if (await other.multi().set('counter', n + 1).exec()) done++;
      }
      other.disconnect();
    }));
    assert.equal(await redis.get('counter'), '100');
  },

  async 'SCAN with TYPE and a large COUNT'(redis) {
    const pipeline = redis.pipeline();
    for (let i = 0; i < 3000; i++) pipeline.set(`text:${i}`, i).rpush(`list:${i}`, i);
    await pipeline.exec();
    const all = async (stream) => { const found = new Set(); for await (const part of stream) for (const key of part) found.add(key); return found; };
    const lists = await all(redis.scanStream({ type: 'list', count: 1_000_000 }));
    assert.equal(lists.size, 3000);
    assert.ok([...lists].every((key) => key.startsWith('list:')));
    const few = await all(redis.scanStream({ match: 'text:1?', type: 'string', count: 10 }));
    assert.deepEqual([...few].sort(), Array.from({ length: 10 }, (_, i) => `text:1${i}`));
    assert.equal((await all(redis.scanStream({ match: 'text:*', type: 'hash' }))).size, 0);
  },

  async 'a value of 50 MB'(redis) {
    const value = Buffer.alloc(50 << 20);
    for (let i = 0; i < value.length; i += 4096) value.writeUInt32LE(i, i);
    assert.equal(await redis.set('large', value), 'OK');
    assert.equal(await redis.strlen('large'), value.length);
    assert.ok((await redis.getBuffer('large')).equals(value));
    assert.equal(await redis.unlink('large'), 1);
  },

  async 'slow log'(redis) {
    const shop = open({ connectionName: 'shop' });
    const address = /addr=(\S+)/.exec(await shop.client('INFO'))[1];
    await redis.config('SET', 'slowlog-log-slower-than', 0);
    await redis.slowlog('RESET');
    await shop.rpush('cart', 'an apple', 'x'.repeat(200));
    await shop.lrange('cart', 0, -1);
    // A threshold of a minute logs no command, however late it is.
    await redis.config('SET', 'slowlog-log-slower-than', 60_000_000);
    assert.ok((await redis.slowlog('LEN')) >= 3);
    const entries = await redis.slowlog('GET', 20);
    const [read, write] = entries.filter((entry) => entry[5] === 'shop');
    assert.deepEqual(write[3], ['rpush', 'cart', 'an apple', `${'x'.repeat(128)}... (72 more bytes)`]);
    assert.deepEqual(read[3], ['lrange', 'cart', '0', '-1']);
    assert.equal(read[0], write[0] + 1);
    for (const entry of [read, write]) {
      assert.equal(entry.length, 6);
      assert.ok(Math.abs(entry[1] - Date.now() / 1000) < 600);
      assert.ok(Number.isInteger(entry[2]) && entry[2] >= 0);
      assert.equal(entry[4], address);
    }
    assert.equal((await redis.slowlog('GET', 1)).length, 1);
    assert.equal(await redis.slowlog('RESET'), 'OK');
    assert.deepEqual(await redis.slowlog('GET'), []);
    shop.disconnect();
    await redis.config('SET', 'slowlog-log-slower-than', 10000);
  },

  async latency(redis) {
    await redis.config('SET', 'latency-monitor-threshold', 0);
    await redis.latency('RESET');
    assert.deepEqual(await redis.latency('LATEST'), []);
    await redis.config('SET', 'latency-monitor-threshold', 2);
    await redis.eval(busy, 0);
    await redis.config('SET', 'latency-monitor-threshold', 0);
    const [, at, last, longest] = (await redis.latency('LATEST')).find(([event]) => event === 'command');
    assert.ok(longest >= last && last >= 2);
    assert.ok((await redis.latency('HISTORY', 'command')).some(([seconds]) => seconds === at));
    assert.match(await redis.latency('DOCTOR'), /command/);
    assert.equal(await redis.latency('RESET', 'command'), 1);
    await redis.config('RESETSTAT');
    await redis.set('a', 1);
    const histogram = table(await redis.latency('HISTOGRAM', 'set'));
    assert.equal(table(histogram.set).calls, 1);
    assert.deepEqual(Object.values(table(table(histogram.set).histogram_usec)), [1]);
  },

  async 'who made whom wait (Evenkeel)'(redis) {
    const shop = open({ connectionName: 'shop-frontend' });
    const id = await shop.client('ID');
    await redis.call('EVENKEEL', 'WAITS', 'RESET');
    await redis.slowlog('RESET');
    await redis.client('PAUSE', 600_000, 'WRITE');
    const paid = shop.set('paid', 'yes');
    try {
      while (!/ flags=b /.test(await redis.client('LIST', 'ID', id)));
      await new Promise((resolve) => setTimeout(resolve, 20));
    } finally {
      await redis.client('UNPAUSE');
    }
    assert.equal(await paid, 'OK');
    const waits = table(await redis.call('EVENKEEL', 'WAITS'));
    assert.deepEqual(Object.keys(waits), ['causes', 'culprits', 'latest']);
    assert.ok(table(table(waits.causes).pause).us >= 10_000);
    assert.ok(waits.culprits.map(table).some((culprit) => culprit.for === 'pause'));
    const wait = waits.latest.map(table).find((one) => one.client === id && one.for === 'pause');
    assert.deepEqual([wait.name, wait.command, wait.behind], ['shop-frontend', 'set', null]);
    const why = table(await redis.call('EVENKEEL', 'WHY', id));
    assert.deepEqual([why.client, why.name, why['last-command']], [id, 'shop-frontend', 'set']);
    const request = why['slow-requests'].map(table).find((one) => one.command === 'set');
    assert.ok(table(request['phases-us'])['waited-for-pause'] >= 10_000);
    assert.ok(why.waits.map(table).some((one) => one.id === wait.id));
    const entry = (await redis.call('SLOWLOG', 'WHY', 10)).find((one) => one[5] === 'shop-frontend');
    assert.deepEqual([entry.length, entry[3], ...entry.slice(7)], [10, ['set', 'paid', 'yes'], '', '', '']);
    assert.match(entry[6], /for the end of CLIENT PAUSE/);
    await assert.rejects(redis.call('EVENKEEL', 'WHY', 'x'), /Invalid client ID/);
    shop.disconnect();
  },

  async 'clients, and what is told of keys and commands'(redis) {
    const other = open({ connectionName: 'other', db: 5 });
    const id = await other.client('ID');
    const line = await redis.client('LIST', 'ID', id);
    assert.match(line, new RegExp(`^id=${id} addr=\\S+ laddr=\\S+ fd=\\d+ name=other .* db=5 .* cmd=client\\|id .*\n$`));
    assert.match(await other.client('INFO'), /name=other .* cmd=client\|info /);
    const waiting = other.blpop('nothing', 30);
    while (!/ flags=b /.test(await redis.client('LIST', 'ID', id)));
    assert.equal(await redis.client('UNBLOCK', id, 'ERROR'), 1);
    await assert.rejects(waiting, /UNBLOCKED/);
    assert.equal(await redis.client('NO-EVICT', 'ON'), 'OK');
    assert.equal(await redis.client('NO-EVICT', 'OFF'), 'OK');
    assert.equal(await redis.client('GETREDIR'), -1);
    await assert.rejects(redis.client('KILL', '1.2.3.4:5'), /No such client/);
    other.disconnect();

    await redis.mset('n', 12, 'long', 'x'.repeat(100));
    assert.deepEqual([await redis.object('ENCODING', 'n'), await redis.object('ENCODING', 'long')], ['int', 'raw']);
    await assert.rejects(redis.object('FREQ', 'n'), /LFU maxmemory policy is not selected/);
    assert.ok((await redis.memory('USAGE', 'long')) > 100);
    assert.equal(await redis.memory('USAGE', 'nosuch'), null);
    assert.deepEqual(await redis.command('GETKEYS', 'MSET', 'a', 1, 'b', 2), ['a', 'b']);
    const [info, nosuch] = await redis.command('INFO', 'get', 'nosuch');
    assert.deepEqual([info[0], info[1], info[3], info[4], info[5], nosuch], ['get', 2, 1, 1, 1, null]);
    assert.ok((await redis.command('COUNT')) > 150);
    assert.equal(table(table(await redis.command('DOCS', 'zadd')).zadd).group, 'sorted-set');
    assert.deepEqual(await redis.config('GET', 'maxmemory'), ['maxmemory', '0']);
    await assert.rejects(redis.config('SET', 'nosuch', 1), /nosuch/);
    assert.match(await redis.info('keyspace'), /^# Keyspace\r\ndb0:keys=2,expires=0,avg_ttl=0/);
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

  async 'commands and a pipeline (TLS)'(redis) {
    const tls = secure();
    assert.equal(await tls.set('k', 'över TLS'), 'OK');
    assert.deepEqual([await tls.get('k'), await redis.get('k')], ['över TLS', 'över TLS']);
    assert.equal(await tls.acl('WHOAMI'), 'default');
    const pipeline = tls.pipeline();
    for (let i = 0; i < 500; i++) pipeline.set(`k:${i}`, i).get(`k:${i}`);
    const expected = Array.from({ length: 1000 }, (_, i) => [null, i % 2 ? String((i - 1) / 2) : 'OK']);
    assert.deepEqual(await pipeline.exec(), expected);
    assert.equal(await redis.dbsize(), 501);
    tls.disconnect();
  },

  async 'a value of 5 MB (TLS)'(redis) {
    const tls = secure();
    const value = Buffer.from(Array.from({ length: 655_360 }, (_, i) => `${String(i).padStart(7, '0')}\n`).join(''));
    assert.equal(await tls.set('big', value), 'OK');
    assert.equal(await redis.strlen('big'), value.length);
    assert.ok((await tls.getBuffer('big')).equals(value));
    assert.ok((await tls.getrangeBuffer('big', 4_000_000, -1)).equals(value.subarray(4_000_000)));
    tls.disconnect();
  },

  async 'pub/sub (TLS)'(redis) {
    const listener = secure();
    const sender = secure();
    const heard = new Promise((resolve) => {
      const all = [];
      const hear = (...what) => all.push(what) === 4 && resolve(all);
      listener.on('message', hear);
      listener.on('pmessage', hear);
    });
    assert.equal(await listener.subscribe('news'), 1);
    assert.equal(await listener.psubscribe('n*'), 2);
    assert.equal(await redis.publish('news', 'plain'), 2);
    assert.equal(await sender.publish('news', 'tls'), 2);
    assert.deepEqual(await heard, [['news', 'plain'], ['n*', 'news', 'plain'], ['news', 'tls'], ['n*', 'news', 'tls']]);
    listener.disconnect();
    sender.disconnect();
  },

  async 'a user with a password (TLS)'(redis) {
    await redis.acl('SETUSER', 'app', 'reset', 'on', '>s3cret', '~app:*', '+get', '+set', '+info', '+acl|whoami');
    const tls = secure({ username: 'app', password: 's3cret' });
    const wrong = secure({ username: 'app', password: 'wrong', retryStrategy: null });
    const why = new Promise((resolve) => wrong.on('error', resolve));
    try {
      assert.equal(await tls.acl('WHOAMI'), 'app');
      assert.equal(await tls.set('app:k', 'v'), 'OK');
      assert.equal(await tls.get('app:k'), 'v');
      await assert.rejects(tls.set('other', 'v'), /^ReplyError: NOPERM /);
      await assert.rejects(tls.del('app:k'), /^ReplyError: NOPERM /);
      assert.deepEqual(await redis.keys('*'), ['app:k']);
      await assert.rejects(wrong.acl('WHOAMI'));
      assert.match((await why).message, /^WRONGPASS /);
    } finally {
      tls.disconnect();
      wrong.disconnect();
      assert.equal(await redis.acl('DELUSER', 'app'), 1);
    }
  },

  async 'the user that a certificate names (TLS)'(redis) {
    await redis.acl('SETUSER', 'alice', 'reset', 'on', '~a:*', '+get', '+set', '+info', '+acl|whoami');
    const tls = secure();
    try {
      assert.equal(await tls.acl('WHOAMI'), 'alice');
      assert.equal(await tls.set('a:k', 'v'), 'OK');
      assert.equal(await tls.get('a:k'), 'v');
      await assert.rejects(tls.set('b:k', 'v'), /^ReplyError: NOPERM /);
      assert.equal(await redis.acl('WHOAMI'), 'default');
    } finally {
      tls.disconnect();
      assert.equal(await redis.acl('DELUSER', 'alice'), 1);
    }
    const later = secure();
    assert.equal(await later.acl('WHOAMI'), 'default');
    later.disconnect();
  },

  async 'who shows no good certificate is refused (TLS)'(redis) {
    const attempt = async (options) => {
      const tls = secure({ retryStrategy: null, ...options });
      const why = [];
      tls.on('error', (e) => why.push(e));
      await assert.rejects(tls.incr('k'), (e) => e.name !== 'ReplyError');
      return why[0]?.code;
    };
    await attempt({ name: null });
    await attempt({ name: 'stranger' });
    await attempt({ tls: undefined });
    assert.match(await attempt({ authority: 'other' }), /^(UNABLE_TO|SELF_SIGNED_CERT|CERT_SIGNATURE)/);
    assert.equal(await redis.exists('k'), 0);
  },

  async 'fifty connections at once (TLS)'(redis) {
    const all = Array.from({ length: 50 }, (_, i) => secure({ connectionName: `tls-${i}` }));
    await Promise.all(all.map(async (tls, i) => {
      for (let turn = 0; turn < 20; turn++) {
        assert.equal(await tls.set(`k:${i}`, turn), 'OK');
        assert.equal(await tls.get(`k:${i}`), String(turn));
        await tls.incr('all');
      }
    }));
    assert.equal(await redis.get('all'), '1000');
    const names = await Promise.all(all.map((tls) => tls.client('GETNAME')));
    assert.deepEqual(names, all.map((_, i) => `tls-${i}`));
    all.forEach((tls) => tls.disconnect());
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
const [evenkeel] = await redis.command('INFO', 'evenkeel');
let failed = 0;
for (const [name, run] of Object.entries(cases)) {
  if (name.includes('(Evenkeel)') && !evenkeel) continue;
  if (name.includes('(TLS)') && !tlsPort) continue;
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
