//! Lists: ends, ranges, searches, waiting.

pub(crate) mod blocking;
pub(crate) mod ends;
pub(crate) mod range;
pub(crate) mod scan;
pub(crate) mod search;

use crate::options::is;
use crate::{Error, Stream};
use resp::Reply;
use std::ops::Range;
use value::{Elem, Held, List};

/// Bytes above which a reply of long elements is streamed, however few they are.
const STREAM_BYTES: usize = 64 << 10;

/// One of the two ends of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Left,
    Right,
}

impl End {
    fn parse(arg: &[u8]) -> Result<End, Error> {
        match arg {
            arg if is(arg, "left") => Ok(End::Left),
            arg if is(arg, "right") => Ok(End::Right),
            _ => Err(Error::Syntax),
        }
    }

    /// The word for LMOVE.
    fn word(self) -> &'static [u8] {
        match self {
            End::Left => b"LEFT",
            End::Right => b"RIGHT",
        }
    }

    fn pop_command(self) -> &'static [u8] {
        match self {
            End::Left => b"LPOP",
            End::Right => b"RPOP",
        }
    }

    fn pushed(self) -> &'static str {
        match self {
            End::Left => "lpush",
            End::Right => "rpush",
        }
    }

    fn popped(self) -> &'static str {
        match self {
            End::Left => "lpop",
            End::Right => "rpop",
        }
    }

    #[inline]
    fn push(self, list: &mut List, text: &[u8]) {
        self.push_each(list, std::iter::once(text));
    }

    #[inline]
    fn push_each<'a>(self, list: &mut List, texts: impl ExactSizeIterator<Item = &'a [u8]> + Clone) {
        match self {
            End::Left => list.push_each_front(texts),
            End::Right => list.push_each_back(texts),
        }
    }

    /// The positions of the last `count` elements at this end; `count` is at most `len`.
    #[inline]
    fn range(self, len: usize, count: usize) -> Range<usize> {
        match self {
            End::Left => 0..count,
            End::Right => len - count..len,
        }
    }
}

/// Writes an element.
#[inline]
fn write(out: &mut Reply, elem: Elem<'_>) {
    match elem {
        Elem::Int(n) => out.bulk_int(n),
        Elem::Bytes(bytes) => out.bulk(bytes),
    }
}

/// Some elements of a list, answered from one of its ends.
struct Slice {
    list: List,
    left: Range<usize>,
    from: End,
}

impl Stream for Slice {
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
        let end = out.len().saturating_add(room);
        let written = write_some(out, &self.list, self.left.clone(), self.from, usize::MAX, end);
        match self.from {
            End::Left => self.left.start += written,
            End::Right => self.left.end -= written,
        }
        !self.left.is_empty()
    }

    fn holds(&self, held: &mut dyn FnMut(Held)) {
        self.list.held().into_iter().for_each(held);
    }
}

/// Writes elements of a range from one of its ends, at least one if there is one. Stops after `max` elements
/// or when the reply is `end` bytes long. Returns their number.
#[inline]
fn write_some(out: &mut Reply, list: &List, range: Range<usize>, from: End, max: usize, end: usize) -> usize {
    let max = range.len().min(max);
    match from {
        _ if max == 0 => 0,
        End::Left => write_each(out, list.iter_from(range.start).take(max), end),
        End::Right => write_each(out, list.iter_rev_from(range.end - 1).take(max), end),
    }
}

#[inline]
fn write_each<'a>(out: &mut Reply, elems: impl Iterator<Item = Elem<'a>>, end: usize) -> usize {
    let mut written = 0;
    for elem in elems {
        write(out, elem);
        written += 1;
        if out.len() >= end {
            break;
        }
    }
    written
}
