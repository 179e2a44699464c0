//! `evenkeel load`: loads rows of a file as values.

use crate::options::{Existing, Kind, Load, OnError};
use crate::progress::{Progress, number};
use crate::resume::Resume;
use crate::rows::{Format, Input, Place, Row, RowError, Rows};
use crate::send::{Account, Sender};
use crate::shape::{Payloads, Piece, Shape};
use crate::stop::Stop;
use crate::wire::Conn;
use dial::Frame;
use std::fs::File;
use std::os::fd::AsFd;

/// Errors printed one by one; further ones are only counted.
pub const SAID: u64 = 20;

/// Loads, and returns the last line to print. Errors: why it ended early.
pub fn run(options: &Load, stop: &Stop) -> Result<String, String> {
    let name = options.file.as_ref().map_or("-".to_owned(), |file| file.display().to_string());
    let format = options
        .format
        .or_else(|| Format::of_name(&name))
        .ok_or_else(|| format!("{name}: say --format csv, tsv, ndjson or lines"))?;
    if options.resume.is_some() && !can_resume(options.kind, options.existing) {
        return Err("--resume of a list, set or sorted set needs --existing replace, which sends it anew from its first row \
                    (of sets and sorted sets --existing merge does as well)"
            .to_owned());
    }
    if options.resume.is_some() && !options.file.as_ref().is_some_and(|path| path.is_file() || !path.exists())
    {
        return Err(format!("{name}: --resume needs a file, which can be read on from the middle"));
    }
    let (input, total) = open(options, stop)?;
    let address = options.target.address()?;
    let (takes, run_id) = if options.dry_run {
        (Payloads::One, None)
    } else {
        let mut conn = Conn::open(&address, stop)?;
        (takes_payloads(&mut conn)?, conn.info("server", "run_id")?)
    };
    let (resume, from) = match &options.resume {
        Some(path) => Resume::open(path, &name, run_id).map(|(resume, from)| (Some(resume), from))?,
        None => (None, Place::default()),
    };
    let rows =
        Rows::open(input, format, options.columns.clone(), from).map_err(|e| format!("{name}: {e}"))?;
    let shape = Shape::new(options, takes)?;
    if let Some(columns) = rows.columns() {
        shape.check_columns(columns).map_err(|e| format!("{name}: {e}"))?;
    }
    let progress = Progress::start(total);
    let stop_of = stop.clone();
    let mut job = Job { name, options, rows, shape, refused: 0, end: from, progress, resume, stop: stop_of };
    if options.dry_run {
        return job.dry_run();
    }
    let connections = options.target.connections.into();
    let stops = options.on_error == OnError::Stop;
    let earlier = job.resume.as_ref().map(Resume::earlier).unwrap_or_default();
    let sender = Sender::start(&address, connections, stops, options.existing, &earlier, stop)?;
    job.load(sender)
}

/// Whether keys of an interrupted run can be told from older ones, or need not be.
fn can_resume(kind: Kind, existing: Existing) -> bool {
    match existing {
        _ if !kind.is_collection() => true,
        Existing::Replace => true,
        Existing::Merge => kind != Kind::List,
        Existing::Fail | Existing::Skip => false,
    }
}

/// The input, and its size if it is a file.
fn open(options: &Load, stop: &Stop) -> Result<(Input, Option<u64>), String> {
    let named = options.file.as_ref().filter(|path| path.as_os_str() != "-");
    let file = match named {
        Some(path) => File::open(path).map_err(|e| format!("cannot open {}: {e}", path.display()))?,
        // Not `Stdin`, whose buffer could hold bytes while the wait for the file sees none.
        None => std::io::stdin().as_fd().try_clone_to_owned().map(File::from).map_err(|e| e.to_string())?,
    };
    let size = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|data| data.len());
    match size {
        Some(_) if named.is_some() => Ok((Input::File(file), size)),
        _ => Ok((Input::Stream(Box::new(stop.reading(file))), size)),
    }
}

/// Whether the server takes payloads; those written here are read from Redis 5 on.
pub fn takes_payloads(conn: &mut Conn) -> Result<Payloads, String> {
    let version = conn.info("server", "redis_version")?.unwrap_or_default();
    let major: u32 = version.split('.').next().and_then(|n| n.parse().ok()).unwrap_or(0);
    if major < 5 {
        return Ok(Payloads::None);
    }
    // A user who may not ask gets the slower way.
    let known = match conn.call(&[b"COMMAND", b"INFO", b"mrestore"]) {
        Ok(Frame::Array(rows)) => matches!(rows.first(), Some(Frame::Array(row)) if !row.is_empty()),
        _ => false,
    };
    Ok(if known { Payloads::Many } else { Payloads::One })
}

