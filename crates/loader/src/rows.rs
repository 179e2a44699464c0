//! Reads rows of CSV, TSV, NDJSON and plain lines, one at a time, with their line numbers.
//!
//! - R1: a bad row is reported with its line and does not end the reading, unless nothing behind it can be
//!   trusted. That is so if the file itself fails, or a quote in CSV is never closed.
//! - R2: reading may begin again at the `end` of a row.
//! - R3: no byte is lost in silence: misplaced quotes spoil their row (`quotes.rs`), and no two columns share
//!   a name. A byte order mark is no part of the first line.
//!
//! Cost: O(bytes); memory for one row.

use crate::quotes::{BYTE_ORDER_MARK, Fault, Quotes, Watched};
use serde_json::Value;
use serde_json::value::RawValue;
use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{self, BufRead, Read, Seek, SeekFrom};
use std::rc::Rc;

/// How rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Comma-separated, RFC 4180, the names in the first line.
    Csv,
    /// The same with tabs.
    Tsv,
    /// One JSON object on each line.
    Ndjson,
    /// One value on each line, as column `line`.
    Lines,
}

impl Format {
    /// The format that a file's name implies.
    pub fn of_name(name: &str) -> Option<Format> {
        match name.rsplit_once('.')?.1.to_ascii_lowercase().as_str() {
            "csv" => Some(Format::Csv),
            "tsv" | "tab" => Some(Format::Tsv),
            "ndjson" | "jsonl" | "json" => Some(Format::Ndjson),
            "txt" | "lst" | "list" => Some(Format::Lines),
            _ => None,
        }
    }

    /// The byte between columns.
    fn delimiter(self) -> u8 {
        if self == Format::Tsv { b'\t' } else { b',' }
    }
}

/// One row: columns and their values.
#[derive(Clone, Debug, Default)]
pub struct Row {
    pub line: u64,
    /// The place behind it.
    pub end: Place,
    names: std::sync::Arc<[String]>,
    /// None: the row has no such column, or null in it.
    values: Vec<Option<Vec<u8>>>,
    /// A row of NDJSON as it was written.
    text: Option<Vec<u8>>,
}

impl Row {
    /// For tests.
    #[cfg(test)]
    pub fn of(fields: &[(&str, &str)]) -> Row {
        Row {
            names: fields.iter().map(|(name, _)| (*name).to_owned()).collect(),
            values: fields.iter().map(|(_, value)| Some(value.as_bytes().to_vec())).collect(),
            ..Row::default()
        }
    }

    pub fn field(&self, name: &str) -> Option<&[u8]> {
        let at = self.names.iter().position(|known| known == name)?;
        self.values.get(at)?.as_deref()
    }

    /// The columns that have a value, in order.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.names.iter().zip(&self.values).filter_map(|(name, value)| Some((&**name, value.as_deref()?)))
    }

    /// All columns, in order.
    pub fn columns(&self) -> &[String] {
        &self.names
    }

    /// The row as a JSON object: as it was written, or its columns as strings. Errors: a value is not UTF-8.
    pub fn json(&self) -> Result<Vec<u8>, String> {
        if let Some(text) = &self.text {
            return Ok(text.clone());
        }
        let fields = self.fields().map(|(name, value)| match std::str::from_utf8(value) {
            Ok(text) => Ok((name.to_owned(), Value::from(text))),
            Err(_) => Err(format!("column '{name}' is not UTF-8, which JSON is")),
        });
        Ok(Value::Object(fields.collect::<Result<_, _>>()?).to_string().into_bytes())
    }
}

/// Why there is no row.
#[derive(Debug)]
pub enum RowError {
    /// This row is wrong; the next may be right (R1).
    Bad { line: u64, reason: String },
    /// No further row can be read.
    Fatal(String),
}

/// The rows of one input.
pub struct Rows {
    form: Form,
    /// The place where reading began.
    from: Place,
}

enum Form {
    Separated {
        reader: Box<csv::Reader<Watched>>,
        record: csv::ByteRecord,
        names: std::sync::Arc<[String]>,
        quotes: Rc<RefCell<Quotes>>,
    },
    Lines {
        input: io::BufReader<Box<dyn Read>>,
        line: u64,
        offset: u64,
        json: bool,
    },
}

