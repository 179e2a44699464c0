//! The terminal of `evenkeel top`: taken over, drawn, given back however the program ends.
//!
//! `ratatui::try_init` sets a panic hook that gives the terminal back first, on any thread. SIGTERM, SIGINT and
//! SIGHUP end the loop; Ctrl-C is a key here.

use crate::draw::{Look, draw};
use crate::model::Model;
use crate::options::Top;
use crate::poll::{self, News, Order};
use crate::ui::Ui;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

/// The longest time until a reply or a signal is seen.
const TICK: Duration = Duration::from_millis(100);

/// Runs until the user quits. Errors: no terminal, wrong files of passwords and TLS, the terminal's.
pub fn run(options: &Top) -> Result<(), String> {
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err("evenkeel top needs a terminal; --once and evenkeel stat print lines anywhere".to_owned());
    }
    let address = options.place()?;
    let mut model = Model::new(address.server.place.clone());
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, stop.clone())
            .map_err(|e| format!("cannot handle signals: {e}"))?;
    }
    let ((news, heard), (orders, asked)) = (channel(), channel());
    let poller = std::thread::Builder::new().name("poll".to_owned());
    poller
        .spawn(move || poll::run(address, &news, &asked))
        .map_err(|e| format!("cannot start a thread: {e}"))?;
    let look = Look { has_colours: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) };
    let mut terminal = ratatui::try_init().map_err(|e| format!("cannot use the terminal: {e}"))?;
    let done = show(&mut terminal, &mut model, (&heard, &orders), &stop, look);
    ratatui::restore();
    done
}

fn show(
    terminal: &mut DefaultTerminal,
    model: &mut Model,
    (heard, orders): (&Receiver<News>, &Sender<Order>),
    stop: &AtomicBool,
    look: Look,
) -> Result<(), String> {
    let told = |e: std::io::Error| format!("the terminal: {e}");
    let mut ui = Ui::default();
    let mut is_stale = true;
    while !ui.has_quit && !stop.load(Relaxed) {
        loop {
            match heard.try_recv() {
                // Replies that were under way when it was paused are left out.
                Ok(News::Replies(_)) if ui.is_paused => {}
                Ok(news) => {
                    model.take(news);
                    is_stale = true;
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    return Err("the thread that asks the server has ended".to_owned());
                }
            }
        }
        if std::mem::take(&mut is_stale) {
            terminal.draw(|frame| draw(frame, model, &ui, look)).map_err(told)?;
        }
        if event::poll(TICK).map_err(told)? {
            match event::read().map_err(told)? {
                Event::Key(key) => {
                    let order = ui.press(key, model);
                    order.into_iter().for_each(|order| _ = orders.send(order));
                }
                Event::Resize(..) => {}
                _ => continue,
            }
            is_stale = true;
        }
    }
    Ok(())
}
