//! The table, and the sentence below it.

use anyhow::Result;
use gateway::workload::summary::Summary;
use std::fmt::Display;

/// One way through Envoy.
pub struct Column {
    pub name: &'static str,
    pub summary: Summary,
}

/// Prints both columns; returns whether all is well: nothing failed, nothing is left in flight, and kvroute is
/// better. `added` is in milliseconds.
pub fn print(columns: &[Column; 2], added: [f64; 2], in_flight: &Result<()>) -> bool {
    let [control, kvroute] = columns;
    let quantile =
        |share| move |column: &Column| format!("{:.0} ms", column.summary.ttft.at(share).as_secs_f64() * 1e3);
    println!();
    row("", columns, |column| column.name.to_owned());
    row("requests", columns, |column| column.summary.requests.to_string());
    row("failed requests", columns, |column| column.summary.failures.len().to_string());
    row("prompt tokens found in cache", columns, |column| percent(column.summary.cached_ratio));
    row("time to first token, p50", columns, quantile(0.5));
    row("                     p90", columns, quantile(0.9));
    row("                     p99", columns, quantile(0.99));
    row("requests on each host", columns, |column| {
        let counts: Vec<String> = column.summary.per_engine.values().map(usize::to_string).collect();
        counts.join(" ")
    });
    line("latency added, p50", added.map(|added| format!("{added:.2} ms")));
    let left = if in_flight.is_ok() { "0" } else { "not 0" };
    line("in flight at the end", ["-", left]);
    println!();

    for column in columns {
        for failure in column.summary.failures.iter().take(3) {
            println!("{}: a request failed: {failure}", column.name);
        }
    }
    if let Err(held) = in_flight {
        println!("{held:#}");
    }
    let (sooner, gain) =
        (ttft_factor(control, kvroute, 0.5), kvroute.summary.cached_ratio / control.summary.cached_ratio);
    println!(
        "On the same {} requests kvroute had {} of the prompt tokens in cache where round robin had {} ({gain:.1} times), \
         and its first token came {sooner:.1} times sooner at the median, {:.1} times at p99.",
        kvroute.summary.requests,
        percent(kvroute.summary.cached_ratio),
        percent(control.summary.cached_ratio),
        ttft_factor(control, kvroute, 0.99),
    );
    let failed: usize = columns.iter().map(|column| column.summary.failures.len()).sum();
    failed == 0 && in_flight.is_ok() && gain > 1.0 && sooner > 1.0
}

fn row(title: &str, columns: &[Column; 2], cell: impl Fn(&Column) -> String) {
    line(title, [cell(&columns[0]), cell(&columns[1])]);
}

fn line(title: &str, cells: [impl Display; 2]) {
    println!("{title:<30} {:>19} {:>19}", cells[0], cells[1]);
}

fn percent(ratio: f64) -> String {
    format!("{:.1} %", ratio * 100.0)
}

fn ttft_factor(control: &Column, kvroute: &Column, share: f64) -> f64 {
    control.summary.ttft.at(share).as_secs_f64() / kvroute.summary.ttft.at(share).as_secs_f64()
}