/// A place in the input where reading may begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Lines before it.
    pub line: u64,
    pub offset: u64,
}

/// An input that may be a file.
pub enum Input {
    File(std::fs::File),
    Stream(Box<dyn Read>),
}

impl Rows {
    /// Begins to read at `from`. `columns`: the names, if the input does not begin with them. Errors: the
    /// input cannot be read there, is no such text, or names a column twice.
    pub fn open(
        input: Input,
        format: Format,
        columns: Option<Vec<String>>,
        from: Place,
    ) -> Result<Rows, String> {
        let separated = matches!(format, Format::Csv | Format::Tsv);
        let mut columns = columns;
        let input: Box<dyn Read> = match input {
            Input::Stream(_) if from.offset > 0 => {
                return Err("only a file can be read on from the middle".to_owned());
            }
            Input::Stream(mut stream) => {
                let head = head(&mut stream).map_err(|e| format!("cannot read: {e}"))?;
                readable(&head)?;
                Box::new(io::Cursor::new(head).chain(stream))
            }
            Input::File(mut file) => {
                file.rewind()
                    .and_then(|()| head(&mut file))
                    .and_then(|head| file.rewind().map(|()| head))
                    .map_err(|e| format!("cannot read: {e}"))
                    .and_then(|head| readable(&head))?;
                if from.offset > 0 && separated && columns.is_none() {
                    columns = Some(header(&file, format)?);
                }
                file.seek(SeekFrom::Start(from.offset))
                    .map_err(|e| format!("cannot read on from the middle: {e}"))?;
                Box::new(file)
            }
        };
        let form = if separated {
            let (input, quotes) = Watched::new(input, format.delimiter());
            let mut reader = separated_reader(input, format, columns.is_none());
            let names = match columns {
                Some(columns) => columns,
                None => {
                    names(reader.byte_headers().map_err(|e| format!("cannot read the first line: {e}"))?)?
                }
            };
            if let Some(fault) = quotes.borrow_mut().fault_before(reader.position().byte()) {
                return Err(format!("line {}: {}", fault.line, misfit(fault)));
            }
            if let Some(at) = (1..names.len()).find(|at| names[..*at].contains(&names[*at])) {
                return Err(format!("column '{}' twice", names[at]));
            }
            Form::Separated {
                reader: Box::new(reader),
                record: csv::ByteRecord::new(),
                names: names.into(),
                quotes,
            }
        } else {
            let input = io::BufReader::with_capacity(1 << 18, input);
            Form::Lines { input, line: 0, offset: 0, json: format == Format::Ndjson }
        };
        Ok(Rows { form, from })
    }

    /// The names of the columns, if all rows have the same.
    pub fn columns(&self) -> Option<&[String]> {
        match &self.form {
            Form::Separated { names, .. } => Some(names),
            Form::Lines { .. } => None,
        }
    }

    /// The next row; None at the end.
    pub fn next(&mut self) -> Result<Option<Row>, RowError> {
        let mut row = match &mut self.form {
            Form::Separated { reader, record, names, quotes } => {
                let row = separated_row(reader, record, names);
                match quotes.borrow_mut().fault_before(reader.position().byte()) {
                    None => row,
                    Some(fault) if fault.is_open => {
                        let line = fault.line + self.from.line;
                        Err(RowError::Fatal(format!("line {line}: {}", misfit(fault))))
                    }
                    Some(fault) => Err(RowError::Bad { line: fault.line, reason: misfit(fault).to_owned() }),
                }
            }
            Form::Lines { input, line, offset, json } => {
                line_row(input, line, offset, *json, self.from.offset == 0)
            }
        };
        match &mut row {
            Ok(Some(row)) => {
                row.line += self.from.line;
                row.end.line += self.from.line;
                row.end.offset += self.from.offset;
            }
            Err(RowError::Bad { line, .. }) => *line += self.from.line,
            Ok(None) | Err(RowError::Fatal(_)) => {}
        }
        row
    }
}

/// The first four bytes.
fn head(input: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    input.take(4).read_to_end(&mut head)?;
    Ok(head)
}

