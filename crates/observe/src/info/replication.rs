//! INFO's section `replication`.

use super::{Following, Lines};

/// Figures of replication.
#[derive(Clone, Debug, Default)]
pub struct Replication {
    pub id: String,
    /// The history before, and the first offset that is not shared with it.
    pub second: Option<(String, u64)>,
    pub offset: u64,
    pub replicas: Vec<Replica>,
    /// The progress of a failover; empty: none is under way.
    pub failover: &'static str,
    /// Writes that were lost to another primary since the start.
    pub lost: u64,
    pub backlog_is_active: bool,
    pub backlog_size: u64,
    /// The offset of the first byte in the backlog, and how many there are.
    pub backlog_first: u64,
    pub backlog_bytes: u64,
    /// Bytes of the stream that are kept in memory.
    pub memory_bytes: u64,
    /// Bytes of files for replicas that load which are in memory, as `dir` takes none.
    pub files_in_memory: u64,
    /// Replicas that count for `min-replicas-to-write`; None: it is off.
    pub good: Option<usize>,
    pub full_syncs: u64,
    pub partial_syncs: u64,
    pub partial_refused: u64,
    /// Full copies that were put off, as the replica had taken several in vain.
    pub full_refused: u64,
}

/// A server that follows.
#[derive(Clone, Debug, Default)]
pub struct Replica {
    pub client: u64,
    pub address: String,
    pub port: u16,
    pub state: &'static str,
    pub offset: u64,
    pub sent: u64,
    pub lag_s: u64,
    pub lag_bytes: u64,
    /// How long ago the stream was where it is now.
    pub lag_ms: u64,
    pub is_ours: bool,
    pub version: u32,
}

impl Replication {
    pub(super) fn write(&self, following: Option<&Following>, out: &mut Lines) {
        match following {
            Some(following) => following.write(out),
            None => out.line("role", "master"),
        }
        out.line("connected_slaves", self.replicas.len());
        if let Some(good) = self.good {
            out.line("min_slaves_good_slaves", good);
        }
        for (n, replica) in self.replicas.iter().enumerate() {
            let Replica { address, port, state, offset, lag_s, .. } = replica;
            out.line(
                &format!("slave{n}"),
                format_args!(
                    "ip={address},port={port},state={state},offset={offset},lag={lag_s},type=replica"
                ),
            );
        }
        let waiting = self.replicas.iter().filter(|replica| replica.state != "online").count();
        let behind = self.replicas.iter().map(|replica| replica.lag_bytes).max().unwrap_or(0);
        out.lines(&[("replicas_waiting_psync", waiting as u64), ("replicas_repl_buffer_size", behind)]);
        let failing = if self.failover.is_empty() { "no-failover" } else { self.failover };
        out.line("master_failover_state", failing);
        let known =
            following.and_then(|following| Some((following.id.as_ref()?, following.offset.unwrap_or(0))));
        let (id, offset) = known.unwrap_or((&self.id, self.offset));
        out.line("master_replid", id);
        match &self.second {
            Some((id, _)) => out.line("master_replid2", id),
            None => out.line("master_replid2", "0".repeat(40)),
        }
        out.line("master_repl_offset", offset);
        match &self.second {
            Some((_, offset)) => out.line("second_repl_offset", offset),
            None => out.line("second_repl_offset", -1),
        }
        out.lines(&[
            ("repl_backlog_active", self.backlog_is_active.into()),
            ("repl_backlog_size", self.backlog_size),
            ("repl_backlog_first_byte_offset", self.backlog_first),
            ("repl_backlog_histlen", self.backlog_bytes),
            ("lost_writes", self.lost),
        ]);
    }
}

impl Replica {
    /// Writes it as EVENKEEL REPLICAS shows it. O(1)
    pub fn write(&self, out: &mut resp::Reply) {
        out.map(9);
        out.bulk(b"addr");
        out.bulk(self.address.as_bytes());
        out.bulk(b"state");
        out.bulk(self.state.as_bytes());
        for (name, number) in [
            ("client", self.client),
            ("port", self.port.into()),
            ("offset", self.offset),
            ("sent", self.sent),
            ("lag-bytes", self.lag_bytes),
            ("lag-ms", self.lag_ms),
            ("silent-s", self.lag_s),
        ] {
            out.bulk(name.as_bytes());
            out.int(number as i64);
        }
    }
}
