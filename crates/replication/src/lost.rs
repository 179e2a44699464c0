//! Writes that a server took, and that the primary it follows now does not have: kept in a file before the data
//! are replaced.
//!
//! ```text
//! #LOST 1 <id> <first offset> <end offset> <certain|perhaps> <whole|part>
//! #AT <offset> <milliseconds since 1970>      what follows was told by then
//! *3 SET k v ..                               whole groups, as in a log
//! #SUM <CRC64 of all between the first line and this one>
//! ```
//!
//! - LO1: a file begins and ends between two groups, so it can be run again, or read by any server as a log.
//! - LO2: signs of life alone are no loss, and make no file.

use crate::backlog::Kept;
use crate::ids::Ids;
use persist::stream::HistoryPlace;
use rdb::crc64;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The part of a history that another server lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lack {
    /// It has all up to here.
    pub at: u64,
    /// The other server has said so; else it is a guess that names too much rather than too little.
    pub is_certain: bool,
}

/// The part that a primary which gives a full copy lacks, by its INFO. `own`: the history here, up to `end`. `led`: it is
/// this server's own, and some replica had `acked` of it. None: nothing.
pub fn lack(info: Option<&str>, own: &Ids, end: u64, led: Option<u64>) -> Option<Lack> {
    let line = |name: &str| {
        let lines = info.unwrap_or_default().lines();
        let found = lines.filter_map(|line| line.strip_prefix(name)?.strip_prefix(':')).next();
        found.map(str::trim).filter(|value| !value.is_empty())
    };
    let number = |name: &str| line(name).and_then(|value| value.parse::<u64>().ok());
    let is_ours = |id: &str| own.id == id || own.second.as_ref().is_some_and(|(second, _)| second == id);
    let at = match (line("master_replid").is_some_and(is_ours), line("master_replid2").is_some_and(is_ours)) {
        (true, _) => number("master_repl_offset"),
        (false, true) => number("second_repl_offset").map(|first| first.saturating_sub(1)),
        (false, false) => None,
    };
    let lack = match (at, led) {
        (Some(at), _) => Lack { at, is_certain: true },
        (None, Some(acked)) => Lack { at: acked, is_certain: false },
        // It followed another server, which has all of this.
        (None, None) => return None,
    };
    (lack.at < end).then_some(lack)
}

/// A file that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    pub path: PathBuf,
    pub commands: u64,
}

/// The first free name in a directory.
fn create(dir: &Path) -> io::Result<(PathBuf, File)> {
    for n in 1..1_000_000 {
        let path = dir.join(format!("lost-{n}.aof"));
        match File::options().write(true).create_new(true).open(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            made => return made.map(|file| (path, file)),
        }
    }
    Err(io::Error::new(ErrorKind::AlreadyExists, "too many files of lost writes"))
}

/// Writes what the backlog has behind a place into a file. None: these are no writes (LO2). O(bytes kept).
/// Errors: of the disk, and how many writes were to be kept.
pub fn save(dir: &Path, id: &str, lack: &Lack, kept: &Kept) -> Result<Option<Saved>, (u64, io::Error)> {
    let mut body = Vec::new();
    let (mut db, mut told, mut commands) = (None, None, 0);
    // The first group's end that is known.
    let from = kept.turns.iter().map(|(end, _)| *end).find(|end| *end >= kept.from).unwrap_or(kept.from);
    let mut at = from;
    while let Some((words, len)) = command(&kept.bytes[(at - kept.from) as usize..]) {
        let (name, bytes) = (words[0].to_ascii_lowercase(), (at - kept.from) as usize);
        let is_lost = at >= lack.at;
        if name == b"select" && words.len() == 2 {
            db = Some(words[1].to_vec());
        }
        if is_lost {
            if told.is_none() {
                let db = db.clone().unwrap_or_else(|| kept.db.to_string().into_bytes());
                body.extend_from_slice(&select(&db));
            }
            let turn = kept.turns.partition_point(|(end, _)| *end <= at);
            if told != Some(turn) {
                let wall_ms = kept.turns.get(turn).map_or(0, |(_, wall_ms)| *wall_ms);
                body.extend_from_slice(format!("#AT {} {wall_ms}\r\n", at + 1).as_bytes());
                told = Some(turn);
            }
            if !matches!(&name[..], b"ping" | b"replconf") {
                body.extend_from_slice(&kept.bytes[bytes..bytes + len]);
                commands += u64::from(!matches!(&name[..], b"select" | b"multi" | b"exec"));
            }
        }
        at += len as u64;
    }
    if commands == 0 {
        return Ok(None);
    }
    let end = kept.from + kept.bytes.len() as u64;
    let header = header(id, (lack.at.max(from), end), lack.is_certain, from <= lack.at);
    write(dir, &header, &body, commands).map(Some).map_err(|error| (commands, error))
}

