//! Every command of the table against large values, and a count of the elements it looks at: no clock.
//!
//! A command runs on a loop, in a transaction, in a script that began on a loop, and on a worker. On a loop it may look at
//! [`MOST`] elements before it is done, streams, or has used up its budget and is dropped; on a worker at [`STRETCH`] before it
//! charges again, which is where it lets others have its turn.

use crate::gaps;
use crate::table::{Command, Run};
use crate::testing::{Db, split};
use crate::{Budget, Caller, Cx, Outcome, registry};
use keyspace::{Keyspace, View};
use resp::{Args, OwnedArgs, Reply};
use std::collections::HashSet;

/// Elements of each value.
const LEN: usize = 60_000;
/// Steps a loop allows a command: more goes elsewhere before it runs, or is dropped while it does.
const ESTIMATE: usize = 2_000;
const BUDGET: usize = 4 * ESTIMATE;
const MOST: usize = 10_000;
/// A worker's turn is some 20,000 elements.
const STRETCH: usize = 20_000;
/// What a connection has streamed at a stretch.
const PART: usize = 16 << 10;

/// A line for every command that is a function of its keys; several where it matters. `s`, `h`, `l`, `z` hold [`LEN`]
/// elements, `s2` and `z2` some of the same, `t` and `u` a long text; `n` a number.
const LINES: &str = "
    append t x; bitcount t; bitcount t 5 900000 bit; bitfield t incrby u8 5 1 get u4 99999; bitfield_ro t get u8 70000
    bitop and d t u; bitop not d t; bitpos u 0; bitpos t 1 5 -1; blmove l d left right 0; blmpop 0 1 l left count 50000
    blpop l 0; brpop l 0; brpoplpush l d 0; bzmpop 0 1 z max count 50000; bzpopmax z 0; bzpopmin z 0; copy s d; copy t d
    copy z z2 replace; decr n; decrby n 2; del s h l z t; delifeq t x; exists s h l; expire s 100; expireat s 9999999999
    expiretime s; get t; getbit t 90000; getdel t; getex t ex 100; getrange t 5 -5; getset t x; hdel h f1 f2; hexists h f1
    hexpire h 100 fields 1 f1; hexpireat h 9999999999 fields 1 f1; hexpiretime h fields 1 f1; hget h f1; hgetall h
    hgetdel h fields 1 f1; hgetex h ex 100 fields 1 f1; hincrby h f1 1; hincrbyfloat h f1 0.5; hkeys h; hlen h; hmget h f1 f2
    hmset h f1 x; hpersist h fields 1 f1; hpexpire h 100 fields 1 f1; hpexpireat h 9999999999999 fields 1 f1
    hpexpiretime h fields 1 f1; hpttl h fields 1 f1; hrandfield h; hrandfield h 50000 withvalues; hrandfield h -50000
    hrandfield h 99999; hscan h 0; hscan h 0 count 50000; hset h f1 x; hsetex h fields 1 f1 x; hsetnx h f1 x; hstrlen h f1
    httl h fields 1 f1; hvals h; incr n; incrby n 2; incrbyfloat n 0.5; lcs t u; lindex l 30000
    lscan l 0; lscan l 0 count 50000; dump s; dump t; restore d 0 x; linsert l before e30000 x; llen l; lmove l d left right; lmpop 1 l left count 50000; lpop l; lpop l 50000
    lpos l e55555; lpos l x maxlen 0; lpush l x; lpushx l x; lrange l 0 -1; lrange l 20000 20010; lrem l 0 e55555; lrem l -1 x
    lset l 30000 x; ltrim l 100 40000; mget t u n; move s 1; mset t x u x; msetex 1 t x; msetnx d x; object|encoding s
    object|freq s; object|help; object|idletime s; object|refcount s; memory|usage s; memory|usage t samples 0; persist s; pexpire s 100
    pexpireat s 9999999999999; pexpiretime s; psetex t 100 x; pttl s; rename s z; renamenx s d; rpop l; rpop l 50000
    rpoplpush l d; rpush l x; rpushx l x; sadd s x; scard s; sdiff s s2; sdiffstore d s s2; set t x; set t x get; setbit t 90000 1
    setex t 100 x; setnx t x; setrange t 90000 x; sinter s s2; sintercard 2 s s2; sinterstore d s s2; sismember s m1
    smembers s; smismember s m1 m2; smove s d m1; sort l alpha; sort s by nosort; sort l by nosort get #; sort z alpha limit 0 5
    sort l alpha store d; sort_ro l alpha; sort_ro s by nosort; spop s; spop s 50000; spop s 99999; srandmember s
    srandmember s 50000; srandmember s 99999; srandmember s -50000; srem s m1; sscan s 0; sscan s 0 count 50000; strlen t
    substr t 0 -1; sunion s s2; sunionstore d s s2; touch s h; ttl s; type s; unlink s h l z t; zadd z 1 x; zcard z
    zcount z 5 50000; zdiff 2 z z2; zdiffstore d 2 z z2; zincrby z 1 m1; zinter 2 z z2; zintercard 2 z z2
    zinterstore d 2 z z2; zlexcount z - +; zmpop 1 z min count 50000; zmscore z m1 m2; zpopmax z; zpopmax z 50000
    zpopmin z 50000; zpopmin z 99999; zrandmember z; zrandmember z 50000; zrandmember z -50000 withscores
    zrandmember z 99999; zrange z 0 -1; zrange z 5 50000 byscore withscores; zrange z 0 -1 rev limit 5 50000
    zrangebylex z - +; zrangebyscore z -inf +inf; zrangestore d z 5 50000; zrangestore d z 0 -1; zrank z m1; zrem z m1
    zremrangebylex z - +; zremrangebyrank z 5 50000; zremrangebyrank z 0 -1; zremrangebyscore z 5 30000; zrevrange z 0 -1
    zrevrangebylex z + -; zrevrangebyscore z +inf -inf; zrevrank z m1; zscan z 0; zscan z 0 count 50000; zscore z m1
    zunion 2 z z2; zunion 2 z s withscores; zunionstore d 2 z z2 weights 2 3";

