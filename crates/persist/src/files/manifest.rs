//! The manifest: the files of the log, in the order in which they are read.
//!
//! ```text
//! file appendonly.aof.2.base.rdb seq 2 type b
//! file appendonly.aof.1.incr.aof seq 1 type h
//! file "a name.aof.3.incr.aof" seq 3 type i startoffset 17
//! ```
//!
//! - G1: at most one base. The numbers of the files of commands rise. No name comes twice.
//! - G2: lines and files are bounded, whatever the text says.
//! - G3: pairs of unknown words are passed over, and lines that begin with `#`, as in Redis.
//!
//! Source: observed on Redis 7.0, Redis 8.0 and Valkey 9.1.

use std::fmt;

/// Bytes of a line, as in Redis, and of a manifest.
const LINE_MAX: usize = 1024;
const BYTES_MAX: usize = 4 << 20;
/// Bytes of a file's name.
const NAME_MAX: usize = 255;

/// The part that a file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    Base,
    /// Not needed any more, and about to be removed.
    History,
    Incr,
}

impl FileKind {
    fn letter(self) -> char {
        match self {
            FileKind::Base => 'b',
            FileKind::History => 'h',
            FileKind::Incr => 'i',
        }
    }
}

/// One file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: Vec<u8>,
    pub seq: u64,
    pub kind: FileKind,
}

/// All files, in the order of the manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    pub entries: Vec<Entry>,
}

/// The reason why a manifest is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestError {
    /// Counted from 1; 0 for the manifest as a whole.
    pub line: usize,
    pub why: &'static str,
}

impl fmt::Display for ManifestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "the manifest {}", self.why),
            line => write!(f, "line {line} of the manifest {}", self.why),
        }
    }
}

impl std::error::Error for ManifestError {}

impl Manifest {
    /// Reads a manifest. Cost: O(bytes · log files). Errors: the text is no manifest (G1, G2), or names no
    /// file.
    pub fn parse(text: &[u8]) -> Result<Manifest, ManifestError> {
        let whole = |why| ManifestError { line: 0, why };
        if text.len() > BYTES_MAX {
            return Err(whole("is too long"));
        }
        let Some(text) = text.strip_suffix(b"\n") else {
            return Err(whole(if text.is_empty() { "is empty" } else { "does not end with a line end" }));
        };
        let mut manifest = Manifest::default();
        let mut names = std::collections::BTreeSet::new();
        for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let error = |why| ManifestError { line: index + 1, why };
            if line.len() >= LINE_MAX {
                return Err(error("is too long"));
            }
            if line.starts_with(b"#") {
                continue;
            }
            let entry = entry(line).map_err(error)?;
            manifest.admits(&entry).map_err(error)?;
            if !names.insert(entry.name.clone()) {
                return Err(error("names a file that was named before"));
            }
            manifest.entries.push(entry);
        }
        if manifest.entries.is_empty() {
            return Err(whole("names no file"));
        }
        Ok(manifest)
    }

    /// Whether another file may come behind those there are (G1).
    fn admits(&self, entry: &Entry) -> Result<(), &'static str> {
        match entry.kind {
            FileKind::Base if self.base().is_some() => Err("names a second base"),
            FileKind::Incr if self.incrs().last().is_some_and(|last| last.seq >= entry.seq) => {
                Err("has a number that does not rise")
            }
            _ => Ok(()),
        }
    }

    pub fn base(&self) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.kind == FileKind::Base)
    }

    /// The files of commands, in their order.
    pub fn incrs(&self) -> impl DoubleEndedIterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.kind == FileKind::Incr)
    }

    /// The highest number of a file of commands, old ones included.
    pub(crate) fn last_incr_seq(&self) -> u64 {
        let others = self.entries.iter().filter(|entry| entry.kind != FileKind::Base);
        others.map(|entry| entry.seq).max().unwrap_or(0)
    }

    pub(crate) fn last_base_seq(&self) -> u64 {
        let others = self.entries.iter().filter(|entry| entry.kind != FileKind::Incr);
        others.map(|entry| entry.seq).max().unwrap_or(0)
    }

    /// The manifest as it is written.
    pub fn text(&self) -> Vec<u8> {
        let mut text = Vec::new();
        for Entry { name, seq, kind } in &self.entries {
            text.extend_from_slice(b"file ");
            put_name(&mut text, name);
            text.extend_from_slice(format!(" seq {seq} type {}\n", kind.letter()).as_bytes());
        }
        text
    }
}

