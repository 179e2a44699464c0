//! XRANGE, XREVRANGE: entries between two IDs.

use super::answer::{Answer, Source, array};
use super::{FEW, GROUP, READS, count, id};
use crate::options::is;
use crate::table::{Command, READONLY, Run, acl};
use crate::{Cx, Error};
use keyspace::View;
use resp::Args;

const PLUS: &str = "O(log(N)+M) for M of N entries.";

pub(crate) static COMMANDS: &[Command] = &[
    Command::new("xrange", -4, Run::Read(xrange), READONLY, acl::STREAM)
        .keys(READS)
        .reply(|view, args| reply(view, args, false))
        .doc(GROUP, "5.0.0", PLUS, "Answers the entries from one ID to another."),
    Command::new("xrevrange", -4, Run::Read(xrevrange), READONLY, acl::STREAM)
        .keys(READS)
        .reply(|view, args| reply(view, args, true))
        .doc(GROUP, "5.0.0", PLUS, "Answers the entries from one ID back to another."),
];

/// `start end [COUNT count]`, the other way round if `back`.
fn parse(args: Args<'_>, back: bool) -> Result<((value::StreamId, value::StreamId), Option<usize>), Error> {
    let (first, last) = if back { (3, 2) } else { (2, 3) };
    let ids = (id::start(args.at(first))?, id::end(args.at(last))?);
    let (mut most, mut i) = (None, 4);
    while let Some(word) = args.get(i) {
        match args.get(i + 1) {
            Some(value) if is(word, "count") => most = Some(count(value)?),
            _ => return Err(Error::Syntax),
        }
        i += 2;
    }
    Ok((ids, most))
}

/// Steps for the entries that are answered. O(log n).
fn reply(view: &View<'_>, args: Args<'_>, back: bool) -> usize {
    let Ok(((from, to), most)) = parse(args, back) else { return 0 };
    let Ok(Some(stream)) = view.stream(args.at(1)) else { return 0 };
    most.filter(|most| *most <= FEW)
        .unwrap_or_else(|| stream.count(from, to).min(most.unwrap_or(usize::MAX)))
        .saturating_mul(4)
}

/// `XRANGE key start end [COUNT count]`: the entries between two IDs, exclusive behind `(`. A COUNT of 0
/// gives a null array. A long answer streams from an O(1) clone.
///
/// Cost: O(log n) and the reply. Errors: invalid ID, empty interval, not an integer, syntax, WRONGTYPE.
fn xrange(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    answer(cx, args, false)
}

/// `XREVRANGE key end start [COUNT count]`: as XRANGE, the latest entry first.
///
/// Cost: as XRANGE. Errors: as XRANGE.
fn xrevrange(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    answer(cx, args, true)
}

fn answer(cx: &mut Cx<'_, '_>, args: Args<'_>, back: bool) -> Result<(), Error> {
    let (ids, most) = parse(args, back)?;
    let key = args.at(1);
    let stream = cx.view.stream(key)?.cloned();
    cx.view.count_lookup(key, stream.is_some());
    match stream {
        None => cx.out.array(0),
        Some(_) if most == Some(0) => cx.out.null_array(),
        Some(stream) => {
            let most = most.unwrap_or(usize::MAX);
            if back {
                let (source, len) = Source::range_back(&stream, ids, most);
                return array(cx, &stream, len, source);
            }
            let mut answer = Answer::new(cx.out.resp3());
            answer.range(&stream, ids, most, None, |_| {});
            answer.send(cx)?;
        }
    }
    Ok(())
}
