//! The picture: what is known and chosen, on a screen of any size.
//!
//! ```text
//! title                     Without colours (NO_COLOR) the same is said by bold and reversed text.
//! who makes whom wait       All texts are ASCII (T1), but for the blocks of the latencies and frames.
//! five lines of figures
//! latencies, five minutes
//! waits
//! list of choice
//! keys
//! ```

use crate::heat::{Heat, OCTAVES};
use crate::model::{Model, State};
use crate::poll::{COLUMNS, Window};
use crate::table::Table;
use crate::text;
use crate::ui::{KEYS, Over, Ui};
use crate::views::View;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};

/// From this height on there is more of everything.
const TALL: u16 = 34;
/// The first octave of each band of latencies, the fastest first.
const BANDS: [usize; 4] = [0, 8, 11, 14];
const BANDS_TALL: [usize; 8] = [0, 6, 8, 10, 11, 13, 15, 18];
/// The first octave of a millisecond and more.
const MILLISECOND: usize = 11;
const BLOCKS: [char; 9] =
    [' ', '\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}', '\u{2588}'];

/// How things look.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    pub has_colours: bool,
}

impl Look {
    fn of(self, colour: Color, modifier: Modifier) -> Style {
        let style = Style::new().add_modifier(modifier);
        if self.has_colours { style.fg(colour) } else { style }
    }

    fn calm(self) -> Style {
        self.of(Color::Green, Modifier::BOLD)
    }

    fn alarm(self) -> Style {
        self.of(Color::Yellow, Modifier::BOLD)
    }

    fn fast(self) -> Style {
        self.of(Color::Blue, Modifier::empty())
    }

    fn name(self) -> Style {
        self.of(Color::Cyan, Modifier::empty())
    }
}

