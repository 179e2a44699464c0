//! The section `persistence`: snapshots, the append-only log, and loading.

use super::Lines;

/// Figures of snapshots and of loading.
#[derive(Clone, Debug, Default)]
pub struct Persistence {
    pub loading: Option<Loading>,
    /// It is a copy beside the data, which readers are still given.
    pub loads_beside: bool,
    /// Writes since the last snapshot began that was saved.
    pub changes: u64,
    /// Seconds since 1970.
    pub last_save_s: u64,
    /// The snapshot that is being taken.
    pub saving: Option<Saving>,
    pub last_failed: bool,
    /// How long the last one took, in seconds.
    pub last_s: Option<u64>,
    pub saves: u64,
    /// Bytes kept at most for the last snapshot because writers replaced them.
    pub last_kept_bytes: u64,
    /// Keys of the last load that had expired, and that were taken.
    pub load_expired: u64,
    pub load_keys: u64,
    /// Keys of which a part was left out: metadata of modules.
    pub load_stripped: u64,
    /// A file that was loaded only up to its damage; the rest is kept under this name.
    pub damaged_rest: Option<String>,
    /// Keys and values of kinds that only Evenkeel knows, written to the last snapshot.
    pub foreign_keys: u64,
    pub aof: Aof,
}

/// A load that is under way.
#[derive(Clone, Copy, Debug, Default)]
pub struct Loading {
    pub started_s: u64,
    pub loaded_bytes: u64,
    pub total_bytes: u64,
    /// Seconds that it has taken.
    pub elapsed_s: u64,
    pub used_bytes: u64,
}

/// A snapshot that is being taken.
#[derive(Clone, Copy, Debug, Default)]
pub struct Saving {
    pub elapsed_s: u64,
    pub keys: u64,
    pub total_keys: u64,
    /// Bytes kept for it now because writers replaced them.
    pub kept_bytes: u64,
    /// Bytes written to its file.
    pub written_bytes: u64,
    /// It is the base of the append-only log.
    pub is_rewrite: bool,
}

/// Figures of the append-only log.
#[derive(Clone, Debug, Default)]
pub struct Aof {
    pub enabled: bool,
    pub rewrite_scheduled: bool,
    pub last_rewrite_s: Option<u64>,
    pub last_rewrite_failed: bool,
    pub rewrites: u64,
    pub rewrite_failures: u64,
    /// Why nothing is written now.
    pub stopped: Option<String>,
    pub current_bytes: u64,
    pub base_bytes: u64,
    pub buffer_bytes: u64,
    pub pending_fsyncs: u64,
    pub delayed_fsyncs: u64,
}

fn seconds(seconds: Option<u64>) -> i64 {
    seconds.map_or(-1, |seconds| i64::try_from(seconds).unwrap_or(i64::MAX))
}

fn status(failed: bool) -> &'static str {
    if failed { "err" } else { "ok" }
}

/// Writes the section.
pub(super) fn write(p: &Persistence, out: &mut Lines) {
    let saving = p.saving.unwrap_or_default();
    let elapsed = p.saving.map(|saving| saving.elapsed_s);
    let snapshot = p.saving.filter(|saving| !saving.is_rewrite);
    out.lines(&[
        ("loading", (p.loading.is_some() && !p.loads_beside).into()),
        ("async_loading", (p.loading.is_some() && p.loads_beside).into()),
        ("current_cow_peak", saving.kept_bytes),
        ("current_cow_size", saving.kept_bytes),
        ("current_cow_size_age", 0),
    ]);
    let part = if saving.total_keys == 0 { 0.0 } else { saving.keys as f64 / saving.total_keys as f64 };
    out.line("current_fork_perc", format_args!("{:.2}", 100.0 * part.min(1.0)));
    out.lines(&[
        ("current_save_keys_processed", saving.keys),
        ("current_save_keys_total", saving.total_keys),
        ("current_save_written_bytes", saving.written_bytes),
        ("rdb_changes_since_last_save", p.changes),
        ("rdb_bgsave_in_progress", snapshot.is_some().into()),
        ("rdb_last_save_time", p.last_save_s),
    ]);
    out.line("rdb_last_bgsave_status", status(p.last_failed));
    out.line("rdb_last_bgsave_time_sec", seconds(p.last_s));
    out.line("rdb_current_bgsave_time_sec", seconds(snapshot.and(elapsed)));
    out.lines(&[
        ("rdb_saves", p.saves),
        ("rdb_last_cow_size", p.last_kept_bytes),
        ("rdb_last_load_keys_expired", p.load_expired),
        ("rdb_last_load_keys_loaded", p.load_keys),
        ("rdb_last_load_keys_stripped", p.load_stripped),
        ("rdb_foreign_keys", p.foreign_keys),
    ]);
    if let Some(rest) = &p.damaged_rest {
        out.line("rdb_damaged_rest", rest);
    }
    aof(p, p.saving.filter(|saving| saving.is_rewrite).and(elapsed), out);
    if let Some(loading) = &p.loading {
        write_loading(loading, out);
    }
}

/// Writes the lines of the append-only log; a rewrite has run for so many seconds.
fn aof(p: &Persistence, rewriting_s: Option<u64>, out: &mut Lines) {
    let aof = &p.aof;
    out.lines(&[
        ("aof_enabled", aof.enabled.into()),
        ("aof_rewrite_in_progress", rewriting_s.is_some().into()),
        ("aof_rewrite_scheduled", aof.rewrite_scheduled.into()),
    ]);
    out.line("aof_last_rewrite_time_sec", seconds(aof.last_rewrite_s));
    out.line("aof_current_rewrite_time_sec", seconds(rewriting_s));
    out.line("aof_last_bgrewrite_status", status(aof.last_rewrite_failed));
    out.lines(&[("aof_rewrites", aof.rewrites), ("aof_rewrites_consecutive_failures", aof.rewrite_failures)]);
    out.line("aof_last_write_status", status(aof.stopped.is_some()));
    out.lines(&[
        ("aof_last_cow_size", p.last_kept_bytes),
        ("module_fork_in_progress", 0),
        ("module_fork_last_cow_size", 0),
    ]);
    if !aof.enabled {
        return;
    }
    out.lines(&[
        ("aof_current_size", aof.current_bytes),
        ("aof_base_size", aof.base_bytes),
        ("aof_pending_rewrite", 0),
        ("aof_buffer_length", aof.buffer_bytes),
        ("aof_pending_bio_fsync", aof.pending_fsyncs),
        ("aof_delayed_fsync", aof.delayed_fsyncs),
    ]);
    if let Some(why) = &aof.stopped {
        out.line("aof_stopped", why);
    }
}

fn write_loading(loading: &Loading, out: &mut Lines) {
    let (loaded, total) = (loading.loaded_bytes, loading.total_bytes);
    let part = if total == 0 { 0.0 } else { loaded as f64 / total as f64 };
    out.lines(&[
        ("loading_start_time", loading.started_s),
        ("loading_total_bytes", total),
        ("loading_rdb_used_mem", loading.used_bytes),
        ("loading_loaded_bytes", loaded),
    ]);
    out.line("loading_loaded_perc", format_args!("{:.2}", 100.0 * part.min(1.0)));
    let left = if loaded == 0 {
        1
    } else {
        (loading.elapsed_s as f64 * (total.saturating_sub(loaded)) as f64 / loaded as f64) as u64
    };
    out.line("loading_eta_seconds", left);
}
