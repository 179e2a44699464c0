//! The files of sealed minutes in `<dir>/history`: one an hour with all, one a day with the minutes' sums.
//!
//! ```text
//! 2026-11-28T03.hist   2026-11-28.min          UTC
//! frame: length u32 │ CRC-64 of the rest u64 │ version u8 │ payload          little endian
//! ```
//!
//! - D1: a frame is written in one call behind the last good one. After a failed write the next begins at the
//!   same place.
//! - D2: nothing is synced. A crash of the process loses nothing of what was written.
//! - D3: a file that ends within a frame is cut there. One with a wrong sum is renamed to `….damaged`, and what
//!   stands before the damage is used.
//! - D4: hours are removed after 25 hours, days after 8. An hour takes at most [`HOUR_BYTES`] with all, twice
//!   that with sums alone.

use crate::minute::Sealed;
use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const VERSION: u8 = 1;
const HEAD: usize = 12;
/// The longest frame that is believed.
const FRAME_MAX: usize = 1 << 20;
/// The longest file that is read.
const FILE_MAX: u64 = 16 << 20;
/// 10 MB a day.
pub const HOUR_BYTES: u64 = 10_000_000 / 24;
const HOURS_KEPT: u64 = 25;
const DAYS_KEPT: u64 = 8;
const MINUTES_OF_HOUR: u64 = 60;
const MINUTES_OF_DAY: u64 = 24 * 60;

/// A file that is appended to.
struct Open {
    path: PathBuf,
    file: File,
    /// The end of the last good frame (D1).
    len: u64,
}

/// The writer's files.
#[derive(Default)]
pub struct Files {
    hour: Option<Open>,
    day: Option<Open>,
}

/// The contents of a directory.
#[derive(Default)]
pub struct Loaded {
    /// In order of time.
    pub sealed: Vec<Sealed>,
    /// Sentences about files that were damaged.
    pub told: Vec<String>,
}

impl Files {
    /// Appends a minute to the files of its hour and its day. Errors: those of the disk; a part of it may be
    /// written, and is overwritten by the next.
    pub fn append(&mut self, dir: &Path, sealed: &Sealed) -> io::Result<()> {
        let folder = dir.join("history");
        if !folder.is_dir() {
            fs::create_dir(&folder)?;
        }
        let hour = open(&mut self.hour, folder.join(hour_name(sealed.minute / MINUTES_OF_HOUR)))?;
        if hour.len == 0 {
            tidy(&folder, sealed.minute);
        }
        let whole = sealed.write(true);
        if hour.len + (whole.len() + HEAD + 1) as u64 <= HOUR_BYTES {
            append(hour, &whole)?;
        } else if hour.len < 2 * HOUR_BYTES {
            append(hour, &sealed.write(false))?;
        }
        let day = open(&mut self.day, folder.join(day_name(sealed.minute / MINUTES_OF_DAY)))?;
        append(day, &sealed.write(false))
    }
}

fn open(opened: &mut Option<Open>, path: PathBuf) -> io::Result<&mut Open> {
    if opened.as_ref().is_some_and(|open| open.path != path || !open.path.exists()) {
        *opened = None;
    }
    match opened {
        Some(open) => Ok(open),
        None => {
            let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)?;
            let len = file.metadata()?.len();
            Ok(opened.insert(Open { path, file, len }))
        }
    }
}

fn append(open: &mut Open, payload: &[u8]) -> io::Result<()> {
    let frame = frame(payload);
    open.file.write_all_at(&frame, open.len)?;
    open.len += frame.len() as u64;
    Ok(())
}

fn frame(payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEAD + 1 + payload.len());
    frame.extend_from_slice(&(payload.len() as u32 + 1).to_le_bytes());
    frame.extend_from_slice(&[0; 8]);
    frame.push(VERSION);
    frame.extend_from_slice(payload);
    let sum = rdb::crc64(0, &frame[HEAD..]);
    frame[4..HEAD].copy_from_slice(&sum.to_le_bytes());
    frame
}

