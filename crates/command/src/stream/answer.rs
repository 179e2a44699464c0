//! Answers of entries and IDs: short ones at once, long ones in pieces from a clone.

use super::id::Text;
use crate::string::STREAM_BYTES;
use crate::{Cx, Error, Held};
use resp::Reply;
use value::stream::Entry;
use value::{Stream, StreamId};

/// Writes an ID.
pub(super) fn id(out: &mut Reply, id: StreamId) {
    out.bulk(Text::new(id).bytes());
}

/// Writes an entry: its ID, and its fields with their values.
pub(super) fn entry(out: &mut Reply, entry: &Entry<'_>) {
    out.array(2);
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
    /// Only IDs.
    Ids { ids: Vec<StreamId>, next: usize },
    /// Replies that are encoded already.
    Encoded { replies: Vec<u8>, next: usize },
}

impl Source {
    /// A range of a stream, and the number of its entries. O(log n).
    pub(super) fn range(
        stream: &Stream,
        (from, to): (StreamId, StreamId),
        count: usize,
        back: bool,
    ) -> (Source, usize) {
        let left = stream.count(from, to).min(count);
        (Source::Range { from, to, left, back }, left)
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
            Source::Ids { ids, next } => each(ids, next, out, end, id),
            Source::Encoded { replies, next } => {
                out.encoded(&replies[*next..]);
                *next = replies.len();
                false
            }
        }
    }
}

fn each(
    ids: &[StreamId],
    next: &mut usize,
    out: &mut Reply,
    end: usize,
    write: impl Fn(&mut Reply, StreamId),
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

/// One part of an answer: what stands in front, already encoded, and the elements behind it.
pub(super) struct Part {
    head: Vec<u8>,
    stream: Stream,
    source: Source,
}

impl Part {
    /// A part behind a head that `write` makes.
    pub(super) fn new(resp3: bool, write: impl FnOnce(&mut Reply), stream: &Stream, source: Source) -> Part {
        let mut head = Reply::new(resp3);
        write(&mut head);
        Part { head: head.into_bytes(), stream: stream.clone(), source }
    }
}

/// Parts that are written one after the other.
pub(super) struct Answer {
    parts: std::vec::IntoIter<Part>,
    at: Option<Part>,
}

impl Answer {
    pub(super) fn new(parts: Vec<Part>) -> Answer {
        let mut parts = parts.into_iter();
        let at = parts.next();
        Answer { parts, at }
    }

    /// Writes it at once if it is short; else begins it, and has the rest follow.
    pub(super) fn send(mut self, cx: &mut Cx<'_, '_>) -> Result<(), Error> {
        if crate::Stream::fill(&mut self, cx.out, STREAM_BYTES) { cx.stream(self) } else { Ok(()) }
    }
}

impl crate::Stream for Answer {
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
        let end = out.len().saturating_add(room);
        while let Some(part) = &mut self.at {
            out.encoded(&std::mem::take(&mut part.head));
            if part.source.fill(&part.stream, out, end) {
                return true;
            }
            self.at = self.parts.next();
            if out.len() >= end {
                return self.at.is_some();
            }
        }
        false
    }

    fn holds(&self, held: &mut dyn FnMut(Held)) {
        for part in self.at.iter().chain(self.parts.as_slice()) {
            part.stream.held().into_iter().for_each(&mut *held);
        }
    }
}

/// Answers an array of elements.
pub(super) fn array(cx: &mut Cx<'_, '_>, stream: &Stream, len: usize, source: Source) -> Result<(), Error> {
    cx.out.array(len);
    Answer::new(vec![Part::new(cx.out.resp3(), |_| {}, stream, source)]).send(cx)
}
