//! The files that a server left: copied, examined, damaged.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::rng::Rng;

/// The directory of the log.
pub const LOG: &str = "appendonlydir";

/// Copies a folder with all that is in it.
pub fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("{}: {e}", from.display());
    fs::create_dir_all(to).map_err(failed)?;
    for entry in fs::read_dir(from).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &target)?;
        } else {
            fs::copy(&path, target).map_err(failed)?;
        }
    }
    Ok(())
}

/// Copies a folder in place of what was there.
pub fn copy_anew(from: &Path, to: &Path) -> Result<(), String> {
    let _ = fs::remove_dir_all(to);
    copy(from, to)
}

/// Removes what was not finished.
pub fn remove_temporary(dir: &Path) -> Result<(), String> {
    for entry in fs::read_dir(dir.join(LOG)).map_err(|e| e.to_string())?.flatten() {
        if entry.file_name().to_string_lossy().starts_with("temp-") {
            fs::remove_file(entry.path()).map_err(|e| e.to_string())?;
        }
    }
    Ok(())
}

/// The doctor's finding.
#[derive(PartialEq, Eq, Debug)]
pub enum Health {
    Sound,
    Torn,
}

/// Has the doctor look at the log. Errors: it finds more than a torn end.
pub fn doctor(server: &Path, dir: &Path) -> Result<Health, String> {
    let output = Command::new(server).arg("doctor").arg(dir.join(LOG)).output().map_err(|e| e.to_string())?;
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => Ok(Health::Sound),
        Some(1) if text.contains("sound up to a torn end") => Ok(Health::Torn),
        code => Err(format!("evenkeel doctor ended with {code:?} and says:\n{text}")),
    }
}

/// Has the doctor cut off the torn end of the log. Errors: the log is not sound then.
pub fn cut_torn_end(server: &Path, dir: &Path) -> Result<(), String> {
    let log = dir.join(LOG);
    let fix = Command::new(server).arg("doctor").arg(log).arg("--fix").output();
    fix.map_err(|e| e.to_string())?;
    match doctor(server, dir)? {
        Health::Sound => Ok(()),
        Health::Torn => Err("evenkeel doctor --fix left a torn end".to_owned()),
    }
}

/// The files that the manifest names, by kind (`b`, `i`), in its order.
fn named(dir: &Path, kind: &str) -> Vec<PathBuf> {
    let log = dir.join(LOG);
    let text = fs::read_to_string(log.join("appendonly.aof.manifest")).unwrap_or_default();
    let of_line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let fact = |name: &str| words.iter().skip_while(|word| **word != name).nth(1).copied();
        (fact("type") == Some(kind)).then(|| fact("file").map(|name| log.join(name)))?
    };
    text.lines().filter_map(of_line).collect()
}

/// A line about a batch: where it begins and ends, and how many bytes were durable when it was written.
struct Mark {
    from: usize,
    to: usize,
    synced: usize,
}

/// The lines about batches, the one at the head left out.
fn marks(bytes: &[u8]) -> Vec<Mark> {
    let begins = |at: &usize| bytes[*at..].starts_with(b"#EK 1 ") && (*at == 0 || bytes[*at - 1] == b'\n');
    let mark = |from: usize| {
        let to = from + bytes[from..].windows(2).position(|two| two == b"\r\n")? + 2;
        let text = String::from_utf8_lossy(&bytes[from..to]).into_owned();
        let synced = text.split(' ').nth(6)?.parse().ok()?;
        Some(Mark { from, to, synced })
    };
    let starts = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'#').map(|(at, _)| at);
    starts.filter(begins).filter_map(mark).filter(|mark| mark.from > 0).collect()
}

/// Damage that was done.
pub struct Damage {
    pub what: String,
    /// The file that the refusal has to name. None: it has to start, without some of the end.
    pub refused: Option<String>,
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Damages the files of a folder in one way. None: there is nothing to damage so.
pub fn damage(dir: &Path, rng: &mut Rng) -> Result<Option<Damage>, String> {
    match rng.below(3) {
        0 => cut(dir, rng),
        1 => flip_in_commands(dir, rng),
        _ => flip_in_base(dir, rng),
    }
}

/// The last file ends somewhere in what it holds.
fn cut(dir: &Path, rng: &mut Rng) -> Result<Option<Damage>, String> {
    let Some(path) = named(dir, "i").pop() else { return Ok(None) };
    let bytes = fs::read(&path).map_err(|e| e.to_string())?;
    let Some(last) = marks(&bytes).pop() else { return Ok(None) };
    let at = rng.below(last.to);
    fs::File::options()
        .write(true)
        .open(&path)
        .and_then(|file| file.set_len(at as u64))
        .map_err(|e| e.to_string())?;
    Ok(Some(Damage { what: format!("{} cut at {at} of {}", name_of(&path), last.to), refused: None }))
}

/// A byte of commands is another one, in a place that was durable when something was written behind it.
fn flip_in_commands(dir: &Path, rng: &mut Rng) -> Result<Option<Damage>, String> {
    let files = named(dir, "i");
    if files.is_empty() {
        return Ok(None);
    }
    let path = rng.pick(&files);
    let mut bytes = fs::read(path).map_err(|e| e.to_string())?;
    let marks = marks(&bytes);
    let durable = marks.iter().map(|mark| mark.synced).max().unwrap_or(0);
    let batches: Vec<(usize, usize)> = marks.windows(2).map(|two| (two[0].to, two[1].from)).collect();
    let batches: Vec<_> = batches.into_iter().filter(|(from, to)| from < to && *to < durable).collect();
    if batches.is_empty() {
        return Ok(None);
    }
    let (from, to) = *rng.pick(&batches);
    let at = rng.between(from, to - 1);
    bytes[at] ^= 1 << rng.below(8);
    fs::write(path, &bytes).map_err(|e| e.to_string())?;
    Ok(Some(Damage { what: format!("a bit of {} at {at}", name_of(path)), refused: Some(name_of(path)) }))
}

fn flip_in_base(dir: &Path, rng: &mut Rng) -> Result<Option<Damage>, String> {
    let Some(path) = named(dir, "b").pop() else { return Ok(None) };
    let mut bytes = fs::read(&path).map_err(|e| e.to_string())?;
    if bytes.is_empty() {
        return Ok(None);
    }
    let at = rng.below(bytes.len());
    bytes[at] ^= 1 << rng.below(8);
    fs::write(&path, &bytes).map_err(|e| e.to_string())?;
    Ok(Some(Damage { what: format!("a bit of {} at {at}", name_of(&path)), refused: Some(name_of(&path)) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_about_batches_are_found() {
        let head = "#EK 1 1 5 5 0 77 0123456789abcdef 01234567\r\n";
        let text =
            format!("{head}*1\r\n$4\r\nPING\r\n#EK 1 1 6 9 14 40 0123456789abcdef 01234567\r\n#----\r\n");
        let found = marks(text.as_bytes());
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].from, found[0].synced), (head.len() + 14, 40));
        assert!(text[found[0].to..].starts_with("#--"));
    }
}
