//! What a server asked of its files, read from the output of strace.
//!
//! - T1: a line is written when its call ends. A call that others overtook has two lines; its effect counts
//!   from the second, and a sync covers only what ended before its first.
//! - T2: a descriptor is free from the first line of its close on: another thread may get its number before the
//!   second.
//! - T3: the time of a line is that at which the call began, in microseconds of the wall clock. An answer that
//!   a client had before that time stands on calls of earlier lines.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// The calls that are recorded.
const CALLS: &str = "open,openat,creat,close,dup,dup2,dup3,fcntl,write,pwrite64,writev,pwritev,pwritev2,lseek,ftruncate,truncate,\
fallocate,fsync,fdatasync,sync_file_range,rename,renameat,renameat2,unlink,unlinkat,rmdir,mkdir,mkdirat,link,linkat,symlink,\
symlinkat,copy_file_range,sendfile";

/// The words before those of the server, so that its calls are written to a file.
pub fn prefix(trace: &Path) -> Vec<String> {
    let mut words: Vec<String> =
        ["strace", "-D", "-f", "-ttt", "-s", "100000000", "-xx", "--seccomp-bpf", "-e"]
            .map(str::to_owned)
            .to_vec();
    words.extend([format!("trace={CALLS}"), "-o".to_owned(), trace.display().to_string()]);
    words
}

/// A call that may have changed something on the disk.
#[derive(Debug, PartialEq, Eq)]
pub enum Act {
    /// A file or directory was opened; the number of its descriptor.
    Open {
        fd: i32,
        path: PathBuf,
        truncates: bool,
    },
    Close {
        fd: i32,
    },
    Duplicate {
        from: i32,
        to: i32,
    },
    /// None: behind what was last written through the descriptor.
    Write {
        fd: i32,
        bytes: Vec<u8>,
        at: Option<u64>,
    },
    Seek {
        fd: i32,
        at: u64,
    },
    Truncate {
        fd: i32,
        len: u64,
    },
    /// A sync begins.
    Syncs {
        fd: i32,
        of: u32,
    },
    /// It ended well.
    Synced {
        fd: i32,
        of: u32,
    },
    Rename {
        from: PathBuf,
        to: PathBuf,
    },
    Remove {
        path: PathBuf,
    },
    MakeDir {
        path: PathBuf,
    },
}

/// An act, and when its call began.
#[derive(Debug)]
pub struct Step {
    pub at_us: u64,
    pub act: Act,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.act {
            Act::Write { fd, bytes, at } => {
                let head = bytes[..bytes.len().min(60)].escape_ascii();
                write!(f, "{} write {fd} at {at:?}: {} bytes, {head}", self.at_us, bytes.len())
            }
            act => write!(f, "{} {act:?}", self.at_us),
        }
    }
}

/// Reads a whole record. Errors: a line that is not understood, or a call that the model of the disk does not
/// know.
pub fn read(trace: &Path) -> Result<Vec<Step>, String> {
    let text = fs::read(trace).map_err(|e| format!("{}: {e}", trace.display()))?;
    let mut begun: HashMap<u32, Vec<u8>> = HashMap::new();
    let mut steps = Vec::new();
    for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let shown = || String::from_utf8_lossy(&line[..line.len().min(300)]).into_owned();
        let (pid, at_us, said) = head(line).ok_or_else(|| format!("strace wrote {}", shown()))?;
        if said.starts_with(b"+++") || said.starts_with(b"---") {
            continue;
        }
        let call: Vec<u8> = if let Some(first) = said.strip_suffix(b"<unfinished ...>") {
            if let Some(fd) = sync(first) {
                steps.push(Step { at_us, act: Act::Syncs { fd, of: pid } });
            }
            if let Some(fd) = closed(first) {
                steps.push(Step { at_us, act: Act::Close { fd } });
            }
            begun.insert(pid, first.to_vec());
            continue;
        } else if said.starts_with(b"<... ") {
            let rest = find(said, b" resumed>").map(|at| &said[at + b" resumed>".len()..]);
            let mut first =
                begun.remove(&pid).ok_or_else(|| format!("a call ends that never began: {}", shown()))?;
            if closed(&first).is_some() {
                continue;
            }
            first.extend_from_slice(rest.ok_or_else(shown)?);
            first
        } else {
            if let Some(fd) = sync(said) {
                steps.push(Step { at_us, act: Act::Syncs { fd, of: pid } });
            }
            said.to_vec()
        };
        for act in acts(&call, pid).ok_or_else(|| format!("no model of {}", shown()))? {
            steps.push(Step { at_us, act });
        }
    }
    Ok(steps)
}

