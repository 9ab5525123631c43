//! The plots: ratios over load, one line a policy.

use crate::row::{names, Row};
use anyhow::{anyhow, Result};
use plotters::prelude::*;
use std::path::Path;

/// Width and height.
const SIZE: (u32, u32) = (900, 560);

/// Line colours that can be told apart.
const COLOURS: [RGBColor; 12] = [
    RGBColor(214, 39, 40),
    RGBColor(31, 119, 180),
    RGBColor(255, 127, 14),
    RGBColor(44, 160, 44),
    RGBColor(148, 103, 189),
    RGBColor(140, 86, 75),
    RGBColor(227, 119, 194),
    RGBColor(127, 127, 127),
    RGBColor(188, 189, 34),
    RGBColor(23, 190, 207),
    RGBColor(0, 0, 0),
    RGBColor(120, 180, 120),
];

/// Mean ratios over load, logarithmic.
pub fn by_load(path: &Path, title: &str, rows: &[Row]) -> Result<()> {
    draw(path, title, rows).map_err(|error| anyhow!("plotting {}: {error}", path.display()))
}

fn draw(path: &Path, title: &str, rows: &[Row]) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let loads = rows.iter().map(|row| row.load);
    let (least, most) = loads.fold((f64::MAX, f64::MIN), |(low, high), load| (low.min(load), high.max(load)));
    let highest = rows.iter().map(|row| row.mean_ratio).fold(1.5, f64::max) * 1.1;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(52)
        .build_cartesian_2d(least - 0.02..most + 0.02, (0.95..highest).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("load, as a share of the fleet's capacity")
        .y_desc("mean TTFT over the oracle's")
        .draw()?;
    for (n, name) in names(rows).into_iter().enumerate() {
        let colour = COLOURS[n % COLOURS.len()];
        let style = colour.stroke_width(if n == 0 { 3 } else { 1 });
        let points = || rows.iter().filter(|row| row.policy == name).map(|row| (row.load, row.mean_ratio));
        chart
            .draw_series(LineSeries::new(points(), style))?
            .label(name)
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], style));
        chart.draw_series(points().map(|point| Circle::new(point, 3, colour.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    root.present()?;
    Ok(())
}
