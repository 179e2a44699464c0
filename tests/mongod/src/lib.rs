//! A MongoDB for tests: a scripted server that speaks its wire protocol, and the real one that
//! EVENKEEL_TEST_MONGODB names.
//!
//! ```text
//! test ─► Site ─┬─► Server: wire protocol, faults ─► History: an oplog, a majority's part of it, the views of readers
//!               └─► a collection of a real server
//! ```
//!
//! Everything here runs on tokio; [`wait`] is for tests that do not.

pub mod history;
pub mod server;
pub mod site;

pub use mongodb::bson;
pub use server::Server;
pub use site::Site;

use std::sync::OnceLock;
use tokio::runtime::{Builder, Handle};

/// Runs a task on a thread for all such tasks, and for the servers they start, and waits for its end.
pub fn wait<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> T {
    let (tell, told) = std::sync::mpsc::channel();
    runtime().spawn(async move {
        let _ = tell.send(task.await);
    });
    told.recv().expect("the task ends")
}

fn runtime() -> &'static Handle {
    static RUNTIME: OnceLock<Handle> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let handle = runtime.handle().clone();
        std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
        handle
    })
}
