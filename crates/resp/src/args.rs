//! The words of a command: a buffer, and the place of each word in it.
//!
//! [`Args`] is two slices, so it is passed by value. Reading a word costs one bounds check and one look at
//! its span. [`OwnedArgs`] is for a command that outlives the read buffer (queued by MULTI, parked by BLPOP,
//! handed to a worker). It is one buffer and one list of spans.

use std::sync::{Mutex, PoisonError};
use stdx::budget::Share;

/// The place of one word: bytes `start..end` of a buffer. Always `start <= end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    start: u32,
    end: u32,
}

impl Span {
    /// A span of bytes `start..end`. The caller keeps commands below 4 GiB (see `Limits`).
    pub(crate) fn new(start: usize, end: usize) -> Span {
        debug_assert!(start <= end && end <= u32::MAX as usize);
        Span { start: start as u32, end: end as u32 }
    }

    pub(crate) fn shifted(self, by: usize) -> Span {
        Span::new(self.start as usize + by, self.end as usize + by)
    }

    fn of(self, buf: &[u8]) -> &[u8] {
        &buf[self.start as usize..self.end as usize]
    }

    fn len(self) -> usize {
        (self.end - self.start) as usize
    }
}

/// Most bytes that the protocol adds to a word.
const HEADER_MAX: usize = 16;

/// The words of a command, its name first, borrowed from a buffer.
#[derive(Clone, Copy)]
pub struct Args<'a> {
    buf: &'a [u8],
    spans: &'a [Span],
}

impl<'a> Args<'a> {
    pub(crate) fn new(buf: &'a [u8], spans: &'a [Span]) -> Args<'a> {
        Args { buf, spans }
    }

    /// No words.
    pub const EMPTY: Args<'static> = Args { buf: &[], spans: &[] };

    /// Number of words, with the command's name.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The `i`-th word. Panics past the end: for words that the command's arity guarantees.
    #[inline]
    pub fn at(&self, i: usize) -> &'a [u8] {
        self.spans[i].of(self.buf)
    }

    /// The `i`-th word, if there is one.
    #[inline]
    pub fn get(&self, i: usize) -> Option<&'a [u8]> {
        self.spans.get(i).map(|span| span.of(self.buf))
    }

    /// Fetches the place of the `i`-th word into the cache.
    #[inline]
    pub fn prefetch_place(&self, i: usize) {
        if let Some(span) = self.spans.get(i) {
            stdx::cache::prefetch(span);
        }
    }

    /// Fetches the start of the `i`-th word into the cache. Best called some time after its place was
    /// fetched.
    #[inline]
    pub fn prefetch_word(&self, i: usize) {
        if let Some(byte) = self.get(i).and_then(<[u8]>::first) {
            stdx::cache::prefetch(byte);
        }
    }

    /// Fetches the end of the `i`-th word into the cache. If the start of the word before is there, this
    /// completes a short word.
    #[inline]
    pub fn prefetch_word_end(&self, i: usize) {
        if let Some(byte) = self.get(i).and_then(<[u8]>::last) {
            stdx::cache::prefetch(byte);
        }
    }

    pub fn first(&self) -> Option<&'a [u8]> {
        self.get(0)
    }

    pub fn last(&self) -> Option<&'a [u8]> {
        self.spans.last().map(|span| span.of(self.buf))
    }

    /// The words from the `i`-th on; none if there are fewer.
    pub fn from(&self, i: usize) -> Args<'a> {
        Args { buf: self.buf, spans: self.spans.get(i..).unwrap_or(&[]) }
    }

    /// The words before the `i`-th; all if there are fewer.
    pub fn to(&self, i: usize) -> Args<'a> {
        Args { buf: self.buf, spans: self.spans.get(..i).unwrap_or(self.spans) }
    }

    /// `count` words from the `i`-th on. Panics past the end.
    #[inline]
    pub fn slice(&self, i: usize, count: usize) -> Args<'a> {
        Args { buf: self.buf, spans: &self.spans[i..i + count] }
    }

    pub fn iter(&self) -> ArgIter<'a> {
        ArgIter { buf: self.buf, spans: self.spans.iter() }
    }

    /// Sum of the words' lengths. O(words).
    pub fn bytes(&self) -> usize {
        self.spans.iter().map(|span| span.len()).sum()
    }

    /// Bytes from the first word's start to the last one's end, with what the protocol has between. O(1)
    fn spread(&self) -> usize {
        let (Some(first), Some(last)) = (self.spans.first(), self.spans.last()) else { return 0 };
        (last.end - first.start) as usize
    }

    /// An upper bound of [`Args::wire_bytes`]. O(1)
    #[inline]
    pub fn wire_bytes_max(&self) -> usize {
        self.spread() + HEADER_MAX * (self.len() + 1)
    }

    /// Bytes of the words in the protocol's form. O(1) for words that lie in a buffer as a client sent them,
    /// O(words) for others.
    pub fn wire_bytes(&self) -> usize {
        let header = |n: usize| 4 + n.max(1).ilog10() as usize;
        let Some(first) = self.spans.first() else { return header(0) };
        match self.spans.get(1) {
            // The line ends and the length between two words.
            Some(second) if second.start > first.end => {
                header(self.len()) + header(first.len()) + self.spread() + 2
            }
            _ => {
                header(self.len())
                    + self.spans.iter().map(|span| header(span.len()) + span.len() + 2).sum::<usize>()
            }
        }
    }

    /// A copy that owns its bytes. Two allocations.
    pub fn to_owned(&self) -> OwnedArgs {
        let mut owned = OwnedArgs::with_capacity(self.len(), self.bytes());
        owned.extend(self.iter());
        owned
    }
}

