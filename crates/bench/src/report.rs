//! The results, as text for a terminal and as Markdown.

use std::fmt::Write;
use std::fs;

/// One table; the first column is left-aligned, the others right.
pub struct Table {
    pub head: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(head: &[&str]) -> Table {
        Table { head: head.iter().map(|s| s.to_string()).collect(), rows: Vec::new() }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    fn widths(&self) -> Vec<usize> {
        (0..self.head.len())
            .map(|column| {
                let cells = self.rows.iter().filter_map(|row| row.get(column));
                cells.chain([&self.head[column]]).map(|cell| cell.chars().count()).max().unwrap_or(0)
            })
            .collect()
    }

    /// Appends it to a text.
    pub fn write(&self, out: &mut String, markdown: bool) {
        let widths = self.widths();
        let (open, between) = if markdown { ("| ", " | ") } else { ("  ", "  ") };
        let mut line = |cells: &[String]| {
            let cells: Vec<String> = widths
                .iter()
                .enumerate()
                .map(|(i, &width)| {
                    let cell = cells.get(i).map_or("", String::as_str);
                    if i == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
                })
                .collect();
            let text = format!("{open}{}{}", cells.join(between), if markdown { " |" } else { "" });
            let _ = writeln!(out, "{}", text.trim_end());
        };
        line(&self.head);
        if markdown {
            let rule: Vec<String> = (0..widths.len())
                .map(|i| {
                    if i == 0 { "-".repeat(widths[i].max(3)) } else { "-".repeat(widths[i].max(3) - 1) + ":" }
                })
                .collect();
            line(&rule);
        }
        for row in &self.rows {
            line(row);
        }
    }
}

/// A part of the report: a title, tables with captions, remarks.
pub struct Section {
    pub title: String,
    pub tables: Vec<(String, Table)>,
    pub notes: Vec<String>,
    /// Captions and preformatted text; only in Markdown.
    blocks: Vec<(String, String)>,
}

impl Section {
    pub fn new(title: impl Into<String>) -> Section {
        Section { title: title.into(), tables: Vec::new(), notes: Vec::new(), blocks: Vec::new() }
    }

    pub fn table(&mut self, caption: impl Into<String>, table: Table) {
        self.tables.push((caption.into(), table));
    }

    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    pub fn block(&mut self, caption: impl Into<String>, text: String) {
        self.blocks.push((caption.into(), text));
    }

    pub fn is_empty(&self) -> bool {
        self.tables.is_empty() && self.notes.is_empty() && self.blocks.is_empty()
    }

    fn render(&self, markdown: bool) -> String {
        let mut out = String::new();
        let _ = if markdown {
            writeln!(out, "## {}\n", self.title)
        } else {
            writeln!(out, "\n{}\n{}", self.title, "=".repeat(self.title.chars().count()))
        };
        for (caption, table) in &self.tables {
            if !caption.is_empty() {
                let _ = writeln!(out, "{caption}\n");
            }
            table.write(&mut out, markdown);
            out.push('\n');
        }
        for note in &self.notes {
            let _ = writeln!(out, "- {note}");
        }
        if markdown {
            out.push('\n');
            for (caption, text) in &self.blocks {
                let _ = writeln!(out, "{caption}\n\n```\n{}\n```\n", text.trim_end());
            }
        }
        out
    }
}

/// The report so far. Sections are printed when they are added and can be written as one Markdown file.
#[derive(Default)]
pub struct Report {
    sections: Vec<Section>,
}

impl Report {
    pub fn add(&mut self, section: Section) {
        if section.is_empty() {
            return;
        }
        print!("{}", section.render(false));
        self.sections.push(section);
    }

    pub fn write_markdown(&self, path: &str) -> std::io::Result<()> {
        let text: String = self.sections.iter().map(|section| section.render(true)).collect();
        fs::write(path, format!("# Evenkeel measured\n\n{text}"))
    }
}

/// Nanoseconds in the unit that suits them.
pub fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e5 => format!("{:.1} µs", ns / 1e3),
        ns if ns < 1e6 => format!("{:.0} µs", ns / 1e3),
        ns if ns < 1e8 => format!("{:.1} ms", ns / 1e6),
        ns if ns < 1e9 => format!("{:.0} ms", ns / 1e6),
        ns => format!("{:.2} s", ns / 1e9),
    }
}

/// Bytes in the unit that suits them.
pub fn bytes(n: u64) -> String {
    match n as f64 {
        n if n < 10240.0 => format!("{n:.0} B"),
        n if n < 1048576.0 => format!("{:.0} KiB", n / 1024.0),
        n if n < 1073741824.0 => format!("{:.1} MiB", n / 1048576.0),
        n => format!("{:.2} GiB", n / 1073741824.0),
    }
}

/// A count in thousands and millions.
pub fn count(n: u64) -> String {
    match n {
        n if n >= 1_000_000 && n % 100_000 == 0 => format!("{}M", n as f64 / 1e6),
        n if n >= 10_000 && n % 1000 == 0 => format!("{}k", n / 1000),
        n => n.to_string(),
    }
}

pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

/// The text of a report where a server could not do the work.
pub fn absent() -> String {
    "–".to_string()
}

/// Machine, kernel and the settings that affect these figures.
pub fn machine() -> String {
    let first =
        |path: &str| fs::read_to_string(path).unwrap_or_default().lines().next().unwrap_or("?").to_string();
    let field = |path: &str, name: &str| {
        let text = fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_once(':').map_or("?", |(_, value)| value).trim().to_string()
    };
    let memory = field("/proc/meminfo", "MemTotal");
    let memory: u64 = memory.split(' ').next().and_then(|kb| kb.parse().ok()).unwrap_or(0);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let thp = first("/sys/kernel/mm/transparent_hugepage/enabled");
    let thp = thp.split(['[', ']']).nth(1).unwrap_or("?").to_string();
    format!(
        "{} × {cores}, {}, Linux {}, congestion control {}, huge pages {thp}, load average {}",
        field("/proc/cpuinfo", "model name"),
        bytes(memory << 10),
        first("/proc/sys/kernel/osrelease"),
        first("/proc/sys/net/ipv4/tcp_congestion_control"),
        first("/proc/loadavg").split(' ').next().unwrap_or("?"),
    )
}
