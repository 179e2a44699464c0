//! A history on a clock of the test: a day, a restart, damage, a full disk.

use super::event::tests::{edge, record};
use super::files::{Files, HOUR_BYTES, load};
use super::row::tests::{NAMES, row};
use super::*;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

const LIMIT: usize = 16 << 20;
/// The begin of a minute, an hour and a day.
const BEGIN_S: u64 = 20_785 * 86_400;

fn second(unix_s: u64) -> Second {
    Second {
        unix_s,
        row: row(unix_s % 977),
        flows: Flows::default(),
        heavy: Vec::new(),
        records: Vec::new(),
        marks: Vec::new(),
    }
}

fn history() -> Arc<History> {
    Arc::new(History::new(NAMES))
}

fn ops(table: &Table) -> Vec<Option<u64>> {
    table.columns.iter().map(|column| column.as_ref().map(|row| row.figure(0))).collect()
}

/// A day of the shape that a server has: some columns change each second, some now and then.
fn busy_day(history: &Arc<History>, from_s: u64, seconds: u64, dir: Option<&Path>) {
    let mut seed = 1u64;
    for unix_s in from_s..from_s + seconds {
        let mut next = second(unix_s);
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        for octave in 2..9 {
            next.row.heat_mut()[octave] = 1000 + random(800);
        }
        next.row.set_figure(0, 24_000 + random(900));
        next.row.set_figure(1, random(3));
        next.row.busy_mut().iter_mut().for_each(|busy| *busy = 300 + random(90));
        if random(10) == 0 {
            next.row.set_waited(1, Waited { times: 1, us: random(4000), longest_us: random(4000) });
            next.flows.add(&edge("pg_dump", "shop", random(4000)));
            next.records.push(record(0, unix_s * 1000));
        }
        history.add(next, LIMIT, dir.map(Path::to_path_buf));
    }
}

#[test]
fn a_day_keeps_within_its_memory_and_is_all_there() {
    let history = history();
    busy_day(&history, BEGIN_S, 86_400, None);
    assert!(history.bytes() <= LIMIT, "{}", history.bytes());
    assert_eq!(history.seconds(), 86_400);
    // A table of every length of columns has all requests.
    let day_ms = (BEGIN_S * 1000, (BEGIN_S + 86_400) * 1000);
    for columns in [1, 24, 1440, 2000] {
        let table = history.table(day_ms.0, day_ms.1, columns);
        assert!(ops(&table).iter().all(Option::is_some), "{columns}");
        let sum: u64 = ops(&table).iter().flatten().sum();
        assert!((24_000 * 86_400..25_000 * 86_400).contains(&sum), "{sum}");
    }
}

#[test]
fn rings_drop_their_own_oldest_within_a_small_memory() {
    let history = history();
    let limit = 256 << 10;
    for unix_s in BEGIN_S..BEGIN_S + 40_000 {
        let mut next = second(unix_s);
        next.records.push(record(0, unix_s * 1000));
        next.flows.add(&edge("a", "b", 5));
        history.add(next, limit, None);
        assert!(history.bytes() <= limit);
    }
    assert!(history.seconds() < 40_000);
    // The newest are there, the oldest are not.
    let newest = history.table((BEGIN_S + 39_000) * 1000, (BEGIN_S + 39_010) * 1000, 10);
    assert!(ops(&newest).iter().all(Option::is_some));
    assert!(history.records(0, BEGIN_S * 1000 + 60_000, |_| true).is_empty());
    assert!(!history.records((BEGIN_S + 39_000) * 1000, u64::MAX, |_| true).is_empty());
    // 0 forgets all.
    history.add(second(BEGIN_S + 50_000), 0, None);
    assert_eq!((history.bytes(), history.seconds()), (0, 0));
}

