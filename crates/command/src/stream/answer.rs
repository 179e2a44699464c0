//! Answers of entries and IDs: short ones at once, long ones in pieces from a clone.

use super::id::Text;
use crate::string::STREAM_BYTES;
use crate::{Cx, Error, Held};
use resp::Reply;
use value::stream::Entry;
use value::{Stream, StreamId};

/// Room for a part of a few small entries.
const ENCODED_BYTES: usize = 512;

/// Writes an ID.
pub(super) fn id(out: &mut Reply, id: StreamId) {
    out.bulk(Text::new(id).bytes());
}

/// Writes an entry: its ID, and its fields with their values.
pub(super) fn entry(out: &mut Reply, entry: &Entry<'_>) {
    out.array(2);
    entry_parts(out, entry);
}

fn entry_parts(out: &mut Reply, entry: &Entry<'_>) {
    id(out, entry.id);
    let fields = entry.fields();
    out.array(2 * fields.len());
    for (field, value) in fields {
        out.bulk(field);
        out.bulk(value);
    }
}

/// The elements of an array.
pub(super) enum Source {
    /// The first so many entries of a range, from its end if `back`.
    Range { from: StreamId, to: StreamId, left: usize, back: bool },
    /// The entries of these IDs. One that is deleted is its ID and a null.
    Entries { ids: Vec<StreamId>, next: usize },
    /// The entries of these IDs, each with how long it was pending, in milliseconds, and how often it had been
    /// delivered.
    Delivered { entries: Vec<(StreamId, u64, u64)>, next: usize },
    /// Only IDs.
    Ids { ids: Vec<StreamId>, next: usize },
    /// The part that is encoded already.
    Encoded { replies: Vec<u8>, next: usize },
}

impl Source {
    /// A range of a stream from its end, and the number of its entries. O(log n + a block).
    pub(super) fn range_back(
        stream: &Stream,
        (from, to): (StreamId, StreamId),
        most: usize,
    ) -> (Source, usize) {
        let left = stream.count(from, to).min(most);
        (Source::Range { from, to, left, back: true }, left)
    }

    pub(super) fn entries(ids: Vec<StreamId>) -> Source {
        Source::Entries { ids, next: 0 }
    }

    pub(super) fn ids(ids: Vec<StreamId>) -> Source {
        Source::Ids { ids, next: 0 }
    }

    /// Writes elements up to a length of the reply; false when there are no more.
    fn fill(&mut self, stream: &Stream, out: &mut Reply, end: usize) -> bool {
        match self {
            Source::Range { left: 0, .. } => false,
            Source::Range { from, to, left, back: false } => {
                for found in stream.range(*from, *to).take(*left) {
                    entry(out, &found);
                    *left -= 1;
                    *from = found.id.next().unwrap_or(StreamId::MAX);
                    if out.len() >= end {
                        break;
                    }
                }
                *left > 0
            }
            Source::Range { from, to, left, back: true } => {
                for found in stream.range_back(*from, *to).take(*left) {
                    entry(out, &found);
                    *left -= 1;
                    *to = found.id.prev().unwrap_or(StreamId::MIN);
                    if out.len() >= end {
                        break;
                    }
                }
                *left > 0
            }
            Source::Entries { ids, next } => each(ids, next, out, end, |out, wanted| {
                if let Some(found) = stream.get(wanted) {
                    return entry(out, &found);
                }
                out.array(2);
                id(out, wanted);
                out.null_array();
            }),
            Source::Delivered { entries, next } => {
                each(entries, next, out, end, |out, (wanted, idle_ms, count)| {
                    if let Some(found) = stream.get(wanted) {
                        out.array(4);
                        entry_parts(out, &found);
                        out.int(idle_ms as i64);
                        out.int(count as i64);
                    }
                })
            }
            Source::Ids { ids, next } => each(ids, next, out, end, id),
            Source::Encoded { replies, next } => {
                out.encoded(&replies[*next..]);
                *next = replies.len();
                false
            }
        }
    }
}

fn each<T: Copy>(
    ids: &[T],
    next: &mut usize,
    out: &mut Reply,
    end: usize,
    write: impl Fn(&mut Reply, T),
) -> bool {
    for wanted in &ids[*next..] {
        write(out, *wanted);
        *next += 1;
        if out.len() >= end {
            break;
        }
    }
    *next < ids.len()
}

