//! A file of commands: batches, and lines between them that describe them.
//!
//! ```text
//! #EK 1 <epoch> <lsn> <lsn> 0 <seed> <sum> <check>       the file goes on behind this LSN
//! commands … #EK 1 <epoch> <first> <last> <bytes> <synced> <sum> <check>
//! commands … #EK 1 …   #------ filler lines of 64 bytes, where the file is prepared ------
//! ```
//!
//! Redis and Valkey skip lines that begin with `#`.
//!
//! - E1: a batch reaches from the end of the line before to its own line, which names its length. `sum` is
//!   the CRC-64 of these bytes, chained from the line before. `check` is the lower half of the CRC-64 of the
//!   line before it, begun with the file's seed. A value that imitates a line cannot know it.
//! - E2: `synced` bytes of the file were durable when the batch was written. So a batch that is damaged below
//!   the `synced` of a later line was damaged afterwards. Any other may be what a power failure left of a
//!   write.
//! - E3: the line at the head names the LSN behind which the file goes on. Anything behind that LSN in
//!   earlier files is void, or comes here again.
//! - E7: the first LSN of a line at the head is the last one that earlier files have. Mostly it equals the
//!   second. If it is lower, effects between the two are in no file, and the file counts only behind a base
//!   that has them.
//! - E4: a batch of ours never begins with SELECT without a line [`OURS`] before it. So commands behind the
//!   last line that do begin so are of a server that appended to the file.
//! - E5: where filler is, batches end at multiples of [`FILLER`], and filler lines begin there.
//! - E8: a line `#ER <lsn> <id> <offset> <db>` at the end of a batch names the place in the replicas' history
//!   that the batch ends at. It holds while its LSN is the last of the log.
//! - E6: the filler and the log never write the same bytes: the filler takes pieces behind what the log has
//!   claimed.

use crate::disk::{DiskFile, write_all_at};
use crate::log::Batch;
use crate::stream::HistoryPlace;
use keyspace::Lsn;
use rdb::crc64;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The beginning of a line about a batch.
pub(crate) const LINE: &[u8] = b"#EK ";
const VERSION: &[u8] = b"1";
/// The longest such line, its padding included.
pub(crate) const LINE_MAX: usize = 256;
/// The line before a batch that begins with SELECT (E4).
pub(crate) const OURS: &[u8] = b"#+\r\n";
/// Bytes of a filler line.
pub(crate) const FILLER: u64 = 64;
/// Bytes that are prepared, and written at once.
const AHEAD: u64 = 8 << 20;
const FILL: u64 = 256 << 10;
/// Bytes that are gathered before they are written.
const GATHER: usize = 256 << 10;

/// The facts of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) epoch: u64,
    pub(crate) first: Lsn,
    pub(crate) last: Lsn,
    pub(crate) bytes: u64,
    /// The seed, in the line at the head.
    pub(crate) synced: u64,
    pub(crate) sum: u64,
}

impl Line {
    /// A line at a head: effects before its file are in no file (E7).
    pub(crate) fn is_behind_gap(&self) -> bool {
        self.first < self.last
    }

    fn text(&self) -> String {
        let Line { epoch, first, last, bytes, synced, sum } = self;
        format!("#EK 1 {epoch} {first} {last} {bytes} {synced} {sum:016x} ")
    }

    /// Appends the line. With `pads_from`, the offset of `out`, it ends at a multiple of [`FILLER`] (E5).
    pub(crate) fn put(&self, out: &mut Vec<u8>, seed: u64, pads_from: Option<u64>) {
        let text = self.text();
        out.extend_from_slice(text.as_bytes());
        let check = crc64(seed, text.as_bytes()) as u32;
        out.extend_from_slice(format!("{check:08x}").as_bytes());
        if let Some(offset) = pads_from {
            let end = offset + out.len() as u64 + 2;
            let pad = end.next_multiple_of(FILLER) - end;
            out.resize(out.len() + pad as usize, b' ');
        }
        out.extend_from_slice(b"\r\n");
    }

    /// Reads a line, its end included. `None`: it is no such line, or its check does not fit. A head has its
    /// seed in itself.
    pub(crate) fn parse(text: &[u8], seed: Option<u64>) -> Option<Line> {
        let text = text.strip_suffix(b"\r\n")?.trim_ascii_end();
        let mut words = text.split(|byte| *byte == b' ');
        let (magic, version) = (words.next()?, words.next()?);
        if magic != LINE.trim_ascii_end() || version != VERSION {
            return None;
        }
        let mut number = || decimal(words.next()?);
        let line = Line {
            epoch: number()?,
            first: number()?,
            last: number()?,
            bytes: number()?,
            synced: number()?,
            sum: hexadecimal(words.next()?, 16)?,
        };
        let check = hexadecimal(words.next()?, 8)?;
        let before = &text[..text.len() - 8];
        let seed = seed.unwrap_or(line.synced);
        let fits = words.next().is_none() && u64::from(crc64(seed, before) as u32) == check;
        (fits && line.first <= line.last).then_some(line)
    }
}

