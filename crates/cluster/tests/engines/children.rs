//! Other processes: this program again, with one task.

use crate::suite::{HELD, SHARD, count, id, node};
use cluster::coordinator::Coordinator;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

const TASK: &str = "EVENKEEL_TEST_TASK";
const SPEC: &str = "EVENKEEL_TEST_COORDINATOR";

/// A process that ends with its owner.
pub struct Process {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Process {
    pub fn start(task: &str, spec: &str) -> Process {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "children::child", "--nocapture", "--test-threads=1"])
            .env(TASK, task)
            .env(SPEC, spec)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let lines = BufReader::new(child.stdout.take().expect("its output"));
        Process { child, lines }
    }

    /// Waits for a line that has this word, and returns what follows it.
    pub fn told(&mut self, word: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.lines.read_line(&mut line).expect("a line") > 0, "it ended without '{word}'");
            if let Some((_, rest)) = line.split_once(word) {
                return rest.trim().to_owned();
            }
        }
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("a signal");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Opens what [`Process::start`] was given.
pub fn open(spec: &str) -> Arc<dyn Coordinator> {
    if let Some(stub) = spec.strip_prefix("stub:") {
        return crate::kubernetes::open(stub);
    }
    cluster::open(spec, "test", &cluster::Access::default()).expect("a coordinator")
}

/// The other process. Does nothing among the tests.
#[test]
fn child() {
    let (Ok(task), Ok(spec)) = (std::env::var(TASK), std::env::var(SPEC)) else { return };
    let coordinator = open(&spec);
    match task.split_once(' ').unwrap_or((&task, "")) {
        ("hold", who) => {
            let lease = coordinator.acquire(&id(SHARD), &node(who), HELD).expect("a lease");
            println!("HELD {}", lease.epoch);
            loop {
                std::thread::sleep(Duration::from_millis(300));
                println!("RENEWED {:?}", coordinator.renew(&lease));
            }
        }
        ("count", times) => {
            count(&*coordinator, times.parse().expect("a number"), "child");
            println!("COUNTED ");
        }
        other => panic!("no task {other:?}"),
    }
}
