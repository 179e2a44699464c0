//! Pieces of work that need the whole loop: each finds the loop at its desk, as its home.

use crate::mail::Mail;
use crate::park::Registering;
use crate::piece::{Desk, Piece, Step, Who};
use crate::pubsub::Passing;
use crate::session::Subscriptions;
use crate::works::KEYS;
use crate::{Local, Server, actions, blocking, eval, fetching, pubsub, rows};
use resp::Reply;
use std::sync::Arc;
use stdx::points::{self, Point};

/// The server, and the loop that the piece is on.
fn home<'a>(desk: &'a mut Desk<'_>) -> (Arc<Server>, &'a mut Local) {
    let local = desk.home.downcast_mut::<Local>().expect("a loop drives its own work");
    (local.server.clone(), local)
}

/// Ends a slice: `piece` goes on if something is left.
fn more(is_left: bool, piece: Box<dyn Piece>) -> Step {
    if is_left { Step::More(piece) } else { Step::Over(None) }
}

/// Installs rows of a source.
pub(crate) struct Filling(pub(crate) Box<rows::Fill>);

impl Piece for Filling {
    fn advance(mut self: Box<Self>, desk: &mut Desk<'_>) -> Step {
        let (server, local) = home(desk);
        let is_left = fetching::fill(&server, local, &mut self.0, KEYS);
        more(is_left, self)
    }

    fn stays(&self) -> bool {
        points::stays(Point::SourceFill, 0)
    }
}

/// Removes items of a source.
pub(crate) struct Removing(pub(crate) Box<rows::Dropping>);

impl Piece for Removing {
    fn advance(mut self: Box<Self>, desk: &mut Desk<'_>) -> Step {
        let (server, local) = home(desk);
        let is_left = fetching::drop_items(&server, local, &mut self.0, KEYS);
        more(is_left, self)
    }

    fn stays(&self) -> bool {
        points::stays(Point::SourceDrop, 0)
    }
}

/// Registers a client for the keys it begins to wait for, or takes it off them.
pub(crate) struct Registers(pub(crate) Box<Registering>);

impl Piece for Registers {
    fn advance(mut self: Box<Self>, desk: &mut Desk<'_>) -> Step {
        let (server, local) = home(desk);
        let is_left = blocking::advance(&server, local, &mut self.0);
        more(is_left, self)
    }

    fn who(&self) -> Who {
        Who { client: self.0.client(), ..Who::default() }
    }

    fn stays(&self) -> bool {
        self.0.is_half_in() && points::stays(Point::Register, self.0.client())
    }
}

/// Ends the subscriptions of a client that disconnected.
pub(crate) struct Leaving(pub(crate) u64, pub(crate) Subscriptions);

impl Piece for Leaving {
    fn advance(mut self: Box<Self>, desk: &mut Desk<'_>) -> Step {
        let (server, local) = home(desk);
        let is_left = actions::leave_some(&server, local, self.0, &mut self.1, KEYS);
        more(is_left, self)
    }
}

/// Sends a client's message through the patterns.
pub(crate) struct Publishing(pub(crate) u64, pub(crate) Box<Passing>);

impl Piece for Publishing {
    fn advance(mut self: Box<Self>, desk: &mut Desk<'_>) -> Step {
        let (server, local) = home(desk);
        if let Some(sent) = server.pubsub.pass(&mut self.1) {
            // By mail: the message may be a deed of a transaction that waits for the answer.
            let mut out = Reply::new(false);
            out.int(sent as i64);
            server.send(local.log.id, Mail::Reply { client: self.0, bytes: out.into_bytes(), stream: None });
            return Step::Over(None);
        }
        Step::More(self)
    }
}

/// Sends the messages in `Local::announced`.
pub(crate) struct Announcing;

impl Piece for Announcing {
    fn advance(self: Box<Self>, desk: &mut Desk<'_>) -> Step {
        let (server, local) = home(desk);
        if local.announced.front_mut().is_none_or(|first| first.advance(&server.pubsub)) {
            local.announced.pop_front();
        }
        let is_left = !local.announced.is_empty();
        more(is_left, self)
    }
}

/// Work of tracking.
pub(crate) struct Task(pub(crate) pubsub::tracking::Task);

impl Piece for Task {
    fn advance(mut self: Box<Self>, desk: &mut Desk<'_>) -> Step {
        let (server, _) = home(desk);
        let is_left = self.0.advance(&server.tracking, &server.keyspace);
        more(is_left, self)
    }
}

/// Loads libraries of functions into the loop's engine.
pub(crate) struct Libraries;

impl Piece for Libraries {
    fn advance(self: Box<Self>, desk: &mut Desk<'_>) -> Step {
        let is_left = eval::load_some_libraries(home(desk).1);
        more(is_left, self)
    }
}

/// Collects the garbage of scripts in the loop's engine.
pub(crate) struct Collecting;

impl Piece for Collecting {
    fn advance(self: Box<Self>, desk: &mut Desk<'_>) -> Step {
        let is_left = eval::collect_some(home(desk).1);
        more(is_left, self)
    }
}
