// What applications do with ioredis in a cluster, which clients/cluster/nodes.py starts.
import assert from 'node:assert/strict';
import Redis, { Cluster } from 'ioredis';
import calculateSlot from 'cluster-key-slot';

const ports = process.env.EVENKEEL_CLUSTER_PORTS.split(' ').map(Number);
const count = 600;
const names = Array.from({ length: count }, (_, n) => `key:${n}`);

// A client of the cluster, which goes on for as long as a fail-over takes.
const connect = (options = {}) => {
  const cluster = new Cluster(ports.map((port) => ({ host: '127.0.0.1', port })), {
    retryDelayOnFailover: 200,
    retryDelayOnClusterDown: 200,
    maxRedirections: 300,
    ...options,
  });
  cluster.on('error', () => {});
  return cluster;
};

// Waits until a condition holds that others bring about.
async function soon(condition) {
  for (const deadline = Date.now() + 180_000; !(await condition());) {
    assert.ok(Date.now() < deadline, 'it did not come to that');
    await new Promise((done) => setTimeout(done, 20));
  }
}

// Calls a node on a connection of its own; undefined: it does not answer.
async function at(port, call, ...words) {
  const node = new Redis({ host: '127.0.0.1', port, retryStrategy: null, maxRetriesPerRequest: 0 });
  node.on('error', () => {});
  try {
    return await node.call(call, ...words);
  } catch (e) {
    if (e.name === 'ReplyError') throw e;
    return undefined;
  } finally {
    node.disconnect();
  }
}

const sizes = async (cluster, role) =>
  (await Promise.all(cluster.nodes(role).map((node) => node.dbsize()))).reduce((a, b) => a + b, 0);

// Ports of the primary and the replicas of the shard of a slot.
async function shard(slot) {
  for (const port of ports) {
    const entry = (await at(port, 'CLUSTER', 'SLOTS'))?.find(([first, last]) => first <= slot && slot <= last);
    if (entry) return entry.slice(2).map((node) => node[1]);
  }
  return [];
}

// FLUSHALL has no keys, so it is said to those who lead now: a client may learn later that a node leads no more.
const emptied = async () => {
  for (const slot of [0, 5461, 10922]) {
    const flushed = async (port) => port !== undefined && (await at(port, 'FLUSHALL')) === 'OK';
    await soon(async () => flushed((await shard(slot))[0]).catch((e) => String(e).includes('READONLY') ? false : Promise.reject(e)));
  }
};

