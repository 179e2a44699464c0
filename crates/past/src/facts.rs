//! The state of what stands around the server, for EVENKEEL NOW: role, disk, replicas, sources.

use observe::info::Snapshot;
use resp::Reply;

/// The state of what stands around the server, for EVENKEEL NOW.
#[derive(Clone, Default)]
pub(crate) struct Facts {
    role: &'static str,
    link_is_up: bool,
    log_is_on: bool,
    log_stopped: Option<String>,
    saving: bool,
    save_failed: bool,
    last_save_s: u64,
    replicas: Vec<(String, &'static str, u64, u64)>,
    sources: Vec<String>,
}

impl Facts {
    pub fn of(s: &Snapshot, sources: Vec<String>) -> Facts {
        let replicas = s.replication.replicas.iter();
        let aof = &s.persistence.aof;
        Facts {
            role: if s.following.is_some() { "replica" } else { "primary" },
            link_is_up: s.following.as_ref().is_none_or(|following| following.is_up),
            log_is_on: aof.enabled,
            log_stopped: aof.stopped.clone(),
            saving: s.persistence.saving.is_some(),
            save_failed: s.persistence.last_failed,
            last_save_s: s.persistence.last_save_s,
            replicas: replicas
                .map(|one| (format!("{}:{}", one.address, one.port), one.state, one.lag_ms, one.lag_bytes))
                .collect(),
            sources,
        }
    }

    /// Writes four pairs of a map.
    pub fn write(&self, out: &mut Reply) {
        out.bulk(b"role");
        out.map(2);
        out.bulk(b"name");
        out.bulk(self.role.as_bytes());
        out.bulk(b"link_up");
        out.int(self.link_is_up.into());
        out.bulk(b"disk");
        out.map(5);
        out.bulk(b"log");
        out.bulk(match &self.log_stopped {
            Some(why) => why.as_bytes(),
            None if self.log_is_on => b"ok",
            None => b"off",
        });
        for (name, figure) in [
            ("log_stopped", self.log_stopped.is_some().into()),
            ("saving", self.saving.into()),
            ("save_failed", self.save_failed.into()),
            ("last_save_s", self.last_save_s as i64),
        ] {
            out.bulk(name.as_bytes());
            out.int(figure);
        }
        out.bulk(b"replicas");
        out.array(self.replicas.len());
        for (address, state, lag_ms, lag_bytes) in &self.replicas {
            out.map(4);
            for (name, text) in [("addr", address.as_str()), ("state", state)] {
                out.bulk(name.as_bytes());
                out.bulk(text.as_bytes());
            }
            for (name, figure) in [("lag_ms", lag_ms), ("lag_bytes", lag_bytes)] {
                out.bulk(name.as_bytes());
                out.int(*figure as i64);
            }
        }
        out.bulk(b"sources_down");
        out.array(self.sources.len());
        self.sources.iter().for_each(|sentence| out.bulk(sentence.as_bytes()));
    }
}
