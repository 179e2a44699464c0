//! Plots as SVG. Colours are classes, which the page sets for light and dark.

use std::fmt::Write;

/// A line: its class, its name, and its points.
pub struct Line {
    pub class: String,
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// A plot of lines. The vertical axis is milliseconds, logarithmic.
pub struct Plot<'a> {
    pub title: &'a str,
    /// Places of the horizontal axis, 0 to 1, and their words.
    pub ticks: Vec<(f64, String)>,
    pub lines: Vec<Line>,
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 30.0;
const TOP: f64 = 28.0;
const BOTTOM: f64 = 32.0;

/// Text for markup.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

impl Plot<'_> {
    /// The plot as an element `svg`. Points that are no positive numbers are left out. O(points).
    pub fn draw(&self) -> String {
        let is_drawn = |point: &&(f64, f64)| point.0.is_finite() && point.1.is_finite() && point.1 > 0.0;
        let heights =
            || self.lines.iter().flat_map(|line| &line.points).filter(is_drawn).map(|point| point.1.log10());
        let low = heights().fold(f64::INFINITY, f64::min).floor();
        let high = heights().fold(f64::NEG_INFINITY, f64::max).ceil().max(low + 1.0);
        let mut out = String::new();
        let _ = write!(
            out,
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\"><text class=\"title\" x=\"{LEFT}\" \
             y=\"16\">{title}</text>",
            title = escaped(self.title)
        );
        if !low.is_finite() {
            out.push_str("</svg>\n");
            return out;
        }
        let x = |at: f64| LEFT + at.clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT);
        let y = |ms: f64| HEIGHT - BOTTOM - (ms.log10() - low) / (high - low) * (HEIGHT - TOP - BOTTOM);
        for power in low as i32..=high as i32 {
            let (ms, at) = (10f64.powi(power), y(10f64.powi(power)));
            let _ = write!(
                out,
                "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{:.1}\" y2=\"{at:.1}\"/><text class=\"axis\" x=\"{:.1}\" \
                 y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                at + 4.0,
                escaped(&crate::report::time(ms * 1e6))
            );
        }
        for (at, word) in &self.ticks {
            let _ = write!(
                out,
                "<text class=\"axis\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                x(*at),
                HEIGHT - 10.0,
                escaped(word)
            );
        }
        for line in &self.lines {
            let points: Vec<String> = line
                .points
                .iter()
                .filter(is_drawn)
                .map(|point| format!("{:.1},{:.1}", x(point.0), y(point.1)))
                .collect();
            let _ = write!(
                out,
                "<polyline class=\"{}\" points=\"{}\"><title>{}</title></polyline>",
                line.class,
                points.join(" "),
                escaped(&line.name)
            );
        }
        out.push_str("</svg>\n");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_within_the_plot_and_texts_are_no_markup() {
        let points = vec![(0.0, 0.05), (0.5, f64::NAN), (0.7, 0.0), (1.0, 812.0)];
        let lines = vec![Line { class: "t0".into(), name: "<b>".into(), points }];
        let svg = Plot { title: "a < b", ticks: vec![(0.0, "0 s".into())], lines }.draw();
        assert!(svg.contains("a &lt; b") && svg.contains("&lt;b&gt;") && !svg.contains("NaN"));
        let drawn = svg.split("points=\"").nth(1).unwrap().split('"').next().unwrap();
        let drawn: Vec<&str> = drawn.split(' ').collect();
        assert_eq!(drawn.len(), 2);
        for (x, y) in drawn.iter().map(|point| point.split_once(',').unwrap()) {
            assert!(
                (0.0..=WIDTH).contains(&x.parse().unwrap()) && (0.0..=HEIGHT).contains(&y.parse().unwrap())
            );
        }
        assert!(Plot { title: "", ticks: Vec::new(), lines: Vec::new() }.draw().ends_with("</svg>\n"));
    }
}