/// One part of an answer: what is encoded already, and the elements behind it.
struct AnswerPart {
    encoded: Vec<u8>,
    rest: Option<(Stream, Source)>,
}

/// An answer of parts, one after the other. What fits into a short answer is encoded when its part is added:
/// such a part shares nothing of the stream, so a command that changes the stream next copies nothing of it.
pub(super) struct Answer {
    parts: Vec<AnswerPart>,
    /// The part that is written next.
    at: usize,
    /// Bytes that are still encoded at once.
    room: usize,
    resp3: bool,
}

impl Answer {
    pub(super) fn new(resp3: bool) -> Answer {
        Answer { parts: Vec::new(), at: 0, room: STREAM_BYTES, resp3 }
    }

    /// Number of parts.
    pub(super) fn len(&self) -> usize {
        self.parts.len()
    }

    /// Adds a part: what `head` writes, and the elements.
    pub(super) fn part(&mut self, head: impl FnOnce(&mut Reply), stream: &Stream, mut source: Source) {
        let mut out = Reply::new(self.resp3);
        head(&mut out);
        let end = out.len() + self.room;
        let more = if self.room > 0 { source.fill(stream, &mut out, end) } else { true };
        self.add(out, more.then(|| (stream.clone(), source)));
    }

    /// Adds an array of the first `most` entries of a range, behind what `head` writes. `ids`: gets the ID of
    /// each. O(log n + a block), and the entries if `ids` is given.
    pub(super) fn range(
        &mut self,
        stream: &Stream,
        (from, to): (StreamId, StreamId),
        most: usize,
        mut ids: Option<&mut Vec<StreamId>>,
        head: impl FnOnce(&mut Reply),
    ) {
        let mut out = Reply::with_buffer(Vec::with_capacity(ENCODED_BYTES), self.resp3);
        head(&mut out);
        let (mark, end) = (out.mark(), out.len() + self.room);
        let (mut len, mut next) = (0, None);
        for found in stream.range(from, to).take(most) {
            if next.is_none() && out.len() >= end {
                next = Some(found.id);
            }
            match (next, &ids) {
                (None, _) => {
                    entry(&mut out, &found);
                    len += 1;
                }
                (Some(_), Some(_)) => {}
                (Some(_), None) => break,
            }
            if let Some(ids) = &mut ids {
                ids.push(found.id);
            }
        }
        let left = next.map_or(0, |next| stream.count(next, to).min(most - len));
        out.array_at(mark, len + left);
        let rest = next.map(|from| (stream.clone(), Source::Range { from, to, left, back: false }));
        self.add(out, rest);
    }

    fn add(&mut self, out: Reply, rest: Option<(Stream, Source)>) {
        self.room = self.room.saturating_sub(out.len());
        self.parts.push(AnswerPart { encoded: out.into_bytes(), rest });
    }

    /// Writes it at once if it is short; else begins it, and has the rest follow.
    pub(super) fn send(mut self, cx: &mut Cx<'_, '_>) -> Result<(), Error> {
        if crate::Stream::fill(&mut self, cx.out, STREAM_BYTES) { cx.stream(self) } else { Ok(()) }
    }
}

impl crate::Stream for Answer {
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
        let end = out.len().saturating_add(room);
        while let Some(part) = self.parts.get_mut(self.at) {
            out.encoded(&std::mem::take(&mut part.encoded));
            if let Some((stream, source)) = &mut part.rest
                && (out.len() >= end || source.fill(stream, out, end))
            {
                return true;
            }
            part.rest = None;
            self.at += 1;
            if out.len() >= end {
                return self.at < self.parts.len();
            }
        }
        false
    }

    fn holds(&self, held: &mut dyn FnMut(Held)) {
        let shared = self.parts.iter().filter_map(|part| part.rest.as_ref());
        shared.for_each(|(stream, _)| stream.held().into_iter().for_each(&mut *held));
    }
}

/// Answers an array of elements.
pub(super) fn array(cx: &mut Cx<'_, '_>, stream: &Stream, len: usize, source: Source) -> Result<(), Error> {
    let mut answer = Answer::new(cx.out.resp3());
    answer.part(|out| out.array(len), stream, source);
    answer.send(cx)
}
