//! The progress and the last line, for a person at a terminal.

use crate::send::Account;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::Write;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// A progress bar on the terminal, if there is one.
pub struct Progress {
    bar: ProgressBar,
    started: Instant,
    drawn: Instant,
}

impl Progress {
    /// Starts the bar. `total`: bytes of the input, or keys, if known.
    pub fn start(total: Option<u64>) -> Progress {
        let bar = total.map_or_else(ProgressBar::no_length, ProgressBar::new);
        let template = match total {
            Some(_) => "{bar:30} {percent}%  {msg}, {eta} left",
            None => "{spinner} {elapsed}  {msg}",
        };
        // The templates are right; a test draws them.
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        let now = Instant::now();
        Progress { bar, started: now, drawn: now }
    }

    /// Shows the progress, ten times a second at most.
    pub fn show(&mut self, position: u64, account: &Account) {
        if self.drawn.elapsed() < Duration::from_millis(100) {
            return;
        }
        self.drawn = Instant::now();
        self.bar.set_position(position);
        let rows = account.rows.load(Relaxed);
        self.bar.set_message(format!("{} rows, {}/s", number(rows), number(self.rate(rows))));
    }

    fn rate(&self, count: u64) -> u64 {
        (count as f64 / self.started.elapsed().as_secs_f64().max(1e-3)) as u64
    }

    /// Prints a line above the bar. Names and texts in it cannot steer the terminal.
    pub fn say(&self, text: &str) {
        // A terminal that has gone is no error.
        self.bar.suspend(|| _ = writeln!(std::io::stderr(), "{}", dial::shown(text)));
    }

    /// Removes the bar and returns the last line to print.
    pub fn finish(&self, account: &Account, refused: u64) -> String {
        self.bar.finish_and_clear();
        let (rows, values) = (account.rows.load(Relaxed), account.values.load(Relaxed));
        let mut text = format!(
            "{} rows as {} values in {:.1} s, {} rows/s, {:.1} MB sent",
            number(rows),
            number(values),
            self.started.elapsed().as_secs_f64(),
            number(self.rate(rows)),
            account.bytes.load(Relaxed) as f64 / 1e6
        );
        for (at, what) in ["", "refused: "].into_iter().enumerate() {
            let kinds = account.kinds().into_iter().filter(|(_, counts)| counts[at] > 0);
            let kinds: Vec<String> =
                kinds.map(|(kind, counts)| format!("{} {kind}", number(counts[at]))).collect();
            if !kinds.is_empty() {
                text.push_str(&format!("; {what}{}", kinds.join(", ")));
            }
        }
        for (count, what) in
            [(account.present.load(Relaxed), "were there already"), (refused, "were wrong or refused")]
        {
            if count > 0 {
                text.push_str(&format!("; {} {what}", number(count)));
            }
        }
        text
    }
}

/// 1234567 as 1,234,567.
pub fn number(n: u64) -> String {
    let digits = n.to_string();
    let parts: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|part| std::str::from_utf8(part).unwrap_or_default())
        .collect();
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_bars_can_be_drawn() {
        assert_eq!([0, 999, 1000, 1_234_567].map(number), ["0", "999", "1,000", "1,234,567"]);
        for total in [None, Some(100)] {
            let template = Progress::start(total);
            template.bar.set_position(10);
            assert!(template.finish(&Account::default(), 2).ends_with("; 2 were wrong or refused"));
        }
    }
}
