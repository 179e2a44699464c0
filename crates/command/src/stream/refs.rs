//! XDELEX, XACKDEL, and the words KEEPREF, DELREF and ACKED: entries that go, and what groups still have of
//! them.
//!
//! ```text
//! KEEPREF  the entry goes; it stays pending where it is
//! DELREF   the entry goes, and is pending nowhere any more
//! ACKED    the entry goes if every group has read it and none has it pending
//! ```
//!
//! - R1: the log hears what was done, as XDEL and XACK, which every server knows.
//!
//! Cost: O(log n) for an entry and O(log p) for each group.

use super::{CHANGE_STEPS, DELETES, GROUP, LOOK_STEPS, id, note};
use crate::options::{int, is};
use crate::table::{Command, Effect, FAST, KeySpec, RW_UPDATE_DELETE, Run, WRITE, acl};
use crate::{Cx, Error};
use keyspace::{Class, View};
use resp::Args;
use value::{Stream, StreamId};

pub(crate) static COMMANDS: &[Command] = &[
    Command::new("xdelex", -5, Run::Write(xdelex), WRITE | FAST, acl::STREAM)
        .keys(DELETES)
        .cost(steps)
        .effect(Effect::Noted)
        .portable(500)
        .doc(
            GROUP,
            "8.2.0",
            "O(M*(log(N)+G)) for M IDs of N and G groups.",
            "Takes entries out of a stream, and tells what became of each.",
        ),
    Command::new("xackdel", -6, Run::Write(xackdel), WRITE | FAST, acl::STREAM)
        .keys(&[KeySpec::one(1, RW_UPDATE_DELETE)])
        .cost(steps)
        .effect(Effect::Noted)
        .portable(500)
        .doc(
            GROUP,
            "8.2.0",
            "O(M*(log(N)+G)) for M IDs of N and G groups.",
            "Says that entries of a group are done, and takes them out of the stream.",
        ),
];

/// The fate of what groups have of an entry that goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refs {
    Keep,
    Drop,
    /// Nothing goes that a group still needs.
    Acked,
}

impl Refs {
    pub(super) fn named(word: &[u8]) -> Option<Refs> {
        let named = [("keepref", Refs::Keep), ("delref", Refs::Drop), ("acked", Refs::Acked)];
        named.iter().find(|(name, _)| is(word, name)).map(|(_, refs)| *refs)
    }
}

/// Entries that were pending and are no more: of each group by name.
pub(super) type Dropped = Vec<(Vec<u8>, Vec<StreamId>)>;

/// Takes entries off all groups. O(ids · groups · log p).
pub(super) fn drop_references(stream: &mut Stream, ids: &[StreamId]) -> Dropped {
    let has_some = |group: &value::stream::Group| ids.iter().any(|id| group.pending(*id).is_some());
    let names: Vec<Vec<u8>> =
        stream.iter_groups().filter(|(_, group)| has_some(group)).map(|(name, _)| name.to_vec()).collect();
    let mut dropped = Vec::with_capacity(names.len());
    for name in names {
        if let Some(mut group) = stream.group_mut(&name) {
            let gone = ids.iter().copied().filter(|id| group.ack(*id)).collect();
            dropped.push((name, gone));
        }
    }
    dropped
}

/// Tells the log of entries that went (R1).
pub(super) fn tell_gone(cx: &mut Cx<'_, '_>, key: &[u8], gone: &[StreamId]) {
    if !gone.is_empty() {
        note(cx, &[b"XDEL", key], gone, &[]);
    }
}

/// Tells the log of entries that are pending no more (R1).
pub(super) fn tell_dropped(cx: &mut Cx<'_, '_>, key: &[u8], dropped: &Dropped) {
    for (group, ids) in dropped.iter().filter(|(_, ids)| !ids.is_empty()) {
        note(cx, &[b"XACK", key, group], ids, &[]);
    }
}

/// Steps of XDELEX and XACKDEL. O(1)
fn steps(view: &View<'_>, args: Args<'_>) -> usize {
    let groups = view.stream(args.at(1)).ok().flatten().map_or(0, Stream::groups);
    args.len().saturating_mul(CHANGE_STEPS + groups.saturating_mul(LOOK_STEPS))
}

