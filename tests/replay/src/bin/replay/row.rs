//! One line of a table: a policy in a scenario at a load, over all traces and seeds.

use replay::experiment::{geometric_mean, Arena, Cell, Scenario};
use replay::game::Contender;
use replay::policy::account::Regret;
use serde::Serialize;
use std::collections::BTreeMap;

/// What surrounds the policy, for the record.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Surroundings {
    /// Hosts.
    pub hosts: usize,
    /// Gateways.
    pub gateways: usize,
    /// Workers of each.
    pub workers: usize,
    /// Milliseconds between two exchanges among gateways.
    pub peers_ms: Option<u64>,
}

/// A line.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The policy, or the configuration.
    pub policy: String,
    /// What surrounds it.
    #[serde(flatten)]
    pub surroundings: Surroundings,
    /// Share of the capacity.
    pub load: f64,
    /// Mean TTFT over the oracle's: the geometric mean over traces and seeds.
    pub mean_ratio: f64,
    /// The same, of the best seed.
    pub mean_ratio_low: f64,
    /// The same, of the worst seed.
    pub mean_ratio_high: f64,
    /// 99th percentile of the TTFT over the oracle's.
    pub p99_ratio: f64,
    /// Share of prompt tokens that were cached, on average over traces.
    pub hit_rate: f64,
    /// The oracle's.
    pub oracle_hit_rate: f64,
    /// Share of requests with a first token within two seconds.
    pub goodput: f64,
    /// Uncached prompt tokens of the busiest host over the mean.
    pub imbalance: f64,
    /// What affinity earned and cost.
    pub regret: Option<Regret>,
    /// Mean ratios by trace.
    pub by_trace: BTreeMap<String, f64>,
}

/// The lines of a comparison: of each contender, by load.
pub fn rows(
    arena: &Arena,
    scenario: &Scenario,
    contenders: &[(Contender, Surroundings)],
    cells: &[Cell],
) -> Vec<Row> {
    let mut rows = Vec::new();
    for (number, (contender, surroundings)) in contenders.iter().enumerate() {
        for (load, share) in scenario.loads.iter().enumerate() {
            let of = |cell: &&Cell| cell.contender == number && cell.load == load;
            let cells: Vec<Cell> = cells.iter().filter(of).copied().collect();
            rows.push(row(arena, &contender.name, *surroundings, *share, &cells));
        }
    }
    rows
}

fn row(arena: &Arena, policy: &str, surroundings: Surroundings, load: f64, cells: &[Cell]) -> Row {
    let mean = |of: fn(&Cell) -> f64| cells.iter().map(of).sum::<f64>() / cells.len().max(1) as f64;
    let ratio = |of: &dyn Fn(&Cell) -> bool| {
        geometric_mean(cells.iter().filter(|cell| of(cell)).map(Cell::mean_ratio))
    };
    let seeds = cells.iter().map(|cell| cell.seed).max().map_or(0, |seed| seed + 1);
    let by_seed: Vec<f64> = (0..seeds).map(|seed| ratio(&|cell| cell.seed == seed)).collect();
    let regrets: Vec<Regret> = cells.iter().filter_map(|cell| cell.regret).collect();
    let traces = arena.subjects.iter().enumerate();
    Row {
        policy: policy.to_owned(),
        surroundings,
        load,
        mean_ratio: ratio(&|_| true),
        mean_ratio_low: by_seed.iter().copied().fold(f64::MAX, f64::min),
        mean_ratio_high: by_seed.iter().copied().fold(0.0, f64::max),
        p99_ratio: geometric_mean(cells.iter().map(Cell::p99_ratio)),
        hit_rate: mean(|cell| cell.figures.hit_rate),
        oracle_hit_rate: mean(|cell| cell.oracle.hit_rate),
        goodput: mean(|cell| cell.figures.goodput),
        imbalance: mean(|cell| cell.figures.imbalance),
        regret: (!regrets.is_empty()).then(|| Regret::mean(&regrets)),
        by_trace: traces
            .map(|(n, subject)| (subject.trace.name.clone(), ratio(&|cell| cell.trace == n)))
            .collect(),
    }
}