/// How the reading of a file ended.
#[derive(PartialEq, Eq, Debug)]
enum End {
    Whole,
    /// It ends within a frame that begins here.
    Torn(usize),
    Damaged(usize),
}

/// Reads frames as long as they are good.
fn read(bytes: &[u8], mut each: impl FnMut(Sealed)) -> End {
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let Some((head, _)) = rest.split_first_chunk::<HEAD>() else { return End::Torn(at) };
        let [a, b, c, d, sum @ ..] = *head;
        let len = u32::from_le_bytes([a, b, c, d]) as usize;
        if len == 0 || len > FRAME_MAX {
            return End::Damaged(at);
        }
        let Some(body) = rest.get(HEAD..HEAD + len) else { return End::Torn(at) };
        if rdb::crc64(0, body) != u64::from_le_bytes(sum) {
            return End::Damaged(at);
        }
        // A later version's frame is passed over.
        if let Some((&VERSION, payload)) = body.split_first() {
            match Sealed::read(payload) {
                Some(sealed) => each(sealed),
                None => return End::Damaged(at),
            }
        }
        at += HEAD + len;
    }
    End::Whole
}

/// Reads what a directory holds, and mends it (D3). O(bytes)
pub fn load(dir: &Path) -> Loaded {
    let (folder, mut loaded) = (dir.join("history"), Loaded::default());
    let mut paths: Vec<PathBuf> = names(&folder).into_iter().map(|(path, _)| path).collect();
    // Days first: their sums are older than, or equal to, those of the hours.
    paths.sort_by_key(|path| (path.extension().is_some_and(|end| end == "hist"), path.clone()));
    let (mut sums, mut hours) = (Vec::new(), Vec::new());
    for path in paths {
        let is_hour = path.extension().is_some_and(|end| end == "hist");
        let into = if is_hour { &mut hours } else { &mut sums };
        if let Err(why) = load_one(&path, into, &mut loaded.told) {
            loaded.told.push(format!("{} cannot be read: {why}", path.display()));
        }
    }
    // The minutes of the hours come from there with all they have.
    let whole: HashSet<u64> = hours.iter().map(|sealed: &Sealed| sealed.minute).collect();
    sums.retain(|sealed: &Sealed| !whole.contains(&sealed.minute));
    loaded.sealed = sums;
    loaded.sealed.extend(hours);
    loaded.sealed.sort_by_key(|sealed| sealed.minute);
    loaded
}

fn load_one(path: &Path, into: &mut Vec<Sealed>, told: &mut Vec<String>) -> io::Result<()> {
    let kind = fs::symlink_metadata(path)?;
    if !kind.is_file() || kind.len() > FILE_MAX {
        told.push(format!("{} is no file of a history, or too long: it is left alone", path.display()));
        return Ok(());
    }
    let bytes = fs::read(path)?;
    match read(&bytes, |sealed| into.push(sealed)) {
        End::Whole => Ok(()),
        End::Torn(at) => {
            told.push(format!("{} ended within a minute, which is cut off", path.display()));
            OpenOptions::new().write(true).open(path)?.set_len(at as u64)
        }
        End::Damaged(at) => {
            let mut aside = path.as_os_str().to_owned();
            aside.push(".damaged");
            fs::rename(path, &aside)?;
            told.push(format!(
                "{} is damaged at byte {at}: it is renamed to {}, and the minutes before the damage are shown",
                path.display(),
                Path::new(&aside).display()
            ));
            // The good part is kept.
            fs::write(path, &bytes[..at])
        }
    }
}

/// Removes what is too old (D4).
fn tidy(folder: &Path, minute: u64) {
    for (path, end) in names(folder) {
        let kept = if path.extension().is_some_and(|end| end == "hist") {
            HOURS_KEPT * MINUTES_OF_HOUR
        } else {
            DAYS_KEPT * MINUTES_OF_DAY
        };
        if end + kept <= minute {
            let _ = fs::remove_file(&path);
        }
    }
}

