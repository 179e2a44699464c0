//! The progress of loading or copying, saved in a small file.

use crate::rows::Place;
use crate::send::Earlier;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The progress of a load.
pub struct Resume {
    path: PathBuf,
    input: String,
    /// Identity of the server's run. After a restart it may have lost everything.
    run_id: Option<String>,
    written: Option<Place>,
    /// Rows that earlier runs may have sent.
    earlier: Earlier,
    /// Rows up to this line may be sent. It is saved before a further row is sent.
    reach: u64,
    /// Rows behind the saved place that were refused.
    refused: BTreeSet<u64>,
    at: Instant,
}

/// Least time between two writes of the file.
const OFTEN: Duration = Duration::from_millis(250);

/// Lines for which permission to send is saved at a time.
const AHEAD: u64 = 100_000;

impl Resume {
    /// Reads the file, if there is one. Errors: it is of another input or of another run of the server, or
    /// cannot be read.
    pub fn open(path: &Path, input: &str, run_id: Option<String>) -> Result<(Resume, Place), String> {
        let mut resume = Resume {
            path: path.to_owned(),
            input: input.to_owned(),
            run_id: run_id.clone(),
            written: None,
            earlier: Earlier::default(),
            reach: 0,
            refused: BTreeSet::new(),
            at: Instant::now(),
        };
        let Some(found) = read(path)? else { return Ok((resume, Place::default())) };
        if found["input"] != input {
            return Err(format!("{} belongs to another input: {}", path.display(), found["input"]));
        }
        if differs(&found["run_id"], run_id.as_deref()) {
            return Err(format!(
                "{}: the server was started anew since, or is another one, and may have lost what it had taken. \
                 Remove the file to start over; --existing skip leaves what is there",
                path.display()
            ));
        }
        let field = |name: &str| found[name].as_u64().ok_or_else(|| wrong(path));
        let place = Place { line: field("line")?, offset: field("offset")? };
        resume.written = Some(place);
        // A file of an older version has no such field.
        resume.reach = found["reach"].as_u64().unwrap_or(place.line);
        let refused = found["refused"].as_array().into_iter().flatten();
        resume.refused = refused.filter_map(Value::as_u64).collect();
        resume.earlier = Earlier { line: resume.reach, refused: resume.refused.clone() };
        Ok((resume, place))
    }

    /// Rows that earlier runs may have sent. After a killed run these are up to 100,000 lines behind the last
    /// known reply. After one that ended by itself they are the rows it read, without refused ones.
    pub fn earlier(&self) -> Earlier {
        self.earlier.clone()
    }

    /// Notes that the server refused this row.
    pub fn refuses(&mut self, line: u64) {
        self.refused.insert(line);
    }

    /// The last line that is saved as safe.
    pub fn line(&self) -> u64 {
        self.written.unwrap_or_default().line
    }

    /// Must be called before rows up to this line are sent; saves that if needed.
    pub fn reaches(&mut self, line: u64) -> Result<(), String> {
        if line <= self.reach {
            return Ok(());
        }
        self.reach = line + AHEAD;
        self.write(self.written.unwrap_or_default())
    }

    /// Saves a safe place, four times a second at most.
    pub fn note(&mut self, place: Option<Place>) -> Result<(), String> {
        match place {
            Some(place) if Some(place) != self.written && self.at.elapsed() >= OFTEN => self.write(place),
            _ => Ok(()),
        }
    }

    /// Saves the last safe place of a run that has read up to this line.
    pub fn finish(&mut self, place: Option<Place>, line: u64) -> Result<(), String> {
        self.reach = line.max(self.earlier.line);
        self.write(place.or(self.written).unwrap_or_default())
    }

    fn write(&mut self, place: Place) -> Result<(), String> {
        let Place { line, offset } = place;
        self.refused = self.refused.split_off(&(line + 1));
        let state = json!({
            "input": self.input,
            "run_id": self.run_id,
            "line": line,
            "offset": offset,
            "reach": self.reach,
            "refused": self.refused,
        });
        write(&self.path, &state)?;
        (self.written, self.at) = (Some(place), Instant::now());
        Ok(())
    }
}

/// The progress of a copy: SCAN's cursor behind the last keys that were copied. The cursor is valid for one
/// run of one source, and copied keys may be lost when the target restarts. After a restart of either,
/// copying starts over.
pub struct CopyResume {
    path: PathBuf,
    /// The source, the target and the pattern.
    job: String,
    /// The run ids of the source and of the target.
    run_ids: [Option<String>; 2],
    /// None at the start, "0" at the end, as in SCAN.
    pub cursor: Option<String>,
    /// Number of keys before the cursor.
    pub keys: u64,
    is_noted: bool,
    at: Instant,
}

impl CopyResume {
    /// Reads the file, if there is one. The text says why copying starts over, if it does. Errors: the file
    /// is of another copy, or cannot be read.
    pub fn open(
        path: &Path,
        job: String,
        run_ids: [Option<String>; 2],
    ) -> Result<(CopyResume, Option<String>), String> {
        let (path_of, at) = (path.to_owned(), Instant::now());
        let mut resume =
            CopyResume { path: path_of, job, run_ids, cursor: None, keys: 0, is_noted: true, at };
        let Some(found) = read(path)? else { return Ok((resume, None)) };
        if found["copy"] != resume.job {
            return Err(format!("{} is of another copy: {}", path.display(), found["copy"]));
        }
        for (i, what) in ["source", "target"].into_iter().enumerate() {
            if differs(&found["run_ids"][i], resume.run_ids[i].as_deref()) {
                return Ok((resume, Some(format!("the {what} was started anew since: copying starts over"))));
            }
        }
        resume.cursor = Some(found["cursor"].as_str().ok_or_else(|| wrong(path))?.to_owned());
        resume.keys = found["keys"].as_u64().ok_or_else(|| wrong(path))?;
        Ok((resume, None))
    }

    /// Notes that all `keys` keys before this cursor are copied.
    pub fn reach(&mut self, cursor: String, keys: u64) {
        (self.cursor, self.keys, self.is_noted) = (Some(cursor), keys, false);
    }

    /// Saves the progress, four times a second at most except for the last time.
    pub fn note(&mut self, last: bool) -> Result<(), String> {
        if self.is_noted || !last && self.at.elapsed() < OFTEN {
            return Ok(());
        }
        let (job, run_ids, cursor, keys) = (&self.job, &self.run_ids, &self.cursor, self.keys);
        write(&self.path, &json!({ "copy": job, "run_ids": run_ids, "cursor": cursor, "keys": keys }))?;
        (self.is_noted, self.at) = (true, Instant::now());
        Ok(())
    }
}

/// Whether both are known and differ.
fn differs(noted: &Value, now: Option<&str>) -> bool {
    noted.as_str().zip(now).is_some_and(|(noted, now)| noted != now)
}

fn wrong(path: &Path) -> String {
    format!("{} is not a valid progress file: remove it to start over", path.display())
}

/// Reads the file; None if there is none.
fn read(path: &Path) -> Result<Option<Value>, String> {
    match std::fs::read(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(format!("cannot read {}: {e}", path.display())),
        Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|_| wrong(path)),
    }
}

/// Replaces the file as a whole, so that it is complete whenever this process or the machine ends.
fn write(path: &Path, state: &Value) -> Result<(), String> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".part");
    let written = File::create(&aside).and_then(|mut file| {
        file.write_all(state.to_string().as_bytes())?;
        file.sync_all()
    });
    let written = written.and_then(|()| std::fs::rename(&aside, path));
    written.map_err(|e| format!("cannot write {}: {e}", path.display()))
}