/// The beginning of a line about a place (E8).
const PLACE: &[u8] = b"#ER ";

/// Appends a line about a place (E8).
pub(crate) fn put_place(out: &mut Vec<u8>, lsn: Lsn, place: &HistoryPlace) {
    let HistoryPlace { id, offset, db } = place;
    out.extend_from_slice(format!("#ER {lsn} {id} {offset} {db}\r\n").as_bytes());
}

/// Reads a line about a place, its end included. `None`: it is no such line.
pub(crate) fn parse_place(text: &[u8]) -> Option<(Lsn, HistoryPlace)> {
    let text = text.strip_prefix(PLACE)?.strip_suffix(b"\r\n")?;
    let mut words = text.split(|byte| *byte == b' ');
    let lsn = decimal(words.next()?)?;
    let id = words.next().filter(|id| id.len() == 40 && id.iter().all(u8::is_ascii_alphanumeric))?;
    let offset = decimal(words.next()?)?;
    let db = u32::try_from(decimal(words.next()?)?).ok()?;
    let id = std::str::from_utf8(id).ok()?.to_owned();
    words.next().is_none().then_some((lsn, HistoryPlace { id, offset, db }))
}

fn decimal(word: &[u8]) -> Option<u64> {
    let is_plain = !word.is_empty() && word.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(word).ok().filter(|_| is_plain)?.parse().ok()
}

fn hexadecimal(word: &[u8], digits: usize) -> Option<u64> {
    let is_plain = word.len() == digits && word.iter().all(u8::is_ascii_hexdigit);
    u64::from_str_radix(std::str::from_utf8(word).ok().filter(|_| is_plain)?, 16).ok()
}

/// The file that grows.
pub(crate) struct IncrFile {
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) seq: u64,
    epoch: u64,
    seed: u64,
    sum: u64,
    /// The LSN up to which earlier files have everything (E7).
    reached: Lsn,
    /// The LSN behind which it goes on, and the last one in it.
    pub(crate) last: Lsn,
    /// The end of the last whole batch, and the offset up to which it is durable.
    pub(crate) end: u64,
    pub(crate) synced: u64,
    /// The end of the line at the head.
    begun: u64,
    pub(crate) ahead: Arc<Ahead>,
    buffer: Vec<u8>,
}

impl IncrFile {
    /// An empty file that goes on behind an LSN.
    pub(crate) fn new(file: Arc<dyn DiskFile>, seq: u64, epoch: u64, last: Lsn) -> IncrFile {
        let seed = stdx::hash::hash_u64(stdx::clock::wall_ns() ^ seq.rotate_left(32) ^ epoch.rotate_left(48));
        let (sum, end, synced, begun) = (0, 0, 0, 0);
        let ahead = Arc::default();
        let (reached, buffer) = (last, Vec::new());
        IncrFile { file, seq, epoch, seed, sum, reached, last, end, synced, begun, ahead, buffer }
    }

    /// Effects behind an LSN, up to the one behind which it goes on, are in no file (E7).
    pub(crate) fn behind_gap(self, reached: Lsn) -> IncrFile {
        IncrFile { reached, ..self }
    }

    /// Writes a batch at the end. A file that begins with it gets a SELECT of the database first, if the
    /// batch has none.
    ///
    /// Errors: nothing of it counts, and the file was cut back if that was possible.
    pub(crate) fn write(&mut self, batch: &Batch, db: Option<u64>, pads: bool) -> io::Result<()> {
        let db = db.filter(|_| self.end == 0);
        if self.end == 0 {
            self.begin(pads)?;
        }
        let begins_with_select = batch.blocks.first().is_some_and(|block| is_select(&block.bytes));
        let mut lead = Vec::new();
        if begins_with_select {
            lead.extend_from_slice(OURS);
        } else if let Some(db) = db {
            let db = db.to_string();
            lead.extend_from_slice(OURS);
            lead.extend_from_slice(format!("*2\r\n$6\r\nSELECT\r\n${}\r\n{db}\r\n", db.len()).as_bytes());
        }
        let bytes = lead.len() as u64 + batch.size_bytes();
        let sum = batch.sum(crc64(self.sum, &lead));
        let line = Line {
            epoch: batch.epoch,
            first: batch.first,
            last: batch.last,
            bytes,
            synced: self.synced,
            sum,
        };
        self.append(&lead, batch, line, pads)
    }

