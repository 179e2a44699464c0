//! Log lines: `2026-11-21T07:27:03.910Z notice what happened`, to standard output or `logfile`.
//!
//! Log calls hand the line to a thread and return: serving never waits for a file.
//!
//! - G1: at most [`QUEUE_LINES`] lines wait; further ones are dropped, and their number is logged.
//! - G2: the file is opened for every burst of lines, so it can be moved away at any time.

use config::{Config, Directive, Live, Observer};
use log::{Level, LevelFilter, Log, Metadata, Record};
use std::backtrace::Backtrace;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const QUEUE_LINES: usize = 4096;
/// Backtraces logged in all; finding their names takes milliseconds.
const BACKTRACES: u32 = 20;

enum Message {
    Line(String),
    /// The backtrace of a panic; [`BACKTRACES`] of them are logged.
    Panic(Box<Backtrace>),
    /// Answered once everything before it is written.
    Flush(SyncSender<()>),
}

struct Logger {
    queue: SyncSender<Message>,
    lost: Arc<AtomicU64>,
}

/// Starts logging as configured; the macros of `log` work from here on. From here on, too, a panic that is
/// not contained ends the process (`stdx::panics`). Must be called once.
///
/// # Errors
/// `logfile` cannot be opened.
pub fn start(config: &Config) -> io::Result<()> {
    let file = Some(config.live.logfile.string()).filter(|f| !f.is_empty()).map(PathBuf::from);
    if let Some(path) = &file {
        open(path)?;
    }
    let (queue, lines) = sync_channel(QUEUE_LINES);
    let lost = Arc::new(AtomicU64::new(0));
    let counted = lost.clone();
    thread::Builder::new().name("log".into()).spawn(move || write_lines(&lines, file, &counted))?;
    log::set_max_level(level(config.live.loglevel.get()));
    let panics = queue.clone();
    if log::set_boxed_logger(Box::new(Logger { queue, lost })).is_ok() {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            log::error!("{panic}");
            // The writing thread finds the functions' names.
            let backtrace = Message::Panic(Box::new(Backtrace::force_capture()));
            let _ = panics.try_send(backtrace);
            if !stdx::panics::is_contained() {
                usual(panic);
                log::error!("a thread that others depend on panicked: the server ends");
                flush();
                std::process::abort();
            }
        }));
    }
    Ok(())
}

/// Waits until everything logged so far is written, for a second at most.
pub fn flush() {
    log::logger().flush();
}

/// Follows CONFIG SET loglevel.
pub struct LevelObserver;

impl Observer for LevelObserver {
    fn changed(&self, directive: &Directive, live: &Live) {
        if directive.name == "loglevel" {
            log::set_max_level(level(live.loglevel.get()));
        }
    }
}

/// The filter for a `loglevel`: debug, verbose, notice, warning, nothing.
fn level(loglevel: i64) -> LevelFilter {
    match loglevel {
        0 => LevelFilter::Trace,
        1 => LevelFilter::Debug,
        2 => LevelFilter::Info,
        3 => LevelFilter::Warn,
        _ => LevelFilter::Off,
    }
}

fn word(level: Level) -> &'static str {
    match level {
        Level::Trace => "debug",
        Level::Debug => "verbose",
        Level::Info => "notice",
        Level::Warn => "warning",
        Level::Error => "error",
    }
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let line = format!("{} {} {}\n", timestamp(since), word(record.level()), record.args());
        if self.queue.try_send(Message::Line(line)).is_err() {
            self.lost.fetch_add(1, Relaxed);
        }
    }

    fn flush(&self) {
        let (done, wait) = sync_channel(1);
        if self.queue.try_send(Message::Flush(done)).is_ok() {
            // A hanging disk must not keep the server from ending.
            let _ = wait.recv_timeout(Duration::from_secs(1));
        }
    }
}

fn write_lines(lines: &Receiver<Message>, file: Option<PathBuf>, lost: &AtomicU64) {
    let mut backtraces = 0;
    while let Ok(first) = lines.recv() {
        let mut text = String::new();
        let mut waiting = Vec::new();
        for message in std::iter::once(first).chain(lines.try_iter().take(QUEUE_LINES)) {
            match message {
                Message::Line(line) => text.push_str(&line),
                Message::Panic(_) if backtraces >= BACKTRACES => {}
                Message::Panic(backtrace) => {
                    backtraces += 1;
                    text.push_str(&format!("{backtrace}\n"));
                }
                Message::Flush(done) => waiting.push(done),
            }
        }
        let lost = lost.swap(0, Relaxed);
        if lost > 0 {
            text.push_str(&format!("({lost} log lines were lost here: too many at once)\n"));
        }
        // There is no better place to report that logging fails.
        let _ = match &file {
            Some(path) => open(path).and_then(|mut file| file.write_all(text.as_bytes())),
            None => io::stdout().lock().write_all(text.as_bytes()).and_then(|()| io::stdout().flush()),
        };
        for done in waiting {
            let _ = done.send(());
        }
    }
}

fn open(path: &PathBuf) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

/// A UTC time to the millisecond.
fn timestamp(since_epoch: Duration) -> String {
    let seconds = since_epoch.as_secs();
    let (year, month, day) = date(seconds / 86400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let ms = since_epoch.subsec_millis();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// Year, month and day of a day counted from 1970-01-01.
///
/// Counts from 0000-03-01, so that the leap day ends a year, in eras of 400 years (146,097 days). Months from
/// March have 31 30 31 30 31 days over and over, which (153 · month + 2) / 5 counts.
fn date(day: u64) -> (u64, u64, u64) {
    let day = day + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, of_year - (153 * from_march + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399, "2000-02-28T23:59:59.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_795_246_023, "2026-11-21T07:27:03.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(timestamp(Duration::from_secs(seconds)), text);
        }
        assert!(timestamp(Duration::from_millis(1007)).ends_with("01.007Z"));
    }

    #[test]
    fn lines_arrive_in_order_in_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let (queue, lines) = sync_channel(QUEUE_LINES);
        let (lost, file) = (Arc::new(AtomicU64::new(2)), Some(path.clone()));
        let writer = thread::spawn(move || write_lines(&lines, file, &lost));
        let logger = Logger { queue, lost: Arc::default() };
        log::set_max_level(LevelFilter::Info);
        for n in 0..3 {
            logger.log(&Record::builder().level(Level::Info).args(format_args!("line {n}")).build());
        }
        logger.log(&Record::builder().level(Level::Debug).args(format_args!("quiet")).build());
        logger.flush();
        drop(logger);
        writer.join().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let at = |words: &str| text.find(words).unwrap_or_else(|| panic!("{words} missing in {text}"));
        assert!(at("Z notice line 0\n") < at("line 1") && at("line 1") < at("line 2"));
        assert!(text.contains("2 log lines were lost") && !text.contains("quiet"));
    }

    #[test]
    fn nobody_waits_for_a_disk_that_does_not_write() {
        let (queue, lines) = sync_channel(1);
        let logger = Logger { queue, lost: Arc::default() };
        log::set_max_level(LevelFilter::Info);
        let started = std::time::Instant::now();
        for _ in 0..1000 {
            logger.log(&Record::builder().level(Level::Warn).args(format_args!("a line")).build());
        }
        assert!(started.elapsed() < Duration::from_secs(5));
        assert_eq!(logger.lost.load(Relaxed), 999);
        drop(lines);
    }
}
