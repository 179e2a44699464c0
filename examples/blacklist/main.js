// The blacklist story: see README.md.
import { parseArgs } from 'node:util';
import { Worker } from 'node:worker_threads';
import Redis from 'ioredis';

const DATABASE = 9;
const { values: options } = parseArgs({
  options: {
    host: { type: 'string', default: process.env.EVENKEEL_HOST ?? '127.0.0.1' },
    port: { type: 'string', default: process.env.EVENKEEL_PORT ?? '6379' },
    seconds: { type: 'string', default: '5' }, // a way
    x: { type: 'string', default: '100000' }, // blacklisted ids
    y: { type: 'string', default: '10' }, // sets a request filters
    seed: { type: 'string', default: '1' },
  },
});
const connection = { host: options.host, port: Number(options.port), db: DATABASE };

/** Numbers that are the same in every run with the same seed (xorshift32, two steps an id). */
function generator(seed) {
  let state = (seed * 2654435761) >>> 0 || 1;
  return (below) => {
    for (let i = 0; i < 2; i++) {
      state ^= state << 13;
      state ^= state >>> 17;
      state ^= state << 5;
    }
    return Math.floor(((state >>> 0) / 2 ** 32) * below);
  };
}

/** X, the Ys, and what each request must answer. */
function makeData() {
  const random = generator(Number(options.seed));
  const blacklist = new Set();
  while (blacklist.size < Number(options.x)) blacklist.add(random(4_000_000_000));
  const known = [...blacklist];
  const candidates = Array.from({ length: Number(options.y) }, () => {
    const ids = new Set();
    const size = 500 + random(4500);
    const hits = random(10);
    while (ids.size < hits) ids.add(known[random(known.length)]);
    while (ids.size < size) ids.add(random(4_000_000_000));
    return ids;
  });
  const answers = candidates.map((ids) => new Set([...ids].filter((id) => !blacklist.has(id))));
  return { blacklist, candidates, answers };
}

async function load(redis, { blacklist, candidates }) {
  await redis.flushdb();
  const sets = [['X', blacklist], ...candidates.map((ids, i) => [`Y${i + 1}`, ids])];
  for (const [key, ids] of sets) {
    const all = [...ids];
    const pipeline = redis.pipeline();
    for (let at = 0; at < all.length; at += 1000) pipeline.sadd(key, ...all.slice(at, at + 1000));
    await pipeline.exec();
  }
  await redis.set('somebody-elses', 'small value');
}

const script = (convert) => `
local out = {}
for i = 2, #KEYS do
  local ids = redis.call('SDIFF', KEYS[i], KEYS[1])
  ${convert}
  out[i - 1] = ids
end
return cjson.encode(out)`;

/** The ways to ask. Each answers one array of ids for each Y, as numbers or decimal texts. */
function makeWays(redis, names) {
  redis.defineCommand('filterNumbers', { lua: script('for j = 1, #ids do ids[j] = tonumber(ids[j]) end') });
  redis.defineCommand('filterTexts', { lua: script('') });
  const keys = ['X', ...names];
  return {
    'Lua, numbers': async () => JSON.parse(await redis.filterNumbers(keys.length, ...keys)),
    'Lua, texts': async () => JSON.parse(await redis.filterTexts(keys.length, ...keys)),
    pipeline: async () => {
      const pipeline = redis.pipeline();
      for (const name of names) pipeline.sdiff(name, 'X');
      return (await pipeline.exec()).map(([error, ids]) => {
        if (error) throw error;
        return ids;
      });
    },
    concurrent: () => Promise.all(names.map((name) => redis.sdiff(name, 'X'))),
  };
}

/** Complains unless `reply` is exactly the answers. */
function check(reply, answers) {
  if (reply.length !== answers.length) throw new Error(`${reply.length} results for ${answers.length} sets`);
  reply.forEach((ids, i) => {
    const expected = answers[i];
    const distinct = new Set(ids.map(Number));
    if (ids.length !== expected.size || distinct.size !== expected.size) {
      throw new Error(`Y${i + 1}: ${ids.length} ids (${distinct.size} distinct), expected ${expected.size}`);
    }
    for (const id of distinct) if (!expected.has(id)) throw new Error(`Y${i + 1}: ${id} does not belong there`);
  });
}

/** Another client, in its own thread: a GET every millisecond, and how long each took. */
function startBystander() {
  const worker = new Worker(new URL('./bystander.js', import.meta.url), { workerData: connection });
  const ask = (what) =>
    new Promise((resolve, reject) => {
      worker.once('message', resolve);
      worker.once('error', reject);
      if (what) worker.postMessage(what);
    });
  return { ready: ask(), take: () => ask('take'), stop: () => worker.terminate() };
}

async function measure(run, answers, bystander) {
  for (let i = 0; i < 3; i++) check(await run(), answers);
  await bystander.take();
  const wanted = Number(options.seconds) * 1000;
  let requests = 0;
  let spent = 0;
  while (spent < wanted) {
    const started = performance.now();
    const reply = await run();
    spent += performance.now() - started;
    requests++;
    check(reply, answers);
  }
  return { rate: (requests * 1000) / spent, requests, waits: await bystander.take() };
}

const data = makeData();
const redis = new Redis(connection);
const info = await redis.info('server');
// Servers that are not Redis say a redis_version too, for clients that look for features.
const versions = ['evenkeel', 'valkey', 'redis'].map((name) => new RegExp(`^(${name})_version:(\\S+)`, 'm').exec(info));
const version = versions.find((found) => found) ?? ['', 'server', '?'];
await load(redis, data);
const names = data.candidates.map((_, i) => `Y${i + 1}`);
const total = data.candidates.reduce((sum, ids) => sum + ids.size, 0);
const hits = total - data.answers.reduce((sum, ids) => sum + ids.size, 0);
console.log(`${version[1]} ${version[2]} on ${options.host}:${options.port}`);
console.log(`X: ${data.blacklist.size} ids; ${names.length} Ys: ${total} ids, ${hits} of them in X; a request filters all Ys\n`);
console.log('way              requests/s   checked   a GET of another client: p50      p99      max');
const bystander = startBystander();
await bystander.ready;
const ms = (value) => `${value.toFixed(2)} ms`.padStart(9);
let failed = false;
for (const [name, run] of Object.entries(makeWays(redis, names))) {
  try {
    const { rate, requests, waits } = await measure(run, data.answers, bystander);
    const figures = `${ms(waits.p50)}${ms(waits.p99)}${ms(waits.max)}`;
    console.log(`${name.padEnd(16)} ${rate.toFixed(1).padStart(10)} ${String(requests).padStart(9)}                      ${figures}`);
  } catch (e) {
    failed = true;
    console.log(`${name.padEnd(16)} WRONG: ${e.message}`);
  }
}
await bystander.stop();
await redis.flushdb();
redis.disconnect();
process.exit(failed ? 1 : 0);
