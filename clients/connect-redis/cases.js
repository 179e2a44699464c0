// A shop of Express whose sessions stand in the server, by express-session and connect-redis.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { RedisStore } from 'connect-redis';
import express from 'express';
import session from 'express-session';
import { createClient } from 'redis';

const host = process.env.EVENKEEL_HOST ?? '127.0.0.1';
const port = Number(process.env.EVENKEEL_PORT ?? 6379);
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// What a case opens, to be closed behind it.
let open = [];

// A shop at an address of its own, with a connection of its own.
const shop = async (cookie = { maxAge: 60_000 }, options = {}) => {
  const client = await createClient({ socket: { host, port } }).connect();
  const store = new RedisStore({ client, prefix: 'shop:', ...options });
  const app = express();
  app.use(session({ store, secret: 'secret', resave: false, saveUninitialized: false, cookie }));
  app.get('/', (req, res) => void res.json({ id: req.sessionID, cart: req.session.cart ?? null }));
  app.get('/add/:what', (req, res) => {
    req.session.cart = [...(req.session.cart ?? []), req.params.what];
    res.json(req.session.cart);
  });
  app.get('/login', (req, res, next) => {
    req.session.regenerate((e) => (e ? next(e) : res.json({ id: req.sessionID })));
    req.session.cart = ['logged in'];
  });
  app.get('/logout', (req, res, next) => void req.session.destroy((e) => (e ? next(e) : res.json('bye'))));
  const server = app.listen(0, '127.0.0.1');
  await once(server, 'listening');
  open.push(async () => {
    server.closeAllConnections();
    server.close();
    client.destroy();
  });
  return { client, store, url: `http://127.0.0.1:${server.address().port}` };
};

// A browser: it keeps one cookie.
const browser = () => {
  let cookie = '';
  return async (url) => {
    const reply = await fetch(url, { headers: { cookie } });
    const set = reply.headers.get('set-cookie');
    if (set) cookie = set.split(';')[0];
    assert.equal(reply.status, 200, await reply.clone().text());
    return reply.json();
  };
};

