//! HTTP/1.1 without I/O: bytes to requests, replies of commands to responses.
//!
//! ```text
//! bytes ──► request::parse ──► Request ──► Target ──► (the caller runs a command) ──► RESP3 reply
//!                  └─► Refusal                                                          │
//! bytes ◄──────────────── response, body ◄──────── reply: items as JSON ◄────────────────┘
//! ```
//!
//! - H1: no input is trusted. Heads, targets, header counts and bodies are limited. Input that two readers
//!   could split into different requests is refused, and the connection closed.
//! - H2: parsing allocates nothing. A head in many pieces is searched for its end once, and parsed once.
//! - H3: a response has the length it announces, or the connection ends with it.
//!
//! Cost: about 100 ns to parse a request of 100 bytes, and as much to write a response of 1 KB with its tag.
#![forbid(unsafe_code)]

pub mod body;
pub mod browser;
pub mod date;
pub mod etag;
pub mod json;
pub mod push;
pub mod reply;
pub mod request;
pub mod response;
pub mod target;
pub mod words;

pub use request::{Condition, KeptCondition, Method, Parsed, Refusal, Request};
pub use response::Framing;