/// Reads `[KEEPREF | DELREF | ACKED] IDS numids id [id ...]`, in either order. Errors: syntax, a count that
/// is no positive integer or goes past the end, invalid ID.
fn parse(args: Args<'_>) -> Result<(Refs, Vec<StreamId>), Error> {
    let (mut refs, mut ids, mut i) = (None, None, 0);
    while let Some(word) = args.get(i) {
        i += 1;
        match Refs::named(word) {
            Some(named) if refs.is_none() => refs = Some(named),
            None if is(word, "ids") && ids.is_none() => {
                let count = args.get(i).ok_or(Error::Syntax)?;
                let count =
                    int(count).ok().and_then(|count| usize::try_from(count).ok()).filter(|count| *count > 0);
                let count = count.ok_or(Error::new("ERR Number of IDs must be a positive integer"))?;
                if count > args.len() - i - 1 {
                    return Err(Error::new("ERR The `numids` parameter must match the number of arguments"));
                }
                ids = Some(args.slice(i + 1, count).iter().map(id::strict).collect::<Result<Vec<_>, _>>()?);
                i += 1 + count;
            }
            _ => return Err(Error::Syntax),
        }
    }
    Ok((refs.unwrap_or(Refs::Keep), ids.ok_or(Error::Syntax)?))
}

/// Marks in the replies.
const NOT_THERE: i64 = -1;
const WENT: i64 = 1;
const STAYS: i64 = 2;

/// The outcome of a call: a mark for each ID, and what has changed.
#[derive(Default)]
struct RefOutcome {
    marks: Vec<i64>,
    gone: Vec<StreamId>,
    dropped: Dropped,
}

impl RefOutcome {
    /// Takes one entry out as `refs` says.
    fn remove(&mut self, stream: &mut Stream, id: StreamId, refs: Refs) -> bool {
        if refs == Refs::Drop {
            self.dropped.extend(drop_references(stream, &[id]));
        }
        let goes = refs != Refs::Acked || !stream.is_referenced(id);
        if goes && stream.remove(id) {
            self.gone.push(id);
        }
        goes
    }

    /// Answers, and tells the log and the listeners.
    fn answer(self, cx: &mut Cx<'_, '_>, key: &[u8]) {
        cx.out.array(self.marks.len());
        self.marks.iter().for_each(|mark| cx.out.int(*mark));
        tell_dropped(cx, key, &self.dropped);
        tell_gone(cx, key, &self.gone);
        match (self.gone.is_empty(), self.dropped.is_empty()) {
            (false, _) => cx.view.changed(key, Class::Stream, "xdel"),
            (true, false) => cx.view.count_change(),
            (true, true) => {}
        }
    }
}

fn all_absent(cx: &mut Cx<'_, '_>, ids: &[StreamId]) {
    cx.out.array(ids.len());
    ids.iter().for_each(|_| cx.out.int(NOT_THERE));
}

/// `XDELEX key [KEEPREF | DELREF | ACKED] IDS numids id [id ...]`: for each ID 1 if the entry went, 2 if a
/// group still needs the ID (ACKED), also if its entry went before, else -1 if there is none. DELREF also
/// forgets what is pending of entries that went before.
///
/// Cost: O(m · (log n + g)), m = IDs, g = groups. Errors: those of the words, WRONGTYPE. Source: Redis 8.2.
fn xdelex(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (refs, ids) = parse(args.from(2))?;
    let key = args.at(1);
    let Some(stream) = cx.view.stream(key)? else {
        all_absent(cx, &ids);
        return Ok(());
    };
    // An entry that went before may be pending still.
    let dangles = |id: &StreamId| match refs {
        Refs::Keep => false,
        Refs::Drop => stream.is_pending(*id),
        Refs::Acked => stream.is_referenced(*id),
    };
    if !ids.iter().any(|id| stream.contains(*id) || dangles(id)) {
        all_absent(cx, &ids);
        return Ok(());
    }
    let steps = steps(cx.view, args);
    cx.charge(steps)?;
    let mut outcome = RefOutcome::default();
    if let Some(stream) = cx.view.stream_mut(key)? {
        for id in ids {
            let is_there = stream.contains(id);
            let goes = outcome.remove(stream, id, refs);
            outcome.marks.push(match (is_there, goes) {
                (_, false) => STAYS,
                (false, true) => NOT_THERE,
                (true, true) => WENT,
            });
        }
    }
    outcome.answer(cx, key);
    Ok(())
}