    /// Writes the line at the head, which is durable before any batch comes.
    fn begin(&mut self, pads: bool) -> io::Result<()> {
        let (epoch, first, last, synced) = (self.epoch, self.reached, self.last, self.seed);
        let mut head = Vec::new();
        Line { epoch, first, last, bytes: 0, synced, sum: 0 }.put(&mut head, self.seed, pads.then_some(0));
        self.ahead.claim(head.len() as u64);
        write_all_at(&*self.file, &head, 0)?;
        self.file.sync_data()?;
        (self.end, self.synced, self.begun) = (head.len() as u64, head.len() as u64, head.len() as u64);
        self.ahead.ends_at(self.end);
        Ok(())
    }

    /// Writes a line of an empty batch: all before it is durable (E2).
    pub(crate) fn write_end(&mut self) -> io::Result<()> {
        let (epoch, last, synced, sum) = (self.epoch, self.last, self.synced, self.sum);
        let line = Line { epoch, first: last, last, bytes: 0, synced, sum };
        let nothing = Batch { epoch, number: 0, first: last, last, blocks: Arc::new([]) };
        self.append(&[], &nothing, line, false)
    }

    fn append(&mut self, lead: &[u8], batch: &Batch, line: Line, pads: bool) -> io::Result<()> {
        let mut out = std::mem::take(&mut self.buffer);
        out.clear();
        out.extend_from_slice(lead);
        let mut trailer = Vec::with_capacity(LINE_MAX);
        let at = self.end + lead.len() as u64 + batch.size_bytes();
        line.put(&mut trailer, self.seed, pads.then_some(at));
        self.ahead.claim(at + trailer.len() as u64);
        let written = write_parts(&*self.file, self.end, &mut out, batch, &trailer);
        self.buffer = out;
        match written {
            Ok(end) => {
                (self.end, self.sum, self.last) = (end, line.sum, batch.last);
                self.ahead.ends_at(end);
                Ok(())
            }
            Err(error) => {
                if let Err(error) = self.cut() {
                    log::warn!("a file of the log cannot be cut behind its last batch: {error}");
                }
                Err(error)
            }
        }
    }

    /// Whether it has anything beside the line at the head.
    pub(crate) fn has_batches(&self) -> bool {
        self.end > self.begun
    }

    /// Whether it has a durable batch.
    pub(crate) fn has_durable(&self) -> bool {
        self.synced > self.begun
    }

    /// Makes the written bytes durable.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data()?;
        self.synced = self.end;
        Ok(())
    }

    /// Cuts off what is behind the last whole batch: filler, and the beginning of a batch.
    pub(crate) fn cut(&self) -> io::Result<()> {
        self.ahead.cut(&*self.file, self.end)
    }
}

/// Writes the gathered bytes, the blocks and the line. Returns their end.
fn write_parts(
    file: &dyn DiskFile,
    mut at: u64,
    out: &mut Vec<u8>,
    batch: &Batch,
    trailer: &[u8],
) -> io::Result<u64> {
    let parts = batch.blocks.iter().map(|block| &block.bytes[..]).chain([trailer]);
    for part in parts {
        if out.len() + part.len() > GATHER && !out.is_empty() {
            write_all_at(file, out, at)?;
            at += out.len() as u64;
            out.clear();
        }
        if part.len() >= GATHER {
            write_all_at(file, part, at)?;
            at += part.len() as u64;
        } else {
            out.extend_from_slice(part);
        }
    }
    write_all_at(file, out, at)?;
    Ok(at + out.len() as u64)
}

const SELECT: &[u8] = b"*2\r\n$6\r\nSELECT\r\n$";

/// Whether commands begin with SELECT, as this server writes it.
pub(crate) fn is_select(bytes: &[u8]) -> bool {
    bytes.starts_with(SELECT)
}

/// The database that is selected last among whole commands. Cost: O(commands) if SELECT stands anywhere, else
/// a fast search.
pub(crate) fn last_select(bytes: &[u8]) -> Option<u64> {
    memchr::memmem::find(bytes, SELECT)?;
    let limits = resp::Limits { words_max: i32::MAX as usize, bulk_bytes_max: u32::MAX as usize };
    let (mut parser, mut at, mut last) = (resp::Parser::new(limits), 0, None);
    while let Ok(resp::Parsed::Command { used }) = parser.parse(&bytes[at..]) {
        let args = parser.args(&bytes[at..]);
        if args.len() == 2 && args.at(0) == b"SELECT" {
            last = decimal(args.at(1)).or(last);
        }
        at = stdx::progress::further(at, at + used);
    }
    last
}

