//! Streams and scenes: draws whole streams from the tables, and the scenes of several steps that the tables
//! name.

use crate::corpus;
use crate::grammar::{Body, Group, Since, damage, expand};
use crate::identity::Identity;
use crate::step::{Action, Check, Step, words};
use crate::words;
use support::rng::Rng;

pub struct Generator<'a> {
    pub groups: &'a [Group],
    pub group: &'a Group,
    pub oracle: &'a Identity,
    pub rng: Rng,
    pub out: Vec<Step>,
}

/// Groups whose commands mix into the streams of others, so that keys change under them.
const EVERYDAY: &[&str] = &["keys", "strings", "lists", "hashes", "sets", "zsets"];

const BLOCKING: &[&str] = &[
    "BLPOP list list 0",
    "BRPOP list list 0",
    "BLMOVE list list LEFT RIGHT 0",
    "BLMOVE list list RIGHT LEFT 0",
    "BRPOPLPUSH list list 0",
    "BLMPOP 0 2 list list LEFT",
    "BLMPOP 0 2 list list RIGHT COUNT 3",
    "BZPOPMIN zset zset 0",
    "BZPOPMAX zset zset 0",
    "BZMPOP 0 2 zset zset MIN",
    "BZMPOP 0 1 zset MAX COUNT 2",
];

/// Commands that may wake a blocked client.
const WAKING: &[&str] = &[
    "RPUSH list val val",
    "LPUSH list val",
    "RPUSH list val val val",
    "ZADD zset 1 member 2 member",
    "ZADD zset 3 member",
    "LMOVE list list LEFT RIGHT",
    "RENAME list list",
    "RENAME zset zset",
    "COPY list list REPLACE",
    "SET list val",
    "DEL list",
    "LINSERT list BEFORE val val",
    "EVAL redis.call('RPUSH',KEYS[1],'x');return(redis.call('LLEN',KEYS[1])) 1 list",
    "MOVE list 1",
    "SADD zset member",
];

/// Commands that change the type of an awaited key. When another key wakes the client, Redis checks all of
/// its keys since 7.2, and only that one before.
const MISTYPING: &[&str] = &["SET list val", "SADD zset member"];