impl<'a> IntoIterator for Args<'a> {
    type Item = &'a [u8];
    type IntoIter = ArgIter<'a>;

    fn into_iter(self) -> ArgIter<'a> {
        self.iter()
    }
}

impl PartialEq for Args<'_> {
    fn eq(&self, other: &Args<'_>) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl Eq for Args<'_> {}

impl std::fmt::Debug for Args<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter().map(|word| word.escape_ascii().to_string())).finish()
    }
}

/// Iterator over the words of [`Args`].
#[derive(Clone)]
pub struct ArgIter<'a> {
    buf: &'a [u8],
    spans: std::slice::Iter<'a, Span>,
}

impl<'a> Iterator for ArgIter<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        self.spans.next().map(|span| span.of(self.buf))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.spans.size_hint()
    }
}

impl DoubleEndedIterator for ArgIter<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.spans.next_back().map(|span| span.of(self.buf))
    }
}

impl ExactSizeIterator for ArgIter<'_> {}

/// The words of a command in a buffer of their own.
#[derive(Default)]
pub struct OwnedArgs {
    buf: Vec<u8>,
    /// Where in the buffer the spans start to count.
    base: usize,
    spans: Vec<Span>,
    /// The share of work memory that they hold, if they are long enough to be counted.
    share: Option<Box<Mutex<Option<Share>>>>,
}

/// The memory of the copy is not counted.
impl Clone for OwnedArgs {
    fn clone(&self) -> OwnedArgs {
        OwnedArgs { buf: self.buf.clone(), base: self.base, spans: self.spans.clone(), share: None }
    }
}

impl OwnedArgs {
    pub fn new() -> OwnedArgs {
        OwnedArgs::default()
    }

    pub fn with_capacity(words: usize, bytes: usize) -> OwnedArgs {
        OwnedArgs { buf: Vec::with_capacity(bytes), spans: Vec::with_capacity(words), ..OwnedArgs::default() }
    }

    pub fn from_slices(words: &[&[u8]]) -> OwnedArgs {
        let mut owned = OwnedArgs::with_capacity(words.len(), words.iter().map(|word| word.len()).sum());
        owned.extend(words.iter().copied());
        owned
    }

