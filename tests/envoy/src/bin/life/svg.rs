//! How is a figure drawn? A few shapes of SVG, in pixels, on white, in a font that every machine has.

use std::fmt::Write;
use std::path::Path;

/// Text and axes.
pub const INK: &str = "#24292f";
/// What explains.
pub const GREY: &str = "#6b7280";
/// Lines to read values by.
pub const GRID: &str = "#e5e7eb";

/// A figure.
pub struct Svg {
    width: f64,
    height: f64,
    body: String,
}

/// Where a text stands, seen from its point.
#[derive(Clone, Copy)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// A rectangle that shows values over time.
pub struct Panel {
    pub left: f64,
    pub top: f64,
    pub width: f64,
    pub height: f64,
    /// Seconds at its right edge.
    pub seconds: f64,
    /// The value at its upper edge.
    pub most: f64,
}

impl Svg {
    pub fn new(width: f64) -> Self {
        Self { width, height: 0.0, body: String::new() }
    }

    pub fn rect(&mut self, [x, y, width, height]: [f64; 4], fill: &str) {
        let _ = writeln!(
            self.body,
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{fill}"/>"#
        );
        self.grow(y + height);
    }

    pub fn line(&mut self, [x1, y1, x2, y2]: [f64; 4], stroke: &str, dashes: &str) {
        let _ = writeln!(
            self.body,
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{stroke}" stroke-dasharray="{dashes}"/>"#
        );
        self.grow(y1.max(y2));
    }

    /// A line through these points.
    pub fn path(&mut self, points: &[(f64, f64)], stroke: &str, dashes: &str) {
        let spelled = spelled(points);
        let _ = writeln!(
            self.body,
            r#"<polyline points="{spelled}" fill="none" stroke="{stroke}" stroke-width="2" stroke-linejoin="round" stroke-dasharray="{dashes}"/>"#
        );
    }

    /// What is below a line through these points.
    pub fn area(&mut self, points: &[(f64, f64)], bottom: f64, fill: &str) {
        let (Some(first), Some(last)) = (points.first(), points.last()) else { return };
        let closed = [&[(first.0, bottom)], points, &[(last.0, bottom)]].concat();
        let spelled = spelled(&closed);
        let _ = writeln!(self.body, r#"<polygon points="{spelled}" fill="{fill}" fill-opacity="0.35"/>"#);
    }

    pub fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, size: u32, colour: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escaped(text);
        let _ = writeln!(
            self.body,
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">{text}</text>"#
        );
        self.grow(y + f64::from(size) / 2.0);
    }

    /// A heading.
    pub fn title(&mut self, (x, y): (f64, f64), text: &str) {
        let text = escaped(text);
        let _ = writeln!(
            self.body,
            r#"<text x="{x:.1}" y="{y:.1}" font-size="19" font-weight="600" fill="{INK}">{text}</text>"#
        );
    }

    /// A number in a disc.
    pub fn disc(&mut self, (x, y): (f64, f64), number: usize) {
        let _ = writeln!(self.body, r#"<circle cx="{x:.1}" cy="{y:.1}" r="8.5" fill="{INK}"/>"#);
        self.text((x, y + 4.0), Anchor::Middle, 11, "#ffffff", &number.to_string());
    }

    /// Entries of a legend in a row from here: a patch of colour, and its name.
    pub fn legend(&mut self, (mut x, y): (f64, f64), entries: &[(&str, &str)]) {
        for (name, colour) in entries {
            self.rect([x, y - 10.0, 14.0, 11.0], colour);
            self.text((x + 19.0, y), Anchor::Start, 13, INK, name);
            // About seven pixels a letter.
            x += 19.0 + 7.2 * name.chars().count() as f64 + 20.0;
        }
    }

    pub fn save(&self, path: &Path) -> std::io::Result<()> {
        let (width, height) = (self.width, self.height + 14.0);
        let head = format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0}" height="{height:.0}" viewBox="0 0 {width:.0} {height:.0}" font-family="Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif">"#
        );
        let ground = r##"<rect width="100%" height="100%" fill="#ffffff"/>"##;
        std::fs::write(path, format!("{head}\n{ground}\n{}</svg>\n", self.body))
    }

    fn grow(&mut self, bottom: f64) {
        self.height = self.height.max(bottom);
    }
}

impl Panel {
    pub fn x(&self, seconds: f64) -> f64 {
        self.left + self.width * (seconds / self.seconds).clamp(0.0, 1.0)
    }

    pub fn y(&self, value: f64) -> f64 {
        self.top + self.height * (1.0 - (value / self.most).clamp(0.0, 1.0))
    }

    pub fn bottom(&self) -> f64 {
        self.top + self.height
    }

    /// Its frame, values at the left, and what they are.
    pub fn draw(&self, svg: &mut Svg, what: &str) {
        svg.text((self.left, self.top - 9.0), Anchor::Start, 13, INK, what);
        let lines = (self.height / 26.0).min(5.0);
        let step = nice(self.most / lines);
        let mut value = 0.0;
        while value <= self.most * 1.001 {
            let y = self.y(value);
            svg.line([self.left, y, self.left + self.width, y], if value == 0.0 { GREY } else { GRID }, "");
            let label = if step < 1.0 { format!("{value:.1}") } else { format!("{value:.0}") };
            svg.text((self.left - 8.0, y + 4.0), Anchor::End, 12, GREY, &label);
            value += step;
        }
    }

    /// Seconds below it.
    pub fn draw_time(&self, svg: &mut Svg, what: &str) {
        let step = nice(self.seconds / 9.0);
        let mut at = 0.0;
        while at <= self.seconds {
            svg.text((self.x(at), self.bottom() + 18.0), Anchor::Middle, 12, GREY, &format!("{at:.0}"));
            at += step;
        }
        let middle = self.left + self.width / 2.0;
        svg.text((middle, self.bottom() + 38.0), Anchor::Middle, 13, INK, what);
    }

    /// Values over time as points of the figure.
    pub fn points(&self, values: &[(f64, f64)]) -> Vec<(f64, f64)> {
        values.iter().map(|(at, value)| (self.x(*at), self.y(*value))).collect()
    }

    /// The same for values that stay until the next.
    pub fn steps(&self, values: &[(f64, f64)]) -> Vec<(f64, f64)> {
        let mut points: Vec<(f64, f64)> = Vec::new();
        for (x, y) in self.points(values) {
            if let Some((_, before)) = points.last().copied() {
                points.push((x, before));
            }
            points.push((x, y));
        }
        points
    }
}

/// The next of 1, 2 and 5 times a power of ten that is not below.
fn nice(step: f64) -> f64 {
    let power = 10f64.powf(step.max(1e-9).log10().floor());
    let times = [1.0, 2.0, 5.0, 10.0].into_iter().find(|times| times * power >= step * 0.999);
    times.unwrap_or(10.0) * power
}

fn spelled(points: &[(f64, f64)]) -> String {
    points.iter().map(|(x, y)| format!("{x:.1},{y:.1} ")).collect()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