/// Says in a file without a write that some may be lost behind a place, of which neither the backlog nor a log
/// tells. Errors: of the disk.
pub fn save_unknown(dir: &Path, id: &str, lack: &Lack, end: u64) -> io::Result<Saved> {
    write(dir, &header(id, (lack.at, end), false, false), b"", 0)
}

/// Writes what a log has behind a place into a file. `read` gives the commands, and whether the log reaches
/// back to the place. None: there are none, and it does. O(bytes). Errors: of the disk.
pub fn save_log(
    dir: &Path,
    of: &HistoryPlace,
    lack: &Lack,
    read: impl FnOnce(&mut dyn Write) -> io::Result<(u64, bool)>,
) -> io::Result<Option<Saved>> {
    let (path, mut file) = create(dir)?;
    let header = |is_whole| header(&of.id, (lack.at, of.offset), false, is_whole);
    let done = (|| {
        file.write_all(header(true).as_bytes())?;
        let mut out = Summed { out: &mut file, sum: 0 };
        let (commands, is_whole) = read(&mut out)?;
        let sum = out.sum;
        file.write_all(trailer(sum).as_bytes())?;
        file.seek(SeekFrom::Start(0))?;
        file.write_all(header(is_whole).as_bytes())?;
        file.sync_all()?;
        Ok((commands, is_whole))
    })();
    match done {
        Ok((0, true)) => std::fs::remove_file(&path).map(|()| None),
        Ok((commands, _)) => Ok(Some(Saved { path, commands })),
        Err(error) => {
            let _ = std::fs::remove_file(&path);
            Err(error)
        }
    }
}

/// Writes bytes on, and sums them up.
struct Summed<'o> {
    out: &'o mut File,
    sum: u64,
}

impl Write for Summed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.sum = crc64(self.sum, &bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// The last line of a file: the sum of all between it and the first line.
fn trailer(sum: u64) -> String {
    format!("#SUM {sum:016x}\r\n")
}

fn header(id: &str, (at, end): (u64, u64), is_certain: bool, is_whole: bool) -> String {
    let certain = if is_certain { "certain" } else { "perhaps" };
    // The line has one length, so that it can be written again: a number may begin with 0.
    let (whole, digits) = if is_whole { ("whole", 20) } else { ("part", 21) };
    format!("#LOST 1 {id} {:0digits$} {end} {certain} {whole}\r\n", at + 1)
}

fn write(dir: &Path, header: &str, body: &[u8], commands: u64) -> io::Result<Saved> {
    let (path, mut file) = create(dir)?;
    let trailer = trailer(crc64(0, body));
    let parts = [header.as_bytes(), body, trailer.as_bytes()];
    let written = parts.iter().try_for_each(|part| file.write_all(part)).and_then(|()| file.sync_all());
    if let Err(error) = written {
        // A part of it would say that it is all.
        let _ = std::fs::remove_file(&path);
        return Err(error);
    }
    Ok(Saved { path, commands })
}

fn select(db: &[u8]) -> Vec<u8> {
    [format!("*2\r\n$6\r\nSELECT\r\n${}\r\n", db.len()).as_bytes(), db, b"\r\n"].concat()
}

/// A number behind a sign, and the length of its line.
fn number(bytes: &[u8], sign: u8) -> Option<(usize, usize)> {
    let end = bytes.iter().take(32).position(|byte| *byte == b'\n')?;
    let digits = bytes[..end].strip_suffix(b"\r")?.strip_prefix(&[sign])?;
    let value = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some((value, end + 1))
}

/// The words of the command at the front, and its length. None: it is not whole.
fn command(bytes: &[u8]) -> Option<(Vec<&[u8]>, usize)> {
    let (count, mut at) = number(bytes, b'*')?;
    let mut words = Vec::new();
    for _ in 0..count {
        let (len, line) = number(&bytes[at..], b'$')?;
        let (from, to) = (at + line, (at + line).checked_add(len)?);
        words.push(bytes.get(from..to)?);
        at = to.checked_add(2).filter(|at| *at <= bytes.len())?;
    }
    (!words.is_empty()).then_some((words, at))
}

/// The header of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub id: String,
    /// The first byte that is lost, counted from 1, and the last.
    pub first: u64,
    pub end: u64,
    pub is_certain: bool,
    pub is_whole: bool,
}

