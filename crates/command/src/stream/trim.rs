//! XTRIM, and the options that XADD shares with it: MAXLEN, MINID, `~`, LIMIT, KEEPREF, DELREF, ACKED.
//!
//! - T1: only entries at the front go. So the length that is left says what was done, and is what the log gets
//!   for an approximate trim. With ACKED those in between may go, too, and the log gets their IDs.

use super::id::{NewId, strict};
use super::idmp;
use super::refs::{self, Dropped, Refs};
use super::{CHANGE_STEPS, DELETES, GROUP, LOOK_STEPS};
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
    /// The fate of what groups have of the entries that go, if a word says so.
    pub(super) refs: Option<Refs>,
    /// The message of an idempotent producer that it is.
    pub(super) message: Option<idmp::Words>,
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
            } else if let Some(refs) = Refs::named(word) {
                if words.refs.replace(refs).is_some() {
                    return Err(Error::Syntax);
                }
                i += 1;
            } else if adds && is(word, "nomkstream") {
                words.no_make = true;
                i += 1;
            } else if adds && let Some(behind) = words.read_message(args, i)? {
                i = behind;
            } else if adds {
                words.id = Some(NewId::parse(word)?);
                if words.message.is_some() && !in_replay {
                    return Err(Error::new(
                        "ERR syntax error, IDMP/IDMPAUTO can be used only with auto-generated IDs",
                    ));
                }
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

    /// Reads `IDMP pid iid` or `IDMPAUTO pid` at `i`; what stands behind it, or None if neither is there. Errors: a
    /// second one, an empty word.
    fn read_message(&mut self, args: Args<'_>, i: usize) -> Result<Option<usize>, Error> {
        let (word, more) = (args.at(i), args.len() - 1 - i);
        let auto = more >= 1 && is(word, "idmpauto");
        if !(auto || more >= 2 && is(word, "idmp")) {
            return Ok(None);
        }
        if self.message.is_some() {
            return Err(Error::new("ERR syntax error, IDMP/IDMPAUTO specified multiple times"));
        }
        if args.at(i + 1).is_empty() {
            return Err(Error::new(match auto {
                true => "ERR syntax error, IDMPAUTO requires a non-empty producer ID",
                false => "ERR syntax error, IDMP requires a non-empty producer ID",
            }));
        }
        if auto {
            self.message = Some(idmp::Words { pid: i + 1, iid: None });
            return Ok(Some(i + 2));
        }
        if args.at(i + 2).is_empty() {
            return Err(Error::new("ERR syntax error, IDMP requires a non-empty idempotent ID"));
        }
        self.message = Some(idmp::Words { pid: i + 1, iid: Some(i + 2) });
        Ok(Some(i + 3))
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
        let looks = |entries: usize| entries.saturating_mul((1 + stream.groups()) * LOOK_STEPS);
        match (self.refs, self.keep) {
            (Some(Refs::Drop), _) => gone / 8 + looks(gone),
            (Some(Refs::Acked), Some(Keep::Len(_))) if gone > 0 && !self.approx => {
                gone.saturating_mul(CHANGE_STEPS).saturating_add(looks(stream.len()))
            }
            (Some(Refs::Acked), _) => gone.saturating_mul(CHANGE_STEPS).saturating_add(looks(gone)),
            _ => gone / 8,
        }
    }

    /// Takes the entries out. O(log n + entries that go); with ACKED and DELREF O(entries looked at · groups).
    pub(super) fn trim(&self, stream: &mut Stream) -> Trimmed {
        let mut trimmed = Trimmed::default();
        let Some(keep) = self.keep else { return trimmed };
        if self.refs == Some(Refs::Acked) {
            trimmed.ids = self.done_entries(stream, keep);
            trimmed.gone = trimmed.ids.iter().filter(|id| stream.remove(**id)).count() as u64;
            return trimmed;
        }
        let gone = if self.refs == Some(Refs::Drop) { self.front(stream, keep) } else { Vec::new() };
        trimmed.gone = match keep {
            Keep::Len(len) => stream.trim_to_len(len, self.approx, self.limit),
            Keep::From(id) => stream.trim_below(id, self.approx, self.limit),
        };
        trimmed.dropped = refs::drop_references(stream, &gone);
        trimmed
    }

    /// Number of entries that a plain trim takes.
    fn excess(&self, stream: &Stream, keep: Keep) -> u64 {
        let len = match keep {
            Keep::Len(len) => len,
            Keep::From(id) => stream.len() as u64 - stream.below(id),
        };
        stream.trims(len, self.approx, self.limit)
    }

    /// The entries that a plain trim takes.
    fn front(&self, stream: &Stream, keep: Keep) -> Vec<StreamId> {
        let count = usize::try_from(self.excess(stream, keep)).unwrap_or(usize::MAX);
        stream.range(StreamId::MIN, StreamId::MAX).take(count).map(|entry| entry.id).collect()
    }

    /// The oldest entries that no group needs: as many as are too many. By MINID, and with `~`, only those are
    /// looked at that a plain trim takes.
    fn done_entries(&self, stream: &Stream, keep: Keep) -> Vec<StreamId> {
        let count = usize::try_from(self.excess(stream, keep)).unwrap_or(usize::MAX);
        let looked = if self.approx || matches!(keep, Keep::From(_)) { count } else { stream.len() };
        let entries = stream.range(StreamId::MIN, StreamId::MAX).take(looked).map(|entry| entry.id);
        entries.filter(|id| !stream.is_referenced(*id)).take(count).collect()
    }
}

/// The outcome of a trim.
#[derive(Default)]
pub(super) struct Trimmed {
    /// Number of entries that went.
    pub(super) gone: u64,
    /// The entries that went, if not simply the first ones did (ACKED).
    pub(super) ids: Vec<StreamId>,
    /// Entries that are pending no more (DELREF).
    pub(super) dropped: Dropped,
}

/// `XTRIM key MAXLEN|MINID [=|~] threshold [LIMIT count] [KEEPREF|DELREF|ACKED]`: the number of entries that
/// went. With `~` only whole pieces of the stream go. The log receives an exact length, or with ACKED the IDs
/// (T1).
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
    let (mut trimmed, mut len) = (Trimmed::default(), 0);
    if let Some(stream) = cx.view.stream_mut(key)? {
        trimmed = words.trim(stream);
        len = stream.len();
    }
    cx.out.int(trimmed.gone as i64);
    if trimmed.gone == 0 {
        return Ok(());
    }
    cx.view.changed(key, Class::Stream, "xtrim");
    match words.refs {
        Some(Refs::Acked) => refs::tell_gone(cx, key, &trimmed.ids),
        None if !words.approx => {}
        _ => cx.effect(&[b"XTRIM", key, b"MAXLEN", b"=", len.to_string().as_bytes()]),
    }
    refs::tell_dropped(cx, key, &trimmed.dropped);
    Ok(())
}
