// What applications do with node-redis in a cluster, which clients/cluster/nodes.py starts; in RESP2 and in RESP3.
import assert from 'node:assert/strict';
import { createClient, createCluster, defineScript } from 'redis';

const ports = process.env.EVENKEEL_CLUSTER_PORTS.split(' ').map(Number);
const count = 600;
const names = Array.from({ length: count }, (_, n) => `key:${n}`);

const addTwice = defineScript({
  NUMBER_OF_KEYS: 2,
  SCRIPT: "return redis.call('INCRBY', KEYS[1], ARGV[1]) + redis.call('INCRBY', KEYS[2], ARGV[1])",
  parseCommand(parser, a, b, number) {
    parser.pushKey(a);
    parser.pushKey(b);
    parser.push(String(number));
  },
  transformReply: (reply) => reply,
});

async function connect(RESP = 3, options = {}) {
  const cluster = createCluster({
    RESP,
    rootNodes: ports.map((port) => ({ url: `redis://127.0.0.1:${port}` })),
    defaults: { socket: { reconnectStrategy: 100 } },
    scripts: { addTwice },
    ...options,
  });
  cluster.on('error', () => {});
  cluster.on('node-error', () => {});
  return cluster.connect();
}

// Waits until a condition holds that others bring about.
async function soon(condition) {
  for (const deadline = Date.now() + 180_000; !(await condition());) {
    assert.ok(Date.now() < deadline, 'it did not come to that');
    await new Promise((done) => setTimeout(done, 20));
  }
}

// Calls a node on a connection of its own; undefined: it does not answer.
async function at(port, ...words) {
  const node = createClient({ RESP: 2, socket: { host: '127.0.0.1', port, reconnectStrategy: false } });
  node.on('error', () => {});
  try {
    await node.connect();
  } catch {
    return undefined;
  }
  try {
    return await node.sendCommand(words);
  } finally {
    node.destroy();
  }
}