const cases = {
  async 'a visitor who does nothing leaves no session'() {
    const { url } = await shop();
    assert.equal((await browser()(url)).cart, null);
    assert.deepEqual(await redis.keys('*'), []);
  },

  async 'a cart is kept, each visitor his own'() {
    const { url } = await shop();
    const [ann, bob] = [browser(), browser()];
    assert.deepEqual(await ann(`${url}/add/tea`), ['tea']);
    assert.deepEqual(await bob(`${url}/add/milk`), ['milk']);
    assert.deepEqual(await ann(`${url}/add/cake`), ['tea', 'cake']);
    assert.deepEqual((await bob(url)).cart, ['milk']);
    assert.equal((await redis.keys('shop:*')).length, 2);
  },

  async 'another process of the shop knows the same session'() {
    const [one, other] = [await shop(), await shop()];
    const visitor = browser();
    await visitor(`${one.url}/add/tea`);
    assert.deepEqual(await visitor(`${other.url}/add/milk`), ['tea', 'milk']);
    assert.deepEqual((await visitor(one.url)).cart, ['tea', 'milk']);
  },

  async 'what is stored, and until when'() {
    const { url } = await shop();
    const visitor = browser();
    await visitor(`${url}/add/tea`);
    const { id } = await visitor(url);
    const kept = JSON.parse(await redis.get(`shop:${id}`));
    assert.deepEqual(kept.cart, ['tea']);
    // express-session takes the milliseconds since the look before from it.
    const age = kept.cookie.originalMaxAge;
    assert.ok(age > 30_000 && age <= 60_000, `${age} ms`);
    const left = await redis.pTTL(`shop:${id}`);
    assert.ok(left > 30_000 && left <= 60_000, `${left} ms`);
  },

  async 'every look makes a session last again'() {
    const { url } = await shop();
    const visitor = browser();
    await visitor(`${url}/add/tea`);
    const { id } = await visitor(url);
    assert.equal(await redis.expire(`shop:${id}`, 20), 1);
    assert.equal((await visitor(url)).id, id);
    assert.ok((await redis.ttl(`shop:${id}`)) > 30);
  },

  async 'a session ends with its time'() {
    const { url } = await shop();
    const visitor = browser();
    await visitor(`${url}/add/tea`);
    const { id } = await visitor(url);
    assert.equal(await redis.exists(`shop:${id}`), 1);
    assert.equal(await redis.pExpire(`shop:${id}`, 100), 1);
    await sleep(200);
    assert.equal(await redis.exists(`shop:${id}`), 0);
    const later = await visitor(url);
    assert.equal(later.cart, null);
    assert.notEqual(later.id, id);
  },

  async 'a logout removes the session, a login takes a new one'() {
    const { url } = await shop();
    const visitor = browser();
    await visitor(`${url}/add/tea`);
    const before = (await visitor(url)).id;
    const after = (await visitor(`${url}/login`)).id;
    assert.notEqual(after, before);
    assert.equal(await redis.exists(`shop:${before}`), 0);
    await visitor(`${url}/add/milk`);
    assert.deepEqual(await redis.keys('shop:*'), [`shop:${after}`]);
    await visitor(`${url}/logout`);
    assert.deepEqual(await redis.keys('*'), []);
  },

  async 'a session that is removed by hand is gone for its visitor'() {
    const { url } = await shop();
    const visitor = browser();
    await visitor(`${url}/add/tea`);
    assert.equal(await redis.del(`shop:${(await visitor(url)).id}`), 1);
    assert.equal((await visitor(url)).cart, null);
  },

  async 'all sessions are counted, listed and cleared'() {
    const { store } = await shop({}, { scanCount: 10 });
    await redis.set('other', 'stays');
    const ids = Array.from({ length: 500 }, (_, i) => `s${i}`);
    await Promise.all(ids.map((id, i) => store.set(id, { n: i, cookie: {} })));
    assert.equal(await store.length(), 500);
    assert.deepEqual((await store.ids()).sort(), [...ids].sort());
    const all = await store.all();
    assert.deepEqual(all.map(({ n }) => n).sort((a, b) => a - b), ids.map((_, i) => i));
    assert.ok(all.every((one) => one.id === `s${one.n}`));
    await store.clear();
    assert.equal(await store.length(), 0);
    assert.deepEqual(await redis.keys('*'), ['other']);
  },

  async 'the time of a session is the shop\'s to say'() {
    const { store } = await shop({}, { ttl: (one) => one.hours * 3600 });
    await store.set('long', { hours: 3, cookie: {} });
    const left = await redis.ttl('shop:long');
    assert.ok(left > 10_000 && left <= 10_800, `${left} s`);
    await store.set('long', { hours: 0, cookie: {} });
    assert.equal(await store.get('long'), null);
    const forever = await shop({}, { disableTTL: true });
    await forever.store.set('forever', { cookie: {} });
    assert.equal(await redis.ttl('shop:forever'), -1);
  },

  async 'a session of every sort of text, and of a megabyte'() {
    const { store } = await shop();
    const kept = { text: 'ä 日本 🍰 \u0000 "\r\n', big: 'x'.repeat(1 << 20), cookie: {} };
    await store.set('s', kept);
    assert.deepEqual(await store.get('s'), kept);
    assert.equal(await store.get('nosuch'), null);
  },

  async 'a cut connection is opened again'() {
    const { client, url } = await shop();
    client.on('error', () => {});
    const visitor = browser();
    await visitor(`${url}/add/tea`);
    // A request that is under way when the connection ends gets an error, so the next one waits for the new connection.
    const again = new Promise((resolve) => client.once('ready', resolve));
    assert.equal(await redis.clientKill({ filter: 'ID', id: await client.clientId() }), 1);
    await again;
    assert.deepEqual(await visitor(`${url}/add/milk`), ['tea', 'milk']);
  },

  async 'a value of another kind is an error of the shop'() {
    const { store } = await shop();
    await redis.lPush('shop:list', 'x');
    await assert.rejects(store.get('list').then((kept) => assert.fail(`${kept}`), (e) => Promise.reject(e)), /WRONGTYPE/);
  },
};

const redis = await createClient({ socket: { host, port } }).connect();
let failed = 0;
for (const [name, run] of Object.entries(cases)) {
  if (process.argv[2] && !name.includes(process.argv[2])) continue;
  try {
    await redis.flushAll();
    await run();
    console.log(`ok ${name}`);
  } catch (e) {
    failed++;
    console.log(`not ok ${name}: ${e.stack ?? e}`);
  }
  await Promise.all(open.map((close) => close().catch(() => {})));
  open = [];
}
process.exit(failed ? 1 : 0);