    /// The words at `spans` in `buf`, counted from `base`. Panics if a span is outside. O(1).
    pub fn from_parts(buf: Vec<u8>, base: usize, spans: Vec<Span>) -> OwnedArgs {
        assert!(base <= buf.len() && spans.last().is_none_or(|span| span.end as usize <= buf.len() - base));
        OwnedArgs { buf, base, spans, share: None }
    }

    /// Bytes of work memory that they hold.
    pub fn held_bytes(&self) -> u64 {
        self.with_share(|share| share.as_ref().map_or(0, Share::held))
    }

    /// Keeps a share of work memory until the words are dropped.
    pub fn held_by(self, share: Option<Share>) -> OwnedArgs {
        OwnedArgs { share: share.map(|share| Box::new(Mutex::new(Some(share)))), ..self }
    }

    /// Gives their share of the memory of work back: another share counts them from now on.
    pub fn give_up_share(&self) {
        drop(self.with_share(Option::take));
    }

    fn with_share<T: Default>(&self, f: impl FnOnce(&mut Option<Share>) -> T) -> T {
        let Some(share) = &self.share else { return T::default() };
        f(&mut share.lock().unwrap_or_else(PoisonError::into_inner))
    }

    #[inline]
    pub fn args(&self) -> Args<'_> {
        Args { buf: &self.buf[self.base..], spans: &self.spans }
    }

    /// Appends a word. Panics if the words together would pass 4 GiB. Ask [`OwnedArgs::fits`] first, unless
    /// the words come from a parser, which refuses such commands.
    pub fn push(&mut self, word: &[u8]) {
        assert!(self.fits(word.len()), "the words of one command stay below 4 GiB");
        let start = self.buf.len() - self.base;
        self.buf.extend_from_slice(word);
        self.spans.push(Span::new(start, start + word.len()));
    }

    /// Whether a word of `bytes` more bytes may be pushed.
    pub fn fits(&self, bytes: usize) -> bool {
        self.buf.len().checked_add(bytes).is_some_and(|total| total <= u32::MAX as usize)
    }

    /// Forgets the words and keeps the memory.
    pub fn clear(&mut self) {
        self.buf.clear();
        self.base = 0;
        self.spans.clear();
    }

    pub fn len(&self) -> usize {
        self.spans.len()
    }

    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Heap bytes held.
    pub fn mem_bytes(&self) -> usize {
        self.buf.capacity() + self.spans.capacity() * size_of::<Span>()
    }
}

impl<'w> Extend<&'w [u8]> for OwnedArgs {
    fn extend<I: IntoIterator<Item = &'w [u8]>>(&mut self, words: I) {
        words.into_iter().for_each(|word| self.push(word));
    }
}

impl<'w> FromIterator<&'w [u8]> for OwnedArgs {
    fn from_iter<I: IntoIterator<Item = &'w [u8]>>(words: I) -> OwnedArgs {
        let mut owned = OwnedArgs::new();
        owned.extend(words);
        owned
    }
}

impl PartialEq for OwnedArgs {
    fn eq(&self, other: &OwnedArgs) -> bool {
        self.args() == other.args()
    }
}

impl Eq for OwnedArgs {}

impl std::fmt::Debug for OwnedArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.args().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_tails_and_iteration_agree() {
        let owned = OwnedArgs::from_slices(&[b"SET", b"key", b"", b"v"]);
        let args = owned.args();
        assert_eq!(args.len(), 4);
        assert_eq!(args.at(1), b"key");
        assert_eq!(args.get(2), Some(&b""[..]));
        assert_eq!(args.get(4), None);
        assert_eq!(args.from(3).iter().collect::<Vec<_>>(), [b"v"]);
        assert!(args.from(9).is_empty());
        assert_eq!(args.to(1).at(0), b"SET");
        assert_eq!(args.iter().next_back(), Some(&b"v"[..]));
        assert_eq!(args.bytes(), 7);
        assert_eq!(args.from(1).to_owned(), OwnedArgs::from_slices(&[b"key", b"", b"v"]));
        assert!(args.first() == Some(b"SET") && args.last() == Some(b"v"));
    }
}