const total = async (nodes, of) => (await Promise.all(nodes.map((node) => of(node.port)))).reduce((a, b) => a + b, 0);
const sizes = (nodes) => total(nodes, (port) => at(port, 'DBSIZE'));

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
    assert.equal(cluster.masters.length, 3);
    const reader = await connect(3, { useReplicas: true });
    assert.equal(reader.replicas.length, 3);
    assert.deepEqual([...reader.masters, ...reader.replicas].map((node) => node.port).sort(), [...ports].sort());
    reader.destroy();
    const node = await cluster.nodeClient(cluster.masters[0]);
    assert.match(await node.clusterInfo(), /^cluster_state:ok\r\ncluster_slots_assigned:16384\r\n/);
    assert.equal(await node.clusterKeySlot('foo'), 12182);
    const slots = await node.clusterSlots();
    assert.deepEqual(slots.map(({ from, to, replicas }) => [from, to, replicas.length]), [[0, 5460, 1], [5461, 10921, 1], [10922, 16383, 1]]);
    assert.equal((await node.clusterMyId()).length, 40);
    assert.equal(await node.clusterCountKeysInSlot(12182), 0);
  },

  async 'keys of all slots'(cluster) {
    assert.ok((await Promise.all(names.map((name, n) => cluster.set(name, n)))).every((reply) => reply === 'OK'));
    assert.deepEqual(await Promise.all(names.map((name) => cluster.get(name))), names.map((_, n) => String(n)));
    assert.equal(await sizes(cluster.masters), count);
    for (const master of cluster.masters) assert.ok((await at(master.port, 'DBSIZE')) > 0);
  },

  async 'pipelines'(cluster) {
    for (let tag = 0; tag < 20; tag++) {
      const pipeline = cluster.multi();
      for (let n = 0; n < 50; n++) pipeline.set(`{${tag}}:${n}`, n).incr(`{${tag}}:${n}`);
      const replies = await pipeline.execAsPipeline();
      assert.deepEqual(replies, Array.from({ length: 100 }, (_, i) => (i % 2 ? (i + 1) / 2 : 'OK')));
    }
  },

  async 'keys of one hash tag'(cluster) {
    assert.equal(await cluster.mSet({ '{u}:a': '1', '{u}:b': '2' }), 'OK');
    assert.deepEqual(await cluster.mGet(['{u}:a', '{u}:b', '{u}:c']), ['1', '2', null]);
    await cluster.sAdd('{u}:s', ['1', '2', '3']);
    await cluster.sAdd('{u}:t', ['3', '4']);
    assert.equal(await cluster.sInterStore('{u}:both', ['{u}:s', '{u}:t']), 1);
    assert.equal(await cluster.rename('{u}:a', '{u}:z'), 'OK');
    assert.equal(await cluster.del(['{u}:z', '{u}:b', '{u}:nosuch']), 2);
  },

  async 'keys of two slots are refused'(cluster) {
    // As the server says it.
    const node = await cluster.getNodeClientForKey('a');
    await assert.rejects(node.sendCommand(['MSET', 'a', '1', 'b', '2']), /^(Simple|)Error: CROSSSLOT Keys in request don't hash to the same slot$/);
    await assert.rejects(cluster.sInter(['a', 'b']), /CROSSSLOT/);
  },

  async 'transactions'(cluster) {
    assert.deepEqual(await cluster.multi().set('{t}:a', 1).incr('{t}:a').get('{t}:b').exec(), ['OK', 2, null]);
    // Slots of one node, and of two.
    await assert.rejects(cluster.multi().set('a', 1).set('foo', 1).exec(), /CROSSSLOT/);
    await assert.rejects(cluster.multi().set('a', 1).set('bar', 1).exec(), /EXECABORT|MOVED|Too many Cluster redirections/);
  },

  async 'scripts'(cluster) {
    for (let n = 0; n < 20; n++) assert.equal(await cluster.addTwice(`{${n}}:a`, `{${n}}:b`, n), 2 * n);
    assert.deepEqual(await cluster.eval('return {KEYS[1], ARGV[1]}', { keys: ['k'], arguments: ['v'] }), ['k', 'v']);
    await assert.rejects(cluster.evalSha('f'.repeat(40), { keys: ['k'] }), /NOSCRIPT/);
    await assert.rejects(async () => {
      for (const name of names) await cluster.eval("return redis.call('GET', ARGV[1])", { keys: ['a'], arguments: [name] });
    }, /Script attempted to access a non local key in a cluster node/);
  },

  async 'publish and subscribe'(cluster) {
    const node = await cluster.nodeClient(cluster.masters[0]);
    const listener = node.duplicate();
    listener.on('error', () => {});
    await listener.connect();
    const heard = [];
    await listener.subscribe('news', (message, channel) => heard.push([channel, message]));
    await listener.pSubscribe('n*', (message, channel) => heard.push([channel, message]));
    assert.equal(await node.publish('news', 'hello'), 2);
    await soon(() => heard.length === 2);
    assert.deepEqual(heard, [['news', 'hello'], ['news', 'hello']]);
    listener.destroy();
  },

  async 'sharded publish and subscribe'(cluster) {
    const heard = [];
    const channels = Array.from({ length: 12 }, (_, n) => `shard:${n}`);
    for (const channel of channels) await cluster.sSubscribe(channel, (message) => heard.push([channel, message]));
    for (const channel of channels) assert.equal(await cluster.sPublish(channel, `to ${channel}`), 1);
    await soon(() => heard.length === 12);
    assert.deepEqual(heard.sort(), channels.map((channel) => [channel, `to ${channel}`]).sort());
    for (const channel of channels) await cluster.sUnsubscribe(channel);
    for (const channel of channels) assert.equal(await cluster.sPublish(channel, 'to nobody'), 0);
  },

  async 'blocking pops'(cluster, RESP) {
    const waiters = await Promise.all(Array.from({ length: 6 }, () => connect(RESP)));
    const popped = waiters.map((waiter, n) => waiter.blPop(`queue:${n}`, 120));
    const blocked = async (port) => Number(/blocked_clients:(\d+)/.exec(await at(port, 'INFO', 'clients'))[1]);
    await soon(async () => (await total(cluster.masters, blocked)) === 6);
    for (let n = 0; n < 6; n++) await cluster.rPush(`queue:${n}`, String(n));
    assert.deepEqual((await Promise.all(popped)).map((found) => ({ ...found })), Array.from({ length: 6 }, (_, n) => ({ key: `queue:${n}`, element: String(n) })));
    waiters.forEach((waiter) => waiter.destroy());
  },

  async 'scans of all nodes'(cluster) {
    await Promise.all(names.map((name) => cluster.set(name, 1)));
    const found = [];
    for (const master of cluster.masters) {
      for await (const keys of (await cluster.nodeClient(master)).scanIterator({ COUNT: 50 })) found.push(...keys);
    }
    assert.deepEqual(found.sort(), [...names].sort());
  },

  async 'reads of replicas'(cluster, RESP) {
    await Promise.all(names.map((name, n) => cluster.set(name, n)));
    const reader = await connect(RESP, { useReplicas: true });
    const { replicas } = reader;
    await soon(async () => (await sizes(replicas)) === count);
    const served = (nodes) => total(nodes, async (port) => Number(/cmdstat_get:calls=(\d+)/.exec(await at(port, 'INFO', 'commandstats'))?.[1] ?? 0));
    const before = await served(replicas);
    assert.deepEqual(await Promise.all(names.map((name) => reader.get(name))), names.map((_, n) => String(n)));
    assert.ok((await served(replicas)) > before);
    assert.equal(await reader.set('key:0', 'new'), 'OK');
    reader.destroy();
  },

  async 'flush of all nodes'(cluster) {
    await Promise.all(names.map((name) => cluster.set(name, 1)));
    for (const master of cluster.masters) assert.equal(await (await cluster.nodeClient(master)).flushAll(), 'OK');
    await soon(async () => (await sizes(ports.map((port) => ({ port })))) === 0);
  },

  async 'hand-overs under load (once)'(cluster) {
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

  async 'a killed primary (once)'(cluster) {
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
    this.ended = this.run();
  }

  async run() {
    this.cluster = await connect();
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
        const node = await this.cluster.getNodeClientForKey(this.key, false);
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
  for (const load of loads) load.cluster.destroy();
}

let failed = 0;
for (const RESP of [2, 3]) {
  const cluster = await connect(RESP);
  for (const [name, run] of Object.entries(cases)) {
    if (name.includes('(once)') && RESP < 3) continue;
    try {
      await emptied(cluster);
      await run(cluster, RESP);
      console.log(`ok ${name} (RESP${RESP})`);
    } catch (e) {
      failed++;
      console.log(`not ok ${name} (RESP${RESP}): ${e.stack ?? e}`);
    }
  }
  cluster.destroy();
}
process.exit(failed ? 1 : 0);
