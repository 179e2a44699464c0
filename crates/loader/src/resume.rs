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
    at: Instant,
}

impl Resume {
    /// Reads the file, if it is there; it must be of the same input.
    pub fn open(path: &Path, input: &str) -> Result<(Resume, Place), String> {
        let mut resume =
            Resume { path: path.to_owned(), input: input.to_owned(), written: None, at: Instant::now() };
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
        Ok((resume, place))
    }

    /// Notes a safe place, once a second at most unless it is the last.
    pub fn note(&mut self, place: Option<Place>, last: bool) -> Result<(), String> {
        let Some(place) = place.filter(|place| Some(*place) != self.written) else { return Ok(()) };
        if !last && self.at.elapsed() < Duration::from_secs(1) {
            return Ok(());
        }
        let text = json!({ "input": self.input, "line": place.line, "offset": place.offset }).to_string();
        let aside = self.path.with_extension("part");
        let written = std::fs::write(&aside, text).and_then(|()| std::fs::rename(&aside, &self.path));
        written.map_err(|e| format!("cannot write {}: {e}", self.path.display()))?;
        (self.written, self.at) = (Some(place), Instant::now());
        Ok(())
    }
}