/// The files of a history, each with the minute in which it ends.
fn names(folder: &Path) -> Vec<(PathBuf, u64)> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let files = entries.filter_map(|entry| {
        let name = entry.ok()?.file_name();
        let name = name.to_str()?;
        let end = match name.strip_suffix(".hist") {
            Some(hour) => (hour_of(hour)? + 1) * MINUTES_OF_HOUR,
            None => (day_of(name.strip_suffix(".min")?)? + 1) * MINUTES_OF_DAY,
        };
        Some((folder.join(name), end))
    });
    files.collect()
}

fn hour_name(hour: u64) -> String {
    let (year, month, day) = date(hour / 24);
    format!("{year:04}-{month:02}-{day:02}T{:02}.hist", hour % 24)
}

fn day_name(day: u64) -> String {
    let (year, month, day) = date(day);
    format!("{year:04}-{month:02}-{day:02}.min")
}

fn hour_of(name: &str) -> Option<u64> {
    let (day, hour) = name.split_once('T')?;
    let hour = hour.parse().ok().filter(|n: &u64| *n < 24 && hour.len() == 2)?;
    Some(day_of(day)? * 24 + hour)
}

/// The day since 1970 of a name; None: it is no date.
fn day_of(name: &str) -> Option<u64> {
    let mut parts = name.splitn(3, '-').map(|part| part.parse::<u64>().ok());
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    let days = (1970..=9999).contains(&year).then(|| days_before(year, month))? + day.checked_sub(1)?;
    (day_name(days).strip_suffix(".min") == Some(name)).then_some(days)
}

/// Days from 1970 to the begin of a month.
fn days_before(year: u64, month: u64) -> u64 {
    let years = year - 1;
    let leaps = |year: u64| year / 4 - year / 100 + year / 400;
    let is_leap = leaps(year) > leaps(years);
    let months: [u64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let before = months.get((month as usize).wrapping_sub(1)).copied().unwrap_or(0);
    (years - 1969) * 365 + leaps(years) - leaps(1969) + before + u64::from(is_leap && month > 2)
}

/// Year, month and day of a day since 1970.
fn date(day: u64) -> (u64, u64, u64) {
    let mut year = 1970 + day / 366;
    while days_before(year + 1, 1) <= day {
        year += 1;
    }
    let month = (1..=12).rev().find(|month| days_before(year, *month) <= day).unwrap_or(1);
    (year, month, day - days_before(year, month) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_have_the_names_of_the_calendar() {
        for (day, name) in [
            (0, "1970-01-01.min"),
            (58, "1970-02-28.min"),
            (789, "1972-02-29.min"),
            (11_016, "2000-02-29.min"),
            (20_785, "2026-11-28.min"),
            (47_541, "2100-03-01.min"),
        ] {
            assert_eq!(day_name(day), name);
        }
        for day in (0..60_000).step_by(7) {
            assert_eq!(day_of(day_name(day).strip_suffix(".min").unwrap()), Some(day));
        }
        assert_eq!(hour_name(20_785 * 24 + 3), "2026-11-28T03.hist");
        assert_eq!(hour_of("2026-11-28T03"), Some(20_785 * 24 + 3));
        for wrong in ["2026-13-01", "2026-11-31", "2026-1-01", "1969-01-01", "x", "", "--", "2026-00-01"] {
            assert_eq!(day_of(wrong), None, "{wrong}");
        }
        assert_eq!((hour_of("2026-11-28T24"), hour_of("2026-11-28T3")), (None, None));
    }

    #[test]
    fn hostile_files_are_read_without_a_panic() {
        let mut seed = 5u64;
        for _ in 0..2000 {
            let mut bytes: Vec<u8> = Vec::new();
            for _ in 0..3 {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let body: Vec<u8> = (0..seed >> 58).map(|at| (seed >> (at % 56)) as u8 % 24).collect();
                bytes.extend(frame(&body));
            }
            bytes.truncate(bytes.len() - (seed % 3) as usize);
            read(&bytes, drop);
        }
    }
}
