//! Writes that are lost to another primary: they go to a file before the data are replaced.

use exec::info::{LostFile, LostWrite};
use parking_lot::Mutex;
use persist::stream::HistoryPlace;
use replication::ids::Ids;
use replication::lost::{self, Lost, Saved};
use replication::primary::Primary;
use std::io::{self, BufRead, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Words of a lost write that are shown, and bytes of each.
const WORDS: usize = 16;
const BYTES: usize = 128;

/// Keeps lost writes. See the module.
#[derive(Default)]
pub(crate) struct Keeping {
    count: AtomicU64,
    /// The last place that was kept: a full copy that is tried again loses it once.
    last: Mutex<Option<(String, u64)>>,
}

impl Keeping {
    /// Count of lost writes since the start.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Keeps what a primary lacks of the data here, by its INFO. `led`: the data are this server's own. It may
    /// take as long as the disk. O(bytes of the backlog, or of the log)
    pub(crate) fn keep(
        &self,
        server: &exec::Server,
        primary: &Primary,
        ((id, offset), info, led): ((&str, u64), Option<&str>, bool),
    ) {
        let now = (id.to_owned(), offset);
        if self.last.lock().replace(now.clone()) == Some(now) {
            return;
        }
        let own = primary.figures().ids;
        let own = if own.id == id { own } else { Ids { id: id.to_owned(), second: None } };
        let led = led.then(|| primary.lowest_ack().unwrap_or(0));
        let Some(lack) = lost::lack(info, &own, offset, led) else { return };
        let dir = PathBuf::from(server.config.live.dir.string());
        let unknown =
            || lost::save_unknown(&dir, &own.id, &lack, offset).map(Some).map_err(|error| (0, error));
        let saved = match primary.backlog.kept() {
            // The log reaches further back, if there is one.
            Ok(kept) if kept.from > lack.at => {
                let place = HistoryPlace { id: own.id.clone(), offset, db: 0 };
                let second = own.second.as_ref().map(|(id, _)| id.as_str());
                let ids: Vec<&str> = [Some(own.id.as_str()), second].into_iter().flatten().collect();
                let read = |out: &mut dyn io::Write| {
                    let tail = server.durability.copy_tail(&ids, lack.at, out)?;
                    Ok((tail.commands, tail.is_found))
                };
                match lost::save_log(&dir, &place, &lack, read) {
                    Ok(saved) => Ok(saved),
                    // Nothing is known of a part of it.
                    Err(_) => match lost::save(&dir, &own.id, &lack, &kept) {
                        Ok(None) => unknown(),
                        saved => saved,
                    },
                }
            }
            Ok(kept) => lost::save(&dir, &own.id, &lack, &kept),
            Err(error) => Err((0, error)),
        };
        match saved {
            Ok(None) => {}
            Ok(Some(Saved { path, commands })) => {
                self.count.fetch_add(commands, Ordering::Relaxed);
                let is_whole = Lost::open(&path).is_ok_and(|lost| lost.header.is_whole);
                let first = lack.at + 1;
                let more = match is_whole {
                    true => String::new(),
                    false => format!("; of offsets {first} to {offset} it has a part, and more may be lost"),
                };
                log::warn!(
                    "{commands} writes are not in the primary, and are kept in {}{more}",
                    path.display()
                );
            }
            Err((commands, error)) => {
                self.count.fetch_add(commands, Ordering::Relaxed);
                log::error!("{commands} writes are not in the primary, and could not be kept: {error}");
            }
        }
    }
}

/// The files of a directory. Errors: a sentence.
pub(crate) fn files(dir: &Path) -> Result<Vec<LostFile>, String> {
    let paths = lost::files(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let one = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // One that is damaged hides no other.
        describe(path).unwrap_or_else(|error| LostFile {
            name,
            error: error.to_string(),
            ..LostFile::default()
        })
    };
    Ok(paths.iter().map(one).collect())
}

/// Looks at a file. O(its bytes). Errors: it cannot be read, or is damaged.
pub(crate) fn describe(path: &Path) -> io::Result<LostFile> {
    let mut lost = Lost::open(path)?;
    let header = lost.header.clone();
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut file = LostFile {
        name,
        id: header.id,
        first: header.first,
        end: header.end,
        is_certain: header.is_certain,
        is_whole: header.is_whole,
        ..LostFile::default()
    };
    while let Some(entry) = lost.read()? {
        file.commands += 1;
        file.first_ms = if file.first_ms == 0 { entry.wall_ms } else { file.first_ms };
        file.last_ms = entry.wall_ms;
    }
    Ok(file)
}

/// Some writes of a file in a directory. Errors: a sentence.
pub(crate) fn writes(dir: &Path, name: &str, count: usize) -> Result<Vec<LostWrite>, String> {
    let paths = lost::files(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let path = paths.into_iter().find(|path| path.file_name().is_some_and(|own| own == name));
    let path = path.ok_or("there is no such file of lost writes")?;
    let mut lost = Lost::open(&path).map_err(|error| error.to_string())?;
    let mut writes = Vec::new();
    while writes.len() < count
        && let Some(entry) = lost.read().map_err(|error| error.to_string())?
    {
        let words = entry.words.into_iter().take(WORDS);
        let words = words.map(|mut word| {
            word.truncate(BYTES);
            word
        });
        writes.push(LostWrite { wall_ms: entry.wall_ms, db: entry.db, words: words.collect() });
    }
    Ok(writes)
}

/// Runs the writes of a file at a server. Gives how many, and how many of them were refused. Blocks.
///
/// Errors: the server cannot be reached, or the file is damaged; what was run before stays.
pub(crate) fn replay(path: &Path, to: &str) -> Result<(u64, u64), String> {
    let failed = |error: io::Error| error.to_string();
    let stream = TcpStream::connect(to).map_err(|error| format!("{to}: {error}"))?;
    let mut input = io::BufReader::new(stream.try_clone().map_err(failed)?);
    let mut output = stream;
    let mut call = |words: &[Vec<u8>]| -> Result<bool, String> {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            bytes.extend_from_slice(word);
            bytes.extend_from_slice(b"\r\n");
        }
        output.write_all(&bytes).map_err(failed)?;
        skip_reply(&mut input).map_err(failed)
    };
    let mut lost = Lost::open(path).map_err(failed)?;
    let (mut db, mut done, mut refused) = (0, 0, 0);
    while let Some(entry) = lost.read().map_err(failed)? {
        if entry.db != db {
            db = entry.db;
            call(&[b"SELECT".to_vec(), db.to_string().into_bytes()])?;
        }
        done += 1;
        refused += u64::from(!call(&entry.words)?);
    }
    Ok((done, refused))
}

/// Reads a reply, and says whether it is none of an error.
fn skip_reply(input: &mut impl BufRead) -> io::Result<bool> {
    let (mut left, mut is_well) = (1u64, true);
    while left > 0 {
        left -= 1;
        let mut line = Vec::new();
        if input.read_until(b'\n', &mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let number = std::str::from_utf8(&line[1..]).ok().and_then(|text| text.trim().parse::<i64>().ok());
        match (line[0], number) {
            (b'-', _) => is_well = false,
            (b'$', Some(len)) if len >= 0 => {
                io::copy(&mut input.take(len as u64 + 2), &mut io::sink())?;
            }
            (b'*', Some(len)) => left += len.max(0) as u64,
            _ => {}
        }
    }
    Ok(is_well)
}