/// Process, time, and the rest of a line.
fn head(line: &[u8]) -> Option<(u32, u64, &[u8])> {
    let pid_end = find(line, b" ")?;
    let pid = std::str::from_utf8(&line[..pid_end]).ok()?.parse().ok()?;
    let rest = line[pid_end..].trim_ascii_start();
    let time_end = find(rest, b" ")?;
    let (seconds, micros) = std::str::from_utf8(&rest[..time_end]).ok()?.split_once('.')?;
    let at_us = seconds.parse::<u64>().ok()? * 1_000_000 + micros.parse::<u64>().ok()?;
    Some((pid, at_us, rest[time_end..].trim_ascii()))
}

/// The descriptor that a call closes (T2).
fn closed(call: &[u8]) -> Option<i32> {
    first_number(call.strip_prefix(b"close(")?)
}

/// The descriptor that a call syncs.
fn sync(call: &[u8]) -> Option<i32> {
    first_number(call.strip_prefix(b"fsync(").or_else(|| call.strip_prefix(b"fdatasync("))?)
}

fn first_number(words: &[u8]) -> Option<i32> {
    let end = words.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(words.len());
    std::str::from_utf8(&words[..end]).ok()?.parse().ok()
}

/// What a whole call did: nothing if it failed. None: it is not understood.
fn acts(call: &[u8], of: u32) -> Option<Vec<Act>> {
    let open = find(call, b"(")?;
    let name = std::str::from_utf8(&call[..open]).ok()?;
    // strace puts spaces before the result, so that short calls are in line.
    let equals = call
        .windows(3)
        .rposition(|three| three == b" = ")
        .or_else(|| call.windows(3).rposition(|three| three == b") ="))?;
    let close = call[..=equals].iter().rposition(|byte| *byte == b')')?;
    let result = find(&call[equals..], b"= ").map(|at| call[equals + at + 2..].trim_ascii())?;
    let result = result.split(|byte| *byte == b' ').next()?;
    let Ok(result) = std::str::from_utf8(result).ok()?.parse::<i64>() else {
        // A call that the end of the process cut off has no result.
        return Some(Vec::new());
    };
    if result < 0 {
        return Some(Vec::new());
    }
    let words = words(&call[open + 1..close]);
    let number = |nr: usize| words.get(nr).and_then(|word| integer(word));
    let fd = number(0).map(|fd| fd as i32);
    let path = |nr: usize| words.get(nr).and_then(|word| quoted(word)).map(as_path);
    Some(match name {
        "open" | "creat" => {
            vec![Act::Open { fd: result as i32, path: path(0)?, truncates: has(&words, b"O_TRUNC") }]
        }
        "openat" if has(&words, b"O_TMPFILE") => return None,
        "openat" => vec![Act::Open { fd: result as i32, path: path(1)?, truncates: has(&words, b"O_TRUNC") }],
        "close" => vec![Act::Close { fd: fd? }],
        "dup" | "dup2" | "dup3" => vec![Act::Duplicate { from: fd?, to: result as i32 }],
        "fcntl" if has(&words, b"F_DUPFD") => vec![Act::Duplicate { from: fd?, to: result as i32 }],
        "fcntl" | "sync_file_range" => Vec::new(),
        "write" => vec![Act::Write { fd: fd?, bytes: taken(quoted(words.get(1)?)?, result), at: None }],
        "pwrite64" => vec![Act::Write {
            fd: fd?,
            bytes: taken(quoted(words.get(1)?)?, result),
            at: Some(number(3)? as u64),
        }],
        "writev" => vec![Act::Write { fd: fd?, bytes: taken(vectors(words.get(1)?)?, result), at: None }],
        "pwritev" | "pwritev2" => vec![Act::Write {
            fd: fd?,
            bytes: taken(vectors(words.get(1)?)?, result),
            at: Some(number(3)? as u64),
        }],
        "lseek" => vec![Act::Seek { fd: fd?, at: result as u64 }],
        "ftruncate" => vec![Act::Truncate { fd: fd?, len: number(1)? as u64 }],
        // Reserved room changes no byte, as long as the length stays.
        "fallocate" => has(&words, b"FALLOC_FL_KEEP_SIZE").then(Vec::new)?,
        "fsync" | "fdatasync" => vec![Act::Synced { fd: fd?, of }],
        "rename" => vec![Act::Rename { from: path(0)?, to: path(1)? }],
        "renameat" | "renameat2" => vec![Act::Rename { from: path(1)?, to: path(3)? }],
        "unlink" | "rmdir" => vec![Act::Remove { path: path(0)? }],
        // A removal relative to a descriptor is told by `remove_dir_all`, which the reader of paths resolves.
        "unlinkat" => vec![Act::Remove { path: relative(words.first()?, path(1)?)? }],
        "mkdir" => vec![Act::MakeDir { path: path(0)? }],
        "mkdirat" => vec![Act::MakeDir { path: path(1)? }],
        _ => return None,
    })
}

