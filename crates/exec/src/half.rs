//! The progress of a command that goes on later ([`Half`]).
//!
//! - H1: it belongs to the command in progress. Whatever ends that command (its reply, a refusal, a panic that
//!   was contained) drops it, so the next command finds none.
//!
//! Cost: some stores a command.

use crate::parts::Half;
use crate::{Local, Server, Session, multi};
use command::Command;
use observe::waits::Request;

/// Ends the command in progress (H1). `command`: None if its words name none.
#[inline]
pub(crate) fn over(
    server: &Server,
    local: &mut Local,
    session: &mut Session,
    command: Option<&'static Command>,
) {
    if let Some(had_others) = session.half.watching.take() {
        multi::give_up_watch(server, local, session, had_others);
    }
    session.half = Half::default();
    if session.was_held() {
        end_waits(server, local, session, command);
    }
}

/// Accounts for the waits of a command that was held and then did not run.
#[cold]
fn end_waits(server: &Server, local: &mut Local, session: &mut Session, command: Option<&'static Command>) {
    let name = command.map_or("", |command| command.name);
    let mut request = Request::ran(name, local.log.now_ms, 0);
    crate::waited::end_waits(server, local, session, &mut request);
    session.info.remember(request);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::ClientInfo;
    use command::Flow;
    use resp::{OwnedArgs, Reply};
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    /// A server with one loop, and clients that send it commands.
    struct World {
        server: Arc<Server>,
        local: Local,
    }

    impl World {
        fn new() -> World {
            let server = Server::start(Arc::default(), 1).unwrap();
            let local = Local::new(0, &server);
            World { server, local }
        }

        fn client(&self) -> Session {
            static LAST: AtomicU64 = AtomicU64::new(0);
            let id = LAST.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
            let info = ClientInfo::new(id, 0, String::new(), String::new(), 0, false, 0);
            Session::new(Arc::new(info), &self.server.acl, true)
        }

        /// Runs one slice of a call.
        fn slice(&mut self, session: &mut Session, line: &str) -> (Flow, String) {
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            let (words, mut out) = (OwnedArgs::from_slices(&words), Reply::new(false));
            let flow = crate::execute(&self.server, &mut self.local, session, words.args().into(), &mut out);
            (flow, String::from_utf8(out.into_bytes()).unwrap())
        }

        fn call(&mut self, session: &mut Session, line: &str) -> String {
            loop {
                match self.slice(session, line) {
                    (Flow::Held(_), _) => {}
                    (_, reply) => return reply,
                }
            }
        }

        /// Runs a long call until some of its words are done.
        fn begin(&mut self, session: &mut Session, line: &str) {
            while session.half.done == 0 {
                assert!(matches!(self.slice(session, line).0, Flow::Held(_)), "{line:.20}: over too soon");
            }
        }

        fn set_user(&mut self, rules: &str) {
            let mut admin = self.client();
            self.slice(&mut admin, &format!("ACL SETUSER u {rules}"));
        }
    }

    fn many(word: &str) -> String {
        (0..1_000).fold(word.to_owned(), |line, i| format!("{line} name:{i}"))
    }

    /// A call that loses its right in the middle leaves nothing for the next call.
    #[test]
    fn a_refusal_ends_what_was_half_done() {
        let long = ["SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "UNSUBSCRIBE", "WATCH"];
        for (first, name) in long.iter().flat_map(|word| [(*word, "watch"), (*word, "subscribe")]) {
            let mut world = World::new();
            world.set_user("on nopass ~* &* +@all");
            let mut session = world.client();
            assert_eq!(world.call(&mut session, "AUTH u x"), "+OK\r\n");
            world.call(&mut session, "HELLO 3");
            world.begin(&mut session, &many(first));
            world.set_user(&format!("-{}", first.to_lowercase()));
            let refused = world.call(&mut session, &many(first));
            assert!(refused.contains("-NOPERM"), "{first}: {refused:.100}");
            assert_eq!(session.half.done, 0);
            world.set_user("+@all");
            let reply = world.call(&mut session, &format!("{name} k"));
            if name == "watch" {
                assert!(reply == "+OK\r\n" && session.watched.watch.has(0, b"k"), "{first}: {reply}");
            } else {
                assert!(
                    reply.contains("subscribe") && session.subs.channels.contains(&b"k"[..]),
                    "{first}: {reply}"
                );
            }
        }
    }

    /// A WATCH that loses its right in the middle watches nothing. What was watched before it counts as
    /// touched.
    #[test]
    fn a_refused_watch_leaves_no_keys() {
        for before in [None, Some("WATCH early")] {
            let mut world = World::new();
            world.set_user("on nopass ~* &* +@all");
            let mut session = world.client();
            world.call(&mut session, "AUTH u x");
            before.into_iter().for_each(|line| drop(world.call(&mut session, line)));
            world.begin(&mut session, &many("WATCH"));
            world.set_user("-watch");
            assert!(world.call(&mut session, &many("WATCH")).contains("-NOPERM"));
            assert_eq!(session.watched.len(), 0);
            world.call(&mut session, "MULTI");
            let reply = if before.is_some() { "*-1\r\n" } else { "*0\r\n" };
            assert_eq!(world.call(&mut session, "EXEC"), reply, "{before:?}");
        }
    }

    /// The same after a contained panic, and after RESET.
    #[test]
    fn a_panic_and_reset_end_what_was_half_done() {
        let mut world = World::new();
        let mut session = world.client();
        world.begin(&mut session, &many("WATCH"));
        crate::call::recover(&world.server, &mut world.local, &mut session, &mut Reply::new(false));
        assert_eq!(world.call(&mut session, "WATCH k"), "+OK\r\n");
        assert!(session.watched.watch.has(0, b"k"));
        world.begin(&mut session, &many("SUBSCRIBE"));
        assert_eq!(world.call(&mut session, "RESET"), "+RESET\r\n");
        assert_eq!(world.call(&mut session, "WATCH k"), "+OK\r\n");
        assert!(session.watched.watch.has(0, b"k"));
    }

    /// Waits of a call that was held and then refused are over: no later call is said to have waited, and no
    /// pause counts the client.
    #[test]
    fn a_refusal_ends_the_waits_of_its_call() {
        let mut world = World::new();
        world.set_user("on nopass ~* &* +@all");
        let mut session = world.client();
        world.call(&mut session, "AUTH u x");
        world.server.keyspace.still.pause(keyspace::Pausing::Writes, u64::MAX >> 1, 0);
        assert!(matches!(world.slice(&mut session, "SET k v").0, Flow::Held(_)));
        assert_eq!(world.server.work.pause.waiting(), 1);
        world.set_user("-set");
        assert!(world.call(&mut session, "SET k v").starts_with("-NOPERM"));
        assert!(!session.was_held() && session.holds.postponed.is_none());
        assert_eq!(world.server.work.pause.waiting(), 0);
    }

    /// A WAITAOF that was refused leaves no LSN, and a call that MONITOR has shown no mark, for the next.
    #[test]
    fn the_next_call_begins_anew() {
        let mut world = World::new();
        let mut session = world.client();
        session.half.waits = Some(Box::new(role::replicas::Waits::new(1, 1, None, &session.info)));
        session.half.is_shown = true;
        assert!(world.call(&mut session, "NOSUCH").starts_with("-ERR unknown command"));
        assert!(session.half.waits.is_none() && !session.half.is_shown);
    }
}
