//! Tables: what the lists of the screen show, before anything is drawn.

/// One line of a list.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// A name of the thing that it is the line of, so that a selection stays with it.
    pub key: String,
    pub cells: Vec<String>,
    /// By which it is sorted, a number for each order of its table.
    pub ranks: Vec<f64>,
    /// All that is known, in lines.
    pub detail: Vec<String>,
    /// The client to ask EVENKEEL WHY about.
    pub client: Option<u64>,
}

/// A list with names of its columns.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Names and widths of the columns; negative: to the left. The last has all that is left.
    pub columns: Vec<(&'static str, i16)>,
    /// Names of the orders.
    pub orders: Vec<&'static str>,
    pub rows: Vec<Row>,
    /// Said instead of rows that are not there.
    pub empty: String,
}

impl Table {
    /// Leaves the rows that have the text, in any case of its letters, and sorts them: the largest first.
    /// O(rows · log rows)
    pub fn arrange(&mut self, filter: &str, order: usize) {
        let filter = filter.to_ascii_lowercase();
        let has = |row: &Row| {
            row.cells.iter().chain(&row.detail).any(|text| text.to_ascii_lowercase().contains(&filter))
        };
        if !filter.is_empty() {
            self.rows.retain(has);
            if self.rows.is_empty() {
                self.empty = format!("nothing has \"{filter}\" in it");
            }
        }
        let order = order % self.orders.len().max(1);
        let rank = |row: &Row| row.ranks.get(order).copied().unwrap_or(0.0);
        self.rows.sort_by(|one, other| rank(other).total_cmp(&rank(one)));
    }

    /// A line of cells, `width` wide at most.
    pub fn line(&self, cells: &[String], width: usize) -> String {
        let mut line = String::new();
        for (at, (_, wide)) in self.columns.iter().enumerate() {
            let cell = cells.get(at).map_or("", String::as_str);
            let is_last = at + 1 == self.columns.len();
            let room =
                if is_last { width.saturating_sub(line.len()) } else { usize::from(wide.unsigned_abs()) };
            let cell = crate::text::cut(cell, room);
            match *wide < 0 || is_last {
                true => line.push_str(&format!("{cell:<room$} ")),
                false => line.push_str(&format!("{cell:>room$} ")),
            }
        }
        line.truncate(width);
        line
    }

    /// The names of the columns.
    pub fn head(&self) -> Vec<String> {
        self.columns.iter().map(|(name, _)| (*name).to_owned()).collect()
    }
}
