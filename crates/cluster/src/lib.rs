//! Many nodes, one keyspace: which node has a slot, who leads a shard, and how that changes.
//!
//! ```text
//! coordinator ─► map ─► topology ─► a call: here, MOVED, or nobody
//!      ▲          │
//!      └── change, by compare and swap
//! ```
//!
//! No node asks another one who leads: that stands in the coordinator.

#![forbid(unsafe_code)]

pub mod candidate;
pub mod change;
pub mod commands;
pub mod coordinator;
pub mod files;
pub mod lease;
pub mod map;
pub mod member;
pub mod show;
pub mod slots;
pub mod standing;
pub mod topology;

use coordinator::Coordinator;
use std::sync::Arc;

/// What an engine over the network may ask for.
#[derive(Clone, Debug, Default)]
pub struct Access {
    pub user: String,
    pub password: String,
}

/// Opens the coordinator that `cluster-coordinator` names. `name`: that of the cluster, which keeps clusters with one
/// coordinator apart. Blocks. Errors: a sentence that says what to do.
pub fn open(spec: &str, name: &str, _access: &Access) -> Result<Arc<dyn Coordinator>, String> {
    if coordinator::check_key(name).is_err() || name.contains('/') {
        return Err(format!(
            "cluster-name '{name}': use letters, digits, '-', '_' and '.', and begin with a letter or a digit"
        ));
    }
    if let Some(dir) = spec.strip_prefix("file:") {
        return Ok(Arc::new(files::Files::open(dir.as_ref(), name)?));
    }
    Err(format!("cluster-coordinator '{spec}': write file:/DIRECTORY"))
}