/// Checks by its first bytes that the input is text in UTF-8. Errors: how to convert it.
fn readable(head: &[u8]) -> Result<(), String> {
    match head {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => {
            Err("the text is UTF-16; UTF-8 is read here: iconv -f UTF-16 -t UTF-8 makes it that".to_owned())
        }
        [0x1f, 0x8b, ..] => {
            Err("the file is compressed: gzip -dc FILE | evenkeel load ... - reads it".to_owned())
        }
        _ => Ok(()),
    }
}

/// The error text for a misplaced quote.
fn misfit(fault: Fault) -> &'static str {
    match fault.is_open {
        true => "the quote that begins there is never closed, and nothing behind it was read",
        false => "other text behind a quoted field; a quote within one is written twice",
    }
}

fn separated_reader<R: Read>(input: R, format: Format, headers: bool) -> csv::Reader<R> {
    csv::ReaderBuilder::new()
        .delimiter(format.delimiter())
        .has_headers(headers)
        .flexible(true)
        .buffer_capacity(1 << 18)
        .from_reader(input)
}

fn header(file: &std::fs::File, format: Format) -> Result<Vec<String>, String> {
    let again = file.try_clone().map_err(|e| format!("cannot read the first line: {e}"))?;
    let mut reader = separated_reader(again, format, true);
    names(reader.byte_headers().map_err(|e| format!("cannot read the first line: {e}"))?)
}

fn names(record: &csv::ByteRecord) -> Result<Vec<String>, String> {
    let name = |bytes: &[u8]| {
        String::from_utf8(bytes.to_vec()).map_err(|_| "a column's name is not UTF-8".to_owned())
    };
    let mut names: Vec<String> = record.iter().map(name).collect::<Result<_, _>>()?;
    if let Some(first) = names.first_mut() {
        // Some spreadsheets write a byte order mark.
        *first = first.trim_start_matches('\u{feff}').to_owned();
    }
    Ok(names)
}

fn separated_row(
    reader: &mut csv::Reader<Watched>,
    record: &mut csv::ByteRecord,
    names: &std::sync::Arc<[String]>,
) -> Result<Option<Row>, RowError> {
    let more = reader.read_byte_record(record).map_err(|e| RowError::Fatal(format!("cannot read: {e}")))?;
    if !more {
        return Ok(None);
    }
    let line = record.position().map_or(0, csv::Position::line);
    if record.len() != names.len() {
        let reason = format!("{} columns where {} were announced", record.len(), names.len());
        return Err(RowError::Bad { line, reason });
    }
    let values = record.iter().map(|value| Some(value.to_vec())).collect();
    let end = Place { line: reader.position().line() - 1, offset: reader.position().byte() };
    Ok(Some(Row { line, end, names: names.clone(), values, text: None }))
}

fn line_row(
    input: &mut impl BufRead,
    line: &mut u64,
    offset: &mut u64,
    json: bool,
    from_start: bool,
) -> Result<Option<Row>, RowError> {
    let mut text = Vec::new();
    loop {
        text.clear();
        let read = input.read_until(b'\n', &mut text);
        let bytes = read.map_err(|e| RowError::Fatal(format!("cannot read: {e}")))?;
        if bytes == 0 {
            return Ok(None);
        }
        if from_start && *offset == 0 && text.starts_with(BYTE_ORDER_MARK) {
            text.drain(..BYTE_ORDER_MARK.len());
        }
        *line += 1;
        *offset += bytes as u64;
        while matches!(text.last(), Some(b'\n' | b'\r')) {
            text.pop();
        }
        if !text.is_empty() {
            break;
        }
    }
    let (number, end) = (*line, Place { line: *line, offset: *offset });
    if !json {
        let names: std::sync::Arc<[String]> = ["line".to_owned()].into();
        return Ok(Some(Row { line: number, end, names, values: vec![Some(text)], text: None }));
    }
    let bad = |reason: String| RowError::Bad { line: number, reason };
    let object: serde_json::Map<String, Value> =
        serde_json::from_slice(&text).map_err(|e| bad(format!("no JSON object: {e}")))?;
    // Read once more as raw text, so that a number stays as it was written.
    let raw: HashMap<String, &RawValue> =
        serde_json::from_slice(&text).map_err(|e| bad(format!("no JSON object: {e}")))?;
    let values = object.into_iter().map(|(name, value)| {
        let text = raw.get(&name).map_or("", |raw| raw.get());
        (name, plain(value, text))
    });
    let (names, values): (Vec<String>, Vec<_>) = values.unzip();
    Ok(Some(Row { line: number, end, names: names.into(), values, text: Some(text) }))
}

