//! The thread that asks the server for `evenkeel top`.
//!
//! ```text
//! Poller ──every second: what is due──► server ──► News ──► model        screen ──Order──► Poller
//! ```
//!
//! Cost for the server, at most: two commands a second, and each other second CLIENT LIST (never with more than
//! [`CLIENTS_MAX`] clients), SLOWLOG GET and INFO commandstats, each fifth HOTKEYS GET; where it does not tell latencies, five PINGs a
//! second more. While the screen is paused nothing is asked.

use crate::link::{Link, words};
use crate::moment::Program;
use crate::reply::{Info, bytes};
use dial::Frame;
use reach::Address;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant, SystemTime};

/// Most clients of a server that is asked for all of them.
pub const CLIENTS_MAX: u64 = 1000;
/// Columns of the latencies, and the milliseconds of one.
pub const COLUMNS: usize = 60;
pub const COLUMN_MS: u64 = Window::COLUMNS_MS[0];

/// The time that the picture of latencies shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Milliseconds of a column.
    pub column_ms: u64,
    /// Columns between its end and now.
    pub back: u64,
}

impl Default for Window {
    fn default() -> Window {
        Window { column_ms: COLUMN_MS, back: 0 }
    }
}

impl Window {
    /// The columns to choose from: five minutes, an hour, thirty hours.
    pub const COLUMNS_MS: [u64; 3] = [5_000, 60_000, 1_800_000];
    /// A week, for which minutes are kept.
    const BACK_MAX_MS: u64 = 7 * 86_400_000;

    /// The next longer one, or the shortest; it ends now.
    pub fn longer(self) -> Window {
        let next = Window::COLUMNS_MS.into_iter().find(|ms| *ms > self.column_ms);
        Window { column_ms: next.unwrap_or(COLUMN_MS), back: 0 }
    }

    /// Half of it earlier, or later.
    pub fn moved(self, earlier: bool) -> Window {
        let half = COLUMNS as u64 / 2;
        let most = Window::BACK_MAX_MS / self.column_ms;
        let back = if earlier { (self.back + half).min(most) } else { self.back.saturating_sub(half) };
        Window { back, ..self }
    }

    /// Whether it is the last five minutes, which need nothing beside EVENKEEL NOW.
    pub fn is_live(self) -> bool {
        self == Window::default()
    }

    /// Begin and end, in milliseconds before now.
    pub fn before_now_ms(self) -> (u64, u64) {
        let end = self.back * self.column_ms;
        (end + COLUMNS as u64 * self.column_ms, end)
    }
}

const SECOND: Duration = Duration::from_secs(1);
const BETWEEN_PINGS: Duration = Duration::from_millis(200);

/// The question that a reply answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ask {
    Info,
    Now,
    History,
    Clients,
    Commands,
    Slow,
    Events,
    HotKeys,
    /// EVENKEEL FLOWS: waits by culprit and waiter, in a window of the past.
    Flows,
    Why,
}

impl Ask {
    /// All that tell of the present.
    const PRESENT: [Ask; 8] = [
        Ask::Info,
        Ask::Now,
        Ask::History,
        Ask::Clients,
        Ask::Commands,
        Ask::Slow,
        Ask::Events,
        Ask::HotKeys,
    ];

    fn request(self, window: Window) -> String {
        let (begin, end) = window.before_now_ms();
        match self {
            Ask::Info => "INFO".to_owned(),
            Ask::Now => "EVENKEEL NOW".to_owned(),
            Ask::History => format!("EVENKEEL HISTORY -{begin} -{end} {COLUMNS}"),
            Ask::Flows => format!("EVENKEEL FLOWS -{begin} -{end}"),
            Ask::HotKeys => "HOTKEYS GET".to_owned(),
            Ask::Clients => "CLIENT LIST".to_owned(),
            Ask::Commands => "INFO commandstats".to_owned(),
            Ask::Slow => "SLOWLOG GET 64".to_owned(),
            Ask::Events => "LATENCY LATEST".to_owned(),
            Ask::Why => "EVENKEEL WHY".to_owned(),
        }
    }

    /// The command, as a user knows it.
    pub fn name(self) -> &'static str {
        match self {
            Ask::Info => "INFO",
            Ask::Now => "EVENKEEL NOW",
            Ask::History => "EVENKEEL HISTORY",
            Ask::Clients => "CLIENT LIST",
            Ask::Commands => "INFO commandstats",
            Ask::Slow => "SLOWLOG GET",
            Ask::Events => "LATENCY LATEST",
            Ask::HotKeys => "HOTKEYS GET",
            Ask::Flows => "EVENKEEL FLOWS",
            Ask::Why => "EVENKEEL WHY",
        }
    }
}

/// News of the server.
#[derive(Debug)]
pub enum News {
    Replies(Replies),
    /// There is no connection, and why. The thread goes on trying.
    Lost(String),
}

/// Replies that came together.
#[derive(Debug, Default)]
pub struct Replies {
    pub unix_ms: u64,
    /// The time, of a clock that never goes back.
    pub at_us: u64,
    pub replies: Vec<(Ask, Frame)>,
    /// The time that HISTORY and FLOWS are of.
    pub window: Window,
    /// Round trips of PINGs since the last ones, in microseconds.
    pub pings: Vec<u64>,
}

/// An order of the screen.
#[derive(Debug)]
pub enum Order {
    Pause(bool),
    /// Why a client waited.
    Why(u64),
    /// The picture shows another time.
    Show(Window),
}