/// A path that a call names relative to a descriptor is told as `fd/name`.
fn relative(dir: &[u8], path: PathBuf) -> Option<PathBuf> {
    match integer(dir) {
        Some(fd) => Some(PathBuf::from(format!("#{fd}")).join(path)),
        None => Some(path),
    }
}

/// The arguments of a call. What stands within quotes, brackets and braces is not divided.
fn words(text: &[u8]) -> Vec<&[u8]> {
    let (mut found, mut from, mut depth, mut in_quotes) = (Vec::new(), 0, 0, false);
    for (at, byte) in text.iter().enumerate() {
        match byte {
            b'"' => in_quotes = !in_quotes,
            b'[' | b'{' if !in_quotes => depth += 1,
            b']' | b'}' if !in_quotes => depth -= 1,
            b',' if !in_quotes && depth == 0 => {
                found.push(text[from..at].trim_ascii());
                from = at + 1;
            }
            _ => {}
        }
    }
    found.push(text[from..].trim_ascii());
    found
}

fn has(words: &[&[u8]], flag: &[u8]) -> bool {
    words.iter().any(|word| find(word, flag).is_some())
}

fn integer(word: &[u8]) -> Option<i64> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

/// The bytes of a text in hexadecimal, as `"\x61"`.
fn quoted(word: &[u8]) -> Option<Vec<u8>> {
    let inside = word.strip_prefix(b"\"")?;
    let end = find(inside, b"\"")?;
    hexadecimal(&inside[..end])
}

fn hexadecimal(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| (byte as char).to_digit(16).map(|it| it as u8);
    text.chunks(4).map(|four| Some(digit(*four.get(2)?)? << 4 | digit(*four.get(3)?)?)).collect()
}

/// The bytes of several buffers, as `[{iov_base="\x61", iov_len=1}, …]`.
fn vectors(word: &[u8]) -> Option<Vec<u8>> {
    let mut all = Vec::new();
    let mut rest = word;
    while let Some(at) = find(rest, b"iov_base=") {
        rest = &rest[at + b"iov_base=".len()..];
        all.extend(quoted(rest)?);
    }
    Some(all)
}

/// The part that a call took.
fn taken(mut bytes: Vec<u8>, result: i64) -> Vec<u8> {
    bytes.truncate(result as usize);
    bytes
}

fn as_path(bytes: Vec<u8>) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|some| some == what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Vec<Step>, String> {
        let file = std::env::temp_dir().join(format!("evenkeel-trace-{}-{}", std::process::id(), text.len()));
        fs::write(&file, text).unwrap();
        let steps = read(&file);
        fs::remove_file(file).unwrap();
        steps
    }

    #[test]
    fn a_sync_begins_with_its_first_line_and_a_write_counts_from_its_last() {
        let text = concat!(
            "7 5.000001 openat(AT_FDCWD, \"\\x2f\\x61\", O_WRONLY|O_CREAT|O_TRUNC, 0666) = 9\n",
            "7 5.000002 fdatasync(9 <unfinished ...>\n",
            "8 5.000003 pwrite64(9, \"\\x61\\x62\", 2, 4 <unfinished ...>\n",
            "7 5.000004 <... fdatasync resumed>) = 0\n",
            "8 5.000005 <... pwrite64 resumed>) = 1\n",
            "7 5.000006 writev(9, [{iov_base=\"\\x63\", iov_len=1}, {iov_base=\"\\x64\", iov_len=1}], 2) = 2\n",
            "7 5.000007 rename(\"\\x61\", \"\\x62\") = -1 ENOENT (No such file or directory)\n",
            "7 5.000008 close(9 <unfinished ...>\n",
            "8 5.000009 open(\"\\x2f\\x62\", O_RDONLY) = 9\n",
            "7 5.000010 <... close resumed>) = 0\n",
            "8 5.000011 +++ exited with 0 +++\n",
        );
        let acts: Vec<Act> = read_text(text).unwrap().into_iter().map(|step| step.act).collect();
        let expected = [
            Act::Open { fd: 9, path: "/a".into(), truncates: true },
            Act::Syncs { fd: 9, of: 7 },
            Act::Synced { fd: 9, of: 7 },
            Act::Write { fd: 9, bytes: b"a".to_vec(), at: Some(4) },
            Act::Write { fd: 9, bytes: b"cd".to_vec(), at: None },
            Act::Close { fd: 9 },
            Act::Open { fd: 9, path: "/b".into(), truncates: false },
        ];
        assert_eq!(acts, expected);
    }

    #[test]
    fn a_call_without_a_model_is_an_error() {
        assert!(read_text("7 5.000001 linkat(AT_FDCWD, \"\\x61\", AT_FDCWD, \"\\x62\", 0) = 0\n").is_err());
        assert!(read_text("7 5.000001 fallocate(9, 0, 0, 4096) = 0\n").is_err());
    }
}
