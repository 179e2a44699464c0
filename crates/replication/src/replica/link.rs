//! The thread that connects to the primary, shakes hands, and loads the file of a full sync. The stream behind
//! it is the host's.

use super::Position;
use super::full::{Buffer, FileReader, Header};
use super::handshake::{Answer, Handshake, Settings, login, words};
use super::state::{HandOver, Phase, State};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A connection's bytes.
pub trait Wire: Read + Write + Send {}

impl<T: Read + Write + Send> Wire for T {}

/// A connection to the primary.
pub struct Socket {
    pub tcp: TcpStream,
    /// The same, encrypted. None: it is not.
    pub secure: Option<Box<dyn Wire>>,
}

impl Socket {
    fn wire(&mut self) -> &mut dyn Wire {
        match &mut self.secure {
            Some(secure) => secure,
            None => &mut self.tcp,
        }
    }
}

/// A full copy of the primary's data on its way, and the place in its stream that they are of.
pub struct FullCopy<'c> {
    pub file: &'c mut (dyn Read + Send),
    /// Bytes of all of it, if that is known.
    pub bytes: Option<u64>,
    pub id: &'c str,
    pub offset: u64,
    /// To be called before the present data go: their position counts for nothing then (LK3).
    pub goes: &'c dyn Fn(),
}

/// The server around the link.
pub trait Host: Send + Sync {
    fn settings(&self) -> Settings;

    /// `repl-timeout`.
    fn timeout(&self) -> Duration;

    /// Encrypts a fresh connection, if that is configured. Blocks. Errors: a sentence.
    fn secure(&self, tcp: TcpStream, host: &str, limit: Duration) -> Result<Socket, String>;

    /// All data from a position on are about to be replaced by the primary's. `info`: its INFO replication, if it
    /// said any. Blocks.
    fn loses(&self, from: &Position, info: Option<&str>);

    /// Whether the data are of a history whose end, in some server, may be signs of life alone.
    fn ends_with_signs(&self) -> bool;

    /// Where to go on from, by the primary's INFO replication: before signs of life that it lacks. None: from
    /// the position. O(bytes behind)
    fn before_signs(&self, from: &Position, info: &str) -> Option<u64>;

    /// Loads a copy, whose data take the place of the present ones. Blocks. Gives the database in which the
    /// stream goes on. Errors: a sentence; the present data are there, or none if [`FullCopy::goes`] was called.
    fn load(&self, copy: FullCopy<'_>) -> Result<usize, String>;

    /// Applies the stream until the connection ends or the state says that it is to. `early`: bytes of it that
    /// came already. Gives the position of the last whole group, and why it ended. Blocks.
    fn run(&self, socket: Socket, early: Vec<u8>, at: Position, state: &Arc<State>) -> (Position, String);
}

/// How long a read waits before it looks whether the link was stopped.
const LOOK: Duration = Duration::from_millis(100);
/// Interval of our signs of life during a full sync.
const SIGN: Duration = Duration::from_secs(1);
/// The first wait before another try, and the longest one.
const WAIT: Duration = Duration::from_secs(1);
const WAIT_MAX: Duration = Duration::from_secs(10);
/// Bytes of an INFO.
const INFO_MAX: usize = 1 << 20;
/// Part of the error of a server that leads already.
const LEADS: &str = "can't be sent to a master";
/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(5);

/// A link to one primary. See the module.
pub struct Follower {
    state: Arc<State>,
}

impl Follower {
    /// Starts the link. `from`: the place to go on from. `hands_over`: the other server is a replica of this
    /// one, and is to lead. Errors: there is no thread.
    pub fn start(
        host: Arc<dyn Host>,
        to: (String, u16),
        from: Option<Position>,
        hands_over: bool,
    ) -> io::Result<Follower> {
        let state = Arc::new(State::new(from, hands_over));
        let link = Link { host, to, state: state.clone() };
        std::thread::Builder::new().name("link".into()).spawn(move || link.follow())?;
        Ok(Follower { state })
    }

    pub fn state(&self) -> &Arc<State> {
        &self.state
    }