/// All about the present, of two looks a second apart. Blocks. Errors: no connection; the server tells nothing.
pub fn once(address: Address) -> Result<[Replies; 2], String> {
    let mut poller = Poller::new(address);
    poller.link.connect()?;
    // The first INFO tells how many clients there are.
    poller.ask(&[Ask::Info])?;
    let first = poller.ask(&poller.present())?;
    let end = Instant::now() + SECOND;
    while Instant::now() < end {
        if let Some(News::Lost(why)) = poller.measure() {
            return Err(why);
        }
        std::thread::sleep(BETWEEN_PINGS.min(end.saturating_duration_since(Instant::now())));
    }
    let second = poller.ask(&poller.present())?;
    Ok([first, second])
}

/// Asks until the screen has gone. Blocks.
pub fn run(address: Address, news: &Sender<News>, orders: &Receiver<Order>) {
    let mut poller = Poller::new(address);
    let mut due = Instant::now();
    loop {
        let told = if Instant::now() >= due && !poller.is_paused {
            due = Instant::now() + SECOND;
            poller.look()
        } else {
            poller.measure()
        };
        if told.is_some_and(|told| news.send(told).is_err()) {
            return;
        }
        let left = due.saturating_duration_since(Instant::now());
        let wait = if poller.is_paused { SECOND } else { left.min(BETWEEN_PINGS) };
        match orders.recv_timeout(wait) {
            Ok(Order::Pause(pause)) => poller.is_paused = pause,
            Ok(Order::Why(client)) => poller.why = Some(client),
            Ok(Order::Show(window)) => {
                (poller.window, poller.is_moved) = (window, true);
                due = Instant::now();
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

struct Poller {
    link: Link,
    begin: Instant,
    /// Looks since the connection was opened.
    tick: u64,
    clients: u64,
    program: Program,
    has_now: bool,
    has_hot_keys: bool,
    is_paused: bool,
    why: Option<u64>,
    window: Window,
    /// The window was not asked for yet.
    is_moved: bool,
    pings: Vec<u64>,
}

impl Poller {
    fn new(address: Address) -> Poller {
        Poller {
            link: Link::closed(address),
            begin: Instant::now(),
            tick: 0,
            clients: 0,
            program: Program::default(),
            has_now: true,
            has_hot_keys: true,
            is_paused: false,
            why: None,
            window: Window::default(),
            is_moved: false,
            pings: Vec::new(),
        }
    }

    /// All questions about the present that the server can answer.
    fn present(&self) -> Vec<Ask> {
        let can = |ask: &Ask| match ask {
            Ask::Now | Ask::History => self.has_now,
            Ask::Clients => self.clients <= CLIENTS_MAX,
            Ask::HotKeys => self.has_hot_keys,
            _ => true,
        };
        Ask::PRESENT.into_iter().filter(can).collect()
    }

    fn look(&mut self) -> Option<News> {
        if !self.link.is_open() {
            (self.tick, self.has_now, self.has_hot_keys) = (0, true, true);
            if let Err(why) = self.link.connect() {
                return Some(News::Lost(why));
            }
        }
        let asked = self.due();
        Some(self.ask(&asked).map_or_else(News::Lost, News::Replies))
    }

    /// The questions of this second.
    fn due(&mut self) -> Vec<Ask> {
        let tick = self.tick;
        self.tick += 1;
        let each = |nth: u64| tick.is_multiple_of(nth);
        let all = [
            (Ask::Info, true),
            (Ask::Now, self.has_now),
            (Ask::History, self.has_now && (each(5) || self.is_moved)),
            (Ask::Flows, self.has_now && !self.window.is_live() && (each(5) || self.is_moved)),
            // The first INFO tells how many there are.
            (Ask::Clients, tick > 0 && (tick == 1 || each(2)) && self.clients <= CLIENTS_MAX),
            (Ask::Commands, each(2)),
            (Ask::Slow, each(2)),
            (Ask::Events, each(5)),
            (Ask::HotKeys, self.has_hot_keys && each(5)),
            (Ask::Why, self.why.is_some() && self.program == Program::Evenkeel),
        ];
        let due = all.into_iter().filter(|(_, is_due)| *is_due).map(|(ask, _)| ask).collect();
        self.is_moved = false;
        due
    }

    fn ask(&mut self, asked: &[Ask]) -> Result<Replies, String> {
        let why = self.why.take_if(|_| asked.contains(&Ask::Why));
        let requests: Vec<Vec<String>> = asked
            .iter()
            .map(|ask| match (ask, why) {
                (Ask::Why, Some(client)) => words(&format!("{} {client}", ask.request(self.window))),
                _ => words(&ask.request(self.window)),
            })
            .collect();
        let replies: Vec<(Ask, Frame)> = asked.iter().copied().zip(self.link.ask(&requests)?).collect();
        for (ask, reply) in &replies {
            match (ask, reply) {
                (Ask::Now, Frame::Error(_)) => self.has_now = false,
                (Ask::HotKeys, Frame::Error(_)) => self.has_hot_keys = false,
                (Ask::Info, Frame::Error(_)) => {}
                (Ask::Info, info) => {
                    let info = Info::parse(bytes(info));
                    self.clients = info.count("connected_clients").unwrap_or(0);
                    self.program = Program::of(&info);
                }
                _ => {}
            }
        }
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Ok(Replies {
            unix_ms: unix.as_millis() as u64,
            at_us: self.begin.elapsed().as_micros() as u64,
            replies,
            window: self.window,
            pings: std::mem::take(&mut self.pings),
        })
    }

    /// Sends a PING if the server does not tell latencies.
    fn measure(&mut self) -> Option<News> {
        if self.has_now || self.is_paused || !self.link.is_open() {
            return None;
        }
        match self.link.ping_us() {
            Ok(us) => self.pings.push(us),
            Err(why) => return Some(News::Lost(why)),
        }
        None
    }
}