/// Reads a line: pairs of words.
fn entry(line: &[u8]) -> Result<Entry, &'static str> {
    let words = resp::split_line(line).ok_or("has quotes that do not balance")?;
    let words = words.args();
    if words.len() < 6 || !words.len().is_multiple_of(2) {
        return Err("does not have a name, a number and a type");
    }
    let (mut name, mut seq, mut kind) = (None, None, None);
    for at in (0..words.len()).step_by(2) {
        let value = words.at(at + 1);
        match words.at(at) {
            word if word.eq_ignore_ascii_case(b"file") => name = Some(file_name(value)?),
            word if word.eq_ignore_ascii_case(b"seq") => {
                let number = std::str::from_utf8(value).ok().and_then(|text| text.parse::<i64>().ok());
                let number = number.and_then(|number| u64::try_from(number).ok()).filter(|seq| *seq > 0);
                seq = Some(number.ok_or("has an invalid number")?);
            }
            word if word.eq_ignore_ascii_case(b"type") => kind = Some(file_kind(value)?),
            // G3
            _ => {}
        }
    }
    match (name, seq, kind) {
        (Some(name), Some(seq), Some(kind)) => Ok(Entry { name, seq, kind }),
        _ => Err("does not have a name, a number and a type"),
    }
}

fn file_kind(word: &[u8]) -> Result<FileKind, &'static str> {
    match word {
        b"b" => Ok(FileKind::Base),
        b"h" => Ok(FileKind::History),
        b"i" => Ok(FileKind::Incr),
        _ => Err("has an unknown type"),
    }
}

/// A name of a file in the directory (F3).
fn file_name(word: &[u8]) -> Result<Vec<u8>, &'static str> {
    if word.is_empty() || word == b"." || word == b".." {
        return Err("names no file");
    }
    if word.contains(&b'/') || word.contains(&b'\\') {
        return Err("names a file elsewhere");
    }
    if word.contains(&0) || word.len() > NAME_MAX {
        return Err("has a name that no file can have");
    }
    Ok(word.to_vec())
}

/// Writes a name, in quotes where Redis writes it so.
fn put_name(out: &mut Vec<u8>, name: &[u8]) {
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\' | b'\'');
    if name.iter().all(is_plain) {
        return out.extend_from_slice(name);
    }
    out.push(b'"');
    for byte in name {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', *byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            7 => out.extend_from_slice(b"\\a"),
            8 => out.extend_from_slice(b"\\b"),
            b' '..=b'~' => out.push(*byte),
            byte => out.extend_from_slice(format!("\\x{byte:02x}").as_bytes()),
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &[u8]) -> String {
        Manifest::parse(text).expect_err("it is refused").to_string()
    }

    #[test]
    fn the_manifests_of_redis_are_read() {
        let text = b"# a note\nfile appendonly.aof.2.base.rdb seq 2 type b\n\
            file \"a b\\\".aof.1.incr.aof\" seq 1 type h\n\
            file appendonly.aof.3.incr.aof seq 3 type i startoffset 17\n";
        let manifest = Manifest::parse(text).expect("sound");
        assert_eq!(manifest.entries[1].name, b"a b\".aof.1.incr.aof");
        assert_eq!((manifest.base().map(|base| base.seq), manifest.last_incr_seq()), (Some(2), 3));
        assert_eq!(Manifest::parse(&manifest.text()).as_ref(), Ok(&manifest));
    }

    #[test]
    fn any_name_comes_back() {
        for name in ["a b", "\"q\"", "it's", "\u{e4}\n\t\r\x07\x08\x01", "#x"] {
            let name = name.as_bytes().to_vec();
            let manifest = Manifest { entries: vec![Entry { name, seq: 7, kind: FileKind::Incr }] };
            assert_eq!(Manifest::parse(&manifest.text()), Ok(manifest));
        }
    }

    #[test]
    fn hostile_manifests_are_refused() {
        let line = |name: &str, seq: &str, kind: &str| format!("file {name} seq {seq} type {kind}\n");
        for name in ["../dump.rdb", "/etc/passwd", "a/b", ".", "..", "\"\"", "\"a\\x00b\"", &"n".repeat(300)]
        {
            refused(line(name, "1", "i").as_bytes());
        }
        for seq in ["0", "-1", "x", "", "99999999999999999999", "1.5"] {
            refused(line("a", seq, "i").as_bytes());
        }
        assert!(refused(line(&"n".repeat(100_000), "1", "i").as_bytes()).contains("too long"));
        assert!(refused(&vec![b'#'; BYTES_MAX + 1]).contains("too long"));
        for twice in [
            line("a", "1", "b") + &line("b", "2", "b"),
            line("a", "2", "i") + &line("b", "2", "i"),
            line("a", "2", "i") + &line("b", "1", "i"),
            line("a", "1", "b") + &line("a", "1", "i"),
        ] {
            assert!(refused(twice.as_bytes()).starts_with("line 2"), "{twice}");
        }
        for text in
            ["", "\n", "# only a note\n", "file a seq 1 type i", "file a seq 1\n", "file \"a seq 1 type i\n"]
        {
            refused(text.as_bytes());
        }
    }
}