const cases = {
  async 'the map'(cluster) {
    assert.deepEqual(cluster.nodes().map((node) => node.options.port).sort(), ports.map(String).sort().map(Number));
    assert.equal(cluster.nodes('master').length, 3);
    assert.equal(cluster.nodes('slave').length, 3);
    assert.match(await cluster.cluster('INFO'), /^cluster_state:ok\r\ncluster_slots_assigned:16384\r\n/);
    assert.equal(await cluster.cluster('KEYSLOT', 'foo'), calculateSlot('foo'));
    const slots = await cluster.cluster('SLOTS');
    assert.deepEqual(slots.map(([first, last, ...nodes]) => [first, last, nodes.length]), [[0, 5460, 2], [5461, 10921, 2], [10922, 16383, 2]]);
  },

  async 'keys of all slots'(cluster) {
    assert.ok((await Promise.all(names.map((name, n) => cluster.set(name, n)))).every((reply) => reply === 'OK'));
    assert.deepEqual(await Promise.all(names.map((name) => cluster.get(name))), names.map((_, n) => String(n)));
    assert.equal(await sizes(cluster, 'master'), count);
    for (const node of cluster.nodes('master')) assert.ok((await node.dbsize()) > 0);
  },

  async 'pipelines'(cluster) {
    for (let tag = 0; tag < 20; tag++) {
      const pipeline = cluster.pipeline();
      for (let n = 0; n < 50; n++) pipeline.set(`{${tag}}:${n}`, n).incr(`{${tag}}:${n}`);
      pipeline.lpush(`{${tag}}:0`, 'x');
      const replies = await pipeline.exec();
      assert.deepEqual(replies.slice(0, 100), Array.from({ length: 100 }, (_, i) => [null, i % 2 ? (i + 1) / 2 : 'OK']));
      assert.match(replies[100][0].message, /^WRONGTYPE /);
    }
  },

  async 'autopipelining'() {
    const cluster = connect({ enableAutoPipelining: true });
    await Promise.all(names.map((name, n) => cluster.set(name, n)));
    assert.deepEqual(await Promise.all(names.map((name) => cluster.incr(name))), names.map((_, n) => n + 1));
    cluster.disconnect();
  },

  async 'keys of one hash tag'(cluster) {
    assert.equal(await cluster.mset('{u}:a', 1, '{u}:b', 2), 'OK');
    assert.deepEqual(await cluster.mget('{u}:a', '{u}:b', '{u}:c'), ['1', '2', null]);
    await cluster.sadd('{u}:s', 1, 2, 3);
    await cluster.sadd('{u}:t', 3, 4);
    assert.equal(await cluster.sinterstore('{u}:both', '{u}:s', '{u}:t'), 1);
    assert.equal(await cluster.rename('{u}:a', '{u}:z'), 'OK');
    assert.equal(await cluster.del('{u}:z', '{u}:b', '{u}:nosuch'), 2);
  },

  async 'keys of two slots are refused'(cluster) {
    await assert.rejects(cluster.mset('a', 1, 'b', 2), /^ReplyError: CROSSSLOT Keys in request don't hash to the same slot$/);
    await assert.rejects(cluster.sinter('a', 'b'), /^ReplyError: CROSSSLOT /);
    await assert.rejects(cluster.pipeline().set('a', 1).set('bar', 1).exec(), /same slot|same node|same group/);
  },

  async 'transactions'(cluster) {
    const replies = await cluster.multi().set('{t}:a', 1).incr('{t}:a').get('{t}:b').exec();
    assert.deepEqual(replies, [[null, 'OK'], [null, 2], [null, null]]);
    await assert.rejects(cluster.multi().set('a', 1).set('b', 1).exec());
  },

  async 'scripts'(cluster) {
    cluster.defineCommand('addTwice', {
      numberOfKeys: 2,
      lua: "return redis.call('INCRBY', KEYS[1], ARGV[1]) + redis.call('INCRBY', KEYS[2], ARGV[1])",
    });
    for (let n = 0; n < 20; n++) assert.equal(await cluster.addTwice(`{${n}}:a`, `{${n}}:b`, n), 2 * n);
    assert.deepEqual(await cluster.eval('return {KEYS[1], ARGV[1]}', 1, 'k', 'v'), ['k', 'v']);
    await assert.rejects(cluster.evalsha('f'.repeat(40), 1, 'k'), /NOSCRIPT/);
    await assert.rejects(async () => {
      for (const name of names) await cluster.eval("return redis.call('GET', ARGV[1])", 1, 'a', name);
    }, /Script attempted to access a non local key in a cluster node/);
  },

  async 'publish and subscribe'(cluster) {
    const [node] = cluster.nodes('master');
    const listener = new Redis({ host: '127.0.0.1', port: node.options.port });
    const heard = [];
    listener.on('message', (...what) => heard.push(what));
    listener.on('pmessage', (...what) => heard.push(what));
    assert.equal(await listener.subscribe('news'), 1);
    assert.equal(await listener.psubscribe('n*'), 2);
    assert.equal(await node.publish('news', 'hello'), 2);
    await soon(() => heard.length === 2);
    assert.deepEqual(heard, [['news', 'hello'], ['n*', 'news', 'hello']]);
    listener.disconnect();
  },

  async 'sharded publish and subscribe'(cluster) {
    const listener = connect({ shardedSubscribers: true });
    const heard = [];
    listener.on('smessage', (channel, message) => heard.push([channel, message]));
    const channels = Array.from({ length: 12 }, (_, n) => `shard:${n}`);
    await soon(() => listener.status === 'ready');
    for (const channel of channels) await listener.ssubscribe(channel);
    for (const channel of channels) assert.equal(await cluster.spublish(channel, `to ${channel}`), 1);
    await soon(() => heard.length === 12);
    assert.deepEqual(heard.sort(), channels.map((channel) => [channel, `to ${channel}`]).sort());
    listener.disconnect();
  },

  async 'blocking pops'(cluster) {
    const waiters = Array.from({ length: 6 }, () => connect());
    const popped = waiters.map((waiter, n) => waiter.blpop(`queue:${n}`, 120));
    const blocked = async () => {
      const infos = await Promise.all(cluster.nodes('master').map((node) => node.info('clients')));
      return infos.reduce((sum, info) => sum + Number(/blocked_clients:(\d+)/.exec(info)[1]), 0);
    };
    await soon(async () => (await blocked()) === 6);
    for (let n = 0; n < 6; n++) await cluster.rpush(`queue:${n}`, n);
    assert.deepEqual(await Promise.all(popped), Array.from({ length: 6 }, (_, n) => [`queue:${n}`, String(n)]));
    waiters.forEach((waiter) => waiter.disconnect());
  },

  async 'scans of all nodes'(cluster) {
    await Promise.all(names.map((name) => cluster.set(name, 1)));
    const found = [];
    for (const node of cluster.nodes('master')) {
      for await (const keys of node.scanStream({ count: 50 })) found.push(...keys);
    }
    assert.deepEqual(found.sort(), [...names].sort());
  },

  async 'reads of replicas'(cluster) {
    await Promise.all(names.map((name, n) => cluster.set(name, n)));
    await soon(async () => (await sizes(cluster, 'slave')) === count);
    const reader = connect({ scaleReads: 'slave' });
    const served = async () => {
      const infos = await Promise.all(cluster.nodes('slave').map((node) => node.info('commandstats')));
      return infos.reduce((sum, info) => sum + Number(/cmdstat_get:calls=(\d+)/.exec(info)?.[1] ?? 0), 0);
    };
    await soon(() => reader.status === 'ready');
    const before = await served();
    assert.deepEqual(await Promise.all(names.map((name) => reader.get(name))), names.map((_, n) => String(n)));
    assert.equal((await served()) - before, count);
    assert.equal(await reader.set('key:0', 'new'), 'OK');
    reader.disconnect();
  },

  async 'flush of all nodes'(cluster) {
    await Promise.all(names.map((name) => cluster.set(name, 1)));
    for (const node of cluster.nodes('master')) assert.equal(await node.flushall(), 'OK');
    await soon(async () => (await sizes(cluster, 'all')) === 0);
  },

  async 'hand-overs under load'(cluster) {
    const loads = await beginLoad(6, false);
    for (const slot of [0, 0, 5461]) {
      await soon(async () => (await shard(slot)).length === 2);
      const [old, next] = await shard(slot);
      const before = loads.map((load) => load.answered);
      assert.equal(await at(next, 'CLUSTER', 'FAILOVER'), 'OK');
      await soon(async () => String(await shard(slot)) === String([next, old]));
      await soon(() => loads.every((load, i) => load.answered > before[i] + 20));
    }
    await endLoad(loads);
    assert.deepEqual(loads.flatMap((load) => load.errors), []);
    for (const load of loads) assert.equal(Number(await cluster.get(load.key)), load.answered);
  },

  async 'a killed primary'(cluster) {
    const loads = await beginLoad(6, true);
    await soon(() => loads.every((load) => load.acknowledged > 20));
    const slot = 5461;
    const [old, next] = await shard(slot);
    const pid = Number(/process_id:(\d+)/.exec(await at(old, 'INFO', 'server'))[1]);
    kills++;
    process.kill(pid, 'SIGKILL');
    await soon(async () => (await shard(slot))[0] === next);
    const answered = loads.map((load) => load.answered);
    await soon(() => loads.every((load, i) => load.answered > answered[i] + 20));
    // It is back, and WAIT sees it again.
    await soon(async () => String(await shard(slot)) === String([next, old]));
    const acknowledged = loads.map((load) => load.acknowledged);
    await soon(() => loads.every((load, i) => load.acknowledged > acknowledged[i] + 20));
    await endLoad(loads);
    for (const load of loads) assert.ok(Number(await cluster.get(load.key)) >= load.acknowledged, load.key);
    await soon(async () => /master_link_status:up/.test(await at(old, 'INFO', 'replication')));
  },
};

let kills = 0;

// Counts up in a key, for which it has a client of its own. answered: what was; acknowledged: what a replica had as well, by
// WAIT of the same primary; errors: what the library showed.
class Load {
  constructor(number, withWait) {
    Object.assign(this, { key: `load:${number}`, withWait, answered: 0, acknowledged: 0, errors: [], stopped: false });
    this.cluster = connect();
    this.ended = this.run();
  }

  async run() {
    while (!this.stopped) {
      const before = kills;
      let value;
      try {
        value = await this.cluster.incr(this.key);
        this.answered++;
      } catch (e) {
        this.errors.push(e);
        await new Promise((done) => setTimeout(done, 50));
        continue;
      }
      if (!this.withWait) continue;
      try {
        const [primary] = this.cluster.slots[calculateSlot(this.key)];
        const node = this.cluster.nodes('master').find(({ options }) => `${options.host}:${options.port}` === primary);
        if ((await node.wait(1, 5000)) >= 1 && before === kills) this.acknowledged = value;
      } catch {
        // It counts as not acknowledged.
      }
    }
  }
}

async function beginLoad(number, withWait) {
  const loads = Array.from({ length: number }, (_, n) => new Load(n, withWait));
  await soon(() => loads.every((load) => load.answered > 20));
  return loads;
}

async function endLoad(loads) {
  for (const load of loads) load.stopped = true;
  await Promise.all(loads.map((load) => load.ended));
  for (const load of loads) load.cluster.disconnect();
}

const cluster = connect();
await soon(() => cluster.status === 'ready');
let failed = 0;
for (const [name, run] of Object.entries(cases)) {
  try {
    await emptied(cluster);
    await run(cluster);
    console.log(`ok ${name}`);
  } catch (e) {
    failed++;
    console.log(`not ok ${name}: ${e.stack ?? e}`);
  }
}
process.exit(failed ? 1 : 0);