#[test]
fn gaps_stay_gaps_and_columns_are_aligned() {
    let history = history();
    (0..120).filter(|n| !(30..40).contains(n)).for_each(|n| history.add(second(BEGIN_S + n), LIMIT, None));
    let table = history.table(BEGIN_S * 1000, (BEGIN_S + 120) * 1000, 120);
    assert_eq!((table.step_ms, table.columns.len()), (1000, 120));
    for (n, ops) in ops(&table).into_iter().enumerate() {
        let expected = (BEGIN_S + n as u64) % 977;
        assert_eq!(ops, (!(30..40).contains(&n)).then_some(expected), "{n}");
    }
    let table = history.table(BEGIN_S * 1000 + 7000, (BEGIN_S + 47) * 1000, 4);
    assert_eq!((table.step_ms, table.from_ms), (10_000, BEGIN_S * 1000));
    assert_eq!(ops(&table).iter().map(Option::is_some).collect::<Vec<_>>(), [true, true, true, false, true]);
}

#[test]
fn a_clock_that_is_set_back_loses_nothing_but_order() {
    let history = history();
    for unix_s in [BEGIN_S + 100, BEGIN_S + 101, BEGIN_S + 10, BEGIN_S + 11, BEGIN_S + 11, BEGIN_S + 130] {
        history.add(second(unix_s), LIMIT, None);
    }
    let table = history.table(BEGIN_S * 1000, (BEGIN_S + 180) * 1000, 180);
    assert_eq!(ops(&table).iter().flatten().count(), 5);
}

#[test]
fn the_worst_minutes_are_incidents_and_neighbours_are_one() {
    let history = history();
    for n in 0..3600 {
        let mut next = second(BEGIN_S + n);
        let minute = n / 60;
        let us = match minute {
            20 | 21 => 8000,
            40 if n % 60 == 3 => 12_000,
            _ => 50,
        };
        next.row.set_waited(0, Waited { times: 1, us, longest_us: us.min(9000) });
        if minute == 40 && n % 60 == 3 {
            next.row.set_waited(1, Waited { times: 1, us: 12_000, longest_us: 12_000 });
        }
        // The client's own doing does not count.
        next.row.set_waited(2, Waited { times: 1, us: 900_000, longest_us: 900_000 });
        let culprit = if minute == 40 { "pg_dump" } else { "billing" };
        next.flows.add(&edge(culprit, "shop", us));
        history.add(next, LIMIT, None);
    }
    let found = history.incidents(0, (BEGIN_S + 3600) * 1000);
    let spans: Vec<_> =
        found.iter().map(|one| (one.from_ms / 1000 - BEGIN_S, one.to_ms - one.from_ms)).collect();
    assert_eq!(spans, [(1200, 120_000), (2400, 60_000)]);
    assert_eq!((found[0].us, found[0].longest_us), (120 * 8000, 8000));
    assert_eq!(found[0].main.as_ref().unwrap().culprit.name, b"billing");
    assert_eq!(found[1].main.as_ref().unwrap().culprit.name, b"pg_dump");
    // Outside of the span nothing is found.
    assert!(history.incidents((BEGIN_S + 1500) * 1000, (BEGIN_S + 2100) * 1000).is_empty());
}

/// Runs three minutes and the begin of a fourth with a directory, and waits for the thread.
fn written(dir: &Path) -> Arc<History> {
    let history = history();
    for n in 0..200 {
        let mut next = second(BEGIN_S + n);
        next.flows.add(&edge("a", "b", 5));
        if n % 60 == 7 {
            next.records.push(record(0, (BEGIN_S + n) * 1000));
            next.marks.push(Mark::new((BEGIN_S + n) * 1000, "save", "saved"));
        }
        history.add(next, LIMIT, Some(dir.to_path_buf()));
    }
    history.thread.flush(Duration::from_secs(30));
    history
}

/// A new process over the same directory.
fn started(dir: &Path, unix_s: u64) -> Arc<History> {
    let history = history();
    history.add(second(unix_s), LIMIT, Some(dir.to_path_buf()));
    history.thread.flush(Duration::from_secs(30));
    history
}

fn hour_file(dir: &Path) -> std::path::PathBuf {
    dir.join("history/2026-11-28T00.hist")
}