impl Generator<'_> {
    /// A stream of at least `n` steps, ending with a comparison of all keys.
    pub fn stream(mut self, n: usize) -> Vec<Step> {
        while self.out.len() < n {
            if self.rng.percent(self.group.mix) {
                let (args, check) = self.everyday();
                self.push(0, args, check);
            } else {
                self.draw();
            }
            if self.rng.percent(4) {
                self.flush();
            }
        }
        self.act(0, Action::Dump);
        self.out
    }

    /// One line of the stream's own group.
    fn draw(&mut self) {
        let line = self.group.draw(self.oracle, &mut self.rng, true);
        match &line.body {
            Body::Scene(name) => self.scene(name),
            Body::Command(parts) => {
                let mut args = Vec::new();
                expand(parts, &mut self.rng, &mut args);
                if line.damage {
                    damage(&mut args, &mut self.rng);
                }
                self.push(0, args, line.check);
            }
        }
    }

    /// A single command of another group.
    fn everyday(&mut self) -> (Vec<Vec<u8>>, Check) {
        let name = *self.rng.pick(EVERYDAY);
        self.command_of(name)
    }

    fn command_of(&mut self, group: &str) -> (Vec<Vec<u8>>, Check) {
        let group = self.groups.iter().find(|g| g.name == group).unwrap_or(self.group);
        let line = group.draw(self.oracle, &mut self.rng, false);
        let mut args = Vec::new();
        if let Body::Command(parts) = &line.body {
            expand(parts, &mut self.rng, &mut args);
            if line.damage {
                damage(&mut args, &mut self.rng);
            }
        }
        (args, line.check)
    }

    fn push(&mut self, client: usize, args: Vec<Vec<u8>>, check: Check) {
        self.out.push(Step::command(client, args, check));
    }

    fn say(&mut self, client: usize, text: &str, check: Check) {
        self.push(client, words(text), check);
    }

    fn act(&mut self, client: usize, action: Action) {
        self.out.push(Step::act(client, action));
    }

    fn act_checked(&mut self, client: usize, action: Action, check: Check) {
        self.out.push(Step { client, action, check, flush: true });
    }

    fn flush(&mut self) {
        if let Some(last) = self.out.last_mut() {
            last.flush = true;
        }
    }

    fn word(&mut self, word: &str) -> Vec<u8> {
        words::generate(word, &mut self.rng).unwrap_or_default()
    }

    fn text(&mut self, word: &str) -> String {
        String::from_utf8_lossy(&self.word(word)).into_owned()
    }

    /// `template` with its lower-case words drawn.
    fn fill(&mut self, template: &str) -> Vec<Vec<u8>> {
        template
            .split(' ')
            .map(|part| words::generate(part, &mut self.rng).unwrap_or_else(|| part.as_bytes().to_vec()))
            .collect()
    }

    fn scene(&mut self, name: &str) {
        match name {
            "spop" => self.spop(),
            "srandmember" => self.sample("SMEMBERS set", "SRANDMEMBER", &[]),
            "hrandfield" => self.sample("HGETALL hash", "HRANDFIELD", &["WITHVALUES"]),
            "zrandmember" => self.sample("ZRANGE zset 0 -1 WITHSCORES", "ZRANDMEMBER", &["WITHSCORES"]),
            "randomkey" => {
                self.say(0, "KEYS *", Check::Probe);
                self.say(0, "RANDOMKEY", Check::Sample);
            }
            "scan" => self
                .scan("SCAN", &["MATCH glob", "COUNT 3", "COUNT 100", "TYPE hash", "TYPE string", "TYPE x"]),
            "sscan" => self.scan("SSCAN set", &["MATCH glob", "COUNT 2", "COUNT 0", "COUNT x"]),
            "hscan" => self.scan("HSCAN hash", &["MATCH glob", "COUNT 2", "COUNT 100"]),
            "hscan_novalues" => self.scan("HSCAN hash", &["NOVALUES", "MATCH glob", "COUNT 2"]),
            "zscan" => self.scan("ZSCAN zset", &["MATCH glob", "COUNT 2", "COUNT 100"]),
            "multi" => self.multi(),
            "watch" => self.watch(),
            "blocked" => self.blocked(),
            "blocked_many" => self.blocked_many(),
            "blocked_swapdb" => self.blocked_swapdb(),
            "expire" => self.expire(),
            "field_expire" => self.field_expire(),
            "script" => self.script(),
            "evalsha" => self.evalsha(),
            "library" => self.library(),
            "subscribe" => self.subscribe(),
            "publish" => self.publish(),
            "notify" => self.notify(),
            "cross" => self.cross(),
            "fill" => self.big(),
            "reconnect" => self.act(0, Action::Reconnect),
            "raw" => self.raw(),
            _ => panic!("groups/{}.txt: no scene {name:?}", self.group.name),
        }
    }

    /// A value that each server writes and the other reads.
    fn cross(&mut self) {
        let from = self.word("key");
        let to = if self.rng.percent(30) { from.clone() } else { self.word("key") };
        let ttl = self.rng.pick(&["0", "0", "0", "100000", "-1", "x"]).as_bytes().to_vec();
        let mut args = vec![b"RESTORE".to_vec(), to, ttl];
        for option in ["REPLACE", "IDLETIME 0", "FREQ 7"] {
            let percent = if option == "REPLACE" { 80 } else { 4 };
            if self.rng.percent(percent) {
                args.extend(words(option));
            }
        }
        self.act(0, Action::Cross { from, args });
    }

    /// A random read, preceded by a read of everything it may draw from.
    fn sample(&mut self, probe: &str, command: &str, options: &[&str]) {
        let probe = self.fill(probe);
        let key = probe[1].clone();
        self.push(0, probe, Check::Probe);
        let mut args = vec![command.as_bytes().to_vec(), key];
        if self.rng.percent(75) {
            args.push(self.word("rcount"));
            if !options.is_empty() && self.rng.percent(40) {
                args.push(self.rng.pick(options).as_bytes().to_vec());
            }
        }
        self.push(0, args, Check::Sample);
    }

    /// SPOP takes random members, so the set is deleted after it.
    fn spop(&mut self) {
        let key = self.word("set");
        let ask = |name: &str| vec![name.as_bytes().to_vec(), key.clone()];
        let (probe, mut pop, card, delete) = (ask("SMEMBERS"), ask("SPOP"), ask("SCARD"), ask("DEL"));
        if self.rng.percent(60) {
            pop.push(self.word("rcount"));
        }
        self.push(0, probe.clone(), Check::Probe);
        self.push(0, pop, Check::Sample);
        self.push(0, card, Check::Exact);
        self.push(0, probe, Check::Remaining);
        self.push(0, delete, Check::Exact);
    }

    fn scan(&mut self, command: &str, options: &[&str]) {
        let mut args = self.fill(command);
        let at = args.len();
        for _ in 0..self.rng.below(3) {
            let option = *self.rng.pick(options);
            args.extend(self.fill(option));
        }
        self.act(0, Action::Scan { args, at });
    }

    fn multi(&mut self) {
        self.say(0, "MULTI", Check::Exact);
        for _ in 0..self.rng.below(7) {
            let (args, check) = match self.rng.below(30) {
                0 => (words("NOSUCHCOMMAND a b"), Check::Exact),
                1 => (words("GET"), Check::Exact),
                2 => (words("MULTI"), Check::Exact),
                3 => (self.fill("WATCH key"), Check::Exact),
                4 => (words("UNWATCH"), Check::Exact),
                5 => (self.fill("SELECT db"), Check::Exact),
                6 => (self.fill("BLPOP list 0"), Check::Exact),
                7 => (self.fill("BLMOVE list list LEFT RIGHT 0"), Check::Exact),
                8 => (self.fill("BZPOPMIN zset 0"), Check::Exact),
                9 => (self.fill("PUBLISH channel val"), Check::Exact),
                10 => self.script_call(),
                _ => self.everyday(),
            };
            self.push(0, args, check);
        }
        match self.rng.below(12) {
            0 => self.say(0, "DISCARD", Check::Exact),
            1 => self.say(0, "EXEC extra", Check::Exact),
            _ => {}
        }
        self.say(0, "EXEC", Check::Exact);
        if self.rng.percent(10) {
            self.say(0, "SELECT 0", Check::Exact);
        }
    }

    fn watch(&mut self) {
        let watch = self.fill("WATCH key key");
        self.push(0, watch, Check::Exact);
        for _ in 0..self.rng.below(3) {
            let client = self.rng.below(2);
            let (args, check) = self.everyday();
            self.push(client, args, check);
            self.flush();
        }
        match self.rng.below(8) {
            0 => self.say(0, "UNWATCH", Check::Exact),
            1 => self.say(1, "FLUSHDB", Check::Exact),
            2 => self.say(1, "SWAPDB 0 1", Check::Exact),
            _ => {}
        }
        self.flush();
        self.multi();
    }

    fn blocked(&mut self) {
        let template = *self.rng.pick(BLOCKING);
        let args = self.fill(template);
        self.act(1, Action::Start(args));
        self.wake();
        self.act(1, Action::Finish);
    }

    /// Several clients that wait for the same keys are served in the order in which they came.
    fn blocked_many(&mut self) {
        for client in 1..=3 {
            let template = *self.rng.pick(BLOCKING);
            let args = self.fill(template);
            self.act(client, Action::Start(args));
        }
        self.wake();
        self.wake();
        for client in 1..=3 {
            self.act(client, Action::Finish);
        }
    }

    /// A swap of databases wakes clients too. With one key, because several wake in the order of a hash
    /// table.
    fn blocked_swapdb(&mut self) {
        let key = self.text("list");
        self.act(1, Action::Start(words(&format!("BLMPOP 0 1 {key} LEFT COUNT 2"))));
        for text in ["SELECT 1", "RPUSH {} swapped in", "SELECT 0", "SWAPDB 0 1", "LLEN {}"] {
            self.say(0, &text.replace("{}", &key), Check::Exact);
        }
        self.flush();
        self.act(1, Action::Finish);
    }

    fn wake(&mut self) {
        let multi = self.rng.percent(25);
        if multi {
            self.say(0, "MULTI", Check::Exact);
        }
        for _ in 0..=self.rng.below(3) {
            let mut template = *self.rng.pick(WAKING);
            if MISTYPING.contains(&template) && !Since::V7_2.known_to(self.oracle) {
                template = WAKING[0];
            }
            let args = self.fill(template);
            self.push(0, args, Check::Exact);
        }
        if multi {
            self.say(0, "EXEC", Check::Exact);
        }
        self.flush();
    }

    /// Keys that expire between two commands.
    fn expire(&mut self) {
        let key = self.text("key").replace(['\0', '\r', '\n', ' ', '\u{fffd}'], "k");
        let key = if key.is_empty() { "s1".to_owned() } else { key };
        // Long enough that none expires at one server before the next command arrives, even on a busy
        // machine.
        for template in ["SET {} v PX 30", "PEXPIRE {} 20", "GETEX {} PX 30", "PSETEX {} 30 v"] {
            if self.rng.percent(40) {
                self.say(0, &template.replace("{}", &key), Check::Exact);
            }
        }
        self.flush();
        self.act(0, Action::SleepMs(60));
        for _ in 0..3 {
            let template = *self.rng.pick(&[
                "GET {}",
                "EXISTS {}",
                "TYPE {}",
                "TTL {}",
                "SET {} w NX",
                "SETNX {} w",
                "RENAME {} s4",
                "COPY {} s3",
                "PERSIST {}",
                "OBJECT ENCODING {}",
                "KEYS *",
                "DEL {}",
                "APPEND {} x",
                "LPUSHX {} a",
                "SADD {} a",
            ]);
            let check = if template.starts_with("KEYS") { Check::Unordered } else { Check::Exact };
            self.say(0, &template.replace("{}", &key), check);
        }
    }

    fn field_expire(&mut self) {
        let key = format!("h{}", self.rng.below(5));
        self.say(0, &format!("HSET {key} gone 1 a1 2 kept 3"), Check::Exact);
        let ttl = *self.rng.pick(&["HPEXPIRE {} 2 FIELDS 2 gone a1", "HPEXPIRE {} 1 FIELDS 1 gone"]);
        self.say(0, &ttl.replace("{}", &key), Check::Exact);
        self.flush();
        // Longer than an oracle on a busy machine needs to remove expired keys: it counts them until then.
        self.act(0, Action::SleepMs(40));
        for _ in 0..3 {
            let (template, check) = *self.rng.pick(&[
                ("HGET {} gone", Check::Exact),
                ("HMGET {} gone a1 kept", Check::Exact),
                ("HGETALL {}", Check::Pairs),
                ("HKEYS {}", Check::Unordered),
                ("HEXISTS {} gone", Check::Exact),
                ("HTTL {} FIELDS 2 gone kept", Check::Exact),
                ("HSETNX {} gone 5", Check::Exact),
                ("HINCRBY {} gone 5", Check::Exact),
                ("HDEL {} gone", Check::Exact),
                ("HSTRLEN {} gone", Check::Exact),
            ]);
            self.say(0, &template.replace("{}", &key), check);
        }
    }

    fn pick_script(&mut self) -> &'static corpus::Script {
        loop {
            let script = self.rng.pick(corpus::scripts());
            if script.since.known_to(self.oracle) {
                return script;
            }
        }
    }

    fn script_call(&mut self) -> (Vec<Vec<u8>>, Check) {
        let script = self.pick_script();
        let mut args = vec![b"EVAL".to_vec(), script.body.as_bytes().to_vec()];
        args.extend(script.arguments(&mut self.rng));
        (args, script.check)
    }

    fn script(&mut self) {
        let (mut args, check) = self.script_call();
        if self.rng.percent(8) {
            args[0] = b"EVAL_RO".to_vec();
        }
        self.push(0, args, check);
    }

    fn evalsha(&mut self) {
        let script = self.pick_script();
        if self.rng.percent(60) {
            self.push(
                0,
                vec![b"SCRIPT".to_vec(), b"LOAD".to_vec(), script.body.as_bytes().to_vec()],
                Check::Exact,
            );
        }
        let mut sha = corpus::sha1_hex(script.body.as_bytes());
        if self.rng.percent(20) {
            sha = sha.to_uppercase();
        }
        self.push(
            0,
            words(&format!("SCRIPT EXISTS {sha} ffffffffffffffffffffffffffffffffffffffff")),
            Check::Exact,
        );
        let mut args =
            vec![self.rng.pick(&["EVALSHA", "EVALSHA", "EVALSHA_RO"]).as_bytes().to_vec(), sha.into_bytes()];
        args.extend(script.arguments(&mut self.rng));
        self.push(0, args, script.check);
    }

    fn library(&mut self) {
        let library = *self.rng.pick(corpus::libraries());
        let mut args = words("FUNCTION LOAD");
        if self.rng.percent(50) {
            args.push(b"REPLACE".to_vec());
        }
        args.push(library.as_bytes().to_vec());
        self.push(0, args, Check::Exact);
    }

    fn subscribe(&mut self) {
        let client = 1 + self.rng.below(2);
        let (template, check) = *self.rng.pick(&[
            ("SUBSCRIBE channel", Check::Exact),
            ("SUBSCRIBE channel channel channel", Check::Exact),
            ("PSUBSCRIBE pattern pattern", Check::Exact),
            ("PSUBSCRIBE pattern", Check::Exact),
            ("SSUBSCRIBE channel", Check::Exact),
            ("UNSUBSCRIBE channel", Check::Exact),
            ("UNSUBSCRIBE channel channel", Check::Exact),
            ("UNSUBSCRIBE", Check::Leaves),
            ("PUNSUBSCRIBE", Check::Leaves),
            ("PUNSUBSCRIBE pattern", Check::Exact),
            ("SUNSUBSCRIBE", Check::Leaves),
            ("SUNSUBSCRIBE channel", Check::Exact),
            ("GET str", Check::Exact),
            ("PING", Check::Exact),
            ("PING hello", Check::Exact),
            ("SUBSCRIBE", Check::Exact),
            ("RESET", Check::Exact),
            ("ECHO x", Check::Exact),
        ]);
        let args = self.fill(template);
        self.act_checked(client, Action::Collect(args), check);
    }

    fn publish(&mut self) {
        for _ in 0..=self.rng.below(3) {
            let template =
                *self.rng.pick(&["PUBLISH channel val", "PUBLISH channel val", "SPUBLISH channel val"]);
            let args = self.fill(template);
            self.push(0, args, Check::Exact);
        }
        if self.rng.percent(15) {
            self.say(0, "MULTI", Check::Exact);
            for template in ["PUBLISH channel val", "PUBLISH channel val", "EXEC"] {
                let args = self.fill(template);
                self.push(0, args, Check::Exact);
            }
        }
        self.flush();
        for client in 1..=2 {
            self.act_checked(client, Action::Collect(Vec::new()), Check::Unordered);
        }
    }

    /// The events that a command causes, and their order.
    fn notify(&mut self) {
        if self.rng.percent(10) || !self.out.iter().any(|step| step.client == 3) {
            let classes =
                *self.rng.pick(&["KEA", "KEA", "KEA", "AKE", "Kg$", "Elh", "KEtz", "KEAm", "KEAn", "x", ""]);
            self.push(
                0,
                vec![b"CONFIG".to_vec(), b"SET".to_vec(), b"notify-keyspace-events".to_vec(), classes.into()],
                Check::Exact,
            );
            self.push(0, words("CONFIG GET notify-keyspace-events"), Check::Exact);
            self.flush();
            self.act(3, Action::Collect(words("PSUBSCRIBE __key*__:*")));
        }
        for _ in 0..=self.rng.below(3) {
            let (args, check) = self.everyday();
            self.push(0, args, check);
        }
        self.flush();
        self.act(3, Action::Collect(Vec::new()));
    }

    /// Many elements at once, so that small forms become big ones.
    fn big(&mut self) {
        let n = self.rng.integer(5, 300);
        let template = *self.rng.pick(&[
            "RPUSH list short",
            "SADD set int",
            "SADD set short",
            "HSET hash field val",
            "ZADD zset score member",
        ]);
        let mut args = self.fill(template);
        let from = self.rng.integer(0, 50);
        args.truncate(2);
        for at in from..from + n {
            let element = match template.as_bytes()[0] {
                b'S' if template.ends_with("int") => vec![at.to_string()],
                b'R' | b'S' => vec![format!("e{at}")],
                b'H' => vec![format!("f{at}"), format!("v{}", at % 7)],
                _ => vec![(at % 40).to_string(), format!("m{at}")],
            };
            args.extend(element.into_iter().map(String::into_bytes));
        }
        self.push(0, args, Check::Exact);
    }

    /// Requests that no client library writes.
    fn raw(&mut self) {
        let mut bytes = self.rng.pick(corpus::RAW).to_vec();
        if self.rng.percent(20) {
            let at = self.rng.below(bytes.len());
            bytes[at] = *self.rng.pick(b"\r\n*$0159- \"'\\x\xffag");
        }
        self.act_checked(0, Action::Raw(bytes), Check::Exact);
    }
}
