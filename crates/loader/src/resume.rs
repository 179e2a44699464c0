//! How far loading came, in a small file.

use crate::rows::Place;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The file, and what was written to it.
pub struct Resume {
    path: PathBuf,
    input: String,
    written: Option<Place>,
    /// Rows up to this line may have been sent: no further one is before that is noted.
    reach: u64,
    at: Instant,
}

/// Lines for which leave to send them is noted at a time.
const AHEAD: u64 = 1_000_000;

impl Resume {
    /// Reads the file, if it is there; it must be of the same input.
    pub fn open(path: &Path, input: &str) -> Result<(Resume, Place), String> {
        let mut resume = Resume {
            path: path.to_owned(),
            input: input.to_owned(),
            written: None,
            reach: 0,
            at: Instant::now(),
        };
        let text = match std::fs::read(path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok((resume, Place::default())),
            Err(e) => return Err(format!("cannot read {}: {e}", path.display())),
            Ok(text) => text,
        };
        let wrong =
            || format!("{} does not tell how far loading came: remove it to start over", path.display());
        let found: Value = serde_json::from_slice(&text).map_err(|_| wrong())?;
        if found["input"] != input {
            return Err(format!("{} is of another input: {}", path.display(), found["input"]));
        }
        let field = |name: &str| found[name].as_u64().ok_or_else(wrong);
        let place = Place { line: field("line")?, offset: field("offset")? };
        resume.written = Some(place);
        // A file without it was written when there was no such field.
        resume.reach = found["reach"].as_u64().unwrap_or(place.line);
        Ok((resume, place))
    }

    /// The last line that an earlier run may have sent.
    pub fn reach(&self) -> u64 {
        self.reach
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

    /// Notes a safe place, once a second at most unless it is the last.
    pub fn note(&mut self, place: Option<Place>, last: bool) -> Result<(), String> {
        let Some(place) = place.filter(|place| Some(*place) != self.written) else { return Ok(()) };
        if !last && self.at.elapsed() < Duration::from_secs(1) {
            return Ok(());
        }
        self.write(place)
    }

    fn write(&mut self, place: Place) -> Result<(), String> {
        let Place { line, offset } = place;
        let text =
            json!({ "input": self.input, "line": line, "offset": offset, "reach": self.reach }).to_string();
        let aside = self.path.with_extension("part");
        let written = std::fs::write(&aside, text).and_then(|()| std::fs::rename(&aside, &self.path));
        written.map_err(|e| format!("cannot write {}: {e}", self.path.display()))?;
        (self.written, self.at) = (Some(place), Instant::now());
        Ok(())
    }
}
