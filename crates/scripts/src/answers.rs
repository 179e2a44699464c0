//! The reply of a transaction: the answers of its commands from its run, with those of its deferred effects put in
//! between.

use command::Stream;
use resp::Reply;
use std::collections::VecDeque;
use stdx::budget::Share;

/// Bytes of short answers kept together.
const CHUNK: usize = 16 * 1024;

/// Answers in the order of their places. Short ones stand in one allocation with others.
pub struct Answers {
    /// The place of each in the reply, and its length.
    places: VecDeque<(usize, usize)>,
    chunks: VecDeque<Vec<u8>>,
    /// Bytes of the first chunk that are read.
    read: usize,
}

impl Answers {
    pub fn with_capacity(count: usize) -> Answers {
        Answers { places: VecDeque::with_capacity(count), chunks: VecDeque::new(), read: 0 }
    }

    pub fn add(&mut self, at: usize, answer: Vec<u8>) {
        self.places.push_back((at, answer.len()));
        match self.chunks.back_mut() {
            Some(last) if last.len() + answer.len() <= CHUNK => last.extend_from_slice(&answer),
            _ if answer.len() < CHUNK => {
                let mut chunk = Vec::with_capacity(CHUNK);
                chunk.extend_from_slice(&answer);
                self.chunks.push_back(chunk);
            }
            _ => self.chunks.push_back(answer),
        }
    }

    /// Writes the next bytes, at most `count`.
    fn take(&mut self, count: usize, out: &mut Reply) -> usize {
        let Some(first) = self.chunks.front() else { return count };
        let count = count.min(first.len() - self.read);
        out.encoded(&first[self.read..self.read + count]);
        self.read += count;
        if self.read == first.len() {
            self.read = 0;
            work::job::drop_bytes(self.chunks.pop_front().unwrap_or_default());
        }
        count
    }
}

/// A reply with the answers of deferred effects at their places.
pub struct Spliced {
    reply: Vec<u8>,
    read: usize,
    answers: Answers,
    /// Bytes of the current answer that are not written yet.
    left: usize,
    /// Its share of `work-max-memory`.
    share: Option<Share>,
}

impl Spliced {
    pub fn new(reply: Vec<u8>, answers: Answers, share: Option<Share>) -> Spliced {
        Spliced { reply, read: 0, answers, left: 0, share }
    }

    /// Whether it has no answers of deferred effects: the reply is all.
    pub fn is_whole(&self) -> bool {
        self.answers.places.is_empty()
    }

    /// The reply without the answers.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.reply)
    }
}

impl Stream for Spliced {
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
        let end = out.len() + room;
        while out.len() < end {
            let free = end - out.len();
            if self.left > 0 {
                self.left -= self.answers.take(self.left.min(free), out);
                continue;
            }
            let next = self.answers.places.front().copied();
            let to = next.map_or(self.reply.len(), |(at, _)| at);
            let count = (to - self.read).min(free);
            out.encoded(&self.reply[self.read..self.read + count]);
            self.read += count;
            match next {
                _ if self.read < to => {}
                Some((_, len)) => {
                    self.left = len;
                    self.answers.places.pop_front();
                }
                None => return false,
            }
        }
        true
    }
}

impl Drop for Spliced {
    fn drop(&mut self) {
        work::job::drop_bytes(std::mem::take(&mut self.reply));
        self.share = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers of all sizes at all places, at once and in pieces, against plain strings.
    #[test]
    fn answers_come_to_stand_at_their_places() {
        for room in [1, 7, 100, 5_000, 1 << 20] {
            let (mut answers, mut reply, mut whole) = (Answers::with_capacity(0), Vec::new(), Vec::new());
            for i in 0..60usize {
                let own = format!("+{i}\r\n").repeat(i % 4);
                reply.extend_from_slice(own.as_bytes());
                whole.extend_from_slice(own.as_bytes());
                let answer = vec![b'a' + (i % 26) as u8; [0, 1, 500, CHUNK - 1, CHUNK, 3 * CHUNK][i % 6]];
                answers.add(reply.len(), answer.clone());
                whole.extend_from_slice(&answer);
            }
            reply.extend_from_slice(b":1\r\n");
            whole.extend_from_slice(b":1\r\n");
            let mut spliced = Spliced::new(reply, answers, None);
            let mut out = Reply::new(false);
            let mut before = 0;
            while spliced.fill(&mut out, room) {
                assert!(out.len() <= before + room);
                before = out.len();
            }
            assert!(out.as_bytes() == whole, "room {room}");
        }
    }
}
