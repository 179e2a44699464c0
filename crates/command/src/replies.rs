//! Estimates of replies that are normally streamed, for runs that cannot stream. A transaction asks before it
//! runs its commands under locks (`Command::reply`).
//!
//! A step writes an element or two, or 64 bytes.
//!
//! - R1: only words that the row declares as keys are looked up. Any other would count as absent
//!   (`View::estimate`), and the estimate would be wrong.

use crate::cx::BYTES_PER_STEP;
use crate::options::{is, range};
use crate::string::get::clamp;
use keyspace::View;
use resp::Args;
use stdx::num::parse_i64;
use stdx::points::{self, Point};
use value::ValueRef;

/// Elements of a value, or steps for the bytes of a string.
fn size(view: &View<'_>, key: &[u8]) -> usize {
    points::trip(Point::Estimate);
    match view.value(key) {
        None => 0,
        Some(ValueRef::Str(s)) => s.len() / BYTES_PER_STEP,
        Some(value) => len(value),
    }
}

fn len(value: ValueRef<'_>) -> usize {
    match value {
        ValueRef::Str(s) => s.len(),
        ValueRef::List(list) => list.len(),
        ValueRef::Hash(hash) => hash.len(),
        ValueRef::Set(set) => set.len(),
        ValueRef::ZSet(set) => set.len(),
        ValueRef::Stream(stream) => stream.len(),
        ValueRef::Roaring(bits) | ValueRef::Roaring64(bits) => {
            usize::try_from(bits.len()).unwrap_or(usize::MAX)
        }
    }
}

/// Estimates the whole value of the first key.
pub(crate) fn whole(view: &View<'_>, args: Args<'_>) -> usize {
    size(view, args.at(1))
}

/// Estimates the whole values of all arguments from `FROM` on.
pub(crate) fn all<const FROM: usize>(view: &View<'_>, args: Args<'_>) -> usize {
    args.from(FROM).iter().map(|key| size(view, key)).fold(0, usize::saturating_add)
}

/// Estimates `count` elements of the first key, if a count follows it. A negative count allows repetitions.
pub(crate) fn counted(view: &View<'_>, args: Args<'_>) -> usize {
    match args.get(2).and_then(parse_i64) {
        None => 0,
        Some(n) if n < 0 => n.unsigned_abs() as usize,
        Some(n) => size(view, args.at(1)).min(n as usize),
    }
}

/// Estimates the elements, or bytes, from one position to another.
pub(crate) fn between(view: &View<'_>, args: Args<'_>) -> usize {
    let (Some(start), Some(stop)) = (args.get(2).and_then(parse_i64), args.get(3).and_then(parse_i64)) else {
        return 0;
    };
    match view.value(args.at(1)) {
        None => 0,
        Some(ValueRef::Str(s)) => clamp(start, stop, s.len()).map_or(0, |r| r.len() / BYTES_PER_STEP),
        Some(value) => range(start, stop, len(value)).len(),
    }
}

/// Estimates a pop of the first of many keys that holds anything. Their number is argument `AT`; a COUNT
/// comes last.
pub(crate) fn popped<const AT: usize>(view: &View<'_>, args: Args<'_>) -> usize {
    let last = args.len() - 1;
    let count = parse_i64(args.at(last)).filter(|_| is(args.at(last - 1), "count")).unwrap_or(0);
    let keys = args.get(AT).and_then(parse_i64).and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
    // R1
    if count <= 0 || keys >= args.len() - AT {
        return 0;
    }
    let longest = (AT + 1..=AT + keys).map(|i| size(view, args.at(i))).max();
    longest.unwrap_or(0).min(count as usize)
}

#[cfg(test)]
mod tests {
    use crate::registry;
    use crate::table::Command;
    use crate::testing::{Db, split};
    use keyspace::{Keyspace, View};
    use resp::OwnedArgs;

    /// The estimate for a line's reply.
    fn estimate(db: &Db, line: &str) -> usize {
        let words = OwnedArgs::from_slices(&split(line).iter().map(Vec::as_slice).collect::<Vec<_>>());
        let args = words.args();
        let mut command: &Command = registry::find(args.at(0)).expect("a command");
        if !command.subs.is_empty() {
            command = registry::find_sub(command, args.at(1)).expect("a subcommand");
        }
        let mut keys = Vec::new();
        command.each_key(args, &mut |i, _| keys.push(args.at(i)));
        let view = View::locked(&db.keyspace, Keyspace::shards_of(keys), 0, db.now_ms);
        let steps = command.reply_steps(&view, args);
        assert_eq!(view.strays(), 0, "{line}");
        steps
    }

    #[test]
    fn long_replies_are_foreseen_and_short_ones_are_not_feared() {
        let mut db = Db::new();
        let many: String = (0..3000).map(|i| format!(" {i}")).collect();
        let pairs: String = (0..3000).map(|i| format!(" {i} m{i}")).collect();
        for line in [format!("rpush l{many}"), format!("sadd s{many}")] {
            assert_eq!(db.line(&line), "3000");
        }
        assert_eq!(db.line(&format!("hset h{pairs}")), "3000");
        assert_eq!(db.line(&format!("zadd z{pairs}")), "3000");
        db.run(&["set", "t", &"x".repeat(640_000)]);
        for (line, steps) in [
            ("smembers s", 3000),
            ("hgetall h", 3000),
            ("hkeys h", 3000),
            ("hvals h", 3000),
            ("lrange l 0 -1", 3000),
            ("lrange l 5 9", 5),
            ("lrange l a b", 0),
            ("lpop l", 0),
            ("lpop l 100", 100),
            ("rpop l 9999", 3000),
            ("lmpop 2 none l left", 0),
            ("lmpop 2 none l left count 70", 70),
            ("blmpop 0 2 none l left count 70000", 3000),
            ("zmpop 1 z min count 9999", 3000),
            ("zpopmin z 20", 20),
            ("srandmember s", 0),
            ("srandmember s -1000000", 1_000_000),
            ("srandmember s 4000", 3000),
            ("hrandfield h -70000 withvalues", 70_000),
            ("zrandmember z 5000", 3000),
            ("spop s 5000", 3000),
            ("get t", 10_000),
            ("get none", 0),
            ("get l", 3000),
            ("mget t none t", 20_000),
            ("evenkeel items t none t", 20_000),
            ("getrange t 0 -1", 10_000),
            ("getrange t 0 63", 1),
            ("getrange t 9 1", 0),
            ("getex t", 10_000),
            ("getdel t", 10_000),
            ("getset t x", 10_000),
            ("set t x get", 10_000),
            ("set t x", 0),
            ("zrange z 0 -1", 3000),
            ("zrange z 10 20 byscore", 11),
            ("zrevrange z 0 4", 5),
            ("zrangebyscore z -inf +inf limit 0 7", 7),
            ("zrevrangebylex z + -", 3000),
            ("zrange z a b", 0),
        ] {
            assert_eq!(estimate(&db, line), steps, "{line}");
        }
    }
}
