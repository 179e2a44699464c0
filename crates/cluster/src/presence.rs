//! This node's own lease: one process at a time is a node.
//!
//! - PR1: a process that starts waits until the lease of the one before it has ended; a second one with the
//!   same id is refused. So a folder that was copied with its `node.id` cannot speak for the node.
//! - PR2: a node whose lease was lost while it ran takes it again. If another process has it meanwhile, that is
//!   said in the log until it ends.

use crate::coordinator::{Coordinator, Held, Lease, NodeId, ShardId, Stop, acquire_known, boot_ns};
use crate::lease::{BootClock, Fence, Keeper, News};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Time between two tries.
const AGAIN: Duration = Duration::from_millis(200);
/// Time that a process which ended is waited for, beyond its lease.
const MORE: Duration = Duration::from_secs(2);

/// Takes the lease of a node and keeps it until `stop`, on a thread. It takes as long as the lease of an
/// earlier process lasts. Errors: another process is this node; the coordinator cannot be reached.
pub fn begin(
    coordinator: &Arc<dyn Coordinator>,
    node: &str,
    ttl: Duration,
    stop: &Stop,
) -> Result<(), String> {
    let (id, me) = (ShardId::new(node)?, NodeId::new(node)?);
    let until = Instant::now() + ttl + MORE;
    let (sent_ns, lease) = loop {
        let sent_ns = boot_ns();
        match acquire_known(&**coordinator, &id, &me, ttl, until) {
            Ok(lease) => break (sent_ns, lease),
            Err(_) if Instant::now() < until => std::thread::sleep(AGAIN),
            Err(Held::By(_) | Held::For(_)) => {
                return Err(format!(
                    "node {node} is in use by another process: if its folder was copied, remove node.id from this one"
                ));
            }
            Err(Held::Trouble(trouble) | Held::Unknown(trouble)) => {
                return Err(format!(
                    "the coordinator {} cannot be reached: {trouble}",
                    coordinator.describe()
                ));
            }
        }
    };
    let (coordinator, stop) = (coordinator.clone(), stop.clone());
    let keep = move || keep(&coordinator, lease, sent_ns, &stop);
    std::thread::Builder::new().name("presence".into()).spawn(keep).map(drop).map_err(|e| e.to_string())
}

fn keep(coordinator: &Arc<dyn Coordinator>, lease: Lease, sent_ns: u64, stop: &Stop) {
    let (id, me, ttl) = (lease.shard.clone(), lease.node.clone(), lease.ttl);
    let mut held = Some((lease, sent_ns));
    let mut was_said = false;
    while !stop.is_stopped() {
        let Some((lease, sent_ns)) = held.take() else {
            stop.wait(AGAIN);
            let sent_ns = boot_ns();
            match coordinator.acquire(&id, &me, ttl) {
                Ok(lease) => (held, was_said) = (Some((lease, sent_ns)), false),
                Err(Held::By(_)) if !std::mem::replace(&mut was_said, true) => {
                    log::error!("node {me} is in use by another process, too: end one of them");
                }
                Err(_) => {}
            }
            continue;
        };
        let (tell, told) = channel();
        let news = move |news| {
            let _ = tell.send(news == News::Lost);
        };
        let clock = Arc::new(BootClock);
        let Ok(keeper) = Keeper::start(coordinator.clone(), lease, sent_ns, Fence::new(), clock, news) else {
            return;
        };
        while !stop.wait(AGAIN) && !told.try_iter().any(|lost| lost) {}
        if stop.is_stopped() {
            let _ = keeper.release(None);
            return;
        }
    }
}
