//! Several pipelined commands at once, so that their keys can be looked up together.

use crate::{Args, OwnedArgs, Parsed, Parser, ProtocolError, Span};

/// Commands parsed from one read buffer. It is reused from turn to turn.
#[derive(Debug, Default)]
pub struct Batch {
    commands: Vec<Entry>,
    spans: Vec<Span>,
    /// Words of inline commands.
    text: Vec<u8>,
    /// The words of the last command if it is large: the parser's own list, not a copy.
    large: Option<Vec<Span>>,
    /// The size in bytes from which on a command is large; 0 if none is.
    large_bytes: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Index of the first word in `spans`; the words end where the next entry's begin.
    spans: usize,
    /// Where the command starts in the read buffer.
    base: usize,
    /// Where it ends.
    end: usize,
    inline: bool,
}

/// Why [`Batch::fill`] stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The batch has `max` commands, or its last one is large.
    Full,
    /// The rest of the buffer is no complete command: at least `need` more bytes are needed.
    More { need: usize },
    /// The bytes behind the commands are not RESP. Execute the commands, send the error, close.
    Error(ProtocolError),
}

/// Outcome of [`Batch::fill`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filled {
    /// Bytes of the buffer to drop once the batch has been executed.
    pub used: usize,
    pub stop: Stop,
}

impl Batch {
    pub fn new() -> Batch {
        Batch::default()
    }

    /// A batch that ends after a command of at least `bytes` bytes. The words of that can be taken
    /// ([`Batch::take_large`]).
    pub fn with_large(bytes: usize) -> Batch {
        Batch { large_bytes: bytes, ..Batch::default() }
    }

    /// Replaces the commands by the first commands of `buf`, at most `max`. O(bytes parsed).
    pub fn fill(&mut self, parser: &mut Parser, buf: &[u8], max: usize) -> Filled {
        self.clear();
        let mut used = 0;
        let stop = loop {
            if self.commands.len() == max {
                break Stop::Full;
            }
            match parser.parse(&buf[used..]) {
                Ok(Parsed::Command { used: bytes }) => {
                    self.push(parser, used, used + bytes);
                    used += bytes;
                    if self.large.is_some() {
                        break Stop::Full;
                    }
                }
                Ok(Parsed::Empty { used: bytes }) => used += bytes,
                Ok(Parsed::More { need }) => break Stop::More { need },
                Err(error) => break Stop::Error(error),
            }
        };
        Filled { used, stop }
    }

    pub fn clear(&mut self) {
        self.commands.clear();
        self.spans.clear();
        self.text.clear();
        self.large = None;
    }

    /// Number of commands.
    pub fn len(&self) -> usize {
        self.commands.len()
    }

    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// The words of the `i`-th command. `buf` must be the slice that [`Batch::fill`] was given. Panics past
    /// the end.
    pub fn args<'a>(&'a self, i: usize, buf: &'a [u8]) -> Args<'a> {
        let entry = self.commands[i];
        if let (Some(spans), true) = (&self.large, i + 1 == self.commands.len()) {
            return Args::new(&buf[entry.base..], spans);
        }
        let end = self.commands.get(i + 1).map_or(self.spans.len(), |next| next.spans);
        Args::new(if entry.inline { &self.text } else { &buf[entry.base..] }, &self.spans[entry.spans..end])
    }

    /// Bytes of the buffer up to the end of the `i`-th command. Panics past the end.
    pub fn end(&self, i: usize) -> usize {
        self.commands[i].end
    }

    /// Whether an empty line or an empty array stands before the `i`-th command. Panics past the end.
    pub fn follows_nothing(&self, i: usize) -> bool {
        self.commands[i].base > i.checked_sub(1).map_or(0, |before| self.commands[before].end)
    }

    /// Takes the words of the `i`-th command and its start in the read buffer, if it is large. With that
    /// buffer they make [`OwnedArgs::from_parts`]. O(1).
    pub fn take_large(&mut self, i: usize) -> Option<(usize, Vec<Span>)> {
        if i + 1 != self.commands.len() {
            return None;
        }
        self.large.take().map(|spans| (self.commands[i].base, spans))
    }

    /// Copies of all commands, with buffers of their own.
    pub fn to_owned(&self, buf: &[u8]) -> Vec<OwnedArgs> {
        (0..self.len()).map(|i| self.args(i, buf).to_owned()).collect()
    }

    fn push(&mut self, parser: &mut Parser, base: usize, end: usize) {
        let inline = parser.inline_text();
        self.commands.push(Entry { spans: self.spans.len(), base, end, inline: inline.is_some() });
        match inline {
            None if self.large_bytes > 0 && end - base >= self.large_bytes => {
                self.large = Some(parser.take_spans());
            }
            None => self.spans.extend_from_slice(parser.spans()),
            Some(text) => {
                let shift = self.text.len();
                self.text.extend_from_slice(text);
                self.spans.extend(parser.spans().iter().map(|span| span.shifted(shift)));
            }
        }
    }
}
