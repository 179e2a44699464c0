//! HTTP/1.1 without I/O: bytes to requests, replies of commands to responses.
//!
//! ```text
//! bytes ──► request::parse ──► Request ──► Target ──► (the caller runs a command) ──► RESP3 reply
//!                  └─► Refusal                                                          │
//! bytes ◄──────────────── response, body ◄──────── reply: items as JSON ◄────────────────┘
//! ```
//!
//! - H1: nothing a client sends is trusted: heads, targets, numbers of headers and bodies are limited, and what two readers
//!   could take for requests of different lengths is refused, and the connection closed.
//! - H2: parsing allocates nothing; a head that comes in many pieces is searched for its end once, and parsed once.
//! - H3: what a response says of its length is true, or the connection ends with it.
//!
//! Cost: a request of 100 bytes takes some 100 ns to parse, a response of 1 KB as long to write, its tag included.
#![forbid(unsafe_code)]

pub mod body;
pub mod date;
pub mod etag;
pub mod reply;
pub mod request;
pub mod response;
pub mod target;

pub use request::{Condition, KeptCondition, Method, Parsed, Refusal, Request};
pub use response::Framing;