    /// Ends the link, and gives the position of the last whole group. Waits until nothing changes the data any
    /// more: about [`LOOK`], and what the host's loop has begun.
    pub fn stop(self) -> Option<Position> {
        self.state.stop();
        self.state.position()
    }
}

/// Why a try ended.
enum Failure {
    /// It may be better in a moment.
    Later(String),
    /// The primary refuses.
    Refused(String),
    /// The stream ran for a while: it is tried again at once.
    Ended(String),
}

struct Link {
    host: Arc<dyn Host>,
    to: (String, u16),
    state: Arc<State>,
}

impl Link {
    /// Connects again and again until the link is stopped.
    fn follow(&self) {
        let mut refusals = 0;
        while !self.state.is_stopped() {
            let Err(failure) = self.attempt() else { return };
            let (text, wait) = match failure {
                Failure::Ended(text) => {
                    refusals = 0;
                    (text, Duration::ZERO)
                }
                Failure::Later(text) => {
                    refusals = 0;
                    (text, WAIT)
                }
                Failure::Refused(text) => {
                    refusals += 1;
                    (text, WAIT_MAX.min(WAIT * (1 << (refusals - 1).min(4))))
                }
            };
            if self.state.is_stopped() {
                return;
            }
            log::warn!("the link to {}:{}: {text}", self.to.0, self.to.1);
            self.state.change(|figures| {
                if figures.phase == Phase::Connected || figures.down_since_ms == 0 {
                    figures.down_since_ms = stdx::clock::wall_ms();
                }
                (figures.phase, figures.error) = (Phase::Down, Some(text));
            });
            let until = Instant::now() + wait;
            while Instant::now() < until && !self.state.is_stopped() {
                std::thread::sleep(LOOK.min(until.saturating_duration_since(Instant::now())));
            }
        }
    }

    fn phase(&self, phase: Phase) {
        self.state.change(|figures| figures.phase = phase);
    }

    /// One connection, to its end. Ok: the link was stopped.
    fn attempt(&self) -> Result<(), Failure> {
        self.phase(Phase::Connecting);
        let mut socket = self.connect().map_err(Failure::Later)?;
        self.phase(Phase::Handshake);
        self.state.heard();
        let mut buffer = Buffer::default();
        let from = self.state.position().map(|from| self.before_signs(from));
        let answer = self.shake_hands(&mut socket, &mut buffer, from.clone())?;
        let at = match (answer, from) {
            (Answer::Partial { id }, Some(from)) => {
                self.state.change(|figures| figures.partial_syncs += 1);
                log::info!("the stream of the primary goes on at offset {}", from.offset + 1);
                Position { id: id.unwrap_or(from.id), ..from }
            }
            (Answer::Full { id, offset }, from) => {
                self.phase(Phase::Sync);
                if let Some(from) = from {
                    let asked = self.ask_info();
                    let why = |why: &String| log::warn!("the primary does not say what it lacks: {why}");
                    let info = asked.inspect_err(why).ok();
                    self.host.loses(&from, info.as_deref());
                }
                match self.load(&mut socket, &mut buffer, (&id, offset))? {
                    Some(db) => Position { id, offset, db },
                    None => return Ok(()),
                }
            }
            _ => return Err(Failure::Refused("the primary's answer makes no sense".to_owned())),
        };
        self.run(socket, buffer, at)
    }

    /// The place to go on from. A primary lacks signs of life that another said after it had been promoted: a
    /// full copy for them would be in vain.
    fn before_signs(&self, from: Position) -> Position {
        if !self.host.ends_with_signs() {
            return from;
        }
        let info = self.ask_info().ok();
        let Some(offset) = info.and_then(|info| self.host.before_signs(&from, &info)) else { return from };
        log::info!("the primary lacks signs of life behind offset {offset}, and nothing else");
        let at = Position { offset, ..from };
        self.state.change(|figures| figures.position = Some(at.clone()));
        at
    }