#[test]
fn a_restart_loses_the_running_minute_alone() {
    let dir = tempfile::tempdir().unwrap();
    let before = written(dir.path());
    let span = (BEGIN_S * 1000, (BEGIN_S + 180) * 1000 - 1);
    let (expected, records) =
        (ops(&before.table(span.0, span.1, 180)), before.records(span.0, span.1, |_| true));
    drop(before);
    let after = started(dir.path(), BEGIN_S + 205);
    assert_eq!(ops(&after.table(span.0, span.1, 180)), expected);
    assert!(expected.iter().all(Option::is_some));
    let found = after.records(span.0, span.1, |_| true);
    assert_eq!(found.len(), 3);
    assert_eq!(
        found.iter().map(|one| one.id).collect::<Vec<_>>(),
        records.iter().map(|one| one.id).collect::<Vec<_>>()
    );
    assert_eq!(after.flows(span.0, span.1).0.edges[0].waits, 180);
    assert_eq!(after.table(span.0, span.1, 180).marks.len(), 3);
    assert_eq!(after.seconds(), 181);
    // Records of the new process have later numbers.
    let mut next = second(BEGIN_S + 206);
    next.records.push(record(0, (BEGIN_S + 206) * 1000));
    after.add(next, LIMIT, None);
    let newest = after.records(span.1, u64::MAX, |_| true);
    assert!(newest[0].id > found[2].id);
}

#[test]
fn an_orderly_end_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let before = written(dir.path());
    before.end(Some(dir.path().to_path_buf()));
    drop(before);
    assert_eq!(started(dir.path(), BEGIN_S + 205).seconds(), 201);
}

#[test]
fn a_torn_tail_is_cut_and_the_next_minute_follows_the_last_good_one() {
    let dir = tempfile::tempdir().unwrap();
    drop(written(dir.path()));
    let path = hour_file(dir.path());
    let whole = std::fs::metadata(&path).unwrap().len();
    for cut in [1, 7, 40, whole - 1] {
        let bytes = std::fs::read(&path).unwrap();
        let kept = load(dir.path());
        assert!(kept.told.is_empty(), "{:?}", kept.told);
        std::fs::write(&path, &bytes[..bytes.len() - (cut as usize).min(bytes.len() - 1)]).unwrap();
        let torn = load(dir.path());
        assert_eq!(torn.told.len(), 1, "{:?}", torn.told);
        assert!(torn.told[0].contains("cut off"));
        assert!(load(dir.path()).told.is_empty());
        // Minutes with seconds are those of the hour's file.
        let whole =
            |loaded: &super::files::Loaded| loaded.sealed.iter().filter(|sealed| sealed.count > 0).count();
        assert!(whole(&torn) < whole(&kept));
        let mut files = Files::default();
        let another = kept.sealed.iter().rfind(|sealed| sealed.count > 0).unwrap();
        files.append(dir.path(), another).unwrap();
        assert_eq!(whole(&load(dir.path())), whole(&torn) + 1);
    }
}

#[test]
fn any_flipped_bit_is_found_and_what_stands_before_it_is_used() {
    let dir = tempfile::tempdir().unwrap();
    drop(written(dir.path()));
    let path = hour_file(dir.path());
    let bytes = std::fs::read(&path).unwrap();
    let whole = load(dir.path()).sealed;
    let aside = path.with_extension("hist.damaged");
    for at in (0..bytes.len()).step_by(11) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        std::fs::write(&path, &damaged).unwrap();
        let loaded = load(dir.path());
        assert_eq!(loaded.told.len(), 1, "byte {at}: {:?}", loaded.told);
        for sealed in loaded.sealed.iter().filter(|sealed| sealed.count > 0) {
            assert!(whole.contains(sealed), "byte {at}");
        }
        // The sums of all minutes are still there: they stand in the file of the day.
        assert!(loaded.sealed.len() >= whole.len() - 1, "byte {at}: {}", loaded.sealed.len());
        assert!(load(dir.path()).told.is_empty(), "byte {at}");
        let _ = std::fs::remove_file(&aside);
    }
}