/// A lost command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Milliseconds since 1970 by which it was told; 0: not known.
    pub wall_ms: u64,
    pub db: u32,
    pub words: Vec<Vec<u8>>,
}

/// A file of lost writes, read a command at a time.
pub struct Lost {
    pub header: Header,
    input: BufReader<File>,
    db: u32,
    wall_ms: u64,
    /// The sum of what was read behind the first line, and whether the last one was.
    sum: u64,
    is_over: bool,
}

/// Longest line, and longest word, of such a file.
const LINE_MAX: u64 = 1024;
const WORD_MAX: usize = 512 << 20;

impl Lost {
    /// Opens a file. Errors: it cannot be read, or is no such file.
    pub fn open(path: &Path) -> io::Result<Lost> {
        let mut input = BufReader::new(File::open(path)?);
        let text = line(&mut input)?.unwrap_or_default();
        let words: Vec<&str> = text.split(' ').collect();
        let header = match &words[..] {
            ["#LOST", "1", id, first, end, certain, whole] => {
                first.parse().ok().zip(end.parse().ok()).map(|(first, end)| Header {
                    id: (*id).to_owned(),
                    first,
                    end,
                    is_certain: *certain == "certain",
                    is_whole: *whole == "whole",
                })
            }
            _ => None,
        };
        let header = header.ok_or_else(|| invalid("this is no file of lost writes"))?;
        Ok(Lost { header, input, db: 0, wall_ms: 0, sum: 0, is_over: false })
    }

    /// The next command, without SELECT, MULTI and EXEC. None: there is none. Errors: the file is damaged.
    pub fn read(&mut self) -> io::Result<Option<Entry>> {
        loop {
            let before = self.sum;
            let Some(text) = self.line()? else {
                return if self.is_over {
                    Ok(None)
                } else {
                    Err(invalid("the file of lost writes is cut off"))
                };
            };
            if self.is_over {
                return Err(damaged());
            }
            if let Some(sum) = text.strip_prefix("#SUM ") {
                self.is_over = u64::from_str_radix(sum, 16).is_ok_and(|sum| sum == before);
                if !self.is_over {
                    return Err(damaged());
                }
                continue;
            }
            if let Some(rest) = text.strip_prefix("#AT ") {
                self.wall_ms = rest.split(' ').nth(1).and_then(|ms| ms.parse().ok()).unwrap_or(0);
                continue;
            }
            if text.starts_with('#') {
                continue;
            }
            let words = self.words(&text)?;
            match (words.first().map(|name| name.to_ascii_lowercase()).as_deref(), words.len()) {
                (Some(b"select"), 2) => {
                    self.db = std::str::from_utf8(&words[1]).ok().and_then(|db| db.parse().ok()).unwrap_or(0);
                }
                (Some(b"multi" | b"exec"), 1) => {}
                _ => return Ok(Some(Entry { wall_ms: self.wall_ms, db: self.db, words })),
            }
        }
    }

    /// The next line, summed up.
    fn line(&mut self) -> io::Result<Option<String>> {
        let text = line(&mut self.input)?;
        if let Some(text) = &text {
            self.sum = crc64(crc64(self.sum, text.as_bytes()), b"\r\n");
        }
        Ok(text)
    }

