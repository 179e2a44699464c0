//! MONITOR: lines about the commands of all clients, on their way to those that asked for them.
//!
//! - N1: nobody waits for a monitor. Lines are no part of the flood that publishers wait for.
//! - N2: above [`BYTES_MAX`] bytes of lines under way, all monitors are cut off, and the log says why. A
//!   monitor that does not read its loop's lines is closed by `client-output-buffer-limit`.
//! - N3: while there is no monitor a command pays for one load.

use crate::message::{Kind, Published, Shared};
use crate::{Letter, PubSub};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

/// Bytes of lines that may be under way to the loops.
const BYTES_MAX: usize = 32 * 1024 * 1024;
/// Bytes of one line above which the rest of its words is left out.
const LINE_MAX: usize = 64 * 1024;

/// The name under which monitors stand among the subscribers of their loop.
static NAME: LazyLock<Arc<[u8]>> = LazyLock::new(|| Arc::from(&b"monitor"[..]));

/// The monitors of one server. It has cache lines of its own: others write beside it while commands read it.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Monitors {
    count: AtomicUsize,
    /// Bytes of lines under way (N2).
    bytes: AtomicUsize,
    /// Loop and number of each.
    clients: Mutex<Vec<(usize, u64)>>,
}

impl Monitors {
    /// A line has reached the monitors of one loop.
    pub(crate) fn arrived(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl PubSub {
    /// Whether a client wants to see commands. Cost: one load.
    #[inline]
    pub fn is_monitored(&self) -> bool {
        self.monitors.count.load(Ordering::Relaxed) > 0
    }

    /// The name of a client's subscription to lines, for [`crate::Subscribers`].
    pub fn monitors_name() -> &'static Arc<[u8]> {
        &NAME
    }

    /// A client of a loop sees commands from now on. O(monitors).
    pub fn add_monitor(&self, loop_id: usize, client: u64) {
        self.add(Kind::Monitor, &NAME, loop_id);
        let mut clients = self.monitors.clients.lock();
        clients.push((loop_id, client));
        self.monitors.count.store(clients.len(), Ordering::Relaxed);
    }

    /// It does not any more. O(monitors).
    pub fn remove_monitor(&self, loop_id: usize, client: u64) {
        self.remove(Kind::Monitor, &NAME, loop_id);
        let mut clients = self.monitors.clients.lock();
        clients.retain(|one| *one != (loop_id, client));
        self.monitors.count.store(clients.len(), Ordering::Relaxed);
    }

    /// Sends a line to all monitors but one (0: to all). O(loops).
    pub fn monitor(&self, line: Vec<u8>, without: u64) {
        let payload: Arc<[u8]> = line.into();
        let tables = self.tables.lock();
        let Some(counts) = tables.monitors.get(&*NAME) else { return };
        for (loop_id, n) in counts.iter().enumerate().filter(|(_, n)| **n > 0) {
            self.monitors.bytes.fetch_add(payload.len(), Ordering::Relaxed);
            (self.post)(
                loop_id,
                Letter::Publish(Published {
                    kind: Kind::Monitor,
                    channel: NAME.clone(),
                    pattern: None,
                    payload: Shared::Own(payload.clone()),
                    count: *n as usize,
                    gate: 0,
                    without,
                }),
            );
        }
        drop(tables);
        if self.monitors.bytes.load(Ordering::Relaxed) > BYTES_MAX {
            self.cut_monitors();
        }
    }

    #[cold]
    fn cut_monitors(&self) {
        let clients = std::mem::take(&mut *self.monitors.clients.lock());
        self.monitors.count.store(0, Ordering::Relaxed);
        for (loop_id, client) in clients {
            log::warn!("client {client} closed: more than {BYTES_MAX} bytes of MONITOR wait to be sent");
            (self.post)(loop_id, Letter::CutOff(client));
        }
    }
}

/// A line as monitors see it: time in µs since 1970, database and address, and the words in quotes. Words
/// above 64 KB are left out, and counted. O(bytes of the line).
pub fn line<'w>(
    now_us: u64,
    db: usize,
    address: &str,
    words: impl ExactSizeIterator<Item = &'w [u8]>,
) -> Vec<u8> {
    let head = format!("+{}.{:06} [{db} {address}]", now_us / 1_000_000, now_us % 1_000_000);
    let (mut out, mut left) = (head.into_bytes(), words.len());
    for word in words {
        if out.len() > LINE_MAX {
            out.extend_from_slice(format!(" \"... ({left} more arguments)\"").as_bytes());
            break;
        }
        left -= 1;
        let shown = word.len().min(LINE_MAX);
        out.extend_from_slice(b" \"");
        word[..shown].iter().for_each(|byte| quote(*byte, &mut out));
        if shown < word.len() {
            out.extend_from_slice(format!("... ({} more bytes)", word.len() - shown).as_bytes());
        }
        out.push(b'"');
    }
    out.extend_from_slice(b"\r\n");
    out
}

/// A byte as it stands in quotes: printable ones as they are, others escaped.
fn quote(byte: u8, out: &mut Vec<u8>) {
    match byte {
        b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
        b'\n' => out.extend_from_slice(b"\\n"),
        b'\r' => out.extend_from_slice(b"\\r"),
        b'\t' => out.extend_from_slice(b"\\t"),
        0x07 => out.extend_from_slice(b"\\a"),
        0x08 => out.extend_from_slice(b"\\b"),
        b' '..=b'~' => out.push(byte),
        other => out.extend_from_slice(format!("\\x{other:02x}").as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_time_place_and_words() {
        let words: [&[u8]; 3] = [b"set", b"k", b"a \"b\"\n\x00\xff\\"];
        let text = line(1_700_000_000_000_123, 3, "127.0.0.1:5000", words.into_iter());
        let expected =
            b"+1700000000.000123 [3 127.0.0.1:5000] \"set\" \"k\" \"a \\\"b\\\"\\n\\x00\\xff\\\\\"\r\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_line_is_no_longer_than_it_may() {
        let (long, short) = (vec![b'x'; 10 << 20], vec![b'y'; 1000]);
        let text = line(0, 0, "", [&b"set"[..], &long, &short].into_iter());
        assert!(text.len() < LINE_MAX + 200, "{}", text.len());
        let text = String::from_utf8(text).expect("a text");
        assert!(
            text.contains("... (10420224 more bytes)\" \"... (1 more arguments)\"\r\n"),
            "{}",
            &text[65_000..]
        );
    }
}
