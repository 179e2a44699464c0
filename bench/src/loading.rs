//! Millions of rows loaded: as commands in a pipeline, and by `evenkeel load`.
//!
//! ```text
//! rows ─┬─ RPUSH, HSET, SET, one for each row, pipelined over two connections ─► server: CPU, seconds
//!       └─ a file ─► evenkeel load, two connections ─────────────────────────► the same
//! ```
//!
//! The data of each way are checked before the next begins on an empty server.

use crate::load::Load;
use crate::random::hex16;
use crate::report::{Section, Table, absent, count, time};
use crate::server::{Server, Target};
use crate::wire;
use dial::Frame;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub struct Options {
    /// Elements, hashes and strings.
    pub elements: u64,
    pub hashes: u64,
    pub strings: u64,
}

const PIPELINE: usize = 1000;
const CONNS: usize = 2;

struct Kind {
    name: &'static str,
    file: &'static str,
    /// The first line of the file.
    head: &'static str,
    arguments: &'static [&'static str],
    row: fn(&mut Vec<u8>, u64),
    command: fn(&mut Vec<u8>, u64),
    /// A script that answers the number of rows.
    check: &'static str,
}

const KINDS: [Kind; 3] = [
    Kind {
        name: "one list",
        file: "list.txt",
        head: "",
        arguments: &["--key", "list", "--as", "list"],
        row: |out, i| out.extend_from_slice(&hex16(i)[..10]),
        command: |out, i| wire::command(out, &[b"RPUSH", b"list", &hex16(i)[..10]]),
        check: "LLEN list",
    },
    Kind {
        name: "hashes of 5 fields",
        file: "hashes.csv",
        head: "id,name,email,city,born\n",
        arguments: &["--key", "user:{id}", "--as", "hash"],
        row: |out, i| {
            let fields = fields(i);
            out.extend_from_slice(fields.join(",").as_bytes());
        },
        command: |out, i| {
            let [id, name, email, city, born] = &fields(i).map(String::into_bytes);
            let key = [b"user:", &id[..]].concat();
            let words: [&[u8]; 12] =
                [b"HSET", &key, b"id", id, b"name", name, b"email", email, b"city", city, b"born", born];
            wire::command(out, &words);
        },
        check: "DBSIZE",
    },
    Kind {
        name: "strings",
        file: "strings.csv",
        head: "id,value\n",
        arguments: &["--key", "item:{id}", "--as", "string", "--value", "value"],
        row: |out, i| {
            wire::decimal(out, i);
            out.push(b',');
            out.extend_from_slice(&hex16(i));
        },
        command: |out, i| {
            let mut key = b"item:".to_vec();
            wire::decimal(&mut key, i);
            wire::command(out, &[b"SET", &key, &hex16(i)]);
        },
        check: "DBSIZE",
    },
];

fn fields(i: u64) -> [String; 5] {
    let text = hex16(i);
    let name = std::str::from_utf8(&text[..8]).unwrap_or_default();
    [
        i.to_string(),
        name.to_owned(),
        format!("{name}@example.com"),
        format!("city{}", i % 1000),
        format!("{}-0{}-1{}", 1950 + i % 60, 1 + i % 9, i % 10),
    ]
}

/// A folder that is removed with this value.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn run(targets: &[Target], options: &Options) -> Result<Section, String> {
    let mut section = Section::new("Loading");
    let loader = targets.iter().find(|target| target.label == "Evenkeel").ok_or("Evenkeel is missing")?;
    let folder = Folder(std::env::temp_dir().join(format!("evenkeel-loading-{}", std::process::id())));
    std::fs::create_dir_all(&folder.0).map_err(|e| format!("{}: {e}", folder.0.display()))?;
    let mut table = Table::new(&[
        "what",
        "server",
        "commands, rows/s",
        "server CPU per row",
        "evenkeel load, rows/s",
        "server CPU per row",
        "commands : load",
    ]);
    let rows = [options.elements, options.hashes, options.strings];
    for (kind, rows) in KINDS.iter().zip(rows) {
        let file = folder.0.join(kind.file);
        write(kind, rows, &file).map_err(|e| format!("{}: {e}", file.display()))?;
        for target in targets {
            let mut cells = vec![format!("{} {}", count(rows), kind.name), target.label.clone()];
            match measure(target, &loader.path, kind, rows, &file) {
                Ok(row) => cells.extend(row),
                Err(error) => {
                    section.note(format!("{}, {}: {error}", target.label, kind.name));
                    cells.extend((0..5).map(|_| absent()));
                }
            }
            eprintln!("{}", cells.join(" | "));
            table.row(cells);
        }
        let _ = std::fs::remove_file(&file);
    }
    section.table(
        format!(
            "As commands, one for each row, pipelined by {PIPELINE} over {CONNS} connections; and by `evenkeel load` with {CONNS}"
        ),
        table,
    );
    Ok(section)
}

fn write(kind: &Kind, rows: u64, path: &Path) -> io::Result<()> {
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    file.write_all(kind.head.as_bytes())?;
    let mut line = Vec::new();
    for i in 0..rows {
        line.clear();
        (kind.row)(&mut line, i);
        line.push(b'\n');
        file.write_all(&line)?;
    }
    file.flush()
}

fn measure(
    target: &Target,
    loader: &Path,
    kind: &Kind,
    rows: u64,
    file: &Path,
) -> Result<Vec<String>, String> {
    let by_commands = timed(target, kind, rows, |server| {
        let mut i = 0;
        let sent = Load::connect(server, CONNS, 1).and_then(|mut load| {
            load.run(PIPELINE, None, &mut |out| {
                let more = i < rows;
                if more {
                    (kind.command)(out, i);
                }
                i += 1;
                more
            })
        });
        sent.map(drop).map_err(|e| e.to_string())
    })?;
    let by_load = timed(target, kind, rows, |server| {
        let output = Command::new(loader)
            .arg("load")
            .arg(file)
            .args(kind.arguments)
            .args(["--to", &format!("127.0.0.1:{}", server.port), "--connections", &CONNS.to_string()])
            .stdin(Stdio::null())
            .output()
            .map_err(|e| format!("{}: {e}", loader.display()))?;
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.success() { Ok(()) } else { Err(format!("evenkeel load: {}", said.trim())) }
    })?;
    let mut cells = Vec::new();
    for (took, cpu_ns) in [by_commands, by_load] {
        cells.push(format!("{:.0}k", rows as f64 / took.as_secs_f64() / 1e3));
        cells.push(time(cpu_ns as f64 / rows as f64));
    }
    cells.push(format!("{:.1}", by_commands.1 as f64 / by_load.1 as f64));
    Ok(cells)
}

/// The time of one way on an empty server, and the server's CPU time.
fn timed(
    target: &Target,
    kind: &Kind,
    rows: u64,
    way: impl FnOnce(&Server) -> Result<(), String>,
) -> Result<(Duration, u64), String> {
    let server = Server::start(target)?;
    server.settle(Duration::from_secs(1));
    let (began, cpu) = (Instant::now(), server.cpu_ns());
    way(&server)?;
    let took = began.elapsed();
    server.settle(Duration::from_secs(5));
    let cpu = server.cpu_ns() - cpu;
    let answer =
        server.client().and_then(|mut client| client.words(kind.check)).map_err(|e| e.to_string())?;
    match answer {
        Frame::Int(found) if found == rows as i64 => Ok((took, cpu)),
        other => Err(format!("{} answers {}, not {rows}", kind.check, other.lossy())),
    }
}