    /// Hands the stream to the host, until it ends.
    fn run(&self, mut socket: Socket, mut buffer: Buffer, at: Position) -> Result<(), Failure> {
        // A primary that sent its file up to a mark sends nothing further before it hears this.
        let told = self.tell(&mut socket, &ack(at.offset));
        told.map_err(|error| Failure::Later(format!("the connection broke: {error}")))?;
        self.state.change(|figures| {
            (figures.phase, figures.error, figures.position) = (Phase::Connected, None, Some(at.clone()));
        });
        self.state.heard();
        let began = Instant::now();
        let ran = self.state.busy(|| {
            let (position, why) = self.host.run(socket, buffer.take_rest(), at, &self.state);
            self.state.change(|figures| figures.position = Some(position));
            why
        });
        match ran {
            None => Ok(()),
            Some(why) if began.elapsed() < WAIT => Err(Failure::Later(why)),
            Some(why) => Err(Failure::Ended(why)),
        }
    }

    fn connect(&self) -> Result<Socket, String> {
        let (host, port) = (&self.to.0, self.to.1);
        let limit = CONNECT.min(self.host.timeout());
        let places = (host.as_str(), port).to_socket_addrs();
        let places = places.map_err(|error| format!("{host} is not known: {error}"))?;
        let mut last = format!("{host} has no address");
        for place in places {
            match TcpStream::connect_timeout(&place, limit) {
                Ok(tcp) => {
                    let _ = tcp.set_nodelay(true);
                    let limits = tcp.set_read_timeout(Some(LOOK)).and(tcp.set_write_timeout(Some(limit)));
                    limits.map_err(|error| format!("no time-out could be set: {error}"))?;
                    return self.host.secure(tcp, host, limit);
                }
                Err(error) => last = format!("{host}:{port} cannot be reached: {error}"),
            }
        }
        Err(last)
    }

    fn tell(&self, socket: &mut Socket, bytes: &[u8]) -> io::Result<()> {
        socket.wire().write_all(bytes).and_then(|()| socket.wire().flush())
    }

    fn shake_hands(
        &self,
        socket: &mut Socket,
        buffer: &mut Buffer,
        from: Option<Position>,
    ) -> Result<Answer, Failure> {
        let broke = |error: io::Error| Failure::Later(format!("the connection broke: {error}"));
        let hands_over = self.state.figures().hand_over == HandOver::Wanted;
        let mut handshake = Handshake::new(self.host.settings(), from).handing_over(hands_over);
        self.tell(socket, &handshake.begin()).map_err(broke)?;
        loop {
            let line = self.line(socket, buffer).map_err(broke)?;
            match handshake.hear(&line) {
                Answer::Send(bytes) => self.tell(socket, &bytes).map_err(broke)?,
                Answer::Wait => {}
                Answer::Later(text) | Answer::Refused(text) if hands_over && handshake.has_asked() => {
                    return Err(self.not_handed_over(text));
                }
                Answer::Later(text) => return Err(Failure::Later(text)),
                Answer::Refused(text) => return Err(Failure::Refused(text)),
                answer => {
                    if hands_over {
                        self.state.change(|figures| figures.hand_over = HandOver::Done);
                    }
                    return Ok(answer);
                }
            }
        }
    }

    /// The other server has refused to lead. One that leads already, as an answer of before was lost, is
    /// followed.
    fn not_handed_over(&self, text: String) -> Failure {
        let leads = text.contains(LEADS);
        let outcome = if leads { HandOver::Done } else { HandOver::Refused(text.clone()) };
        self.state.change(|figures| figures.hand_over = outcome);
        if leads { Failure::Ended(text) } else { Failure::Refused(text) }
    }

    /// The primary's INFO replication, over a connection of its own. Errors: a sentence.
    fn ask_info(&self) -> Result<String, String> {
        let broke = |error: io::Error| format!("the connection broke: {error}");
        let mut socket = self.connect()?;
        let (mut buffer, settings) = (Buffer::default(), self.host.settings());
        if let Some(login) = login(&settings) {
            self.tell(&mut socket, &login).map_err(broke)?;
            self.line(&mut socket, &mut buffer).map_err(broke)?;
        }
        self.tell(&mut socket, &words(&[b"INFO", b"replication"])).map_err(broke)?;
        let line = self.line(&mut socket, &mut buffer).map_err(broke)?;
        let strange = || format!("INFO was answered: {}", line.escape_ascii());
        let len = line.strip_prefix(b"$").and_then(|len| std::str::from_utf8(len).ok()?.parse().ok());
        let len: usize = len.filter(|len| *len <= INFO_MAX).ok_or_else(strange)?;
        while buffer.rest().len() < len {
            if buffer.fill(&mut self.patient(&mut socket)).map_err(broke)? == 0 {
                return Err("the connection ended".to_owned());
            }
        }
        Ok(String::from_utf8_lossy(&buffer.rest()[..len]).into_owned())
    }