/// `XACKDEL key group [KEEPREF | DELREF | ACKED] IDS numids id [id ...]`: for each ID -1 if it was not
/// pending in the group, else 1 if the entry went, or 2 if another group still needs it (ACKED). Without the
/// stream or the group all are -1.
///
/// Cost: O(m · (log n + g)), m = IDs, g = groups. Errors: those of the words, WRONGTYPE. Source: Redis 8.2.
fn xackdel(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (refs, ids) = parse(args.from(3))?;
    let (key, name) = (args.at(1), args.at(2));
    let group = cx.view.stream(key)?.and_then(|stream| stream.group(name));
    if !group.is_some_and(|group| ids.iter().any(|id| group.pending(*id).is_some())) {
        all_absent(cx, &ids);
        return Ok(());
    }
    let steps = steps(cx.view, args);
    cx.charge(steps)?;
    let (mut outcome, mut done) = (RefOutcome::default(), Vec::new());
    if let Some(stream) = cx.view.stream_mut(key)? {
        for id in ids {
            if !stream.group_mut(name).is_some_and(|mut group| group.ack(id)) {
                outcome.marks.push(NOT_THERE);
                continue;
            }
            done.push(id);
            let goes = outcome.remove(stream, id, refs);
            outcome.marks.push(if goes { WENT } else { STAYS });
        }
    }
    outcome.dropped.insert(0, (name.to_vec(), done));
    outcome.answer(cx, key);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Db;

    const GROUPS: [(&str, &str); 6] = [
        ("xadd s 1-0 f v", "\"1-0\""),
        ("xadd s 2-0 f v", "\"2-0\""),
        ("xadd s 3-0 f v", "\"3-0\""),
        ("xgroup create s g 0", "OK"),
        ("xgroup create s h 0", "OK"),
        (
            "xreadgroup group g a count 2 streams s >",
            r#"[["s", [["1-0", ["f", "v"]], ["2-0", ["f", "v"]]]]]"#,
        ),
    ];
    const READ_H: (&str, &str) = (
        "xreadgroup group h b count 2 streams s >",
        r#"[["s", [["1-0", ["f", "v"]], ["2-0", ["f", "v"]]]]]"#,
    );

    fn told(db: &mut Db, line: &str, reply: &str) -> Vec<String> {
        db.effect_lines();
        db.check(&[(line, reply)]);
        db.effect_lines()
    }

    #[test]
    fn entries_go_and_stay_pending_or_not_as_asked() {
        Db::both(|mut db| {
            db.check(&GROUPS);
            db.check(&[READ_H]);
            assert_eq!(told(&mut db, "xdelex s ids 2 1-0 9-0", "[1, -1]"), ["XDEL s 1-0"]);
            db.check(&[("xack s g 1-0", "1")]);
            let gone = told(&mut db, "xdelex s ids 2 1-0 2-0 delref", "[-1, 1]");
            assert_eq!(gone, ["XACK s h 1-0", "XACK s g 2-0", "XACK s h 2-0", "XDEL s 2-0"]);
            db.check(&[
                ("xpending s g", "[0, nil, nil, nil array]"),
                ("xpending s h", "[0, nil, nil, nil array]"),
                ("xlen s", "1"),
                ("xdelex none acked ids 2 1-0 2-0", "[-1, -1]"),
            ]);
        });
    }

    #[test]
    fn an_entry_that_a_group_needs_stays() {
        Db::both(|mut db| {
            db.check(&GROUPS);
            // The second group has read nothing yet.
            assert!(told(&mut db, "xdelex s acked ids 2 1-0 3-0", "[2, 2]").is_empty());
            db.check(&[READ_H, ("xack s g 1-0 2-0", "2"), ("xack s h 1-0", "1")]);
            assert_eq!(told(&mut db, "xdelex s acked ids 3 1-0 2-0 3-0", "[1, 2, 2]"), ["XDEL s 1-0"]);
            // A group has it pending though it went before, or has not come that far.
            assert!(told(&mut db, "xdel s 2-0", "1").is_empty());
            assert!(told(&mut db, "xdelex s acked ids 3 1-0 2-0 7-0", "[-1, 2, 2]").is_empty());
            db.check(&[("xadd s 8-0 f v", "\"8-0\""), ("xtrim s acked maxlen 0", "0"), ("xlen s", "2")]);
            db.check(&[
                ("xgroup destroy s g", "1"),
                ("xgroup destroy s h", "1"),
                ("xdelex s ids 1 8-0", "[1]"),
            ]);
            db.check(&[("xdelex s acked ids 2 2-0 3-0", "[-1, 1]"), ("xlen s", "0"), ("exists s", "1")]);
        });
    }

    #[test]
    fn entries_are_done_and_go() {
        Db::both(|mut db| {
            db.check(&GROUPS);
            db.check(&[READ_H]);
            assert_eq!(told(&mut db, "xackdel s g acked ids 2 1-0 3-0", "[2, -1]"), ["XACK s g 1-0"]);
            let gone = told(&mut db, "xackdel s h acked ids 1 1-0", "[1]");
            assert_eq!(gone, ["XACK s h 1-0", "XDEL s 1-0"]);
            assert_eq!(told(&mut db, "xackdel s g ids 1 2-0", "[1]"), ["XACK s g 2-0", "XDEL s 2-0"]);
            // It is still pending for the other group, though it is gone.
            assert_eq!(told(&mut db, "xackdel s h delref ids 1 2-0", "[1]"), ["XACK s h 2-0"]);
            assert!(told(&mut db, "xackdel s h ids 1 2-0", "[-1]").is_empty());
            db.check(&[("xackdel s none ids 1 3-0", "[-1]"), ("xackdel none g ids 2 1-0 2-0", "[-1, -1]")]);
        });
    }

    #[test]
    fn wrong_words_are_refused() {
        const COUNT: &str = "-ERR Number of IDs must be a positive integer";
        const MATCH: &str = "-ERR The `numids` parameter must match the number of arguments";
        Db::both(|mut db| {
            db.check(&GROUPS);
            db.check(&[
                ("xdelex s ids x 1-0", COUNT),
                ("xdelex s ids 0 1-0", COUNT),
                ("xdelex s ids -1 1-0", COUNT),
                ("xdelex s ids 3 1-0 2-0", MATCH),
                ("xdelex s ids 1 1-0 2-0", "-ERR syntax error"),
                ("xdelex s keepref delref ids 1 1-0", "-ERR syntax error"),
                ("xdelex s acked 1 1-0", "-ERR syntax error"),
                ("xdelex s keepref 1 ids", "-ERR syntax error"),
                ("xdelex s ids 1 x", "-ERR Invalid stream ID specified as stream command argument"),
                ("xackdel s g acked delref ids 1 1-0", "-ERR syntax error"),
                ("xackdel s g ids 2 1-0", MATCH),
                ("xackdel s g ids 1", "-ERR wrong number of arguments for 'xackdel' command"),
                ("set t v", "OK"),
                ("xdelex t ids 1 1-0", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
                ("xlen s", "3"),
            ]);
        });
    }

    #[test]
    fn trims_keep_drop_or_respect_what_is_pending() {
        Db::both(|mut db| {
            db.check(&GROUPS);
            db.check(&[READ_H, ("xack s g 2-0", "1"), ("xack s h 2-0", "1")]);
            // Only the second entry is done everywhere.
            assert_eq!(told(&mut db, "xtrim s maxlen 0 acked", "1"), ["XDEL s 2-0"]);
            let added = told(&mut db, "xadd s maxlen = 1 acked 4-0 f v", "\"4-0\"");
            assert_eq!(added, ["XADD s 4-0 f v"]);
            assert_eq!(
                told(&mut db, "xtrim s delref minid 3", "1"),
                ["XTRIM s MAXLEN = 2", "XACK s g 1-0", "XACK s h 1-0"]
            );
            db.check(&[("xpending s g", "[0, nil, nil, nil array]")]);
            let added = told(&mut db, "xadd s keepref maxlen 1 5-0 f v", "\"5-0\"");
            assert_eq!(added, ["XADD s MAXLEN = 1 5-0 f v"]);
            db.check(&[
                ("xrange s - +", r#"[["5-0", ["f", "v"]]]"#),
                ("xadd s keepref acked * f v", "-ERR syntax error"),
                ("xtrim s acked delref maxlen 1", "-ERR syntax error"),
                ("xtrim s acked", "-ERR wrong number of arguments for 'xtrim' command"),
            ]);
        });
    }
}