    fn words(&mut self, text: &str) -> io::Result<Vec<Vec<u8>>> {
        let count: usize = text.strip_prefix('*').and_then(|count| count.parse().ok()).ok_or_else(damaged)?;
        let mut words = Vec::new();
        for _ in 0..count {
            let text = self.line()?.ok_or_else(damaged)?;
            let len = text.strip_prefix('$').and_then(|len| len.parse().ok()).filter(|len| *len <= WORD_MAX);
            let len = len.ok_or_else(damaged)?;
            let mut word = Vec::new();
            (&mut self.input).take(len as u64 + 2).read_to_end(&mut word)?;
            if word.len() != len + 2 || !word.ends_with(b"\r\n") {
                return Err(damaged());
            }
            self.sum = crc64(self.sum, &word);
            word.truncate(len);
            words.push(word);
        }
        if words.is_empty() { Err(damaged()) } else { Ok(words) }
    }
}

fn damaged() -> io::Error {
    invalid("the file of lost writes is damaged")
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, text)
}

/// The next line without its end. None: there is none.
fn line(input: &mut BufReader<File>) -> io::Result<Option<String>> {
    let mut bytes = Vec::new();
    input.take(LINE_MAX).read_until(b'\n', &mut bytes)?;
    if bytes.is_empty() {
        return Ok(None);
    }
    let text = bytes.strip_suffix(b"\r\n").ok_or_else(damaged)?;
    Ok(Some(String::from_utf8_lossy(text).into_owned()))
}

