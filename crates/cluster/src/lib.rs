//! A cluster's coordinator: who holds which shard, and the few values that all nodes share. No consensus of our
//! own: an engine keeps it ([`coordinator`] says what is asked of one).
//!
//! Threads block; no client's call runs here.

#![forbid(unsafe_code)]

pub mod coordinator;
pub mod files;
pub mod lease;

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
