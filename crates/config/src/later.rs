//! Writes of the configuration file that nobody waits for.

use parking_lot::Mutex;
use std::sync::Arc;

/// Writes the file.
type Write = Box<dyn FnOnce() -> Result<(), String> + Send>;

/// At most one thread, and at most one write that waits for it. Each write takes the values there are when it
/// begins, so the newest one stands for all that came before it.
#[derive(Default)]
pub(crate) struct Later(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    has_thread: bool,
    waiting: Option<Write>,
}

impl Later {
    /// Has `write` done on the thread, behind the one under way. O(1)
    ///
    /// # Errors
    /// No thread could be started.
    pub(crate) fn write(
        &self,
        write: impl FnOnce() -> Result<(), String> + Send + 'static,
    ) -> Result<(), String> {
        let mut state = self.0.lock();
        let earlier = state.waiting.replace(Box::new(write));
        if !state.has_thread {
            let shared = self.0.clone();
            let begun = std::thread::Builder::new().name("rewrite".into()).spawn(move || write_all(&shared));
            if begun.is_err() {
                state.waiting = None;
                return Err("ERR no thread could be started".to_owned());
            }
            state.has_thread = true;
        }
        drop(state);
        drop(earlier);
        Ok(())
    }
}

/// Writes until nothing waits. A write that panics has failed.
fn write_all(shared: &Mutex<State>) {
    while let Some(write) = next(shared) {
        if let Err(why) = stdx::panics::contain(write).and_then(|written| written) {
            log::error!("CONFIG REWRITE of a transaction: {why}");
        }
    }
}

fn next(shared: &Mutex<State>) -> Option<Write> {
    let mut state = shared.lock();
    let write = state.waiting.take();
    state.has_thread = write.is_some();
    write
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn one_thread_writes_the_last_state_of_many() {
        let (later, (told, heard), (go, held)) = (Later::default(), mpsc::channel(), mpsc::channel());
        let (first, (begins, begun)) = (told.clone(), mpsc::channel());
        later
            .write(move || {
                begins.send(()).unwrap();
                held.recv().unwrap();
                first.send((0, std::thread::current().id())).unwrap();
                panic!("of the disk")
            })
            .unwrap();
        begun.recv().unwrap();
        for n in 1..=100 {
            let told = told.clone();
            later
                .write(move || told.send((n, std::thread::current().id())).map_err(|e| e.to_string()))
                .unwrap();
        }
        drop(told);
        go.send(()).unwrap();
        let written: Vec<_> = heard.iter().collect();
        assert_eq!(written.iter().map(|w| w.0).collect::<Vec<_>>(), [0, 100]);
        assert_eq!(written[0].1, written[1].1, "two threads");
        // The thread is gone or goes; a new write is not lost.
        let (told, heard) = mpsc::channel();
        later.write(move || told.send(()).map_err(|e| e.to_string())).unwrap();
        heard.recv().unwrap();
    }
}
