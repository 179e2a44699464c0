//! Other programs that fill the machine's cores do not starve long work: work that begins then ranks beside
//! them.

use crate::held::{await_figure, figure};
use crate::support::{Client, Server};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Keeps all cores busy until it is dropped.
struct Crowd {
    over: Arc<AtomicBool>,
}

impl Crowd {
    fn gather() -> Crowd {
        let over = Arc::new(AtomicBool::new(false));
        for _ in 0..std::thread::available_parallelism().map_or(1, |cores| cores.get()) {
            let over = over.clone();
            std::thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        Crowd { over }
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// Names and nice values of a process's threads. Source: proc_pid_stat(5).
fn threads(process: u64) -> Vec<(String, i32)> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("the server's threads");
    let stats = tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    let parsed = stats.filter_map(|text| {
        let (head, fields) = text.rsplit_once(") ")?;
        Some((head.split_once('(')?.1.to_owned(), fields.split(' ').nth(16)?.parse().ok()?))
    });
    parsed.collect()
}

#[test]
fn long_work_that_begins_on_a_crowded_machine_ranks_beside_the_crowd() {
    let server = Server::start();
    let mut client = server.client();
    let process = figure(&mut client, "process_id");
    let long = |client: &mut Client, n: u32| {
        client.expect(
            &format!("EVAL \"local n = {n} for i = 1, 2000000 do n = n + 1 end return n\" 0"),
            &format!(":{}", n + 2_000_000),
        );
    };
    let crowd = Crowd::gather();
    await_figure(&mut client, "long_work_nice", |nice| nice == 1);
    long(&mut client, 1);
    drop(crowd);
    let script = threads(process).into_iter().find(|(name, _)| name == "script+0");
    // The test itself may have been started with a nice value.
    assert!(script.as_ref().is_some_and(|(_, nice)| (1..19).contains(nice)), "{script:?}");
}
