//! Bodies that are sent piece by piece, as the reply behind them is written.

use crate::reply::{Broken, Json};

/// The rest of a body that is being sent.
pub enum Body {
    /// This many bytes, unchanged.
    Text(usize),
    /// JSON made from the reply; in chunks, or plainly until the connection ends.
    Json { json: Json, chunked: bool },
    /// Nothing is sent (HEAD).
    Dropped,
}

impl Body {
    /// Appends the body for the next piece of the reply. `room` is a work buffer. O(piece).
    pub fn put(&mut self, reply: &[u8], room: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<(), Broken> {
        match self {
            Body::Text(left) => {
                // The reply's own line end follows the text.
                let n = reply.len().min(*left);
                out.extend_from_slice(&reply[..n]);
                *left -= n;
            }
            Body::Json { json, chunked: false } => json.feed(reply, out)?,
            Body::Json { json, chunked: true } => {
                room.clear();
                json.feed(reply, room)?;
                // An empty chunk would mean the end.
                if !room.is_empty() {
                    out.extend_from_slice(format!("{:x}\r\n", room.len()).as_bytes());
                    out.extend_from_slice(room);
                    out.extend_from_slice(b"\r\n");
                }
            }
            Body::Dropped => {}
        }
        Ok(())
    }

    /// Ends the body after the whole reply. An error: it is not as long as announced, or not complete (H3).
    pub fn end(self, out: &mut Vec<u8>) -> Result<(), Broken> {
        match self {
            Body::Text(0) | Body::Dropped => Ok(()),
            Body::Text(_) => Err(Broken),
            Body::Json { json, .. } if !json.is_done() => Err(Broken),
            Body::Json { chunked, .. } => {
                if chunked {
                    out.extend_from_slice(b"0\r\n\r\n");
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(mut body: Body, reply: &[u8], step: usize) -> Result<String, Broken> {
        let (mut room, mut out) = (Vec::new(), Vec::new());
        reply.chunks(step).try_for_each(|piece| body.put(piece, &mut room, &mut out))?;
        body.end(&mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn texts_lose_what_the_reply_put_around_them() {
        for step in 1..8 {
            assert_eq!(sent(Body::Text(3), b"abc\r\n", step).as_deref(), Ok("abc"));
        }
        assert!(sent(Body::Text(4), b"abc", 2).is_err());
        assert_eq!(sent(Body::Dropped, b"abc", 2).as_deref(), Ok(""));
    }

    #[test]
    fn chunks_say_their_length_and_the_last_one_is_empty() {
        let list = |chunked| Body::Json { json: Json::list(), chunked };
        let reply = b"*2\r\n_\r\n*2\r\n:1\r\n$12\r\n\"0123456789\"\r\n";
        assert_eq!(sent(list(true), reply, 100).as_deref(), Ok("13\r\n[null,\"0123456789\"]\r\n0\r\n\r\n"));
        assert_eq!(sent(list(false), reply, 3).as_deref(), Ok("[null,\"0123456789\"]"));
        assert!(sent(list(true), &reply[..20], 7).is_err());
        let in_pieces = sent(list(true), reply, 5).unwrap();
        assert!(
            in_pieces.starts_with("1\r\n[\r\n5\r\nnull,\r\n") && in_pieces.ends_with("0\r\n\r\n"),
            "{in_pieces}"
        );
    }
}