struct Job<'a> {
    name: String,
    options: &'a Load,
    rows: Rows,
    shape: Shape,
    /// Rows that were wrong, and pieces that were refused.
    refused: u64,
    /// The place behind the last row that was read.
    end: Place,
    progress: Progress,
    resume: Option<Resume>,
    stop: Stop,
}

impl Job<'_> {
    fn dry_run(&mut self) -> Result<String, String> {
        let (mut rows, mut values, mut bytes) = (0, 0, 0);
        let mut pieces = Vec::new();
        while let Some(row) = self.next_row()? {
            rows += 1;
            self.shape_row(&row, &mut pieces)?;
            values += pieces.len() as u64;
            bytes += pieces.drain(..).map(|piece: Piece| piece.bytes.len()).sum::<usize>();
        }
        self.shape.finish(&mut pieces);
        values += pieces.len() as u64;
        bytes += pieces.iter().map(|piece| piece.bytes.len()).sum::<usize>();
        let (rows, values) = (number(rows - self.refused.min(rows)), number(values));
        let mut text =
            format!("{rows} rows would be {values} values, {:.1} MB; nothing was sent", bytes as f64 / 1e6);
        if self.refused > 0 {
            text.push_str(&format!("; {} are wrong", number(self.refused)));
        }
        Ok(text)
    }

    fn load(&mut self, mut sender: Sender) -> Result<String, String> {
        let account = sender.account().clone();
        let ended = self.feed(&mut sender, &account);
        sender.finish();
        let refused = self.hear(&account);
        let mut text = self.progress.finish(&account, self.refused);
        let ended = self.stop.check().and(ended).and(refused);
        let noted = match &mut self.resume {
            Some(resume) => resume.finish(account.safe_place(), self.end.line),
            None => Ok(()),
        };
        if let (Some(resume), Err(_), Ok(())) = (&self.resume, &ended, &noted) {
            text.push_str(&format!("; the same command goes on behind line {}", resume.line()));
        }
        match ended.and(noted) {
            Ok(()) => Ok(text),
            Err(reason) => Err(format!("{reason}\nstopped: {text}")),
        }
    }

    /// Reads all rows and sends them.
    fn feed(&mut self, sender: &mut Sender, account: &Account) -> Result<(), String> {
        let mut pieces = Vec::new();
        while !account.is_stopped() {
            let Some(row) = self.next_row()? else {
                self.shape.finish(&mut pieces);
                pieces.drain(..).for_each(|piece| sender.push(piece));
                sender.mark(self.end);
                return Ok(());
            };
            if let Some(resume) = &mut self.resume {
                resume.reaches(row.end.line)?;
            }
            let whole = self.shape_row(&row, &mut pieces)?;
            pieces.drain(..).for_each(|piece| sender.push(piece));
            if whole {
                sender.mark(row.end);
            }
            self.hear(account)?;
            self.progress.show(row.end.offset, account);
            if let Some(resume) = &mut self.resume {
                resume.note(account.safe_place())?;
            }
        }
        Ok(())
    }

    /// The next good row; bad ones are reported.
    fn next_row(&mut self) -> Result<Option<Row>, String> {
        loop {
            self.stop.check()?;
            match self.rows.next() {
                Ok(Some(row)) => {
                    self.end = row.end;
                    return Ok(Some(row));
                }
                Ok(None) => return Ok(None),
                Err(RowError::Bad { line, reason }) => self.blame(line, &reason)?,
                Err(RowError::Fatal(reason)) => return Err(format!("{}: {reason}", self.name)),
            }
        }
    }

    fn shape_row(&mut self, row: &Row, pieces: &mut Vec<Piece>) -> Result<bool, String> {
        match self.shape.take(row, pieces) {
            Ok(whole) => Ok(whole),
            Err(reason) => self.blame(row.line, &reason).map(|()| false),
        }
    }

    /// Handles the refusals since the last call.
    fn hear(&mut self, account: &Account) -> Result<(), String> {
        // All are counted; the first that ends the run is returned.
        let mut ends = Ok(());
        for refusal in account.take_refusals() {
            if let Some(resume) = self.resume.as_mut().filter(|_| !refusal.fatal) {
                resume.refuses(refusal.line);
            }
            let outcome = match refusal.fatal {
                true => Err(format!("{}:{}: {}", self.name, refusal.line, refusal.reason)),
                false => self.blame(refusal.line, &refusal.reason),
            };
            ends = ends.and(outcome);
        }
        ends
    }

    /// Reports a row that is wrong or was refused: as an error that ends the run, or as a line on the
    /// terminal.
    fn blame(&mut self, line: u64, reason: &str) -> Result<(), String> {
        let text = format!("{}:{line}: {reason}", self.name);
        self.refused += 1;
        if self.options.on_error == OnError::Stop {
            return Err(text);
        }
        match self.refused {
            ..=SAID => self.progress.say(&text),
            n if n == SAID + 1 => self.progress.say("further errors are only counted"),
            _ => {}
        }
        Ok(())
    }
}
