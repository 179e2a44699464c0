//! The choices of the one at the keys, and what each key does.

use crate::model::Model;
use crate::poll::{Order, Window};
use crate::table::Table;
use crate::text::shown;
use crate::views::View;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// The keys, as the help tells them.
pub const KEYS: [(&str, &str); 12] = [
    ("q, Ctrl-C", "quit"),
    ("p", "pause: nothing is asked, the screen stays"),
    ("t", "the picture shows five minutes, an hour, thirty hours (Evenkeel)"),
    ("left, right", "it shows an earlier time, with who made whom wait then"),
    ("Tab, 1 to 6", "another list: waits, clients, commands, slow log, events, hot keys"),
    ("up, down, k, j", "select a line"),
    ("PgUp, PgDn, g, G", "ten lines on, the first, the last"),
    ("Enter", "all about the line; of a client also EVENKEEL WHY"),
    ("s", "sort by another column"),
    ("/", "only lines with a text; Enter keeps it, Esc ends it"),
    ("Esc", "back"),
    ("?", "this help"),
];

/// A window that covers the lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Over {
    #[default]
    Nothing,
    Help,
    /// All about a line: its name, its lines, the first that is shown.
    Detail {
        title: String,
        lines: Vec<String>,
        top: usize,
    },
}

/// The choices.
#[derive(Debug, Default)]
pub struct Ui {
    pub view: View,
    pub is_paused: bool,
    pub window: Window,
    pub is_typing: bool,
    pub filter: String,
    orders: [usize; View::ALL.len()],
    /// The selected line by its key, and where it was.
    selected: Option<String>,
    at: usize,
    pub over: Over,
    pub has_quit: bool,
}

impl Ui {
    /// The list that is shown, sorted, filtered.
    pub fn table(&self, model: &Model) -> Table {
        let mut table = self.view.table(model);
        table.arrange(&self.filter, self.order());
        table
    }

    pub fn order(&self) -> usize {
        self.orders[self.view as usize]
    }

    /// The selected line: where its key is now, else where it was.
    pub fn selected(&self, table: &Table) -> Option<usize> {
        let found = self.selected.as_ref().and_then(|key| table.rows.iter().position(|row| row.key == *key));
        found
            .or(self.selected.is_some().then_some(self.at))
            .map(|at| at.min(table.rows.len().saturating_sub(1)))
    }

    /// Does what a key says. Returns what the server must be asked.
    pub fn press(&mut self, key: KeyEvent, model: &mut Model) -> Option<Order> {
        if key.kind == KeyEventKind::Release {
            return None;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            self.has_quit |= matches!(key.code, KeyCode::Char('c' | 'd'));
            return None;
        }
        if self.is_typing {
            self.type_filter(key.code);
            return None;
        }
        match key.code {
            KeyCode::Char('q') => self.has_quit = true,
            KeyCode::Char('p') => {
                self.is_paused = !self.is_paused;
                return Some(Order::Pause(self.is_paused));
            }
            KeyCode::Char('?') if self.over == Over::Help => self.over = Over::Nothing,
            KeyCode::Char('?') => self.over = Over::Help,
            KeyCode::Esc if self.over != Over::Nothing => self.over = Over::Nothing,
            KeyCode::Esc => (self.selected, self.filter) = (None, String::new()),
            code if self.over != Over::Nothing => self.scroll(code),
            KeyCode::Enter => return self.open(model),
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char('s') => {
                let order = &mut self.orders[self.view as usize];
                *order = (*order + 1) % self.view.table(model).orders.len().max(1);
            }
            KeyCode::Tab => self.show(View::ALL[(self.view as usize + 1) % View::ALL.len()]),
            KeyCode::BackTab => {
                self.show(View::ALL[(self.view as usize + View::ALL.len() - 1) % View::ALL.len()])
            }
            KeyCode::Char('t') => return self.look_at(self.window.longer(), model),
            KeyCode::Left => return self.look_at(self.window.moved(true), model),
            KeyCode::Right => return self.look_at(self.window.moved(false), model),
            KeyCode::Char(digit @ '1'..='6') => self.show(View::ALL[digit as usize - '1' as usize]),
            code => self.select(code, model),
        }
        None
    }

    /// Another time in the picture, of a server that has a history; not while nothing is asked.
    fn look_at(&mut self, window: Window, model: &Model) -> Option<Order> {
        if self.is_paused || model.moment.now.is_none() || window == self.window {
            return None;
        }
        self.window = window;
        Some(Order::Show(window))
    }

    fn show(&mut self, view: View) {
        self.view = view;
        (self.selected, self.at) = (None, 0);
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => (self.is_typing, self.filter) = (false, String::new()),
            KeyCode::Backspace => _ = self.filter.pop(),
            // As texts of the server are shown, so that it is found.
            KeyCode::Char(char) if self.filter.len() < 64 => {
                self.filter.push_str(&shown(char.encode_utf8(&mut [0; 4]).as_bytes()));
            }
            _ => {}
        }
    }

    fn select(&mut self, code: KeyCode, model: &Model) {
        let table = self.table(model);
        let Some(last) = table.rows.len().checked_sub(1) else { return };
        let at = match (code, self.selected(&table)) {
            (KeyCode::Char('g') | KeyCode::Home, _) => 0,
            (KeyCode::Char('G') | KeyCode::End, _) => last,
            (
                KeyCode::Down
                | KeyCode::Char('j')
                | KeyCode::PageDown
                | KeyCode::Up
                | KeyCode::Char('k')
                | KeyCode::PageUp,
                None,
            ) => 0,
            (KeyCode::Down | KeyCode::Char('j'), Some(at)) => at + 1,
            (KeyCode::Up | KeyCode::Char('k'), Some(at)) => at.saturating_sub(1),
            (KeyCode::PageDown, Some(at)) => at + 10,
            (KeyCode::PageUp, Some(at)) => at.saturating_sub(10),
            _ => return,
        };
        self.at = at.min(last);
        self.selected = Some(table.rows[self.at].key.clone());
    }

    fn scroll(&mut self, code: KeyCode) {
        let Over::Detail { lines, top, .. } = &mut self.over else { return };
        let last = lines.len().saturating_sub(1);
        *top = match code {
            KeyCode::Down | KeyCode::Char('j') => (*top + 1).min(last),
            KeyCode::Up | KeyCode::Char('k') => top.saturating_sub(1),
            KeyCode::PageDown => (*top + 10).min(last),
            KeyCode::PageUp => top.saturating_sub(10),
            KeyCode::Enter => return self.over = Over::Nothing,
            _ => return,
        };
    }

    fn open(&mut self, model: &mut Model) -> Option<Order> {
        let table = self.table(model);
        let row = table.rows.get(self.selected(&table).unwrap_or(0))?;
        let title = row.cells.first().cloned().unwrap_or_default();
        self.over = Over::Detail { title, lines: row.detail.clone(), top: 0 };
        model.why = None;
        row.client.map(Order::Why)
    }
}
