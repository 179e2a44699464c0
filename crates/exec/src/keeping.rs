//! The server, as its data on disk see it ([`durable::Host`]).

use crate::mail::Mail;
use crate::{Replay, Server};
use durable::{Host, Libraries};
use keyspace::Lsn;
use scripts::Scripts;
use scripts::libraries::{AskedChange, Policy};
use std::sync::{Arc, Weak};

/// See the module.
pub(crate) struct Around {
    pub(crate) server: Weak<Server>,
    pub(crate) scripts: Arc<Scripts>,
}

/// Libraries of functions of a file beside the data.
struct Arriving(scripts::Incoming);

impl durable::Incoming for Arriving {
    fn load(&self, code: &[u8]) -> Result<(), String> {
        self.0.load(code)
    }

    fn into_change(self: Box<Self>) -> Box<dyn keyspace::Beside> {
        self.0.into_change()
    }
}

/// Libraries of functions of one moment.
struct Codes(Arc<scripts::Libraries>);

impl Libraries for Codes {
    fn is_empty(&self) -> bool {
        self.0.code.is_empty()
    }

    fn each(&self, f: &mut dyn FnMut(&[u8]) -> Result<(), String>) -> Result<(), String> {
        self.0.code.values().try_for_each(|code| f(&code.text))
    }
}

impl Around {
    fn server(&self) -> Result<Arc<Server>, String> {
        self.server.upgrade().ok_or_else(|| "the server has ended".to_owned())
    }
}

impl Host for Around {
    fn libraries(&self) -> Arc<dyn Libraries> {
        Arc::new(Codes(self.scripts.code.libraries()))
    }

    fn load_library(&self, code: &[u8], replaces: bool) -> Result<(), String> {
        let server = self.server()?;
        let limits = server.scripts.limits(&server.config.live);
        let policy = if replaces { Policy::Replace } else { Policy::Append };
        let change = AskedChange::Load(code.into(), policy).prepare_from_file(&limits)?;
        change.make_for_all(&server.scripts.code, &server.keyspace, None).map(drop)
    }

    fn flush_libraries(&self) -> Result<(), String> {
        let server = self.server()?;
        scripts::Change::FlushLibraries.make_for_all(&server.scripts.code, &server.keyspace, None).map(drop)
    }

    fn incoming_libraries(&self) -> Result<Box<dyn durable::Incoming>, String> {
        let server = self.server()?;
        let limits = server.scripts.limits(&server.config.live);
        Ok(Box::new(Arriving(scripts::Incoming::new(&server.scripts.code, limits))))
    }

    fn replay(&self) -> Result<durable::Replay, String> {
        let mut replay = Replay::new(&self.server()?);
        Ok(Box::new(move |args| replay.apply(args)))
    }

    fn set_durable(&self, lsn: Lsn) {
        if let Some(server) = self.server.upgrade() {
            server.set_durable(lsn);
        }
    }

    fn retry(&self) {
        if let Some(server) = self.server.upgrade() {
            (0..server.loops()).for_each(|id| server.send(id, Mail::Retry));
        }
    }
}