/// What builds or takes apart a tree in one go: on a worker it keeps its turn for longer than it should.
const KEEP_THEIR_TURN: &[&str] = &[];

fn large() -> Db {
    let mut db = Db::new();
    let mut fill = |command: &str, element: &dyn Fn(usize) -> String| {
        let words: String = (0..LEN).map(|i| format!(" {}", element(i))).collect();
        db.line(&format!("{command}{words}"));
    };
    fill("sadd base:s", &|i| format!("m{i}"));
    fill("sadd base:s2", &|i| format!("m{}", 2 * i));
    fill("hset base:h", &|i| format!("f{i} v{i}"));
    fill("rpush base:l", &|i| format!("e{i}"));
    fill("zadd base:z", &|i| format!("{i} m{i}"));
    fill("zadd base:z2", &|i| format!("{i} m{}", 2 * i));
    db.run(&["set", "base:t", &"abcdefgh".repeat(1 << 18)]);
    db.line("bitop not base:u base:t");
    db.run(&["set", "base:n", "5"]);
    db
}

/// Large values again under their names, whatever the last command did to them: O(1) each.
fn renew(db: &mut Db) {
    for name in ["s", "s2", "h", "l", "z", "z2", "t", "u", "n"] {
        assert_eq!(db.line(&format!("copy base:{name} {name} replace")), "1");
    }
    db.line("del d");
}

/// Where a command runs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Where {
    Loop,
    Transaction,
    Script,
    Worker,
}

/// What a run looked at in all, and at most between two charges; None if it is sent elsewhere before it begins.
fn run(db: &Db, command: &'static Command, args: Args<'_>, place: Where) -> Option<(usize, usize)> {
    let mut keys = Vec::new();
    command.each_key(args, &mut |i, _| keys.push(args.at(i)));
    let mut view = View::locked(&db.keyspace, Keyspace::shards_of(keys), 0, db.now_ms);
    stdx::visits::take();
    let estimate = command.cost.map_or(0, |cost| cost(&view, args));
    let reply = command.reply.map_or(0, |reply| reply(&view, args));
    let away = match place {
        Where::Loop | Where::Script => estimate > ESTIMATE,
        Where::Transaction => estimate.saturating_add(reply) > ESTIMATE,
        Where::Worker => false,
    };
    let estimating = stdx::visits::take();
    assert!(estimating < MOST, "the estimate looks at {estimating} elements");
    if away {
        view.finish();
        return None;
    }
    let budget = match place {
        Where::Loop | Where::Script => Budget::steps(BUDGET),
        Where::Transaction | Where::Worker => Budget::unlimited(None),
    };
    let may_stream = matches!(place, Where::Loop | Where::Worker);
    let caller = Caller { may_stream, in_script: place == Where::Script, ..Caller::default() };
    let mut out = Reply::new(false);
    gaps::take();
    let mut cx = Cx::new(&mut view, &mut out, caller, budget, 7);
    let (Run::Read(handler) | Run::Write(handler)) = command.run else { panic!("no function of its keys") };
    let result = handler(&mut cx, args);
    let outcome = std::mem::take(&mut cx.outcome);
    gaps::note();
    let (mut all, most) = gaps::take();
    match result {
        // A mistake of the client is an answer like others.
        Ok(()) | Err(_) => {}
    }
    view.finish();
    if let Outcome::Stream(mut stream) = outcome {
        stdx::visits::take();
        stream.fill(&mut out, PART);
        all = all.max(stdx::visits::take());
    }
    Some((all, most))
}

fn lines() -> Vec<OwnedArgs> {
    let lines = LINES.split(['\n', ';']).map(str::trim).filter(|line| !line.is_empty());
    let words = |line: &str| -> Vec<Vec<u8>> { split(&line.replacen('|', " ", 1)) };
    lines.map(|l| OwnedArgs::from_slices(&words(l).iter().map(Vec::as_slice).collect::<Vec<_>>())).collect()
}

fn resolve(args: Args<'_>) -> &'static Command {
    let command = registry::find(args.at(0)).unwrap_or_else(|| panic!("no command {args:?}"));
    if command.subs.is_empty() {
        return command;
    }
    registry::find_sub(command, args.at(1)).unwrap_or_else(|| panic!("no command {args:?}"))
}

#[test]
fn no_command_looks_at_very_much_at_a_stretch() {
    let mut db = large();
    let mut wrong = Vec::new();
    for place in [Where::Loop, Where::Transaction, Where::Script, Where::Worker] {
        for words in lines() {
            let (args, command) = (words.args(), resolve(words.args()));
            renew(&mut db);
            let Some((all, gap)) = run(&db, command, args, place) else { continue };
            let late = match place {
                Where::Worker => gap > STRETCH && !KEEP_THEIR_TURN.contains(&command.name),
                _ => all > MOST,
            };
            if late {
                wrong.push(format!("{place:?}: {args:?} looks at {all}, {gap} of them at a stretch"));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn every_function_of_keys_is_tried() {
    let tried: HashSet<&str> = lines().iter().map(|words| resolve(words.args()).name).collect();
    let mut all = crate::places::all().iter().filter(|c| matches!(c.run, Run::Read(_) | Run::Write(_)));
    let missing: Vec<&str> = all.by_ref().map(|c| c.name).filter(|name| !tried.contains(name)).collect();
    assert!(missing.is_empty(), "give these a line: {missing:?}");
}