    /// The next line of the primary.
    fn line(&self, socket: &mut Socket, buffer: &mut Buffer) -> io::Result<Vec<u8>> {
        loop {
            if let Some(line) = buffer.line()? {
                return Ok(line);
            }
            if buffer.fill(&mut self.patient(socket))? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }

    fn patient<'l>(&'l self, socket: &'l mut Socket) -> Patient<'l> {
        Patient { wire: socket.wire(), state: &self.state, timeout: self.host.timeout(), signed: None }
    }

    /// Loads the file that follows. Gives the database in which the stream goes on. None: the link was stopped.
    fn load(
        &self,
        socket: &mut Socket,
        buffer: &mut Buffer,
        (id, offset): (&str, u64),
    ) -> Result<Option<usize>, Failure> {
        let broke = |error: io::Error| Failure::Later(format!("the connection broke: {error}"));
        let header = loop {
            let line = self.line(socket, buffer).map_err(broke)?;
            if let Some(header) = Header::of(&line).map_err(Failure::Refused)? {
                break header;
            }
        };
        let input = Patient { signed: Some(Instant::now()), ..self.patient(socket) };
        let mut file = FileReader::new(buffer, input, header);
        let bytes = file.length();
        self.state.change(|figures| figures.total_bytes = bytes);
        self.state.read(0);
        log::info!("a full copy of the primary's data begins");
        let loaded = self.state.busy(|| {
            let mut counted = Counted { file: &mut file, state: &self.state };
            let goes = || self.state.change(|figures| figures.position = None);
            let loaded = self.host.load(FullCopy { file: &mut counted, bytes, id, offset, goes: &goes });
            // Something may stand between the file's own end and that of its transfer.
            loaded.and_then(|db| file.drain().map(|()| db).map_err(|error| error.to_string()))
        });
        match loaded {
            None => Ok(None),
            Some(Ok(db)) => {
                self.state.change(|figures| figures.full_syncs += 1);
                log::info!("the copy of the primary's data is complete: {} bytes", file.given);
                Ok(Some(db))
            }
            Some(Err(_)) if self.state.is_stopped() => Ok(None),
            Some(Err(why)) => Err(Failure::Refused(format!("the full copy failed: {why}"))),
        }
    }
}

/// The words of a replica about its offset.
fn ack(offset: u64) -> Vec<u8> {
    words(&[b"REPLCONF", b"ACK", offset.to_string().as_bytes()])
}

/// Reads with patience: until the link is stopped, or the primary is silent for too long.
struct Patient<'l> {
    wire: &'l mut dyn Wire,
    state: &'l State,
    timeout: Duration,
    /// When a sign of life was last sent; None: none is.
    signed: Option<Instant>,
}

impl Patient<'_> {
    /// Says that this server lives, if that is due. Errors: the connection's, or the link was stopped.
    fn sign(&mut self) -> io::Result<()> {
        if self.state.is_stopped() {
            return Err(io::Error::other("the link was ended"));
        }
        if self.signed.is_some_and(|at| at.elapsed() >= SIGN) {
            self.signed = Some(Instant::now());
            self.wire.write_all(b"\n").and_then(|()| self.wire.flush())?;
        }
        Ok(())
    }
}

impl Read for Patient<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            self.sign()?;
            match self.wire.read(out) {
                Ok(n) => {
                    self.state.heard();
                    return Ok(n);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if u128::from(self.state.silent_ms()) >= self.timeout.as_millis() {
                        let text = "the primary was silent for longer than repl-timeout";
                        return Err(io::Error::new(ErrorKind::TimedOut, text));
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Counts what is read of the file. A read behind its end says that this server lives, if that is due.
struct Counted<'c, 'b, 'l> {
    file: &'c mut FileReader<'b, Patient<'l>>,
    state: &'c State,
}

impl Read for Counted<'_, '_, '_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(out)?;
        self.state.read(self.file.given);
        if read == 0 {
            self.file.input().sign()?;
        }
        Ok(read)
    }
}