/// The files of lost writes in a directory, the oldest first. O(names in it). Errors: it cannot be read.
pub fn files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let number = name.strip_prefix("lost-").and_then(|rest| rest.strip_suffix(".aof"));
        if let Some(number) = number.and_then(|number| number.parse::<u64>().ok()) {
            found.push((number, path));
        }
    }
    found.sort();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(from: u64, bytes: &[u8], turns: &[(u64, u64)]) -> Kept {
        Kept { from, bytes: bytes.to_vec(), turns: turns.to_vec(), db: 7 }
    }

    fn all(path: &Path) -> Vec<(u64, u32, String)> {
        let mut lost = Lost::open(path).unwrap();
        let mut entries = Vec::new();
        while let Some(Entry { wall_ms, db, words }) = lost.read().unwrap() {
            let words: Vec<_> = words.iter().map(|word| String::from_utf8_lossy(word)).collect();
            entries.push((wall_ms, db, words.join(" ")));
        }
        entries
    }

    const SELECT: &[u8] = b"*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n";
    const SET: &[u8] = b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\nb\r\n";
    const DEL: &[u8] = b"*2\r\n$3\r\nDEL\r\n$1\r\na\r\n";
    const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

    /// All before the place is shared. The database is that of the place.
    #[test]
    fn what_lies_behind_a_place_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let bytes = [&b"half of a command"[..], SELECT, SET, DEL, PING, SET].concat();
        let at = |parts: &[&[u8]]| 117 + parts.iter().map(|part| part.len() as u64).sum::<u64>();
        let (shared, end) = (at(&[SELECT, SET]), at(&[SELECT, SET, DEL, PING, SET]));
        let kept =
            kept(100, &bytes, &[(90, 1), (117, 10), (shared, 20), (at(&[SELECT, SET, DEL]), 30), (end, 40)]);
        let lack = Lack { at: shared, is_certain: true };
        let saved = save(dir.path(), "id", &lack, &kept).unwrap().unwrap();
        assert_eq!((saved.commands, saved.path.file_name().unwrap().to_str()), (2, Some("lost-1.aof")));
        assert_eq!(all(&saved.path), [(30, 3, "DEL a".to_owned()), (40, 3, "SET a b".to_owned())]);
        let header = Lost::open(&saved.path).unwrap().header;
        assert_eq!(
            (header.first, header.end, header.is_certain, header.is_whole),
            (shared + 1, end, true, true)
        );
        // The backlog does not reach back that far.
        let lack = Lack { at: 50, is_certain: false };
        let saved = save(dir.path(), "id", &lack, &kept).unwrap().unwrap();
        assert_eq!(saved.commands, 3);
        let header = Lost::open(&saved.path).unwrap().header;
        assert_eq!((header.first, header.is_certain, header.is_whole), (118, false, false));
        assert_eq!(files(dir.path()).unwrap().len(), 2);
        // Signs of life are no loss.
        let lack = Lack { at: 117, is_certain: true };
        let kept = Kept { bytes: [&b"half of a command"[..], SELECT, PING].concat(), ..kept };
        assert_eq!(save(dir.path(), "id", &lack, &kept).unwrap(), None);
    }

    #[test]
    fn a_primary_says_what_it_lacks() {
        let own = Ids { id: "a".repeat(40), second: None };
        let info = |id: &str, second: &str, offset: u64, end: u64| {
            format!(
                "role:master\r\nmaster_replid:{id}\r\nmaster_replid2:{second}\r\nmaster_repl_offset:{end}\r\n\
                 second_repl_offset:{offset}\r\n"
            )
        };
        let (us, other, none) = ("a".repeat(40), "b".repeat(40), "0".repeat(40));
        let certain = |at| Some(Lack { at, is_certain: true });
        assert_eq!(lack(Some(&info(&other, &us, 51, 80)), &own, 90, Some(20)), certain(50));
        assert_eq!(lack(Some(&info(&other, &us, 91, 200)), &own, 90, Some(20)), None);
        assert_eq!(lack(Some(&info(&us, &none, 0, 60)), &own, 90, None), certain(60));
        let guess = Some(Lack { at: 20, is_certain: false });
        assert_eq!(lack(Some(&info(&other, &none, 0, 60)), &own, 90, Some(20)), guess);
        assert_eq!(lack(None, &own, 90, Some(20)), guess);
        assert_eq!(lack(Some(&info(&other, &none, 0, 60)), &own, 90, None), None);
    }

    #[test]
    fn files_that_are_none_or_damaged_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lost-1.aof");
        let header = "#LOST 1 id 1 2 certain whole\r\n";
        for text in ["", "nonsense", "#LOST 2 a 1 2 c w\r\n", "#LOST 1 id x 2 c w\r\n"] {
            std::fs::write(&path, text).unwrap();
            assert!(Lost::open(&path).is_err(), "{text}");
        }
        for body in [
            "*1\r\n",
            "*1\r\n$3\r\nab",
            "*1\r\n$99999999999\r\n",
            "*0\r\n",
            "$3\r\nabc\r\n",
            "*1\r\n$1\r\nabc",
        ] {
            std::fs::write(&path, format!("{header}{body}")).unwrap();
            assert!(Lost::open(&path).unwrap().read().is_err(), "{body}");
        }
        // Any byte that is another one, or missing, is found.
        let body = [SELECT, SET, DEL].concat();
        std::fs::remove_file(&path).unwrap();
        write(dir.path(), header, &body, 2).unwrap();
        assert_eq!(all(&path).len(), 2);
        let whole = std::fs::read(&path).unwrap();
        let reads = |bytes: &[u8]| -> io::Result<usize> {
            std::fs::write(&path, bytes)?;
            let (mut lost, mut count) = (Lost::open(&path)?, 0);
            while lost.read()?.is_some() {
                count += 1;
            }
            Ok(count)
        };
        assert_eq!(reads(&whole).unwrap(), 2);
        for at in header.len()..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            assert!(reads(&bytes).is_err(), "byte {at}");
            assert!(reads(&whole[..at]).is_err(), "cut off at {at}");
        }
        assert!(reads(&[&whole[..], b"#"].concat()).is_err() && reads(&[&whole[..], SET].concat()).is_err());
    }

    /// A log that begins behind the place tells of a part alone.
    #[test]
    fn a_file_says_whether_it_is_all() {
        let dir = tempfile::tempdir().unwrap();
        let of = HistoryPlace { id: "id".to_owned(), offset: 900, db: 0 };
        let lack = Lack { at: 100, is_certain: true };
        for (commands, is_whole) in [(1, true), (1, false), (0, false)] {
            let body = if commands > 0 { SET } else { b"" };
            let saved = save_log(dir.path(), &of, &lack, |out| {
                out.write_all(body)?;
                Ok((commands, is_whole))
            });
            let saved = saved.unwrap().unwrap();
            let Header { first, end, is_whole: whole, .. } = Lost::open(&saved.path).unwrap().header;
            assert_eq!((first, end, whole, saved.commands), (101, 900, is_whole, commands));
            assert_eq!(all(&saved.path).len() as u64, commands);
        }
        assert_eq!(save_log(dir.path(), &of, &lack, |_| Ok((0, true))).unwrap(), None);
        let saved = save_unknown(dir.path(), "id", &lack, 900).unwrap();
        assert!(!Lost::open(&saved.path).unwrap().header.is_whole);
        assert_eq!(files(dir.path()).unwrap().len(), 4);
    }
}
