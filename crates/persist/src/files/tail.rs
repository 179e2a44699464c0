//! The part of a log behind a place in the replicas' history.

use super::Place;
use super::incr::parse_place;
use super::manifest::FileKind;
use crate::disk::Disk;
use crate::load::aof::scan::{CommandKind, Scan, Token, Unit};
use crate::load::aof::{LogError, LogFile, read_manifest};
use std::io::{self, Write};

/// A part of a log that was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tail {
    pub commands: u64,
    /// The log names a place at or before the wanted one. Else all commands of its files were copied.
    pub is_found: bool,
}

/// Copies the commands of a log that lie behind an offset of a history, whole batches at a time. The first may
/// have commands that lie before it. `ids`: the names of that history. O(bytes of the log behind its base).
///
/// Errors: the log cannot be read or the copy not written.
pub fn copy_tail(
    disk: &dyn Disk,
    place: &Place,
    ids: &[&str],
    offset: u64,
    out: &mut dyn Write,
) -> io::Result<Tail> {
    let failed = |error: LogError| io::Error::other(error.to_string());
    let mut tail = Tail::default();
    let Some(manifest) = read_manifest(disk, place).map_err(failed)? else { return Ok(tail) };
    // Twice: the place to begin at has to be known first.
    let mut first = (0, 0);
    for copies in [false, true] {
        let incrs = manifest.entries.iter().filter(|entry| entry.kind == FileKind::Incr);
        for (index, entry) in incrs.enumerate() {
            let file = LogFile::open(place, entry).map_err(failed)?;
            let mut scan = Scan::new(Box::new(&file.file), file.len, 0)?;
            let mut db = Vec::new();
            while let Unit::Whole { from, to, .. } = scan.next()? {
                let is_behind = (index, from) >= first;
                if copies && is_behind && tail.commands == 0 {
                    out.write_all(&db)?;
                }
                let mut at = from;
                while at < to {
                    match scan.window.token(at)? {
                        Token::Note { end } => {
                            let found = parse_place(scan.window.range(at, end)?);
                            let is_before = |(_, place): &(u64, crate::stream::HistoryPlace)| {
                                ids.contains(&&*place.id) && place.offset <= offset
                            };
                            if !copies && found.as_ref().is_some_and(is_before) {
                                (first, tail.is_found) = ((index, to), true);
                            }
                            at = end;
                        }
                        Token::Command { end, kind } => {
                            let bytes = scan.window.range(at, end)?;
                            if kind == CommandKind::Select {
                                db = bytes.to_vec();
                            }
                            if copies && is_behind {
                                out.write_all(bytes)?;
                                tail.commands += u64::from(kind == CommandKind::Other);
                            }
                            at = end;
                        }
                        _ => break,
                    }
                }
            }
        }
    }
    Ok(tail)
}