/// Behind a checksum that fits, as after a fault of the writer itself.
#[test]
fn a_minute_of_any_bytes_is_refused_or_shown() {
    let dir = tempfile::tempdir().unwrap();
    drop(written(dir.path()));
    let sealed = load(dir.path()).sealed.into_iter().find(|sealed| sealed.count > 0).unwrap();
    let bytes = sealed.write(true);
    assert_eq!(Sealed::read(&bytes), Some(sealed));
    for at in 0..bytes.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut other = bytes.clone();
            other[at] ^= flip;
            let Some(sealed) = Sealed::read(&other) else { continue };
            let history = history();
            history.add(second(sealed.minute * 60 + 90), LIMIT, None);
            let from_ms = sealed.minute * 60_000;
            history.add_older(vec![sealed]);
            history.table(from_ms, from_ms + 60_000, 60);
            history.flows(from_ms, from_ms + 60_000);
            history.records(0, u64::MAX, |_| true);
            history.incidents(from_ms, from_ms + 60_000);
        }
    }
}

#[test]
fn a_disk_that_refuses_disturbs_nobody_and_is_used_again() {
    let dir = tempfile::tempdir().unwrap();
    let history = written(dir.path());
    // Behind this name, each write finds the disk full.
    let path = hour_file(dir.path());
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/dev/full", &path).unwrap();
    for n in 200..320 {
        history.add(second(BEGIN_S + n), LIMIT, Some(dir.path().to_path_buf()));
    }
    history.thread.flush(Duration::from_secs(30));
    assert_eq!(history.seconds(), 320);
    std::fs::remove_file(&path).unwrap();
    for n in 320..400 {
        history.add(second(BEGIN_S + n), LIMIT, Some(dir.path().to_path_buf()));
    }
    history.thread.flush(Duration::from_secs(30));
    let loaded = load(dir.path());
    assert!(loaded.sealed.iter().any(|sealed| sealed.minute == BEGIN_S / 60 + 5 && sealed.count == 60));
}

#[test]
fn a_partial_write_is_overwritten_by_the_next() {
    let dir = tempfile::tempdir().unwrap();
    drop(written(dir.path()));
    let kept = load(dir.path()).sealed;
    let mut files = Files::default();
    files.append(dir.path(), &kept[0]).unwrap();
    // A write that failed half way leaves bytes behind the last good frame.
    let path = hour_file(dir.path());
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    let len = file.metadata().unwrap().len();
    file.write_all_at(&[7; 9], len).unwrap();
    files.append(dir.path(), &kept[1]).unwrap();
    let loaded = load(dir.path());
    assert!(loaded.told.is_empty(), "{:?}", loaded.told);
    assert_eq!(loaded.sealed.iter().filter(|sealed| sealed.count > 0).count(), 5);
}

#[test]
fn old_files_are_removed_and_a_day_takes_ten_megabytes() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = Files::default();
    let sealed = |minute: u64| {
        let mut next = second(minute * 60);
        next.records = (0..100).map(|n| record(n, minute * 60_000)).collect();
        let mut state = State::default();
        state.add(next, &NAMES);
        state.running.unwrap().seal()
    };
    for hour in 0..10 * 24 {
        files.append(dir.path(), &sealed(BEGIN_S / 60 + hour * 60)).unwrap();
    }
    let names = |end: &str| {
        let entries = std::fs::read_dir(dir.path().join("history")).unwrap();
        entries.filter(|entry| entry.as_ref().unwrap().path().extension().unwrap() == end).count()
    };
    assert_eq!((names("hist"), names("min")), (26, 9));
    // An hour of minutes full of records.
    let begin = BEGIN_S / 60 + 11 * 24 * 60;
    (0..60).for_each(|minute| files.append(dir.path(), &sealed(begin + minute)).unwrap());
    let path = dir.path().join("history/2026-12-09T00.hist");
    assert!(std::fs::metadata(path).unwrap().len() <= 2 * HOUR_BYTES);
}

#[test]
fn what_others_left_in_the_folder_is_let_alone() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("history")).unwrap();
    std::fs::write(dir.path().join("history/notes.txt"), "mine").unwrap();
    std::fs::create_dir(dir.path().join("history/2026-11-28T00.hist")).unwrap();
    let loaded = load(dir.path());
    assert!(loaded.sealed.is_empty() && loaded.told.len() == 1);
    let history = started(dir.path(), BEGIN_S);
    history.add(second(BEGIN_S + 60), LIMIT, Some(dir.path().to_path_buf()));
    history.thread.flush(Duration::from_secs(30));
    assert_eq!(std::fs::read(dir.path().join("history/notes.txt")).unwrap(), b"mine");
}