/// Draws all of it. O(screen + rows of the list).
pub fn draw(frame: &mut Frame, model: &Model, ui: &Ui, look: Look) {
    let area = frame.area();
    let is_tall = area.height >= TALL;
    let bands: &[usize] = if is_tall { &BANDS_TALL } else { &BANDS };
    let waits = match ui.view {
        View::Waits => 0,
        _ if is_tall => 7,
        _ => 3,
    };
    let [title, sentence, figures, heat, list, chosen, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(5),
        Constraint::Length(bands.len() as u16 + 1 + u16::from(is_tall)),
        Constraint::Length(waits),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(area);
    draw_title(frame, title, model, ui);
    let (said, is_alarm) = model.sentence();
    put(frame, sentence, 0, &said, if is_alarm { look.alarm() } else { look.calm() });
    if model.state != State::Connecting {
        draw_figures(frame, figures, model, look);
        draw_heat(frame, heat, model, bands, look);
        draw_waits(frame, list, model, look);
        draw_chosen(frame, chosen, model, ui, look);
    }
    draw_keys(frame, keys, ui);
    match &ui.over {
        Over::Nothing => {}
        Over::Help => {
            let lines: Vec<String> = KEYS.iter().map(|(key, what)| format!("{key:<18}{what}")).collect();
            draw_over(frame, "keys", &lines, 0);
        }
        Over::Detail { title, lines, top } => {
            let mut lines = lines.clone();
            if let Some(why) = &model.why {
                lines.push("EVENKEEL WHY".to_owned());
                lines.extend(why.iter().map(|line| format!("  {line}")));
            }
            draw_over(frame, title, &lines, *top);
        }
    }
}

/// Writes a line of an area, as far as there is room.
fn put(frame: &mut Frame, area: Rect, line: u16, text: &str, style: Style) {
    if line < area.height {
        frame.buffer_mut().set_stringn(area.x, area.y + line, text, usize::from(area.width), style);
    }
}

/// A line over the whole width, reversed.
fn bar(frame: &mut Frame, area: Rect, left: &str, right: &str) {
    let width = usize::from(area.width);
    let left = text::cut(left, width);
    let right = text::cut(right, width.saturating_sub(left.len() + 1));
    let line = format!("{left}{right:>room$}", room = width.saturating_sub(left.len()));
    put(frame, area, 0, &line, Style::new().add_modifier(Modifier::REVERSED));
}

fn draw_title(frame: &mut Frame, area: Rect, model: &Model, ui: &Ui) {
    let paused = if ui.is_paused { "PAUSED  " } else { "" };
    let right = format!("{paused}{} UTC ", text::clock(model.unix_ms));
    bar(frame, area, &format!(" {}", model.title()), &right);
}

fn draw_figures(frame: &mut Frame, area: Rect, model: &Model, look: Look) {
    for (line, (name, said)) in model.figures().into_iter().enumerate() {
        put(frame, area, line as u16, &format!("{name:<9}"), look.name());
        let rest = Rect { x: area.x + 9.min(area.width), width: area.width.saturating_sub(9), ..area };
        let shouts = said
            .split([' ', ','])
            .filter(|word| word.len() > 2 && word.bytes().all(|byte| byte.is_ascii_uppercase()));
        let is_alarm = line > 1 && shouts.count() > 0;
        put(frame, rest, line as u16, &said, if is_alarm { look.alarm() } else { Style::new() });
    }
}

/// How high a block is for so many requests in five seconds: by the logarithm, so that one is seen beside a
/// million.
fn block(n: u64) -> char {
    let height = match n {
        0 => 0,
        1..=2 => 1,
        3..=9 => 2,
        10..=99 => 3,
        100..=999 => 4,
        1_000..=9_999 => 5,
        10_000..=99_999 => 6,
        100_000..=999_999 => 7,
        _ => 8,
    };
    BLOCKS[height]
}

fn draw_heat(frame: &mut Frame, area: Rect, model: &Model, bands: &[usize], look: Look) {
    let of = if model.moment.now.is_some() { "all requests" } else { "this tool's PINGs" };
    let head = format!("latency of {of}, {}; high: many", said_of(model));
    put(frame, area, 0, &head, look.name());
    let room = usize::from(area.width).saturating_sub(18).min(COLUMNS);
    let columns: Vec<Option<Heat>> = model.heat.iter().rev().take(room).rev().copied().collect();
    // The slowest first.
    for (line, (band, first)) in bands.iter().enumerate().rev().enumerate() {
        let end = bands.get(band + 1).copied().unwrap_or(OCTAVES);
        let sum = |heat: &Heat| crate::reply::sum(heat.counts[*first..end].iter().copied());
        let name = match end {
            OCTAVES => format!(">={}", text::micros((1u64 << (first - 1)) as f64)),
            _ => format!("< {}", text::micros((1u64 << (end - 1)) as f64)),
        };
        let cells: String =
            columns.iter().map(|heat| heat.as_ref().map_or('.', |heat| block(sum(heat)))).collect();
        let last = columns.iter().rev().take(2).flatten().map(sum).next().unwrap_or(0);
        let pad = " ".repeat(room - columns.len());
        let style = if *first >= MILLISECOND { look.alarm() } else { look.fast() };
        let spans = vec![
            Span::raw(format!("{name:>8} ")),
            Span::raw(pad),
            Span::styled(cells, style),
            Span::raw(format!(" {:>5}/s", text::number(last as f64 * 1e3 / model.window.column_ms as f64))),
        ];
        if (line as u16) + 1 < area.height {
            let y = area.y + line as u16 + 1;
            frame.buffer_mut().set_line(area.x, y, &Line::from(spans), area.width);
        }
    }
    if area.height as usize > bands.len() + 1 {
        draw_waited(frame, area, model, (bands.len() as u16 + 1, room), look);
    }
}

/// The time that the picture shows, in words.
fn said_of(model: &Model) -> String {
    let window = model.window;
    let (long, column) = match Window::COLUMNS_MS.iter().position(|ms| *ms == window.column_ms) {
        Some(1) => ("an hour", "a minute"),
        Some(2) => ("thirty hours", "30 min"),
        _ => ("five minutes", "5 s"),
    };
    let end = match window.back {
        0 => String::new(),
        _ => {
            let (_, before_ms) = window.before_now_ms();
            let ago = text::span(before_ms as f64 / 1e3);
            format!(" until {} UTC, {ago} ago", text::clock(model.unix_ms.saturating_sub(before_ms)))
        }
    };
    format!("{long}{end}, a column is {column}")
}

/// A line of the time that clients waited for others, below the latencies.
fn draw_waited(frame: &mut Frame, area: Rect, model: &Model, (line, room): (u16, usize), look: Look) {
    let columns: Vec<Option<u64>> = model.waited.iter().rev().take(room).rev().copied().collect();
    let cells: String = columns.iter().map(|us| us.map_or('.', |us| block(us / 10))).collect();
    let last = columns.iter().rev().take(2).flatten().next().copied().unwrap_or(0);
    let spans = vec![
        Span::raw(format!("{:>8} ", "waiting")),
        Span::raw(" ".repeat(room - columns.len())),
        Span::styled(cells, look.alarm()),
        Span::raw(format!(" {:>7}", text::micros(last as f64))),
    ];
    frame.buffer_mut().set_line(area.x, area.y + line, &Line::from(spans), area.width);
}

fn draw_waits(frame: &mut Frame, area: Rect, model: &Model, look: Look) {
    if area.height > 0 {
        let mut table = View::Waits.table(model);
        table.arrange("", 0);
        draw_table(frame, area, &table, None, look);
    }
}

/// The list of choice, with its name and order above.
fn draw_chosen(frame: &mut Frame, area: Rect, model: &Model, ui: &Ui, look: Look) {
    let table = ui.table(model);
    let mut names = Vec::new();
    for (at, view) in View::ALL.iter().enumerate() {
        let style = if *view == ui.view { Modifier::REVERSED | Modifier::BOLD } else { Modifier::empty() };
        names.push(Span::styled(format!(" {} {} ", at + 1, view.name()), Style::new().add_modifier(style)));
    }
    let order = table.orders.get(ui.order()).copied().unwrap_or_default();
    let filter = if ui.filter.is_empty() { String::new() } else { format!("  with \"{}\"", ui.filter) };
    names.push(Span::raw(format!("  {} by {order}{filter}", table.rows.len())));
    if area.height > 0 {
        frame.buffer_mut().set_line(area.x, area.y, &Line::from(names), area.width);
    }
    let rest = Rect { y: area.y + 1.min(area.height), height: area.height.saturating_sub(1), ..area };
    draw_table(frame, rest, &table, ui.selected(&table), look);
}

fn draw_table(frame: &mut Frame, area: Rect, table: &Table, selected: Option<usize>, look: Look) {
    let width = usize::from(area.width);
    put(frame, area, 0, &table.line(&table.head(), width), look.name());
    let room = usize::from(area.height.saturating_sub(1));
    if table.rows.is_empty() {
        put(frame, area, 1, &table.empty, Style::new().add_modifier(Modifier::DIM));
    }
    // The selected line stays in sight.
    let first = selected.map_or(0, |at| (at + 1).saturating_sub(room));
    for (line, (at, row)) in table.rows.iter().enumerate().skip(first).take(room).enumerate() {
        let style = if selected == Some(at) { Modifier::REVERSED } else { Modifier::empty() };
        let text = format!("{:<width$}", table.line(&row.cells, width));
        put(frame, area, line as u16 + 1, &text, Style::new().add_modifier(style));
    }
}

fn draw_keys(frame: &mut Frame, area: Rect, ui: &Ui) {
    if ui.is_typing {
        return bar(frame, area, &format!(" /{}_", ui.filter), "Enter keeps, Esc ends ");
    }
    bar(frame, area, " q quit  p pause  Tab list  jk select  Enter detail  / filter  s sort  ? help", "");
}

/// A window over the lists.
fn draw_over(frame: &mut Frame, title: &str, lines: &[String], top: usize) {
    let area = frame.area();
    let (width, height) = (area.width.saturating_sub(4).min(110), area.height.saturating_sub(4));
    let area =
        Rect { x: area.x + (area.width - width) / 2, y: area.y + area.height.min(4) / 2, width, height };
    let title = format!(" {} (Esc: back) ", text::cut(title, usize::from(width).saturating_sub(16)));
    let inner = usize::from(width).saturating_sub(2).max(1);
    // Long lines go on below.
    let wrapped = lines.iter().flat_map(|line| {
        let count = line.len().div_ceil(inner).max(1);
        (0..count).map(move |at| line.get(at * inner..((at + 1) * inner).min(line.len())).unwrap_or_default())
    });
    let shown: Vec<Line> = wrapped.skip(top).take(usize::from(height)).map(Line::from).collect();
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(shown).block(Block::bordered().title(title)), area);
}

#[cfg(test)]
mod tests;
