//! The thread `history`: reads the files of former processes, and appends minutes.

use crate::files::{Files, load};
use crate::{History, Sealed};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Minutes that may wait for the disk.
const WAITING: usize = 60;

enum Letter {
    Load(Weak<History>, PathBuf),
    Write(PathBuf, Arc<Sealed>),
    /// Answers when all before it is done.
    Flush(Sender<()>),
}

/// The way to the thread. It starts with the first letter.
#[derive(Default)]
pub(crate) struct Writer {
    letters: OnceLock<Option<SyncSender<Letter>>>,
    loaded: OnceLock<()>,
}

impl Writer {
    /// Has the thread read a directory, the first time.
    pub fn load_once(&self, history: &Arc<History>, dir: &Path) {
        if self.loaded.set(()).is_ok() {
            self.send(Letter::Load(Arc::downgrade(history), dir.to_path_buf()));
        }
    }

    /// Has the thread append a minute. It is lost if an hour of minutes waits already (Y3).
    pub fn write(&self, dir: PathBuf, sealed: Arc<Sealed>) {
        self.send(Letter::Write(dir, sealed));
    }

    /// Waits until all before it is written, for that long at most.
    pub fn flush(&self, at_most: Duration) {
        let (done, ended) = channel();
        if self.send(Letter::Flush(done)) {
            let _ = ended.recv_timeout(at_most);
        }
    }

    fn send(&self, letter: Letter) -> bool {
        let Some(letters) = self.letters.get_or_init(start) else { return false };
        match letters.try_send(letter) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
        }
    }
}

fn start() -> Option<SyncSender<Letter>> {
    let (send, letters) = sync_channel(WAITING);
    let run = move || run(&letters);
    std::thread::Builder::new().name("history".into()).spawn(run).ok().map(|_| send)
}

fn run(letters: &Receiver<Letter>) {
    let (mut files, mut fails) = (Files::default(), false);
    for letter in letters {
        match letter {
            Letter::Load(history, dir) => {
                let loaded = load(&dir);
                loaded.told.iter().for_each(|told| log::warn!("history: {told}"));
                if let Some(history) = history.upgrade() {
                    history.add_older(loaded.sealed);
                }
            }
            Letter::Write(dir, sealed) => match files.append(&dir, &sealed) {
                Ok(()) if fails => {
                    fails = false;
                    log::info!("history: minutes are written again");
                }
                Ok(()) => {}
                // One line, however long the trouble lasts.
                Err(why) if !fails => {
                    fails = true;
                    log::warn!(
                        "history: minutes cannot be written to {}: {why}",
                        dir.join("history").display()
                    );
                }
                Err(_) => {}
            },
            Letter::Flush(done) => _ = done.send(()),
        }
    }
}
