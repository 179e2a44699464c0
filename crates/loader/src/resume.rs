//! How far loading or copying came, in a small file.

use crate::rows::Place;
use crate::send::Earlier;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How far loading came.
pub struct Resume {
    path: PathBuf,
    input: String,
    /// Of the server, which may have lost everything when it has another one.
    run_id: Option<String>,
    written: Option<Place>,
    /// Rows that earlier runs may have sent.
    earlier: Earlier,
    /// Rows up to this line may have been sent: no further one is before that is noted.
    reach: u64,
    /// Rows behind the place that were refused.
    refused: BTreeSet<u64>,
    at: Instant,
}

/// Between two times that it is written.
const OFTEN: Duration = Duration::from_millis(250);

/// Lines for which leave to send them is noted at a time.
const AHEAD: u64 = 100_000;

impl Resume {
    /// Reads the file, if it is there; it must be of the same input and the same run of the server.
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
            return Err(format!("{} is of another input: {}", path.display(), found["input"]));
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
        // A file without it was written when there was no such field.
        resume.reach = found["reach"].as_u64().unwrap_or(place.line);
        let refused = found["refused"].as_array().into_iter().flatten();
        resume.refused = refused.filter_map(Value::as_u64).collect();
        resume.earlier = Earlier { line: resume.reach, refused: resume.refused.clone() };
        Ok((resume, place))
    }

    /// Rows that earlier runs may have sent: up to 100,000 lines behind those whose replies had come if one was killed, none that had
    /// not been read or that was refused if it ended by itself.
    pub fn earlier(&self) -> Earlier {
        self.earlier.clone()
    }

    /// The server refused this row.
    pub fn refuses(&mut self, line: u64) {
        self.refused.insert(line);
    }

    /// The last line that is noted as safe.
    pub fn line(&self) -> u64 {
        self.written.unwrap_or_default().line
    }

    /// Rows up to this line are about to be sent.
    pub fn reaches(&mut self, line: u64) -> Result<(), String> {
        if line <= self.reach {
            return Ok(());
        }
        self.reach = line + AHEAD;
        self.write(self.written.unwrap_or_default())
    }

    /// Notes a safe place, four times a second at most.
    pub fn note(&mut self, place: Option<Place>) -> Result<(), String> {
        match place {
            Some(place) if Some(place) != self.written && self.at.elapsed() >= OFTEN => self.write(place),
            _ => Ok(()),
        }
    }

    /// Notes the last safe place of a run that has read this line and none behind it.
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

/// How far a copy came: SCAN's cursor behind the last keys that are through. It means something to one run of one source alone, and
/// what is through may be lost when the target is started anew: when either was, copying starts over.
pub struct CopyResume {
    path: PathBuf,
    /// What is copied from where to where.
    job: String,
    /// Of the source and the target.
    run_ids: [Option<String>; 2],
    /// None at the start, "0" at the end, as SCAN has it.
    pub cursor: Option<String>,
    /// Keys before it.
    pub keys: u64,
    is_noted: bool,
    at: Instant,
}

impl CopyResume {
    /// Reads the file, if it is there; it must be of the same copy. The text says why copying starts over, if it does.
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

    /// Before this cursor all is through, which are so many keys.
    pub fn reach(&mut self, cursor: String, keys: u64) {
        (self.cursor, self.keys, self.is_noted) = (Some(cursor), keys, false);
    }

    /// Notes it, four times a second at most unless it is the last time.
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

/// Both are known and are not the same.
fn differs(noted: &Value, now: Option<&str>) -> bool {
    noted.as_str().zip(now).is_some_and(|(noted, now)| noted != now)
}

fn wrong(path: &Path) -> String {
    format!("{} does not tell how far it came: remove it to start over", path.display())
}

/// What is in the file; None if there is none.
fn read(path: &Path) -> Result<Option<Value>, String> {
    match std::fs::read(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(format!("cannot read {}: {e}", path.display())),
        Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|_| wrong(path)),
    }
}

/// Writes it at once and as a whole, whenever this process or the machine ends.
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
