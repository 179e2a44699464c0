//! The part of INFO's section `replication` that a replica alone shows.

use super::Lines;

/// Figures of the link to a primary.
#[derive(Clone, Debug, Default)]
pub struct Following {
    pub host: String,
    pub port: u16,
    /// Its state as ROLE names it.
    pub state: &'static str,
    pub is_up: bool,
    /// Why it is down; empty: it is not known.
    pub error: String,
    /// Seconds since the primary was last heard; None: there is no connection.
    pub silent_s: Option<u64>,
    /// Seconds since the link is down; None: it never was up.
    pub down_s: Option<u64>,
    /// Bytes of the file on its way: in all, if that is known, and read so far. None: there is none.
    pub sync: Option<(Option<u64>, u64)>,
    /// The id of the primary's history, and the offset up to which it is applied.
    pub id: Option<String>,
    pub offset: Option<u64>,
    pub priority: i64,
    pub is_read_only: bool,
    pub is_announced: bool,
    /// Full copies, and continued streams, since this server follows that primary.
    pub full_syncs: u64,
    pub partial_syncs: u64,
}

impl Following {
    /// Writes the lines, the first of which names the role.
    pub(super) fn write(&self, out: &mut Lines) {
        let offset = self.offset.map_or(0, |offset| offset as i64);
        out.line("role", "slave");
        out.line("master_host", &self.host);
        out.line("master_port", self.port);
        out.line("master_link_status", if self.is_up { "up" } else { "down" });
        out.line("master_last_io_seconds_ago", self.silent_s.filter(|_| self.is_up).map_or(-1, |s| s as i64));
        out.line("master_sync_in_progress", u8::from(self.sync.is_some()));
        out.line("slave_read_repl_offset", offset);
        out.line("slave_repl_offset", offset);
        if let Some((total, read)) = self.sync {
            let whole = total.unwrap_or(0);
            let percent = if whole > 0 { read as f64 * 100.0 / whole as f64 } else { 0.0 };
            out.line("master_sync_total_bytes", whole);
            out.line("master_sync_read_bytes", read);
            out.line(
                "master_sync_left_bytes",
                total.map_or(-(read as i64), |all| all.saturating_sub(read) as i64),
            );
            out.line("master_sync_perc", format_args!("{percent:.2}"));
            out.line("master_sync_last_io_seconds_ago", self.silent_s.unwrap_or(0));
        }
        if !self.is_up {
            out.line("master_link_down_since_seconds", self.down_s.map_or(-1, |s| s as i64));
            out.line("master_link_error", &self.error);
        }
        out.line("master_full_syncs", self.full_syncs);
        out.line("master_partial_syncs", self.partial_syncs);
        out.line("slave_priority", self.priority);
        out.line("slave_read_only", u8::from(self.is_read_only));
        out.line("replica_announced", u8::from(self.is_announced));
    }
}
