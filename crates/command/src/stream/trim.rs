//! XTRIM, and the options that XADD shares with it: MAXLEN, MINID, `~`, LIMIT.
//!
//! - T1: only entries at the front go. So the length that is left says what was done, and is what the log gets
//!   for an approximate trim.

use super::id::{NewId, strict};
use super::{CHANGE_STEPS, DELETES, GROUP};
use crate::options::{int, is};
use crate::table::{Command, Run, WRITE, acl};
use crate::{Cx, Error};
use keyspace::{Class, View};
use resp::Args;
use value::{Stream, StreamId, limits};

pub(crate) static COMMANDS: &[Command] = &[Command::new("xtrim", -4, Run::Write(xtrim), WRITE, acl::STREAM)
    .portable(602)
    .keys(DELETES)
    .cost(|view, args| Words::parse(args, false, false).map_or(0, |words| words.steps(view, args.at(1))))
    .tips(&["nondeterministic_output"])
    .doc(
        GROUP,
        "5.0.0",
        "O(N) for N entries that go.",
        "Takes the oldest entries out of a stream, down to a length or an ID.",
    )];

/// The entries to keep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Keep {
    Len(u64),
    From(StreamId),
}

/// The options in front of XADD's ID, or all of XTRIM's.
#[derive(Default)]
pub(super) struct Words {
    pub(super) keep: Option<Keep>,
    /// Only whole pieces go.
    pub(super) approx: bool,
    /// Entries that go at most; 0: no limit.
    limit: u64,
    pub(super) no_make: bool,
    /// XADD's ID, and where its fields begin.
    pub(super) id: Option<NewId>,
    pub(super) fields: usize,
}

impl Words {
    /// Reads the options. Errors: not an integer, negative, invalid ID, syntax in several words.
    pub(super) fn parse(args: Args<'_>, adds: bool, in_replay: bool) -> Result<Words, Error> {
        let (mut words, mut limit, mut i) = (Words::default(), None, 2);
        while let Some(word) = args.get(i) {
            let more = args.len() - 1 - i;
            if adds && word == b"*" {
                words.id = Some(NewId::Auto);
                break;
            } else if more > 0 && (is(word, "maxlen") || is(word, "minid")) {
                i = words.read_keep(args, i)?;
            } else if more > 0 && is(word, "limit") {
                let most = int(args.at(i + 1))?;
                limit = Some(
                    u64::try_from(most).map_err(|_| Error::new("ERR The LIMIT argument must be >= 0."))?,
                );
                i += 2;
            } else if adds && is(word, "nomkstream") {
                words.no_make = true;
                i += 1;
            } else if adds {
                words.id = Some(NewId::parse(word)?);
                break;
            } else {
                return Err(Error::Syntax);
            }
        }
        words.fields = i + 1;
        words.settle_limit(limit, adds, in_replay)?;
        Ok(words)
    }

    /// Reads `MAXLEN|MINID [=|~] threshold` at `i`; what stands behind it.
    fn read_keep(&mut self, args: Args<'_>, mut i: usize) -> Result<usize, Error> {
        if self.keep.is_some() {
            return Err(Error::new(
                "ERR syntax error, MAXLEN and MINID options at the same time are not compatible",
            ));
        }
        let by_len = is(args.at(i), "maxlen");
        i += 1;
        let marked = args.len() - i >= 2 && matches!(args.at(i), b"~" | b"=");
        self.approx = marked && args.at(i) == b"~";
        i += usize::from(marked);
        self.keep = Some(if by_len {
            let len = int(args.at(i))?;
            Keep::Len(u64::try_from(len).map_err(|_| Error::new("ERR The MAXLEN argument must be >= 0."))?)
        } else {
            Keep::From(strict(args.at(i))?)
        });
        Ok(i + 1)
    }

    fn settle_limit(&mut self, limit: Option<u64>, adds: bool, in_replay: bool) -> Result<(), Error> {
        if self.keep.is_none() && limit.is_some_and(|limit| limit > 0) {
            return Err(Error::new(
                "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy",
            ));
        }
        if self.keep.is_none() && !adds {
            return Err(Error::new("ERR syntax error, XTRIM must be called with a trimming strategy"));
        }
        if in_replay {
            return Ok(());
        }
        if limit.is_some() && !self.approx {
            return Err(Error::new("ERR syntax error, LIMIT cannot be used without the special ~ option"));
        }
        let pieces = match limits::STREAM_NODE_MAX_ENTRIES.get() as u64 {
            0 => 10_000,
            entries => entries.saturating_mul(100).min(1_000_000),
        };
        self.limit = if self.approx { limit.unwrap_or(pieces) } else { 0 };
        Ok(())
    }

    /// About how many steps the trim takes. O(log n).
    pub(super) fn steps(&self, view: &View<'_>, key: &[u8]) -> usize {
        let Ok(Some(stream)) = view.stream(key) else { return 0 };
        let gone = match self.keep {
            None => 0,
            Some(Keep::Len(len)) => stream.len().saturating_sub(usize::try_from(len).unwrap_or(usize::MAX)),
            Some(Keep::From(id)) => id.prev().map_or(0, |last| stream.count(StreamId::MIN, last)),
        };
        gone / 8
    }

    /// Takes the entries out; their number. O(log n + entries that go).
    pub(super) fn trim(&self, stream: &mut Stream) -> u64 {
        match self.keep {
            None => 0,
            Some(Keep::Len(len)) => stream.trim_to_len(len, self.approx, self.limit),
            Some(Keep::From(id)) => stream.trim_below(id, self.approx, self.limit),
        }
    }
}

/// `XTRIM key MAXLEN|MINID [=|~] threshold [LIMIT count]`: the number of entries that went. With `~` only whole
/// pieces of the stream go. The log receives an exact length (T1).
///
/// Cost: O(log n + m), m = entries that go. Errors: syntax, numbers below 0, invalid ID, WRONGTYPE.
fn xtrim(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let words = Words::parse(args, false, cx.caller.in_replay)?;
    let key = args.at(1);
    if cx.view.stream(key)?.is_none() {
        cx.out.int(0);
        return Ok(());
    }
    let steps = words.steps(cx.view, key);
    cx.charge(CHANGE_STEPS + steps)?;
    let (mut gone, mut len) = (0, 0);
    if let Some(stream) = cx.view.stream_mut(key)? {
        gone = words.trim(stream);
        len = stream.len();
    }
    cx.out.int(gone as i64);
    if gone > 0 {
        cx.view.changed(key, Class::Stream, "xtrim");
        if words.approx {
            cx.effect(&[b"XTRIM", key, b"MAXLEN", b"=", len.to_string().as_bytes()]);
        }
    }
    Ok(())
}