#[derive(Default)]
struct AheadState {
    /// The end of the last batch, and the offset up to which there is filler or a claim.
    end: u64,
    filled: u64,
    is_filling: bool,
}

/// The filler ahead of a file (E6).
#[derive(Default)]
pub(crate) struct Ahead {
    state: Mutex<AheadState>,
    filled: Condvar,
}

impl Ahead {
    fn state(&self) -> MutexGuard<'_, AheadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn quiet(&self) -> MutexGuard<'_, AheadState> {
        let state = self.state();
        self.filled.wait_while(state, |state| state.is_filling).unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether little filler is left.
    pub(crate) fn is_low(&self) -> bool {
        let state = self.state();
        state.filled < state.end + AHEAD / 2
    }

    /// Claims the bytes up to here for the log. Waits for one piece of filler at most, and only if the filler
    /// is near.
    fn claim(&self, end: u64) {
        if end <= self.state().filled {
            return;
        }
        let mut state = self.quiet();
        state.filled = state.filled.max(end);
    }

    fn ends_at(&self, end: u64) {
        self.state().end = end;
    }

    pub(crate) fn cut(&self, file: &dyn DiskFile, end: u64) -> io::Result<()> {
        let mut state = self.quiet();
        file.truncate(end)?;
        (state.end, state.filled) = (end, end);
        Ok(())
    }

    /// Writes the next piece of filler if little is left, and returns whether that was so. The descriptor is
    /// the caller's own, so that an error of a sync is told here and to the log.
    pub(crate) fn fill(&self, file: &dyn DiskFile, line: &[u8]) -> io::Result<bool> {
        let (from, to) = {
            let mut state = self.state();
            let is_low = state.filled < state.end + AHEAD / 2 || !state.filled.is_multiple_of(AHEAD);
            // E5. A file without its head is not prepared: it counts as empty.
            let is_aligned = state.end.is_multiple_of(FILLER) && state.filled.is_multiple_of(FILLER);
            if !is_low || !is_aligned || state.end == 0 {
                return Ok(false);
            }
            state.is_filling = true;
            (state.filled, (state.filled / FILL + 1) * FILL)
        };
        let bytes = line.repeat(((to - from) / FILLER) as usize);
        let _ = file.allocate(from, to - from);
        let written = write_all_at(file, &bytes, from);
        if written.is_err() {
            // No half of a line stays. The log has claimed nothing behind.
            let _ = file.truncate(from);
        }
        let mut state = self.state();
        state.is_filling = false;
        if written.is_ok() {
            state.filled = to;
        }
        drop(state);
        self.filled.notify_all();
        written?;
        file.sync_data()?;
        Ok(true)
    }
}

/// A filler line.
pub(crate) fn filler_line() -> Vec<u8> {
    let mut line = vec![b'-'; FILLER as usize];
    (line[0], line[FILLER as usize - 1]) = (b'#', b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_written_and_no_other_is() {
        let line = Line { epoch: 3, first: 17, last: 19, bytes: 4096, synced: 100, sum: 0xabcd };
        for pads in [None, Some(0), Some(63), Some(1)] {
            let mut text = Vec::new();
            line.put(&mut text, 99, pads);
            assert_eq!(Line::parse(&text, Some(99)), Some(line));
            assert!(
                text.len() <= LINE_MAX
                    && pads.is_none_or(|at| (at + text.len() as u64).is_multiple_of(FILLER))
            );
            assert_eq!(Line::parse(&text, Some(98)), None);
            for at in 0..text.trim_ascii_end().len() {
                let mut other = text.clone();
                other[at] ^= 1;
                assert_eq!(Line::parse(&other, Some(99)), None, "{at}");
            }
        }
        for text in [&b""[..], b"#EK", b"#EK 1 \r\n", b"#EK 2 1 1 1 0 0 0 0\r\n"] {
            assert_eq!(Line::parse(text, None), None);
        }
    }

    #[test]
    fn the_last_select_is_found_and_values_that_look_like_it_are_not() {
        let hidden = [b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$23\r\n", SELECT, b"1\r\n7\r\n\r\n"].concat();
        assert_eq!(last_select(&hidden), None);
        let select = b"*2\r\n$6\r\nSELECT\r\n$2\r\n12\r\n";
        assert_eq!(last_select(&[&hidden[..], select, &hidden].concat()), Some(12));
        assert_eq!(last_select(b""), None);
    }
}