/// A JSON value as the text of a field: strings without quotes, null as none, all else as it was written.
fn plain(value: Value, written: &str) -> Option<Vec<u8>> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.into_bytes()),
        _ => Some(written.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    /// A row's line and fields.
    type Numbered = (u64, Vec<(String, String)>);

    fn all(text: &str, format: Format) -> Vec<Result<Numbered, String>> {
        let input = Input::Stream(Box::new(io::Cursor::new(text.as_bytes().to_vec())));
        let mut rows = Rows::open(input, format, None, Place::default()).expect("opens");
        let mut found = Vec::new();
        loop {
            match rows.next() {
                Ok(None) => return found,
                Ok(Some(row)) => {
                    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                    found.push(Ok((row.line, row.fields().map(|(n, v)| (n.to_owned(), text(v))).collect())));
                }
                Err(RowError::Bad { line, reason }) => found.push(Err(format!("{line}: {reason}"))),
                Err(RowError::Fatal(reason)) => panic!("{reason}"),
            }
        }
    }

    fn row(line: u64, fields: &[(&str, &str)]) -> Result<(u64, Vec<(String, String)>), String> {
        Ok((line, fields.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect()))
    }

    #[test]
    fn rows_come_with_their_lines_and_bad_ones_are_told() {
        assert_eq!(
            all("\u{feff}id,name\n1,a\n2,\"b\nc\"\n3\n4,\"x,\"\"y\"\"\"\n", Format::Csv),
            [
                row(2, &[("id", "1"), ("name", "a")]),
                row(3, &[("id", "2"), ("name", "b\nc")]),
                Err("5: 1 columns where 2 were announced".to_owned()),
                row(6, &[("id", "4"), ("name", "x,\"y\"")]),
            ]
        );
        assert_eq!(all("a\tb\n1\t2\r\n", Format::Tsv), [row(2, &[("a", "1"), ("b", "2")])]);
        assert_eq!(
            all("one\n\ntwo", Format::Lines),
            [row(1, &[("line", "one")]), row(3, &[("line", "two")])]
        );
        let json = all("{\"id\":1,\"tags\":[1,2],\"none\":null,\"t\":\"x\"}\n[1]\n", Format::Ndjson);
        assert_eq!(json[0], row(1, &[("id", "1"), ("tags", "[1,2]"), ("t", "x")]));
        let json_text = "{\"id\":184467440737095516160,\"price\":1.10,\"at\": [1.0, 2]}\n";
        let numbers = all(json_text, Format::Ndjson);
        assert_eq!(
            numbers[0],
            row(1, &[("id", "184467440737095516160"), ("price", "1.10"), ("at", "[1.0, 2]")])
        );
        assert!(json[1].as_ref().is_err_and(|e| e.starts_with("2: no JSON object: ")));
    }

    #[test]
    fn reading_goes_on_where_it_stopped() {
        let mut file = tempfile::tempfile().expect("a file");
        io::Write::write_all(&mut file, b"id,v\n1,a\n2,b\n3,c\n").expect("written");
        let input = || Input::File(file.try_clone().expect("the same file"));
        io::Seek::rewind(&mut &file).expect("at the start");
        let mut rows = Rows::open(input(), Format::Csv, None, Place::default()).expect("opens");
        rows.next().expect("reads");
        let second = rows.next().expect("reads").expect("a row");
        io::Seek::rewind(&mut &file).expect("at the start");
        let mut rest = Rows::open(input(), Format::Csv, None, second.end).expect("opens");
        let third = rest.next().expect("reads").expect("a row");
        assert_eq!((third.field("id"), third.line), (Some(&b"3"[..]), 4));
        assert!(rest.next().expect("reads").is_none());
    }
}
