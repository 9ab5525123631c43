//! The figure of a day: the load, the replicas, and the time to first token, over the same time.

use crate::svg::{Anchor, Panel, Svg, GREY};
use gateway::life::traffic::Curve;
use std::path::Path;

const WIDTH: f64 = 1_000.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 28.0;

/// What one way of scaling did.
pub struct Series {
    pub name: &'static str,
    pub colour: &'static str,
    /// Engines over time, in seconds.
    pub replicas: Vec<(f64, f64)>,
    /// How busy the GPUs of those at work looked, on average, in percent.
    pub busy: Vec<(f64, f64)>,
    /// 95th percentiles over time, in seconds.
    pub ttft: Vec<(f64, f64)>,
}

/// Draws it; `fixed` is the size of the fleet that it is compared with.
pub fn draw(
    path: &Path,
    title: &str,
    subtitle: &str,
    load: &Curve,
    fixed: usize,
    all: &[Series],
) -> std::io::Result<()> {
    let mut svg = Svg::new(WIDTH);
    svg.title((24.0, 34.0), title);
    svg.text((24.0, 55.0), Anchor::Start, 13, GREY, subtitle);
    let mut entries: Vec<_> = all.iter().map(|series| (series.name, series.colour)).collect();
    entries.push(("a fixed fleet", "#9ca3af"));
    svg.legend((24.0, 82.0), &entries);

    let seconds = load.seconds();
    let panel = |top: f64, height: f64, most: f64| Panel {
        left: LEFT,
        top,
        width: WIDTH - LEFT - RIGHT,
        height,
        seconds,
        most,
    };
    let asked = panel(126.0, 90.0, (load.peak() * 1.1).ceil());
    asked.draw(&mut svg, "requests a second");
    let rates: Vec<_> = (0..=seconds as usize).map(|at| (at as f64, load.rate(at as f64))).collect();
    svg.area(&asked.points(&rates), asked.bottom(), "#3b6fd4");
    svg.path(&asked.points(&rates), "#3b6fd4", "");

    let replicas = panel(asked.bottom() + 48.0, 130.0, engines(all).max(fixed) as f64 + 1.0);
    replicas.draw(&mut svg, "engines, those that load or drain among them");
    svg.path(&replicas.points(&[(0.0, fixed as f64), (seconds, fixed as f64)]), "#9ca3af", "6 4");
    for series in all {
        svg.path(&replicas.steps(&series.replicas), series.colour, "");
    }

    let busy = panel(replicas.bottom() + 48.0, 80.0, 100.0);
    busy.draw(&mut svg, "GPU utilisation, mean of the engines at work, percent");
    for series in all {
        svg.path(&busy.points(&series.busy), series.colour, "");
    }

    let slowest = all.iter().flat_map(|series| &series.ttft).map(|point| point.1).fold(1.0, f64::max);
    let ttft = panel(busy.bottom() + 48.0, 130.0, (slowest * 1.1).ceil());
    ttft.draw(&mut svg, "time to first token, 95th percentile, seconds");
    for series in all {
        svg.path(&ttft.points(&series.ttft), series.colour, "");
    }
    ttft.draw_time(&mut svg, "seconds");
    svg.save(path)
}

/// The most engines that any of them had.
fn engines(all: &[Series]) -> usize {
    all.iter().flat_map(|series| &series.replicas).map(|(_, engines)| *engines as usize).max().unwrap_or(0)
}