/// Prints lines as a table, one row a policy. `first` names what differs from row to row.
pub fn print(title: &str, first: &str, rows: &[Row]) {
    println!("\n{title}\n");
    let mut loads: Vec<f64> = rows.iter().map(|row| row.load).collect();
    loads.sort_by(f64::total_cmp);
    loads.dedup();
    // Figures other than the mean are shown where they tell the most.
    let shown = if loads.contains(&0.9) { 0.9 } else { loads.last().copied().unwrap_or_default() };
    let mut table = vec![vec![first.to_owned()]];
    table[0].extend(loads.iter().map(|load| format!("{load}")));
    table[0].extend(["p99", "hit rate", "goodput", "imbalance"].map(|name| format!("{name} at {shown}")));
    for name in names(rows) {
        let of = |load: f64| rows.iter().find(|row| row.policy == name && row.load == load);
        let mut line = vec![name.to_owned()];
        for load in &loads {
            line.push(of(*load).map_or(String::new(), |row| {
                let spread = (row.mean_ratio_high - row.mean_ratio_low) / 2.0;
                format!("{} ±{}", short(row.mean_ratio), short(spread))
            }));
        }
        if let Some(row) = of(shown) {
            line.push(short(row.p99_ratio));
            line.extend([row.hit_rate, row.goodput, row.imbalance].map(|figure| format!("{figure:.2}")));
        }
        table.push(line);
    }
    print_table(&table);
}

/// Prints the mean ratios of each trace at one load.
pub fn print_by_trace(rows: &[Row], load: f64) {
    println!("\nThe same by trace, at {load}:\n");
    let rows: Vec<&Row> = rows.iter().filter(|row| row.load == load).collect();
    let traces: Vec<&String> = rows.first().map(|row| row.by_trace.keys().collect()).unwrap_or_default();
    let head = std::iter::once("policy".to_owned()).chain(traces.iter().map(|name| (*name).clone()));
    let mut table = vec![head.collect::<Vec<_>>()];
    for row in rows {
        let ratio = |name: &&String| row.by_trace.get(*name).map_or(String::new(), |ratio| short(*ratio));
        table.push(std::iter::once(row.policy.clone()).chain(traces.iter().map(ratio)).collect());
    }
    print_table(&table);
}

/// Prints what affinity earned and cost.
pub fn print_regret(rows: &[Row]) {
    println!("\nWhat affinity earned and cost, as the router saw it:\n");
    let head = ["", "load", "spilled", "tokens forgone", "avoided ms", "predicted", "cached", "missed"];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    for row in rows {
        let Some(regret) = row.regret else { continue };
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        table.push(vec![
            row.policy.clone(),
            row.load.to_string(),
            percent(regret.spilled),
            percent(regret.forgone),
            format!("{:.0}", regret.avoided_ms),
            percent(regret.predicted),
            percent(regret.cached),
            percent(regret.missed),
        ]);
    }
    print_table(&table);
}

/// Prints a table in Markdown.
pub fn print_table(table: &[Vec<String>]) {
    let columns = table.iter().map(Vec::len).max().unwrap_or(0);
    let cell = |line: &[String], n: usize| line.get(n).cloned().unwrap_or_default();
    let width = |n: usize| table.iter().map(|line| cell(line, n).chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for (number, line) in table.iter().enumerate() {
        let cells: Vec<String> =
            widths.iter().enumerate().map(|(n, &w)| format!("{:w$}", cell(line, n))).collect();
        println!("| {} |", cells.join(" | "));
        if number == 0 {
            let rules: Vec<String> = widths.iter().map(|&w| "-".repeat(w)).collect();
            println!("| {} |", rules.join(" | "));
        }
    }
}

/// Two decimals, or fewer where there are digits enough.
pub fn short(figure: f64) -> String {
    match figure {
        figure if figure < 9.995 => format!("{figure:.2}"),
        figure if figure < 99.95 => format!("{figure:.1}"),
        figure => format!("{figure:.0}"),
    }
}

/// Policies in the order in which they first appear.
pub fn names(rows: &[Row]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for row in rows {
        if !names.contains(&row.policy.as_str()) {
            names.push(&row.policy);
        }
    }
    names
}
