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
pub mod etcd;
pub mod files;
pub mod http;
pub mod kubernetes;
pub mod lease;
pub mod map;
pub mod member;
pub mod presence;
pub mod show;
pub mod slots;
pub mod standing;
pub mod topology;

use coordinator::Coordinator;
use std::sync::Arc;

/// All that an engine over the network may ask for.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// One of etcd's users. Empty: none.
    pub user: String,
    pub password: String,
    /// For `etcds`: what is trusted, and an own certificate.
    pub tls: Option<tls::Client>,
}

/// Opens the coordinator that `cluster-coordinator` names. `name`: that of the cluster, which keeps clusters
/// with one coordinator apart. Blocks. Errors: a sentence that says what to do.
pub fn open(spec: &str, name: &str, access: &Access) -> Result<Arc<dyn Coordinator>, String> {
    if coordinator::check_key(name).is_err() || name.contains('/') {
        return Err(format!(
            "cluster-name '{name}': use letters, digits, '-', '_' and '.', and begin with a letter or a digit"
        ));
    }
    if let Some(dir) = spec.strip_prefix("file:") {
        return Ok(Arc::new(files::Files::open(dir.as_ref(), name)?));
    }
    let (user, password) = (access.user.as_str(), access.password.as_str());
    if let Some(endpoints) = spec.strip_prefix("etcd://") {
        return Ok(Arc::new(etcd::Etcd::new(endpoints, None, name, user, password)?));
    }
    if let Some(endpoints) = spec.strip_prefix("etcds://") {
        let tls = access.tls.clone().ok_or(
            "cluster-coordinator etcds: name the certificates to trust by tls-ca-cert-file or tls-ca-cert-dir",
        )?;
        return Ok(Arc::new(etcd::Etcd::new(endpoints, Some(tls), name, user, password)?));
    }
    if let Some(namespace) = spec.strip_prefix("kubernetes:") {
        let place = kubernetes::Place::inside(namespace)?;
        return Ok(Arc::new(kubernetes::Kubernetes::new(place, name)?));
    }
    Err(format!(
        "cluster-coordinator '{spec}': write file:/DIRECTORY, etcd://HOST:2379,HOST:2379, etcds://HOST:2379 or \
         kubernetes:NAMESPACE"
    ))
}
